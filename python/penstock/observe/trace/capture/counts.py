"""Mode `count`: operations, bytes and errors per file and direction."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.text import percent, size

#: one file and direction in the spool file of mode count (crates/probe, tracer.rs)
COUNTER = np.dtype(
    [
        ("file_id", "<u8"),
        ("direction", "<u8"),
        ("calls", "<u8"),
        ("errors", "<u8"),
        ("asked_bytes", "<u8"),
        ("done_bytes", "<u8"),
    ]
)

Row = dict[str, Any]


def read_counts(spool: Path) -> list[Row]:
    """Rows as those of `verdicts`, one per file and direction; their class is `counted`, times are 0.

    Raises PenstockError for a record without calls, or neither of reads nor writes.
    """
    counts = np.fromfile(spool, COUNTER, count=spool.stat().st_size // COUNTER.itemsize)
    wrong = (counts["direction"] > 1) | (counts["calls"] == 0)
    if wrong.any():
        raise PenstockError(f"{spool}: record {int(wrong.argmax())} is damaged")
    return [_row(*map(int, record)) for record in counts.tolist()]


def _row(
    file_id: int, direction: int, calls: int, errors: int, requested_bytes: int, done_bytes: int
) -> Row:
    nothing = (
        "confidence",
        "consecutive_share",
        "forward_share",
        "sequential_share",
        "reverse_share",
    )
    together = {
        "class": "counted",
        "k": None,
        "requests": calls - errors,
        "bytes": done_bytes,
        **dict.fromkeys(nothing),
        "median_size_bytes": requested_bytes / calls,  # the mean: sizes are not recorded separately
        "evidence": {"asked_bytes": requested_bytes},
    }
    return {
        "file_id": file_id,
        "direction": ("read", "write")[direction],
        "basis": "calls",
        "phase": None,
        "calls": calls,
        "errors": errors,
        "done_bytes": done_bytes,
        "time_ns": 0,
        "together": together,
        "threads": [],
    }


def closing_of_counts(rows: list[Row], paths: Mapping[int, str | None], lost: int = 0) -> str:
    """One sentence: the file with most calls."""
    warning = f" {lost} operations were lost: they are in no count." if lost else ""
    if not rows:
        return "It neither read nor wrote regular files." + warning
    total = sum(row["calls"] for row in rows)
    top = max(rows, key=lambda row: row["calls"])
    where = paths.get(top["file_id"]) or f"file {top['file_id']}"
    mean = size(top["together"]["median_size_bytes"])
    return (
        f"{percent(top['calls'] / total)} of {total} reads and writes: {top['direction']}s of {where}, "
        f"{mean} each on average; --mode pattern shows their order and time.{warning}"
    )
