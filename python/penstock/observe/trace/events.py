"""The tracer's spool as the tables `io_events` and `files`."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

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

#: number of each operation by its name, as in `op`
NUMBERS: dict[str, int] = {name: number for number, name, _ in _native.trace_operations()}

#: of `direction`; an operation's is its number // 32
DIRECTIONS = ["read", "write", "sync", "meta"]
FIRST_WRITE = 32
FIRST_SYNC = 64

#: bits of `flags`
FLAGS = {
    "direct": 1,
    "append": 2,
    "sync": 4,
    "vectored": 8,
    "at_position": 16,
    "nowait": 32,
    "async": 64,
    "reaped": 128,
}

Events = npt.NDArray[np.void]


def read_spool(path: Path) -> Events:
    """The recorded calls in order of their start; a torn last record is left out."""
    whole = path.stat().st_size // EVENT.itemsize
    events = np.fromfile(path, EVENT, count=whole)
    return events[np.argsort(events["t_ns"], kind="stable")]


def events_table(events: Events, cgroups: Mapping[int, int]) -> pa.Table:
    """Table `io_events` (docs/formats.md); `cgroups` gives the control group behind each slot."""
    done = events["done_bytes"]
    slots = np.zeros(max(cgroups, default=0) + 1, np.uint64)
    slots[list(cgroups)] = list(cgroups.values())
    slot = np.minimum(events["cgroup_slot"], len(slots) - 1)
    names = list(NUMBERS)
    index = np.zeros(256, np.int8)
    index[list(NUMBERS.values())] = np.arange(len(names))
    direction = np.minimum(events["op"] // 32, 3).astype(np.int8)
    return pa.table(
        {
            "t_ns": pa.array(events["t_ns"].astype(np.int64)),
            "seq": pa.array(np.arange(len(events), dtype=np.uint64)),
            "op": pa.DictionaryArray.from_arrays(index[events["op"]], names),
            "direction": pa.DictionaryArray.from_arrays(direction, DIRECTIONS),
            "file_id": pa.array(events["file_id"].astype(np.int64)),
            "offset_bytes": pa.array(events["offset_bytes"]),
            "size_bytes": pa.array(events["size_bytes"].astype(np.int64)),
            "done_bytes": pa.array(np.maximum(done, 0).astype(np.int64)),
            "errno": pa.array(np.maximum(-done, 0).astype(np.int64)),
            "latency_ns": pa.array(events["latency_ns"].astype(np.int64)),
            "pid": pa.array(events["pid"].astype(np.int64)),
            "tid": pa.array(events["tid"].astype(np.int64)),
            "cgroup_id": pa.array(slots[slot]),
            "flags": pa.array(events["flags"].astype(np.int64)),
        }
    )


_FILES = pa.schema(
    [
        ("file_id", pa.int64()),
        ("dev_major", pa.int64()),
        ("dev_minor", pa.int64()),
        ("inode", pa.uint64()),
        ("generation", pa.uint64()),
        ("path", pa.string()),
        ("size_bytes", pa.int64()),
        ("disk_id", pa.string()),
    ]
)


def files_table(path: Path, disks: Mapping[tuple[int, int], str]) -> pa.Table:
    """Table `files` from the daemon's JSON lines; `disks` maps (major, minor) to the emulated disk there.

    A name that is not UTF-8 has its odd bytes written as `\\udcXX`; one that nobody could give is null.
    """
    rows: dict[int, dict[str, Any]] = {}
    with path.open(encoding="ascii") as lines:
        for line in lines:
            if not line.endswith("\n"):
                break
            row = json.loads(line)
            if "file_id" not in row:
                continue  # about names or sums: names.py
            rows[row["file_id"]] = row | rows.get(row["file_id"], {})
    made = [_file(rows[number], disks) for number in sorted(rows)]
    return pa.Table.from_pylist(made, schema=_FILES)


def _file(row: dict[str, Any], disks: Mapping[tuple[int, int], str]) -> dict[str, Any]:
    name = os.fsdecode(bytes.fromhex(row.get("path_hex", "")))
    return {field: row.get(field) for field in _FILES.names} | {
        "path": name.encode("utf-8", "backslashreplace").decode() or None,
        "disk_id": disks.get((row["dev_major"], row["dev_minor"])),
    }
