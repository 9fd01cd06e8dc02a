"""The tracer's spool as the tables `io_events` and `files`."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.archive.bundle import Bundle, TableWriter
from penstock.archive.schemas import TABLES
from penstock.observe.trace.capture.announcements import announcements, those_with

_native: Any = importlib.import_module("penstock._native")

#: one call in the spool file (crates/probe, layout.rs)
EVENT = np.dtype(
    [
        ("t_ns", "<u8"),
        ("offset_bytes", "<i8"),
        ("latency_ns", "<u8"),
        ("size_bytes", "<u4"),
        ("done_bytes", "<i4"),
        ("file_id", "<u4"),
        ("tid", "<u4"),
        ("pid", "<u4"),
        ("op", "u1"),
        ("flags", "u1"),
        ("cgroup_slot", "<u2"),
    ]
)

#: number of each operation by its name in `op`
NUMBERS: dict[str, int] = {name: number for number, name, _ in _native.trace_operations()}

#: values of `direction`; an operation's is its number // 32
DIRECTIONS = ["read", "write", "sync", "meta"]
FIRST_WRITE = 32

Events = npt.NDArray[np.void]

_NAMED = pa.dictionary(pa.int8(), pa.string())

#: columns of `io_events`, without the keys that a bundle adds
SCHEMA = TABLES["io_events"].arrow_with({"op": _NAMED, "direction": _NAMED})

#: Parquet encodings of the columns (docs/adr/0009): deltas for growing values, dictionaries for repeated ones
ENCODINGS = {
    "t_ns": "DELTA_BINARY_PACKED",
    "seq": "DELTA_BINARY_PACKED",
    "latency_ns": "DELTA_BINARY_PACKED",
}


class SpoolReader:
    """A spool in order of time, read in parts of bounded size; an incomplete last record is dropped.

    `judge` (a `_native.Judge`) receives every event. `cgroups` has the group of each slot, `named` the files
    of calls by name: (time [ns], thread, file_id).
    """

    def __init__(
        self,
        path: Path,
        cgroups: Mapping[int, int],
        judge: Any,
        named: Sequence[tuple[int, int, int]] = (),
    ) -> None:
        groups = [int(cgroups.get(slot, 0)) for slot in range(max(cgroups, default=0) + 1)]
        self._reader = _native.SpoolReader(path, groups, list(named))
        self._judge = judge

    @property
    def events(self) -> int:
        """Number of complete records in the spool."""
        return int(self._reader.events)

    def tables(self) -> Iterator[pa.Table]:
        """Parts of table `io_events` (docs/formats.md), in order of time."""
        while (part := self._reader.next_part(self._judge, True)) is not None:
            yield _table(*part)

    def judge_only(self) -> None:
        """Read everything for the judge only."""
        while self._reader.next_part(self._judge, False) is not None:
            pass


def _table(rows: int, columns: Mapping[str, bytes]) -> pa.Table:
    names = pa.array(list(NUMBERS), pa.string())
    directions = pa.array(DIRECTIONS, pa.string())

    def array(field: pa.Field) -> pa.Array:
        values = pa.py_buffer(columns[field.name])
        if field.type != _NAMED:
            return pa.Array.from_buffers(field.type, rows, [None, values])
        index = pa.Array.from_buffers(pa.int8(), rows, [None, values])
        dictionary = names if field.name == "op" else directions
        return pa.DictionaryArray.from_arrays(index, dictionary)

    return pa.Table.from_arrays([array(field) for field in SCHEMA], schema=SCHEMA)


def keep_events(reader: SpoolReader, bundle: Bundle | None) -> Path | None:
    """Evaluate the events of a spool and, with a bundle, store them there as table `io_events`; returns the
    table's file."""
    if bundle is None:
        reader.judge_only()
        return None
    with bundle.table_writer("io_events", SCHEMA, ENCODINGS) as writer:
        write_events(reader, writer)
    return bundle.path / "io_events.parquet"


def write_events(reader: SpoolReader, writer: TableWriter) -> int:
    """Write a spool as table `io_events`, part by part; returns the number of events."""
    rows = 0
    for table in reader.tables():
        writer.write(table)
        rows += table.num_rows
    return rows


_FILES = TABLES["files"].arrow


def files_table(source: Path | pa.Table, disks: Mapping[tuple[int, int], str]) -> pa.Table:
    """Table `files` from the daemon's JSON lines; `disks` maps (major, minor) to emulated disks.

    Bytes of a name that are not UTF-8 become `\\udcXX`; an unknown name is null.
    """
    records = those_with(announcements(source), "file_id")
    number = records["file_id"].to_numpy()
    # of several lines about one file the first with a path
    order = np.lexsort([pc.is_null(records["path_hex"]).to_numpy(), number])
    records = records.take(order[np.unique(number[order], return_index=True)[1]])
    columns = {name: records[name] for name in _FILES.names if name in records.column_names}
    columns["path"] = pa.array(map(_path, records["path_hex"].to_pylist()), pa.string())
    places = zip(records["dev_major"].to_pylist(), records["dev_minor"].to_pylist(), strict=True)
    columns["disk_id"] = pa.array(map(disks.get, places), pa.string())
    return pa.table([columns[name] for name in _FILES.names], schema=_FILES)


def _path(digits: str | None) -> str | None:
    name = bytes.fromhex(digits or "")
    try:
        return name.decode() or None
    except UnicodeDecodeError:
        return os.fsdecode(name).encode("utf-8", "backslashreplace").decode()
