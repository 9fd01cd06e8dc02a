"""Tags of one file: brought to the engine, where wanted with the data written again, or as found there."""

from __future__ import annotations

import contextlib
import hashlib
import os
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.emulate.cluster.cluster import RunningNode
from penstock.errors import BadInput, PenstockError
from penstock.parts.stores.engines.engine import Site, StoreEngine
from penstock.parts.stores.files import Files
from penstock.parts.stores.hints import attribute, checked, hint
from penstock.spec.store import PREFIX, Support, refused

#: what a file of a watched store has where its tags were taken up: a digest of them, and for which node
#: (`*`: for the one that `penstock store tag` was told)
TAKEN = "user.penstock_taken"
ANY_NODE = "*"


@dataclass(frozen=True)
class Tagged:
    """What became of one tag: whether the engine took it up, and why."""

    path: str
    key: str
    value: str
    support: Support

    def to_dict(self) -> dict[str, Any]:
        """In JSON values."""
        return {"path": self.path, "key": self.key, "value": self.value, **self.support.to_dict()}


@dataclass(frozen=True)
class Tagging:
    """Where a tag is set: the node is the one that will write the file, `whole` the file as it sees it."""

    engine: StoreEngine
    site: Site
    node: RunningNode
    files: Files

    def told(self, whole: str, path: str, tags: Mapping[str, str], *, empty: bool) -> list[Tagged]:
        """Sets tags and has the engine take them up."""
        self.files.set_attributes(whole, {attribute(k): v for k, v in tags.items()})
        results = [self._one(whole, path, k, v, empty) for k, v in tags.items()]
        if self.site.spec.watched:
            self._mark(whole, ANY_NODE)
        return results

    def found(self, whole: str, path: str, *, empty: bool) -> list[Tagged]:
        """Has the engine take up the tags that a file has: whoever set them told nobody.

        A value that makes no sense is refused, as nobody waits for an error.
        """
        tags = own(self.files.attributes(whole))
        results = []
        for key, text in tags.items():
            try:
                results.append(self._one(whole, path, key, text, empty))
            except BadInput as error:
                results.append(Tagged(path, key, text, refused(str(error))))
        self._mark(whole, self.node.name)
        return results

    def again(self, whole: str, path: str, tags: Mapping[str, str]) -> list[Tagged]:
        """Writes a file with data again under the tags; what is there afterwards is compared by SHA-256."""
        draft = posixpath.join(posixpath.dirname(whole), f".penstock-{os.urandom(6).hex()}")
        files = self.files

        def content(of: str) -> str:
            return files.facts([of])[0].sha256

        before, kept = content(whole), files.attributes(whole)
        files.make(draft)
        try:
            files.set_attributes(draft, kept)
            results = self.told(draft, path, tags, empty=True)
            files.rewrite(whole, draft)
            if content(draft) != before or content(whole) != before:
                raise PenstockError(
                    f"{path}: what was written again is not what was there; left as it was"
                )
            files.replace(draft, whole)
        except BaseException:
            with contextlib.suppress(PenstockError):
                files.remove(draft)
            raise
        return results

    def _one(self, whole: str, path: str, key: str, text: str, empty: bool) -> Tagged:
        value, known = checked(key, text), hint(key)
        if known is None:
            support = Support("native", "kept and given back; nobody gives it a meaning")
        elif (mapped := known.engines.get(self.site.spec.engine)) is not None:
            support = mapped(self.site, self.node, whole, value, empty)
        elif key == "DP" and f"DP {value.kind}" not in self.engine.support():
            support = refused(f"{self.site.spec.engine} knows no placement {value.kind}")
        else:
            support = self.engine.tag(self.site, self.node, whole, key, value, empty=empty)
        return Tagged(path, key, text, support)

    def _mark(self, whole: str, node: str) -> None:
        """Says on the file that its tags were taken up."""
        tags = own(self.files.attributes(whole))
        self.files.set_attributes(whole, {TAKEN: f"{digest(tags)} {node}"})


def own(attributes: Mapping[str, str]) -> dict[str, str]:
    """The tags among a file's attributes, by key."""
    return {k.removeprefix(PREFIX): v for k, v in sorted(attributes.items()) if PREFIX in k}


def digest(tags: Mapping[str, str]) -> str:
    """A short text that is another for other tags."""
    said = "\0".join(f"{k}={v}" for k, v in sorted(tags.items()))
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def untaken(attributes: Mapping[str, str], node: str, *, empty: bool) -> bool:
    """Whether a file that `node` opens has tags that no engine was told of.

    Those of an `empty` file are told again where it was another node that opened it before.
    """
    tags = own(attributes)
    if not tags:
        return False
    said = attributes.get(TAKEN, "").split(" ")
    return said[0] != digest(tags) or (empty and said[-1] not in (node, ANY_NODE))
