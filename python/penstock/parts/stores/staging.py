"""Staging between a store and persistent storage: verified copies, and files without one."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from penstock.errors import BadInput, PenstockError
from penstock.parts.stores.files import Files
from penstock.spec.store import StoreSpec
from penstock.text import matches_pattern

#: paths per command line
_TOGETHER = 200


class StagedStore(Protocol):
    """Parts of a store used by staging."""

    spec: StoreSpec
    state: dict[str, Any]

    def files(self, node: str | None = None) -> Files:
        """Its files, from a client node."""

    def inside(self, path: str) -> str:
        """The path as nodes see it."""

    def remember(self) -> None:
        """Save its state."""


@dataclass(frozen=True)
class Staged:
    """A file that is identical on both sides: path in the store, on the backend, bytes, SHA-256."""

    path: str
    backend: str
    size_bytes: int
    sha256: str
    #: modification time of the file in the store at the comparison
    changed: str

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


def stage_in(
    store: StagedStore, source: Path, target: str, *, node: str | None = None
) -> list[Staged]:
    """Copy a file or directory of this host into the store, and compare every file by its checksum.

    Into the directory `target` if it is one, else under that name. PenstockError for a file that differs.
    """
    if not source.exists():
        raise BadInput(f"{source}: found nothing; expected a file or a directory")
    files_there, full_path = store.files(node), store.inside(target)
    is_directory = (files_there.kind(full_path) or ("", 0))[0] == "directory"
    place = f"{full_path}/{source.resolve().name}" if is_directory else full_path
    files_there.bring(source, full_path)
    files = [source] if source.is_file() else sorted(p for p in source.rglob("*") if p.is_file())
    pairs = {}
    for file in files:
        below = "" if file == source else f"/{file.relative_to(source).as_posix()}"
        pairs[f"{place}{below}"] = file
    return compared(store, pairs, node)


def stage_out(
    store: StagedStore, paths: Sequence[str], target: Path, *, node: str | None = None
) -> list[Staged]:
    """Copy files of the store to the directory `target` of this host, and compare them by their checksum.

    `paths` are patterns of paths within the store (`results/*`; a directory includes all files below it); the
    default is the store's protected files. Relative paths are preserved. BadInput if nothing matches.
    """
    patterns = list(paths) or list(store.spec.kept)
    if not patterns:
        raise BadInput(
            "found no pattern; expected paths in the store, because it has no files to keep"
        )
    chosen = [p for p in listing(store, node) if matches(p, patterns)]
    if not chosen:
        raise BadInput(
            f"{', '.join(patterns)}: found no file in the store; expected a path or a pattern"
        )
    target.mkdir(parents=True, exist_ok=True)
    pairs = {}
    files = store.files(node)
    for path in chosen:
        final = target / path
        if not final.resolve().is_relative_to(target.resolve()):
            raise BadInput(f"{path}: found a link out of {target}; expected a directory")
        final.parent.mkdir(parents=True, exist_ok=True)
        if final.exists() and not final.is_file():
            raise BadInput(f"{final}: found no file; expected one, or nothing there")
        final.unlink(missing_ok=True)
        files.fetch(f"{store.spec.mount}/{path}", final)
        with open(final, "rb+") as written:
            os.fsync(written.fileno())
        pairs[f"{store.spec.mount}/{path}"] = final
    staged = compared(store, pairs, node)
    store.state.setdefault("staged", {}).update({s.path: s.to_dict() for s in staged})
    store.remember()
    return staged


def unverified(store: StagedStore, discard: Sequence[str] = ()) -> list[str]:
    """Protected files of the store without a current copy on the backend, except those that match
    `discard`."""
    if "*" in discard:
        return []
    staged = store.state.get("staged", {})
    lost = []
    for path, (size, changed) in listing(store).items():
        if not matches(path, store.spec.kept) or matches(path, discard):
            continue
        one = staged.get(path)
        if (
            one is None
            or (one["size_bytes"], one["changed"]) != (size, changed)
            or _sha256(Path(one["backend"])) != one["sha256"]
        ):
            lost.append(path)
    return lost


def matches(path: str, patterns: Sequence[str]) -> bool:
    """True if a path within the store, or a directory above it, matches one of the patterns."""
    above = [path, *(str(p) for p in PurePosixPath(path).parents if str(p) != ".")]
    stripped = [p.strip("/") for p in patterns]
    return any(matches_pattern(one, p) for one in above for p in stripped)


def listing(store: StagedStore, node: str | None = None) -> dict[str, tuple[int, str]]:
    """Files of the store by path: bytes and modification time (text)."""
    return store.files(node).listing()


def compared(store: StagedStore, pairs: dict[str, Path], node: str | None) -> list[Staged]:
    """Compare each pair by checksum. PenstockError names those that differ."""
    files = store.files(node)
    names, staged, differ = list(pairs), [], []
    for first in range(0, len(names), _TOGETHER):
        part = names[first : first + _TOGETHER]
        for name, fact in zip(part, files.facts(part), strict=True):
            below = name.removeprefix(f"{store.spec.mount}/")
            if fact.sha256 != _sha256(pairs[name]):
                differ.append(below)
            at = os.fspath(pairs[name].absolute())
            staged.append(Staged(below, at, fact.size_bytes, fact.sha256, fact.changed))
    if differ:
        raise PenstockError(f"{', '.join(differ[:3])}: not the same on both sides")
    return staged


def _sha256(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""
