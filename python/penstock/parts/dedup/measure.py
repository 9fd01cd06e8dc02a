"""Throughput of hashes and chunkers on one core of this host, from memory."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import BadInput, PenstockError
from penstock.parts.dedup.options import HASHES, native, normal_chunking

#: average chunk of the default configurations [bytes]
AVERAGE_BYTES = 64 << 10
CHUNKERS = ("fastcdc:16KiB,64KiB,256KiB", "seqcdc:16KiB,64KiB,256KiB")
_SIZE_BYTES = 64 << 20


@dataclass(frozen=True)
class Throughput:
    """Rates of one hash or chunker [bytes/s]: median, smallest and largest."""

    name: str
    kind: str
    median: float
    least: float
    most: float


def measure(repeats: int = 5, size_bytes: int = _SIZE_BYTES) -> list[Throughput]:
    """Throughput of each hash, in pieces of an average chunk, and of each chunker.

    All are measured in turn, repeatedly, so that a change of the host's speed affects them alike.
    """
    names = [*HASHES, *CHUNKERS]
    rates: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(repeats):
        for name in names:
            # the first pass warms up
            rates[name].append(native.dedup_throughput(name, size_bytes, AVERAGE_BYTES, 2)[1])
    return [
        Throughput(
            name,
            "hash" if name in HASHES else "chunker",
            statistics.median(rates[name]),
            min(rates[name]),
            max(rates[name]),
        )
        for name in names
    ]


@dataclass(frozen=True)
class Similarity:
    """Chunks of a file that another one has."""

    chunks: int
    similar_chunks: int
    bytes: int
    similar_bytes: int

    @property
    def share(self) -> float:
        """Share of similar bytes (0…1); 1 of an empty file."""
        return self.similar_bytes / self.bytes if self.bytes else 1.0


def compare(old: Path, new: Path, chunking: str) -> Similarity:
    """Similarity of the file `new` to `old` by a configuration. Raises BadInput if a file cannot be read."""
    chunking = normal_chunking(chunking)
    for path in (old, new):
        if not path.is_file():
            raise BadInput(f"{path}: found no file; expected one")
    try:
        return Similarity(**json.loads(native.dedup_compare(str(old), str(new), chunking)))
    except RuntimeError as error:
        raise PenstockError(str(error)) from None
