"""Messages of the tracer in JSON lines: files and their names, threads with their programs, marks."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from penstock.archive.schemas import TABLES
from penstock.errors import PenstockError

_THREADS = TABLES["threads"].arrow

_INTEGERS = (
    "file_id dev_major dev_minor size_bytes t_ns resident_pages which tid pid errno of_file calls errors "
    "time_ns longest_ns first_ns started_ns"
).split()
_UNSIGNED = ("inode", "generation", "flags")
_TEXTS = (
    "path_hex naming text_hex directory_hex operation program_hex mark_hex".split()
)  # bytes in hexadecimal digits, and names of operations

_SCHEMA = pa.schema(
    [
        *((name, pa.int64()) for name in _INTEGERS),
        *((name, pa.uint64()) for name in _UNSIGNED),
        *((name, pa.string()) for name in _TEXTS),
        ("unlinked", pa.bool_()),
    ]
)
#: longer than any line, even one with two longest paths in hexadecimal digits
_BLOCK_BYTES = 8 << 20


@dataclass(frozen=True)
class Mark:
    """A line that the traced program wrote to $PENSTOCK_MARKS, with its time [ns, CLOCK_MONOTONIC]."""

    name: str
    t_ns: int


def announcements(source: Path | pa.Table) -> pa.Table:
    """A row per line, null for absent fields; an incomplete last line is dropped.

    Its own result is returned unchanged. Raises PenstockError for malformed lines.
    """
    if isinstance(source, pa.Table):
        return source
    text = source.read_bytes()
    text = text[: text.rfind(b"\n") + 1]
    if not text:
        return _SCHEMA.empty_table()
    try:
        table = pyarrow.json.read_json(
            pa.BufferReader(text),
            pyarrow.json.ReadOptions(block_size=_BLOCK_BYTES),
            pyarrow.json.ParseOptions(explicit_schema=_SCHEMA, unexpected_field_behavior="ignore"),
        )
    except pa.ArrowInvalid as error:
        raise PenstockError(f"{source}: {error}") from error
    return table.select(_SCHEMA.names)


def those_with(table: pa.Table, column: str) -> pa.Table:
    """Rows in which a column is set."""
    return table.filter(pc.is_valid(table[column]))


def threads_table(source: Path | pa.Table) -> pa.Table:
    """Table `threads` (docs/formats.md): a row per thread and executed program, in order of time."""
    records = those_with(announcements(source), "program_hex").sort_by("first_ns")
    programs = pa.array(map(text_of, records["program_hex"].to_pylist()), pa.string())
    columns = [records["tid"], records["pid"], programs, records["first_ns"], records["started_ns"]]
    return pa.table(columns, schema=_THREADS)


def thread_starts(threads: pa.Table) -> list[tuple[int, int]]:
    """Number and start [ns] of each thread of a table `threads` with start times."""
    if "started_ns" not in threads.column_names:
        return []
    begun = threads.filter(pc.is_valid(threads["started_ns"]))
    return list(zip(begun["tid"].to_pylist(), begun["started_ns"].to_pylist(), strict=True))


def marks_of(source: Path | pa.Table) -> list[Mark]:
    """Marks in order of time; each line of a write is a separate mark."""
    records = those_with(announcements(source), "mark_hex").select(["mark_hex", "t_ns"])
    marks = [
        Mark(name.strip(), row["t_ns"])
        for row in records.to_pylist()
        for name in text_of(row["mark_hex"]).splitlines()
        if name.strip()
    ]
    return sorted(marks, key=lambda mark: mark.t_ns)


def text_of(digits: str) -> str:
    """Bytes in hexadecimal digits as text; bytes that are not UTF-8 become `\\udcXX`."""
    return os.fsdecode(bytes.fromhex(digits)).encode("utf-8", "backslashreplace").decode()


def phases_of(marks: list[Mark], start_ns: int, end_ns: int) -> list[dict[str, Any]]:
    """Rows of the table `phases`: the complete run as `workload`, then one from each mark to the next.

    The time before the first mark is the phase `start`. A repeated name gets a number: `load#2`.
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
