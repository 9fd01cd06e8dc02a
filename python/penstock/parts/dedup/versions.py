"""Versions of a file with an exact similarity to the previous version.

A version is a sequence of segments of *extents*; an extent has random bytes that its number determines. A new
version replaces, inserts or deletes extents of the previous one, so that its share of old bytes is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from penstock.errors import BadInput, PenstockError

CHANGES = ("aligned", "unaligned", "insert", "delete")
#: bytes that are written at once, at least
_BLOCK_BYTES = 4 << 20
_MOST_EXTENTS = 1 << 24


@dataclass(frozen=True)
class Segment:
    """Bytes `start` to `start + length` of an extent."""

    extent: int
    start: int
    length: int


@dataclass(frozen=True)
class Preset:
    """Similarity of versions (a range: a new value for each version) and the kind of change."""

    least: float
    most: float
    change: str


#: similarities of Costa 2014: checkpoints of applications, an archive, images of virtual machines
PRESETS = {
    "checkpoint": Preset(0.0, 0.82, "aligned"),
    "archive": Preset(0.6, 0.6, "unaligned"),
    "images": Preset(0.95, 0.95, "aligned"),
}


@dataclass(frozen=True)
class VersionPlan:
    """Plan of a series of versions: sizes in bytes, similarity as a range of shares (0…1)."""

    size_bytes: int
    versions: int
    similarity: tuple[float, float]
    change: str = "aligned"
    chunk_bytes: int = 64 << 10
    seed: int = 0

    def __post_init__(self) -> None:
        if self.change not in CHANGES:
            raise BadInput(f"change: found {self.change!r}; expected {', '.join(CHANGES)}")
        least, most = self.similarity
        if not 0.0 <= least <= most <= 1.0:
            raise BadInput(f"similarity: found {least:g} to {most:g}; expected shares from 0 to 1")
        if self.change == "insert" and least == 0:
            raise BadInput("similarity: found 0 with inserted bytes; expected more")
        if not 64 <= self.chunk_bytes <= self.size_bytes:
            raise BadInput(
                f"chunk: found {self.chunk_bytes} bytes; expected 64 to the size, {self.size_bytes}"
            )
        if self.size_bytes // self.chunk_bytes > _MOST_EXTENTS:
            raise BadInput(
                f"chunk: found more than {_MOST_EXTENTS} in a file; expected larger ones"
            )
        growth = -math.log(least) * (self.versions - 1) if self.change == "insert" else 0.0
        if growth > math.log(_MOST_EXTENTS * self.chunk_bytes / self.size_bytes):
            raise BadInput(
                f"similarity: found {self.versions} versions with inserted bytes and {least:g}, "
                f"the last of more than {_MOST_EXTENTS} chunks; expected fewer, or more similar ones"
            )


@dataclass(frozen=True)
class Edit:
    """Removal of `removed` bytes at `offset` of the previous version, and `new` in their place."""

    offset: int
    removed: int
    new: Segment | None = None


class Series:
    """The versions of a plan, one after the other."""

    def __init__(self, plan: VersionPlan) -> None:
        self.plan = plan
        self._random = np.random.Generator(np.random.SFC64(plan.seed))
        self._extents = 0
        self.segments = [
            self._new(length) for length in _lengths(plan.size_bytes, plan.chunk_bytes)
        ]

    def advance(self) -> float:
        """Change to the next version; returns the share of its bytes that the previous one has.

        Of deleted bytes: the share of the previous version that remains.
        """
        similarity = float(self._random.uniform(*self.plan.similarity))
        before = self.size_bytes
        edits = self._edits(before, similarity)
        self.segments = splice(self.segments, edits)
        if self.plan.change == "delete":
            return self.size_bytes / before if before else 1.0
        new_bytes = sum(edit.new.length for edit in edits if edit.new is not None)
        return 1.0 - new_bytes / self.size_bytes

    @property
    def size_bytes(self) -> int:
        """Size of the version."""
        return sum(segment.length for segment in self.segments)

    def write(self, path: Path) -> None:
        """Write the version as a new file, or over an existing one. Raises PenstockError if that fails."""
        try:
            with open(path, "wb", buffering=_BLOCK_BYTES) as out:
                for segment in self.segments:
                    out.write(self._content(segment))
        except OSError as error:
            raise PenstockError(f"{path}: {error.strerror}") from error

    def _edits(self, size_bytes: int, similarity: float) -> list[Edit]:
        chunk = self.plan.chunk_bytes
        if self.plan.change == "insert":
            count = round(size_bytes * (1.0 / similarity - 1.0) / chunk)
            offsets = np.sort(self._random.integers(0, size_bytes, count, endpoint=True))
            return [Edit(int(offset), 0, self._new(chunk)) for offset in offsets]
        # cells of a chunk each; unaligned ones overlap two chunks
        shift = 0 if self.plan.change == "aligned" else chunk // 2
        cells = max(0, size_bytes - shift) // chunk
        count = min(cells, round((1.0 - similarity) * size_bytes / chunk))
        chosen = np.sort(self._random.permutation(cells)[:count])
        deletes = self.plan.change == "delete"
        return [
            Edit(int(cell) * chunk + shift, chunk, None if deletes else self._new(chunk))
            for cell in chosen
        ]

    def _new(self, length: int) -> Segment:
        self._extents += 1
        return Segment(self._extents, 0, length)

    def _content(self, segment: Segment) -> bytes:
        generator = np.random.Generator(np.random.SFC64([self.plan.seed, segment.extent]))
        return generator.bytes(segment.start + segment.length)[segment.start :]


def _lengths(size_bytes: int, chunk_bytes: int) -> list[int]:
    lengths = [chunk_bytes] * (size_bytes // chunk_bytes)
    rest = size_bytes % chunk_bytes
    return [*lengths, rest] if rest else lengths


def splice(segments: list[Segment], edits: list[Edit]) -> list[Segment]:
    """Segments after edits, which are sorted by offset and do not overlap."""
    result: list[Segment] = []
    source = _Source(segments)
    for edit in edits:
        result += source.take(edit.offset - source.offset)
        for _ in source.take(edit.removed):
            pass
        if edit.new is not None:
            result.append(edit.new)
    return [*result, *source.take(None)]


class _Source:
    """Segments that are consumed from the front."""

    def __init__(self, segments: list[Segment]) -> None:
        self.offset = 0
        self._rest = iter(segments)
        self._current: Segment | None = next(self._rest, None)

    def take(self, length: int | None) -> list[Segment]:
        """The next `length` bytes, or all."""
        taken: list[Segment] = []
        while self._current is not None and (length is None or length > 0):
            now = self._current
            part = now.length if length is None else min(length, now.length)
            taken.append(Segment(now.extent, now.start, part))
            rest = Segment(now.extent, now.start + part, now.length - part)
            self._current = rest if rest.length else next(self._rest, None)
            self.offset += part
            length = None if length is None else length - part
        return taken


@dataclass(frozen=True)
class WrittenVersion:
    """A file of a series, and its exact similarity to the one before (None: it is the first)."""

    path: Path
    size_bytes: int
    similarity: float | None


def write_versions(
    plan: VersionPlan,
    directory: Path,
    name: str = "version",
    *,
    overwrite: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> Iterator[WrittenVersion]:
    """Write the versions of a plan to `directory`: NAME.0001, …, or NAME each time, with `overwrite`."""
    if not directory.is_dir():
        raise BadInput(f"directory: found no directory {directory}; expected one")
    if "/" in name or name in ("", ".", ".."):
        raise BadInput(f"name: found {name!r}; expected a file name")
    series, similarity = Series(plan), None
    for number in range(1, plan.versions + 1):
        if number > 1:
            similarity = series.advance()
        path = directory / (name if overwrite else f"{name}.{number:04d}")
        if progress is not None:
            progress("version", number - 1, plan.versions)
        series.write(path)
        yield WrittenVersion(path, series.size_bytes, similarity)
