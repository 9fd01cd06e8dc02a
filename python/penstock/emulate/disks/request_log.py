"""Request log of the disk server, converted to a table."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.archive.schemas import TABLES
from penstock.errors import PenstockError

#: a record of the log, 80 bytes little-endian (crates/disk, module `log`); times in CLOCK_MONOTONIC ns
DISK_REQUEST_DTYPE = np.dtype(
    [
        ("t_ns", "<u8"),
        ("due_ns", "<u8"),
        ("done_ns", "<u8"),
        ("service_ns", "<u8"),
        ("wait_ns", "<u8"),
        ("offset_bytes", "<u8"),
        ("device_offset_bytes", "<u8"),
        ("size_bytes", "<u4"),
        ("file_id", "<u4"),
        ("visit", "<u4"),
        ("compensation_ns", "<u4"),
        ("pid", "<u4"),
        ("op", "u1"),
        ("sequential", "u1"),
        ("error", "u1"),
        ("padding", "u1"),
    ]
)
OPS = ("read", "write", "flush")

#: the table `device_requests`
DEVICE_REQUESTS_SCHEMA = TABLES["device_requests"].arrow_with(
    {
        "op": pa.dictionary(pa.int8(), pa.string()),
        "visit": pa.int32(),
        "pid": pa.int32(),
        "file": pa.dictionary(pa.int32(), pa.string()),
        "disk_id": pa.dictionary(pa.int32(), pa.string()),
    }
)
#: columns that are absent in a disk's log
_OF_BLOCK_DEVICES = frozenset({"file_id", "tid", "cgroup_id", "source", "join"})
_CHUNK = 1 << 20
#: maxima of the columns that are copied unchanged
_MOST = {
    field.name: np.iinfo(field.type.to_pandas_dtype()).max
    for field in DEVICE_REQUESTS_SCHEMA
    if field.name in (DISK_REQUEST_DTYPE.names or ()) and pa.types.is_integer(field.type)
}


def read_disk_log(
    path: str | os.PathLike[str],
    files_path: str | os.PathLike[str] | None = None,
    disk_id: str | None = None,
) -> pa.Table:
    """The table `device_requests` of one disk's log, in order of arrival; an incomplete last record is
    dropped.

    `files_path` is the file of file names (default: the log's path and `.files`). Raises PenstockError for a
    record that no disk writes.
    """
    log = Path(path)
    names = _names(Path(files_path) if files_path is not None else Path(f"{log}.files"))
    batches = list(_batches(log, names, disk_id))
    table = pa.Table.from_batches(batches, schema=DEVICE_REQUESTS_SCHEMA)
    return table.sort_by("t_ns")


def _names(path: Path) -> dict[int, str]:
    names: dict[int, str] = {}
    if path.exists():
        for line in path.read_text("utf-8", "replace").splitlines():
            try:
                named = json.loads(line)
                names[int(named["file_id"])] = str(named["path"])
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
                continue  # an incomplete last line
    return names


def _batches(log: Path, names: dict[int, str], disk_id: str | None) -> Iterator[pa.RecordBatch]:
    count = log.stat().st_size // DISK_REQUEST_DTYPE.itemsize
    if count == 0:
        return
    records = np.memmap(log, dtype=DISK_REQUEST_DTYPE, mode="r", shape=(count,))
    # a name may denote several files, one after the other; a dictionary's values are distinct
    distinct = list(dict.fromkeys(names.values()))
    code_of: dict[str | None, int] = {name: code for code, name in enumerate(distinct)}
    files = pa.array(distinct, pa.string())
    disks = pa.array([disk_id or ""], pa.string())
    for start in range(0, count, _CHUNK):
        part = records[start : start + _CHUNK]
        n = len(part)
        wrong = part["op"] >= len(OPS)
        for name, most in _MOST.items():
            wrong |= part[name] > np.uint64(most)
        if wrong.any():
            raise PenstockError(f"{log}: record {start + int(wrong.argmax())} is damaged")
        numbers, which = np.unique(part["file_id"], return_inverse=True)
        codes = np.array([code_of.get(names.get(int(n)), -1) for n in numbers], np.int32)[which]
        late = part["done_ns"].astype(np.int64) - part["due_ns"].astype(np.int64)
        by_name: dict[str, pa.Array] = {
            "lateness_ns": pa.array(np.maximum(late, 0)),
            "op": pa.DictionaryArray.from_arrays(
                pa.array(part["op"].astype(np.int8)), pa.array(OPS, pa.string())
            ),
            "sequential": pa.array(part["sequential"].astype(bool)),
            "file": pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), files),
            "disk_id": pa.DictionaryArray.from_arrays(
                pa.array(np.zeros(n, np.int32), mask=np.full(n, disk_id is None)), disks
            ),
        }
        for name in DEVICE_REQUESTS_SCHEMA.names:
            if name in _OF_BLOCK_DEVICES:
                by_name[name] = pa.nulls(n, DEVICE_REQUESTS_SCHEMA.field(name).type)
            elif name not in by_name:
                kind = DEVICE_REQUESTS_SCHEMA.field(name).type
                by_name[name] = pa.array(part[name]).cast(kind)
        columns = [by_name[name] for name in DEVICE_REQUESTS_SCHEMA.names]
        yield pa.RecordBatch.from_arrays(columns, schema=DEVICE_REQUESTS_SCHEMA)


HOST_WAITS_SCHEMA = TABLES["host_waits"].arrow


def host_waits_table(disk_id: str, answer: Mapping[str, Any]) -> pa.Table:
    """Rows of the table from the server's response to `host_waits`."""
    rows = [{"disk_id": disk_id, **window} for window in answer["host_waits"]]
    return pa.Table.from_pylist(rows, schema=HOST_WAITS_SCHEMA)
