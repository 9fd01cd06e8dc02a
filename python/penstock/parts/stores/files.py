"""Access to the files of a store from a client node: through its mount, or by its engine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from penstock.emulate.cluster.cluster import RunningNode
from penstock.emulate.cluster.copying import copy
from penstock.emulate.cluster.running_cluster import RunningCluster
from penstock.parts.stores.engines.engine import Site

#: a line of a listing: bytes, modification time, path relative to the directory
_FORMAT = "%s %T@ %P\\0"
#: the same of a link's target, as stat(1) prints it, with the full path of the link
_FORMAT_OF_TARGET = "%s %.9Y0 %n\\0"


@dataclass(frozen=True)
class Facts:
    """Bytes of a file, modification time (text that differs after a change), SHA-256 of its content."""

    size_bytes: int
    changed: str
    sha256: str


class Files(Protocol):
    """The files of a store as one client node accesses them; paths are below `Site.mount`.

    Raises PenstockError for failed operations. Attributes are addressed by their full names.
    """

    def kind(self, path: str) -> tuple[str, int] | None:
        """`file` or `directory`, and its bytes; None if absent. Links are followed."""

    def make(self, path: str) -> None:
        """Create an empty file and its directory, if absent."""

    def write(self, path: str, content: bytes) -> None:
        """Write a file durably."""

    def facts(self, paths: Sequence[str]) -> list[Facts]:
        """Facts of some files, read from this node. Links are followed."""

    def attributes(self, path: str) -> dict[str, str]:
        """Attributes of users, `user.…`."""

    def set_attributes(self, path: str, pairs: Mapping[str, str]) -> None:
        """Set some, new or not."""

    def rewrite(self, path: str, draft: str) -> None:
        """Copy the bytes of a file into an empty one; with owner, mode and time if supported."""

    def replace(self, draft: str, path: str) -> None:
        """Rename a file over another."""

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""

    def bring(self, source: Path, target: str) -> None:
        """Copy a file or directory from this host, as cp(1) does: into `target` if that is a directory."""

    def fetch(self, path: str, target: Path) -> None:
        """Copy a file to a new path of this host."""

    def listing(self, *, links: bool = False) -> dict[str, tuple[int, str]]:
        """All files by path within the store: bytes and modification time (as in `Facts`).

        `links`: also symbolic links to files, with those of their targets.
        """


@runtime_checkable
class Unmounted(Protocol):
    """Additional methods of an engine that cannot be mounted: access to its files.

    `mount` then prepares a node so that its programs access the store in the engine's own way.
    """

    def files(self, site: Site, node: RunningNode) -> Files:
        """Files from that client node."""


class Mounted:
    """Through the mount, by programs of the node."""

    def __init__(self, cluster: RunningCluster, site: Site, node: RunningNode) -> None:
        self._cluster = cluster
        self._site = site
        self._node = node

    def _run(self, *argv: str, what: str, stdin: bytes = b"") -> str:
        return self._site.run(self._node, argv, what=what, stdin=stdin)

    def _shell(self, script: str, *arguments: str, what: str, stdin: bytes = b"") -> str:
        return self._run("/bin/sh", "-c", script, "sh", *arguments, what=what, stdin=stdin)

    def kind(self, path: str) -> tuple[str, int] | None:
        """By stat(2)."""
        entry = self._site.request(self._node, "kind", path)
        return None if entry is None else (str(entry[0]), int(entry[1]))

    def make(self, path: str) -> None:
        """By open(2)."""
        self._site.request(self._node, "make", path)

    def write(self, path: str, content: bytes) -> None:
        """By open(2) and sync(1)."""
        self._shell('cat > "$1" && sync "$1"', path, what=path, stdin=content)

    def facts(self, paths: Sequence[str]) -> list[Facts]:
        """By sha256sum(1) and stat(1)."""
        sums = self._run("sha256sum", "-z", "--", *paths, what="checksums").split("\0")
        stats = self._run("stat", "-L", "--printf", "%s %.9Y\\0", "--", *paths, what="sizes").split(
            "\0"
        )
        facts = []
        for line, fact in zip(sums[: len(paths)], stats, strict=False):
            size, changed = fact.split(" ")
            facts.append(Facts(int(size), f"{changed}0", line[:64]))
        return facts

    def attributes(self, path: str) -> dict[str, str]:
        """By getxattr(2)."""
        return dict(self._site.request(self._node, "attributes", path))

    def set_attributes(self, path: str, pairs: Mapping[str, str]) -> None:
        """By setxattr(2)."""
        self._site.request(self._node, "set_attributes", path, dict(pairs))

    def rewrite(self, path: str, draft: str) -> None:
        """By cat(1), and sync(1)."""
        script = 'cat < "$1" > "$2" && chmod --reference="$1" "$2" && chown --reference="$1" "$2"'
        script += ' && touch --reference="$1" "$2" && sync "$2"'
        self._shell(script, path, draft, what=f"writing {path} again")

    def replace(self, draft: str, path: str) -> None:
        """By mv(1)."""
        self._run("mv", "-f", draft, path, what=path)

    def remove(self, path: str) -> None:
        """By rm(1)."""
        self._run("rm", "-f", path, what=path)

    def bring(self, source: Path, target: str) -> None:
        """By tar(1)."""
        copy(self._cluster, os.fspath(source), f"{self._node.name}:{target}")

    def fetch(self, path: str, target: Path) -> None:
        """By tar(1)."""
        copy(self._cluster, f"{self._node.name}:{path}", os.fspath(target))

    def listing(self, *, links: bool = False) -> dict[str, tuple[int, str]]:
        """By find(1), and stat(1) for links."""
        argv = ["find", self._site.mount, "-xdev", "-type", "f", "-printf", _FORMAT]
        if links:
            argv += ["-o", "-type", "l", "-xtype", "f"]
            argv += ["-exec", "stat", "-L", "--printf", _FORMAT_OF_TARGET, "{}", "+"]
        listing = {}
        for line in self._run(*argv, what="the files of the store").split("\0"):
            if line:
                size, changed, path = line.split(" ", 2)
                listing[path.removeprefix(f"{self._site.mount}/")] = (int(size), changed)
        return listing
