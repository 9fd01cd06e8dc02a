"""Versions of one similarity that several configurations write in turn, and the records of these writes."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20
#: the chunk of Costa 2014, which is also that of a version without deduplication
FIXED = "fixed:1MiB"
SEQCDC = "seqcdc:16KiB,64KiB,256KiB"
OFF, AUTO = "off", "auto"
STATIC = (OFF, FIXED, SEQCDC)


@dataclass(frozen=True)
class Contender:
    """A configuration of a mount; `auto` chooses one of `configurations`, by `settings` (YAML)."""

    name: str
    chunking: str
    configurations: tuple[str, ...] = ()
    settings: str = ""

    @property
    def controlled(self) -> bool:
        """True if the online controller chooses."""
        return self.chunking == AUTO


def static(chunking: str) -> Contender:
    """A contender with one configuration."""
    return Contender(chunking, chunking)


def controlled(name: str, configurations: tuple[str, ...], settings: str = "") -> Contender:
    """A contender with the online controller."""
    return Contender(name, AUTO, configurations, settings)


@dataclass(frozen=True)
class Cell:
    """A series of versions, each `similarity` (0…1) similar to the previous one.

    `extent_bytes`: size of a change. Controllers write all versions; other contenders write the first and the
    last `paired`, which is enough for their means.
    """

    similarity: float
    contenders: tuple[Contender, ...]
    versions: int
    size_bytes: int
    extent_bytes: int
    paired: int
    change: str = "aligned"
    hash: str = "sha256"
    seed: int = 1

    def writes(self, contender: Contender, number: int) -> bool:
        """True if the contender writes version `number` (from 1 on)."""
        return contender.controlled or number <= self.paired or number > self.versions - self.paired


@dataclass(frozen=True)
class Write:
    """One version that a contender wrote.

    `time_s`: from open(2) to the end of close(2), in the program that writes; the other times are those of
    the mount's record. `follows`: the contender wrote the previous version, too.
    """

    contender: str
    number: int
    follows: bool
    time_s: float
    duration_s: float
    hash_s: float
    send_s: float
    bytes: int
    similar_bytes: int
    configuration: str

    @property
    def similarity(self) -> float:
        """Share of the bytes that were not sent."""
        return self.similar_bytes / self.bytes if self.bytes else 0.0


@dataclass(frozen=True)
class CellRun:
    """Writes of a cell in their order, and bytes of all chunks that each contender stored."""

    cell: Cell
    writes: tuple[Write, ...]
    stored_bytes: dict[str, int]

    def of(self, contender: str) -> list[Write]:
        """Writes of a contender that have a previous version."""
        return [write for write in self.writes if write.contender == contender and write.follows]
