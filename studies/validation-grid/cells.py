"""Cells of the validation grid: the workload of fio in each, and its reported results.

Standard library only, so that the same file runs in the guest.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

MB = 1_000_000
ENGINES = ("sync", "psync", "pvsync", "pvsync2", "posixaio", "libaio", "io_uring", "mmap")
PATTERNS = ("read", "write", "randread", "randwrite", "readwrite", "randrw")
LIMITS_BPS = (512_000, 1 * MB, 4 * MB, 16 * MB, 64 * MB)
SIZES_BYTES = (10 * MB, 64 * MB, 256 * MB)
#: engines with more than one request in flight, and their number
DEPTH = {"posixaio": 4, "libaio": 4, "io_uring": 4}
BLOCK_BYTES = 64 << 10
#: memory of a cell's control group, page cache included [bytes]
MEMORY_BYTES = 64 << 20


@dataclass(frozen=True)
class Cell:
    """One cell: `bytes` is the transferred amount, `limit_bps` applies to each direction of the device."""

    engine: str
    pattern: str
    direct: bool
    limit_bps: int
    bytes: int
    #: deviation of a limit that is set wrong on purpose (a planted failure)
    planted: float = 0.0

    @property
    def name(self) -> str:
        """Name, from each of its levels."""
        path = "direct" if self.direct else "buffered"
        return f"{self.engine} {self.pattern} {path} {self.limit_bps / MB:g} MB/s {self.bytes / MB:g} MB"

    @property
    def file_bytes(self) -> int:
        """Size of its file: complete blocks."""
        return max(1, self.bytes // BLOCK_BYTES) * BLOCK_BYTES

    @property
    def directions(self) -> tuple[str, ...]:
        """Its directions: read, write or both."""
        if self.pattern in ("readwrite", "randrw"):
            return ("read", "write")
        return ("read",) if "read" in self.pattern else ("write",)

    def fio(self, path: str) -> list[str]:
        """Arguments of fio for the file at `path`, which exists in its full size."""
        argv = [
            "fio", "--name=cell", f"--filename={path}", f"--rw={self.pattern}", f"--bs={BLOCK_BYTES}",
            f"--size={self.file_bytes}", f"--ioengine={self.engine}", f"--direct={int(self.direct)}",
            "--output-format=json", "--fallocate=none", "--randseed=7", "--allow_file_create=0",
        ]  # fmt: skip
        if self.engine in DEPTH:
            argv.append(f"--iodepth={DEPTH[self.engine]}")
        if "write" in self.directions:
            argv.append("--end_fsync=1")  # the end is when the data are durable
        return argv


def sustained(seconds: float, cell: Cell) -> Cell:
    """The cell with a size so small that it takes no longer than that at its limit."""
    return Cell(**{**asdict(cell), "bytes": min(cell.bytes, int(cell.limit_bps * seconds))})


def valid(engine: str, pattern: str, direct: bool) -> bool:
    """True if such a job exists: memory maps have no direct I/O."""
    return not (engine == "mmap" and direct)


def full(seconds: float) -> list[Cell]:
    """The full factorial; cells that the size limit makes equal count once."""
    cells = [
        sustained(seconds, Cell(engine, pattern, direct, limit, size))
        for engine, pattern, direct, limit, size in product(
            ENGINES, PATTERNS, (True, False), LIMITS_BPS, SIZES_BYTES
        )
        if valid(engine, pattern, direct)
    ]
    return list(dict.fromkeys(cells))


def crossed(seconds: float) -> list[Cell]:
    """Every engine, pattern and path at one limit, and every limit and size for one engine."""
    at_one_limit = [
        sustained(seconds, Cell(engine, pattern, direct, 4 * MB, 256 * MB))
        for engine, pattern, direct in product(ENGINES, PATTERNS, (True, False))
        if valid(engine, pattern, direct)
    ]
    for_one_engine = [
        sustained(seconds, Cell("psync", pattern, direct, limit, size))
        for pattern, direct, limit, size in product(
            ("read", "write", "randread", "randwrite"), (True, False), LIMITS_BPS, SIZES_BYTES
        )
    ]
    return list(dict.fromkeys(at_one_limit + for_one_engine))


def some(seconds: float) -> list[Cell]:
    """Every system call interface, both directions, both paths: as much as an emulated CPU has time for."""
    return [
        sustained(seconds, Cell(engine, pattern, direct, 4 * MB, 256 * MB))
        for engine, pattern, direct in product(
            ("sync", "posixaio", "libaio", "io_uring", "mmap"), PATTERNS[:4], (True, False)
        )
        if valid(engine, pattern, direct)
    ]


def quick(seconds: float) -> list[Cell]:
    """A dozen cells: three engines, both directions, both paths, one limit."""
    return [
        sustained(seconds, Cell(engine, pattern, direct, 4 * MB, 64 * MB))
        for engine, pattern, direct in product(
            ("sync", "posixaio", "io_uring"), ("read", "write"), (True, False)
        )
    ]


def by_direction(text: str) -> dict[str, dict[str, float]]:
    """Bytes, seconds, operations and latencies [ns] by direction from fio's JSON."""
    job: dict[str, Any] = json.loads(text[text.index("{") :])["jobs"][0]
    out = {}
    for direction in ("read", "write"):
        side = job[direction]
        if not side["io_bytes"]:
            continue
        percentiles = side["clat_ns"].get("percentile", {})
        out[direction] = {
            "bytes": float(side["io_bytes"]),
            "seconds": side["runtime"] / 1000,
            "ops": float(side["total_ios"]),
            "mean_ns": float(side["clat_ns"]["mean"]),
            "p50_ns": float(percentiles.get("50.000000", 0.0)),
            "p99_ns": float(percentiles.get("99.000000", 0.0)),
        }
    return out
