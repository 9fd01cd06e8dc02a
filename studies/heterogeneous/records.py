"""Records of 100 bytes with a key of 10, as in TeraSort: creation, sorting, partitioning, checksum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

SIZE_BYTES = 100
KEY_BYTES = 10

#: n × 100 bytes
Records = npt.NDArray[np.uint8]


def make(count: int, seed: int) -> Records:
    """`count` random records, from `seed`."""
    return np.random.default_rng(seed).integers(0, 256, (count, SIZE_BYTES), np.uint8)


def load(text: bytes | bytearray | memoryview) -> Records:
    """Records from their bytes; ValueError for an incomplete one."""
    return np.frombuffer(text, np.uint8).reshape(-1, SIZE_BYTES)


def keys(records: Records) -> npt.NDArray[Any]:
    """The keys: one big-endian number and the two bytes after it per record."""
    text = np.ascontiguousarray(records[:, :KEY_BYTES])
    result = np.empty(len(text), [("high", "<u8"), ("low", "<u2")])
    result["high"] = text[:, :8].copy().view(">u8")[:, 0]
    result["low"] = text[:, 8:10].copy().view(">u2")[:, 0]
    return result


def ordered(records: Records) -> Records:
    """The records in the order of their keys."""
    key = keys(records)
    return records[np.lexsort((key["low"], key["high"]))]


def divided(records: Records, parts: int) -> list[Records]:
    """Sorted records divided into `parts` ranges of equal width of the key space."""
    high = keys(records)["high"]
    width = (1 << 64) // parts
    cuts = np.searchsorted(high, np.array([i * width for i in range(1, parts)], np.uint64))
    return np.split(records, cuts)


def checksum(records: Records) -> int:
    """Sum over the records, independent of their order (modulo 2^64)."""
    quads = np.ascontiguousarray(records).view("<u4").astype(np.uint64)
    odd = np.arange(1, quads.shape[1] + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (quads * (odd | np.uint64(1))).sum(axis=1, dtype=np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return int((mixed ^ (mixed >> np.uint64(32))).sum(dtype=np.uint64))


def in_order(records: Records) -> bool:
    """True if no key is below the previous one."""
    key = keys(records)
    before, after = key[:-1], key[1:]
    rises = (before["high"] < after["high"]) | (
        (before["high"] == after["high"]) & (before["low"] <= after["low"])
    )
    return bool(rises.all())


def read(path: Path) -> Records:
    """The records of a file."""
    return load(path.read_bytes())
