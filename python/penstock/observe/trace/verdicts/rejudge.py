"""A bundle judged again from its tables alone: no privilege, and memory that does not grow with the events.

The row groups of `io_events` are shared out among threads, each a stretch of the recording; what these
counted is put together in the order of time. PyArrow decodes, Rust counts, both without Python's lock.
"""

from __future__ import annotations

import contextlib
import importlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.errors import BadInput
from penstock.observe.trace.capture.events import NUMBERS
from penstock.observe.trace.capture.hot_set import COUNTERS
from penstock.observe.trace.layers.device_order import judge_device, with_reasons
from penstock.observe.trace.verdicts.patterns import Row, patterns_table, verdicts

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


def rejudged_patterns(bundle: Path, threads: int = 2) -> tuple[pa.Table, list[Row]]:
    """Table `patterns` and its rows for whole files: calls, faults, and the device's order where it is known.

    What another source recorded keeps that source's basis. Raises BadInput if the bundle has no events that
    can be read.
    """
    rows = judge_bundle(bundle, threads)
    basis = _basis_of_source(bundle)
    if basis is not None:
        for row in rows:
            row["basis"] = basis
    files = pq.read_table(bundle / "files.parquet", columns=["file_id", "path"]).to_pylist()
    paths = {row["file_id"]: row["path"] for row in files}
    if basis != "device" and (bundle / "device_requests.parquet").exists():
        requests = pq.read_table(bundle / "device_requests.parquet")
        rows += with_reasons(judge_device(requests, _by_ending(requests, paths)), rows)
    names = [name for name, _, _ in phases_of(bundle)]
    whole = [row for row in rows if row["phase"] is None]
    made = patterns_table(rows, paths, names)
    return pa.concat_tables([made, _of_counters(bundle, made.schema)]), whole


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


def _basis_of_source(bundle: Path) -> str | None:
    """Of an imported trace or a disk's log: whether its events are calls or the device's requests."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        source = json.loads((bundle / "manifest.json").read_text()).get("source")
        return None if source is None else source.get("basis")
    return None


def _of_counters(bundle: Path, schema: pa.Schema) -> pa.Table:
    """Verdicts on files that were not chosen (`--hot`) stand: what they rest on is not in `io_events`."""
    path = bundle / "patterns.parquet"
    if not path.exists() or not (bundle / "decisions.parquet").exists():
        return schema.empty_table()
    before = pq.read_table(path)
    counted = before.filter(pc.equal(pc.cast(before["basis"], pa.string()), COUNTERS))
    for field in schema:  # not in bundles of earlier versions
        if field.name not in counted.column_names:
            counted = counted.append_column(field, pa.nulls(counted.num_rows, field.type))
    return counted.select(schema.names).cast(schema)


def _by_ending(requests: pa.Table, paths: dict[int, str | None]) -> dict[str, int]:
    """Numbers of files that a disk's log names relative to its mount: whose path alone ends so."""
    if "file" not in requests.column_names:
        return {}
    found = {}
    for name in requests["file"].cast(pa.string()).unique().drop_null().to_pylist():
        fitting = [
            number for number, path in paths.items() if path and f"/{path}".endswith(f"/{name}")
        ]
        if len(fitting) == 1:
            found[name] = fitting[0]
    return found
