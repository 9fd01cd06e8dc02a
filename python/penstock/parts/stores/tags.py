"""Tags of one file: applied by the engine, on request by rewriting the data, or as already set."""

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

#: attribute of a file in a watched store after its tags were applied: a digest of them, and the node (`*`:
#: the `--node` of `penstock store tag`)
TAKEN = "user.penstock_taken"
ANY_NODE = "*"


@dataclass(frozen=True)
class Tagged:
    """Result of one tag: the engine's support of it, with the reason."""

    path: str
    key: str
    value: str
    support: Support

    def to_dict(self) -> dict[str, Any]:
        return {"path": self.path, "key": self.key, "value": self.value, **self.support.to_dict()}


@dataclass(frozen=True)
class Tagging:
    """Context of a tag: the node is the future writer, `full_path` the file as seen from it."""

    engine: StoreEngine
    site: Site
    node: RunningNode
    files: Files

    def apply(
        self, full_path: str, path: str, tags: Mapping[str, str], *, empty: bool
    ) -> list[Tagged]:
        """Set tags and have the engine apply them."""
        self.files.set_attributes(full_path, {attribute(k): v for k, v in tags.items()})
        results = [self._one(full_path, path, k, v, empty) for k, v in tags.items()]
        if self.site.spec.watched:
            self._mark(full_path, ANY_NODE)
        return results

    def apply_existing(self, full_path: str, path: str, *, empty: bool) -> list[Tagged]:
        """Have the engine apply tags that a program set on a file.

        An invalid value is refused without an error, as no caller waits.
        """
        tags = own(self.files.attributes(full_path))
        results = []
        for key, text in tags.items():
            try:
                results.append(self._one(full_path, path, key, text, empty))
            except BadInput as error:
                results.append(Tagged(path, key, text, refused(str(error))))
        self._mark(full_path, self.node.name)
        return results

    def again(self, full_path: str, path: str, tags: Mapping[str, str]) -> list[Tagged]:
        """Rewrite a file with data under the tags; the result is verified by SHA-256."""
        draft = posixpath.join(posixpath.dirname(full_path), f".penstock-{os.urandom(6).hex()}")
        files = self.files

        def content(of: str) -> str:
            return files.facts([of])[0].sha256

        before, attributes = content(full_path), files.attributes(full_path)
        files.make(draft)
        try:
            files.set_attributes(draft, attributes)
            results = self.apply(draft, path, tags, empty=True)
            files.rewrite(full_path, draft)
            if content(draft) != before or content(full_path) != before:
                raise PenstockError(
                    f"{path}: what was written again is not what was there; left as it was"
                )
            files.replace(draft, full_path)
        except BaseException:
            with contextlib.suppress(PenstockError):
                files.remove(draft)
            raise
        return results

    def _one(self, full_path: str, path: str, key: str, text: str, empty: bool) -> Tagged:
        value, meaning = checked(key, text), hint(key)
        if meaning is None:
            support = Support("native", "stored and returned; it has no effect")
        elif (mapped := meaning.engines.get(self.site.spec.engine)) is not None:
            support = mapped(self.site, self.node, full_path, value, empty)
        elif key == "DP" and f"DP {value.kind}" not in self.engine.support():
            support = refused(f"{self.site.spec.engine} knows no placement {value.kind}")
        else:
            support = self.engine.tag(self.site, self.node, full_path, key, value, empty=empty)
        return Tagged(path, key, text, support)

    def _mark(self, full_path: str, node: str) -> None:
        """Mark the file's tags as applied."""
        tags = own(self.files.attributes(full_path))
        self.files.set_attributes(full_path, {TAKEN: f"{digest(tags)} {node}"})


def own(attributes: Mapping[str, str]) -> dict[str, str]:
    """Tags among a file's attributes, by key."""
    return {k.removeprefix(PREFIX): v for k, v in sorted(attributes.items()) if PREFIX in k}


def digest(tags: Mapping[str, str]) -> str:
    """A short digest that differs for different tags."""
    text = "\0".join(f"{k}={v}" for k, v in sorted(tags.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def untaken(attributes: Mapping[str, str], node: str, *, empty: bool) -> bool:
    """True if a file that `node` opens has tags that no engine has applied.

    Those of an `empty` file are applied again if another node opened it before.
    """
    tags = own(attributes)
    if not tags:
        return False
    mark = attributes.get(TAKEN, "").split(" ")
    return mark[0] != digest(tags) or (empty and mark[-1] not in (node, ANY_NODE))
