"""Operations on a complete store: collection of garbage, verification, usage. It may be mounted or not."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import BadInput, PenstockError
from penstock.parts.dedup.mounts import DedupMount, find
from penstock.parts.dedup.options import DEFAULT_FAMILY, native

#: called with the operation, completed steps and all steps
Progress = Callable[[str, int, int], None]
_MOST_S = 7 * 86400.0
_POLL_S = 0.3


@dataclass(frozen=True)
class Collected:
    """Result of a collection: maps that were read, chunks before, and what was removed."""

    maps: int
    chunks: int
    removed_chunks: int
    removed_bytes: int
    removed_drafts: int


@dataclass(frozen=True)
class Verified:
    """Result of a verification: what was read, and damaged files with the reason (1000 at most)."""

    maps: int
    chunks: int
    bytes: int
    damaged_files: int
    damaged: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class FamilyUsage:
    """Files of a family; `unique_bytes` counts each of its chunks once."""

    files: int
    logical_bytes: int
    unique_bytes: int


@dataclass(frozen=True)
class Usage:
    """Bytes of the files, of all chunks and of the maps; by family."""

    files: int
    logical_bytes: int
    stored_bytes: int
    map_bytes: int
    chunks: int
    damaged_files: int
    families: Mapping[str, FamilyUsage]

    @property
    def ratio(self) -> float | None:
        """Bytes of the files per byte of the store; None of an empty store."""
        stored = self.stored_bytes + self.map_bytes
        return self.logical_bytes / stored if self.logical_bytes else None


def collect(path: Path, progress: Progress | None = None) -> Collected:
    """Remove chunks that no file needs from the store at `path`, or mounted there.

    Raises BadInput if there is no store, or if another client uses it; PenstockError if a map is damaged.
    """
    return Collected(**_run("collect", path, progress))


def verify(path: Path, progress: Progress | None = None) -> Verified:
    """Read all files of the store at `path`, or mounted there. Raises BadInput if there is none."""
    values = _run("verify", path, progress)
    values["damaged"] = tuple((file, reason) for file, reason in values["damaged"])
    return Verified(**values)


def usage(path: Path, family: str | None = None) -> Usage:
    """Bytes of the store at `path`, or mounted there; `family` is the rule of families if it is not mounted.

    Raises BadInput if there is no store.
    """
    values = _run("usage", path, family=family)
    values["families"] = {name: FamilyUsage(**of) for name, of in values["families"].items()}
    return Usage(**values)


def _run(
    operation: str, path: Path, progress: Progress | None = None, family: str | None = None
) -> dict[str, Any]:
    """Answer of the server if the store is mounted, else of the library."""
    if not path.is_dir():
        raise BadInput(f"store: found no directory {path}; expected one")
    served = _served(path)
    if served is None:
        try:
            answer = native.dedup_store(str(path), operation, family or DEFAULT_FAMILY)
        except ValueError as error:
            raise BadInput(str(error)) from None
        except RuntimeError as error:
            raise PenstockError(str(error)) from None
        return dict(json.loads(answer))
    with _watched(served, operation, progress):
        try:
            return served.daemon.call(operation, timeout_s=_MOST_S)
        finally:
            served.daemon.hang_up()


def _served(path: Path) -> DedupMount | None:
    with contextlib.suppress(BadInput):
        return find(path)
    return None


@contextlib.contextmanager
def _watched(served: DedupMount, operation: str, progress: Progress | None) -> Iterator[None]:
    """Context in which the server's progress is reported, over a second connection."""
    if progress is None:
        yield
        return
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(served, operation, progress, ended))
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _watch(served: DedupMount, operation: str, progress: Progress, ended: threading.Event) -> None:
    daemon = find(served.mount).daemon
    while not ended.wait(_POLL_S):
        with contextlib.suppress(PenstockError):
            step = daemon.call("progress", timeout_s=5.0)
            progress(operation, step["done"], step["all"])
    daemon.hang_up()
