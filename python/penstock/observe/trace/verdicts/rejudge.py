"""A bundle judged again from its tables alone: no privilege, and memory that does not grow with the events.

The row groups of `io_events` are shared out among threads, each a stretch of the recording; what these
counted is put together in the order of time. PyArrow decodes, Rust counts, both without Python's lock.
"""

from __future__ import annotations

import importlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import BadInput
from penstock.observe.trace.capture.events import NUMBERS
from penstock.observe.trace.verdicts.patterns import Row, verdicts

_native: Any = importlib.import_module("penstock._native")

_WIDE = ("t_ns", "file_id", "offset_bytes", "done_bytes", "errno", "latency_ns", "tid")
_COLUMNS = [*_WIDE, "op", "flags"]

#: decoded at a time: what stays in the processor's cache
_BATCH_ROWS = 65_536

#: number of an operation that this version does not know: not judged
_UNKNOWN = 255


def judge_bundle(bundle: Path, threads: int = 2) -> list[Row]:
    """Rows as `verdicts` gives, with `phase` the number of the row in `phases_of(bundle)`.

    Raises BadInput if the bundle has no events, or its file is torn or of another kind.
    """
    path = bundle / "io_events.parquet"
    try:
        groups = pq.ParquetFile(path).metadata.num_row_groups
        phases = [(start, end) for _, start, end in phases_of(bundle)]
        parts = max(1, min(threads, groups))
        borders = [groups * i // parts for i in range(parts + 1)]
        with ThreadPoolExecutor(parts) as pool:
            judges = list(
                pool.map(
                    lambda part: _judge(path, borders[part], borders[part + 1], phases),
                    range(parts),
                )
            )
    except (OSError, pa.ArrowException, KeyError) as error:
        raise BadInput(f"{path}: {error}; expected the table io_events of a trace") from error
    first = judges[0]
    for later in judges[1:]:
        first.append(later)
    return verdicts(first)


def phases_of(bundle: Path) -> list[tuple[str, int, int]]:
    """Name, start and end [ns] of the phases that are more than the whole workload."""
    path = bundle / "phases.parquet"
    if not path.exists():
        return []
    rows = pq.read_table(path, columns=["phase_id", "start_ns", "end_ns"]).to_pylist()
    marked = [row for row in rows if row["phase_id"] != "workload"]
    whole = [row for row in rows if row["phase_id"] == "workload"]
    inside = [
        row for row in marked if any(w["start_ns"] <= row["start_ns"] < w["end_ns"] for w in whole)
    ]
    return [(row["phase_id"], row["start_ns"], row["end_ns"]) for row in inside]


def _judge(path: Path, first: int, end: int, phases: list[tuple[int, int]]) -> Any:
    judge = _native.Judge(phases)
    with pq.ParquetFile(path) as file:
        groups = range(first, end)
        for batch in file.iter_batches(
            _BATCH_ROWS, row_groups=groups, columns=_COLUMNS, use_threads=False
        ):
            _feed(judge, batch)
    return judge


def _feed(judge: Any, batch: pa.RecordBatch) -> None:
    wide = {name: _plain(batch.column(name)) for name in _WIDE}
    flags = _plain(batch.column("flags")).astype(np.uint8)
    judge.feed(
        *(wide["t_ns"], _numbers(batch.column("op")), wide["file_id"], wide["offset_bytes"]),
        *(wide["done_bytes"], wide["errno"], wide["latency_ns"], wide["tid"], flags),
    )


def _plain(column: pa.Array) -> npt.NDArray[np.int64]:
    if column.null_count:
        column = column.fill_null(0)
    values: npt.NDArray[np.int64] = np.ascontiguousarray(
        column.to_numpy(zero_copy_only=False), np.int64
    )
    return values


def _numbers(column: pa.Array) -> npt.NDArray[np.uint8]:
    """Operations by number, whatever order a file's dictionary has."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    names = column.dictionary.to_pylist()
    numbers = np.array([NUMBERS.get(name, _UNKNOWN) for name in names] or [_UNKNOWN], np.uint8)
    taken: npt.NDArray[np.uint8] = numbers[column.indices.to_numpy(zero_copy_only=False)]
    return taken
