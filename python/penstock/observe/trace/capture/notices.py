"""What the tracer announces besides files: threads with their programs, and marks."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.archive.schemas import TABLES
from penstock.observe.trace.capture.announcements import announcements, those_with

_THREADS = TABLES["threads"].arrow


@dataclass(frozen=True)
class Mark:
    """A line that the traced program wrote to $PENSTOCK_MARKS, and when [ns, CLOCK_MONOTONIC]."""

    name: str
    t_ns: int


def threads_table(source: Path | pa.Table) -> pa.Table:
    """Table `threads` (docs/formats.md): a row per thread and program it ran, in order of time."""
    told = those_with(announcements(source), "program_hex").sort_by("first_ns")
    programs = pa.array(map(text_of, told["program_hex"].to_pylist()), pa.string())
    return pa.table([told["tid"], told["pid"], programs, told["first_ns"]], schema=_THREADS)


def marks_of(source: Path | pa.Table) -> list[Mark]:
    """The marks in order of time, each line of one write a mark of its own."""
    told = those_with(announcements(source), "mark_hex").select(["mark_hex", "t_ns"])
    marks = [
        Mark(name.strip(), row["t_ns"])
        for row in told.to_pylist()
        for name in text_of(row["mark_hex"]).splitlines()
        if name.strip()
    ]
    return sorted(marks, key=lambda mark: mark.t_ns)


def text_of(digits: str) -> str:
    """Bytes in hexadecimal digits as text; what is not UTF-8 becomes `\\udcXX`."""
    return os.fsdecode(bytes.fromhex(digits)).encode("utf-8", "backslashreplace").decode()


def phases_of(marks: list[Mark], start_ns: int, end_ns: int) -> list[dict[str, Any]]:
    """Rows of the table `phases`: the whole as `workload`, then one from each mark to the next.

    What lies before the first mark is the phase `start`. A name that comes again gets a number: `load#2`.
    """
    rows = [{"phase_id": "workload", "start_ns": start_ns, "end_ns": end_ns}]
    if not marks:
        return rows
    used = {"workload": 1}
    borders = [("start", start_ns), *((mark.name, mark.t_ns) for mark in marks)]
    ends = [*(t_ns for _, t_ns in borders[1:]), end_ns]
    for (name, begin), end in zip(borders, ends, strict=True):
        if name == "start" and begin >= end:
            continue
        used[name] = used.get(name, 0) + 1
        phase = name if used[name] == 1 else f"{name}#{used[name]}"
        rows.append({"phase_id": phase, "start_ns": begin, "end_ns": max(begin, end)})
    return rows
