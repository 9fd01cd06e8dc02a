"""The events of a traced run as columns, batch by batch: memory does not grow with the trace's length."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.archive.trace_rows import by_path, first_of_path
from penstock.errors import BadInput

_native: Any = importlib.import_module("penstock._native")

BATCH_ROWS = 1 << 19
_COLUMNS = ["t_ns", "op", "file_id", "offset_bytes", "done_bytes", "latency_ns"]

#: kinds of events for a figure (crates/tracefmt, tiles.rs)
READ, WRITE, AROUND, SYNC, META = range(5)
_KIND = 7
_FAULT = 8
CHANNELS = ("read", "write", "around")

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Columns:
    """One batch: int64 arrays of one length, `kind` uint8 (low three bits the kind, bit 3 a page fault)."""

    t_ns: Ints
    file_id: Ints
    kind: npt.NDArray[np.uint8]
    offset_bytes: Ints
    done_bytes: Ints
    latency_ns: Ints

    @property
    def arrays(self) -> tuple[Any, ...]:
        """In the order in which the native part takes them."""
        return (
            self.t_ns,
            self.file_id,
            self.kind,
            self.offset_bytes,
            self.done_bytes,
            self.latency_ns,
        )

    def drawn(self, file_id: int) -> npt.NDArray[np.bool_]:
        """Which events of a file are drawn: those that moved bytes."""
        here: npt.NDArray[np.bool_] = (self.file_id == file_id) & (self.done_bytes > 0)
        return here & ((self.kind & _KIND) <= AROUND)


def batches(events: Path) -> Iterator[Columns]:
    """The events of a table `io_events` in its order. Raises BadInput where the file is none.

    Files of one path have the number of the first of them, as the table `files` beside it says.
    """
    try:
        first_of = _first_of(events.with_name("files.parquet"))
        with pq.ParquetFile(events, read_dictionary=["op"]) as file:
            missing = set(_COLUMNS) - set(file.schema_arrow.names)
            if missing:
                raise BadInput(f"{events}: found no column {', '.join(sorted(missing))}")
            for batch in file.iter_batches(BATCH_ROWS, columns=_COLUMNS):
                yield _columns(batch, first_of)
    except (pa.ArrowInvalid, OSError) as error:
        raise BadInput(
            f"{events}: {str(error).splitlines()[0]}; expected a table io_events"
        ) from None


def _first_of(files: Path) -> dict[int, int]:
    if not files.exists():
        return {}
    table = pq.read_table(files, columns=["file_id", "path"])
    paths = zip(table["file_id"].to_pylist(), table["path"].to_pylist(), strict=True)
    return first_of_path(dict(paths))


def _columns(batch: pa.RecordBatch, first_of: dict[int, int]) -> Columns:
    names = batch.schema.names
    columns = {name: batch.column(names.index(name)) for name in _COLUMNS}
    return Columns(
        t_ns=_whole(columns["t_ns"]),
        file_id=by_path(_whole(columns["file_id"]), first_of),
        kind=_kinds(columns["op"]),
        offset_bytes=_whole(columns["offset_bytes"]),
        done_bytes=_whole(columns["done_bytes"]),
        latency_ns=_whole(columns["latency_ns"]),
    )


def _whole(column: pa.Array) -> Ints:
    if column.null_count:
        column = column.fill_null(0)
    return np.ascontiguousarray(column.to_numpy(zero_copy_only=False), np.int64)


def _kinds(op: pa.Array) -> npt.NDArray[np.uint8]:
    if not pa.types.is_dictionary(op.type):
        op = op.dictionary_encode()
    known = [_kind(name) for name in op.dictionary.to_pylist()]
    of_each = np.array([*known, META], np.uint8)
    return np.ascontiguousarray(of_each[_whole(op.indices.fill_null(len(known)))])


def _kind_of_every_operation() -> dict[str, int]:
    kinds = {"read": READ, "write": WRITE, "sync": SYNC, "meta": META}
    table = {name: kinds[direction] for _, name, direction in _native.trace_operations()}
    for name in table:
        if name.startswith("fault_"):
            table[name] |= _FAULT
    table["fault_around"] = table["fault_around_write"] = AROUND
    return table


_KINDS = _kind_of_every_operation()


def _kind(op: str | None) -> int:
    return _KINDS.get(op or "", META)
