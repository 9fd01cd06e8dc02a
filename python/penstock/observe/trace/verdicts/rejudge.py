"""Verdicts recomputed from a bundle's tables: without privileges, in memory independent of the number of
events.

The row groups of `io_events` are distributed among threads, each a stretch of the recording; the counts are
merged in order of time. PyArrow decodes, Rust counts, both without the GIL.
"""

from __future__ import annotations

import importlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.archive.traces.trace_tables import TraceTables
from penstock.archive.traces.verdicts import patterns_as_now
from penstock.observe.trace.capture.announcements import thread_starts
from penstock.observe.trace.capture.hot_set import COUNTERS
from penstock.observe.trace.layers.device_order import judge_device, with_reasons
from penstock.observe.trace.verdicts.patterns import Row, patterns_table, verdicts

_native: Any = importlib.import_module("penstock._native")

#: in the order of the judge's arguments, except the last two
_COLUMNS = "t_ns file_id offset_bytes done_bytes errno latency_ns tid op flags".split()

#: rows decoded at a time, sized for the processor's cache
_BATCH_ROWS = 65_536

#: number of an operation unknown to this version: excluded from verdicts
_UNKNOWN = 255


def judge_run(run: TraceTables, threads: int = 2) -> list[Row]:
    """Rows as those of `verdicts`, with `phase` the number of the row in `phases_of(run)`.

    Raises BadInput if the run has no events, or their file is damaged or of another kind.
    """
    phases = [(start, end) for _, start, end in phases_of(run)]
    starts = thread_starts(run.table("threads")) if run.has("threads", "tid") else []
    groups = range(run.event_groups)
    parts = max(1, min(threads, len(groups)))
    borders = [len(groups) * i // parts for i in range(parts + 1)]
    with ThreadPoolExecutor(parts) as pool:
        judges = list(
            pool.map(
                lambda part: _judge(run, groups[borders[part] : borders[part + 1]], phases, starts),
                range(parts),
            )
        )
    first = judges[0]
    for later in judges[1:]:
        first.append(later)
    return verdicts(first)


def rejudged_patterns(run: TraceTables, threads: int = 2) -> tuple[pa.Table, list[Row]]:
    """Table `patterns` and its rows for entire files: calls, faults, and the device's order if available.

    Records of another source have that source's basis. Raises BadInput if the run has no readable events.
    """
    rows = judge_run(run, threads)
    basis = (run.manifest.get("source") or {}).get("basis")
    if basis is not None:
        for row in rows:
            row["basis"] = basis
    if basis != "device" and run.has("device_requests"):
        requests = run.table("device_requests")
        rows += with_reasons(judge_device(requests, _by_ending(requests, run.paths)), rows)
    names = [name for name, _, _ in phases_of(run)]
    of_run = [row for row in rows if row["phase"] is None]
    table = patterns_table(rows, run.paths, names)
    return pa.concat_tables([table, *_of_counters(run)]), of_run


def phases_of(run: TraceTables) -> list[tuple[str, int, int]]:
    """Name, start and end [ns] of the phases other than the complete workload."""
    workloads = [span for span in run.spans if span.name == "workload"]
    return [
        (span.name, span.start_ns, span.end_ns)
        for span in run.spans
        if span.name != "workload"
        and any(w.start_ns <= span.start_ns < w.end_ns for w in workloads)
    ]


def _judge(
    run: TraceTables,
    groups: range,
    phases: list[tuple[int, int]],
    threads: list[tuple[int, int]],
) -> Any:
    judge = _native.Judge(phases, threads=threads)
    for batch in run.event_batches(_COLUMNS, groups=groups, rows=_BATCH_ROWS):
        op, flags = (np.minimum(batch.pop(n), _UNKNOWN).astype(np.uint8) for n in ("op", "flags"))
        t_ns, *others = batch.values()
        judge.feed(t_ns, op, *others, flags)
    return judge


def _of_counters(run: TraceTables) -> list[pa.Table]:
    """Verdicts on unselected files (`--hot`) stay: their data are not in `io_events`."""
    if not run.has("patterns", "basis") or not run.has("decisions"):
        return []
    before = patterns_as_now(run.table("patterns"))
    return [before.filter(pc.equal(before["basis"], COUNTERS))]


def _by_ending(requests: pa.Table, paths: dict[int, str | None]) -> dict[str, int]:
    """Numbers of files that a disk's log names relative to its mount: the only paths with that suffix."""
    if "file" not in requests.column_names:
        return {}
    names = requests["file"].cast(pa.string()).unique().drop_null().to_pylist()
    by_last: dict[str, set[int]] = {str(name).split("/")[-1]: set() for name in names}
    # by the last component, to avoid comparing a million paths with every name
    for number, path in paths.items():
        if path and (last := path.split("/")[-1]) in by_last:
            by_last[last].add(number)
    by_name = {}
    for name in names:
        fitting = [
            number
            for number in by_last[str(name).split("/")[-1]]
            if f"/{paths[number]}".endswith(f"/{name}")
        ]
        if len(fitting) == 1:
            by_name[name] = fitting[0]
    return by_name
