"""Files whose events were not stored: their counters, and the selection decisions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.archive.schemas import TABLES
from penstock.observe.trace.verdicts.patterns import Row, judge_spool
from penstock.text import percent

#: criteria of the selection
MEASURES = ("requests", "bytes")
#: `basis` of a verdict from counters, as the file was not selected
COUNTERS = "counters"

DECISIONS = TABLES["decisions"].arrow


def beside(spool: Path) -> tuple[Path, Path]:
    """Paths of the daemon's counters of unselected files, and of its decisions."""
    return spool.with_suffix(".streams"), spool.with_suffix(".decisions")


def read_decisions(spool: Path) -> pa.Table:
    """Table `decisions` (docs/formats.md); an incomplete last line is dropped."""
    text = beside(spool)[1].read_text(encoding="ascii")
    rows = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return pa.Table.from_pylist(rows, DECISIONS)


def judge_counters(
    spool: Path, threads: Sequence[tuple[int, int]] = ()
) -> tuple[list[Row], pa.Table]:
    """Verdicts with basis `counters` on counted, unrecorded operations; and their table `epochs`."""
    rows, epochs = judge_spool(beside(spool)[0], threads)
    return [row | {"basis": COUNTERS} for row in rows if row["calls"]], epochs


def counter_totals(rows: list[Row]) -> dict[str, int]:
    """Entries of the receipt from the verdicts: {counted_files, counted, counted_bytes}."""
    counted = [row for row in rows if row["basis"] == COUNTERS and row["phase"] is None]
    return {
        "counted_files": len({row["file_id"] for row in counted}),
        "counted": sum(row["calls"] for row in counted),
        "counted_bytes": sum(row["done_bytes"] for row in counted),
    }


def describe(receipt: Mapping[str, Any]) -> str:
    """One sentence on the operations that are in counters only."""
    hot = receipt["hot"]
    if not hot["decisions"]:
        return "It ended before files were chosen: every call was recorded."
    covered = percent(hot["share"])
    return (
        f"Chosen {hot['decisions']} times: the fewest files that cover {covered} of the {hot['by']}. "
        f"{hot['counted']} of {receipt['kept']} operations, on {hot['counted_files']} other files, are in "
        "counters, not in io_events."
    )
