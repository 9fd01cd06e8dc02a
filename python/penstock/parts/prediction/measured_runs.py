"""Measured runs for comparison with a prediction: makespans, stages, tasks, repetitions.

Each is a duration (`61.3s`) or a file: `penstock/measured/1` (JSON or YAML, several runs), a table of the
same (CSV, Parquet), or an executed WfFormat instance (one run).
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import BadInput
from penstock.parts.prediction.workloads.formats.document import Document, document_of, shown
from penstock.parts.prediction.workloads.formats.wfformat_rules import names_of
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.spec.source import Path as Place
from penstock.spec.source import read_input
from penstock.spec.units import parse_duration
from penstock.text import listed

SCHEMA = "penstock/measured/1"
KINDS = ("run", "stage", "task")
COLUMNS = ("run", "kind", "name", "start_s", "end_s", "lasts_s")
#: larger files are not runs of one workload
MOST_FILE_BYTES = 256 << 20


@dataclass(frozen=True)
class Span:
    """Duration in seconds; start and end if recorded."""

    lasts_s: float
    start_s: float | None = None
    end_s: float | None = None


@dataclass
class MeasuredRun:
    """One run: its makespan (None: unspecified), its stages and tasks by name, and its `source`."""

    source: str
    makespan_s: float | None = None
    stages: dict[str, Span] = field(default_factory=dict)
    tasks: dict[str, Span] = field(default_factory=dict)


def measured_runs(sources: Sequence[str], workload: Workload) -> list[MeasuredRun]:
    """Every run of `sources` (durations and files), each with a makespan.

    An unmeasured stage or makespan lasts from the first start to the last end of its tasks, if all of them
    have both. BadInput for invalid sources, a run without makespan, and if no stage or task name matches the
    workload.
    """
    runs = [run for text in sources for run in _runs(text)]
    members: dict[str, list[str]] = {}
    for task in workload.tasks:
        members.setdefault(task.stage, []).append(task.name)
    for kind, valid_names in (
        ("stages", set(members)),
        ("tasks", {t.name for t in workload.tasks}),
    ):
        names = {name for run in runs for name in getattr(run, kind)}
        if names and not names & valid_names:
            raise BadInput(
                f"--measured: found the {kind} {listed(sorted(names)[:4])}, none of "
                f"them in {workload.name}; expected {kind} such as {listed(sorted(valid_names)[:4])}"
            )
    return [_completed(run, members) for run in runs]


def _completed(run: MeasuredRun, members: Mapping[str, Sequence[str]]) -> MeasuredRun:
    """The run with stages and makespan derived from its tasks."""
    for stage, names in members.items():
        if stage not in run.stages:
            span = _around([run.tasks.get(name) for name in names])
            if span is not None:
                run.stages[stage] = span
    if run.makespan_s is None:
        span_of_run = _around([run.stages.get(stage) for stage in members])
        if span_of_run is None or span_of_run.lasts_s <= 0:
            raise BadInput(
                f"{run.source}: found neither a makespan nor the start and end of every stage or task; "
                "expected one of them"
            )
        run.makespan_s = span_of_run.lasts_s
    return run


def _around(spans: Sequence[Span | None]) -> Span | None:
    """From the first start to the last end; None if a span is unknown."""
    starts = [s.start_s for s in spans if s is not None and s.start_s is not None]
    ends = [s.end_s for s in spans if s is not None and s.end_s is not None]
    if not spans or len(starts) < len(spans) or len(ends) < len(spans):
        return None
    return Span(max(ends) - min(starts), min(starts), max(ends))


def _runs(text: str) -> list[MeasuredRun]:
    """The runs of one duration or file."""
    path = Path(text)
    if path.is_file():
        if path.stat().st_size > MOST_FILE_BYTES:
            raise BadInput(
                f"{path}: found {path.stat().st_size:,} bytes; expected {MOST_FILE_BYTES:,} at most"
            )
        return runs_of(read_input(path, "measured runs"), str(path))
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise BadInput(f"--measured: found '{text}'; expected {error}, or a file") from None
    if seconds <= 0:
        raise BadInput(f"--measured: found '{text}'; expected a duration above 0")
    return [MeasuredRun(f"--measured {text}", seconds)]


def runs_of(raw: bytes, file: str) -> list[MeasuredRun]:
    """Runs of a file's bytes; the file name determines the format. BadInput for invalid content."""
    if file.endswith(".csv"):
        return _table(_csv(raw, file), file)
    if file.endswith(".parquet"):
        return _table(_parquet(raw, file), file)
    return _document(document_of(raw, file))


# ---------------------------------------------------------------- documents


def _document(document: Document) -> list[MeasuredRun]:
    values = document.value
    if isinstance(values, dict) and "schemaVersion" in values:
        return [_executed(document)]
    if not isinstance(values, dict) or values.get("schema") != SCHEMA:
        schema = values.get("schema") if isinstance(values, dict) else values
        document.mistake(
            ("schema",) if isinstance(values, dict) and "schema" in values else (),
            f"{shown(schema)} as schema",
            f"{SCHEMA}, or an executed WfFormat instance",
        )
        document.check()
    _only(document, (), values, ("schema", "runs"))
    rows = values.get("runs")
    if not isinstance(rows, list) or not rows:
        document.mistake(("runs",) if "runs" in values else (), shown(rows), "a list `runs`")
        document.check()
    runs = [_run(document, ("runs", i), row) for i, row in enumerate(rows)]
    document.check()
    return runs


def _run(document: Document, path: Place, row: Any) -> MeasuredRun:
    number = int(path[-1]) + 1
    run = MeasuredRun(f"{document.file}, run {number}")
    if not isinstance(row, dict):
        document.mistake(path, shown(row), "an object: makespan_s, stages, tasks")
        return run
    _only(document, path, row, ("makespan_s", "stages", "tasks"))
    if "makespan_s" in row:
        seconds = _number(row["makespan_s"])
        if seconds is None or seconds == 0:
            document.mistake((*path, "makespan_s"), shown(row["makespan_s"]), "seconds above 0")
        run.makespan_s = seconds
    for kind in ("stages", "tasks"):
        rows = row.get(kind, [])
        if not isinstance(rows, list):
            document.mistake((*path, kind), shown(rows), f"a list `{kind}`")
            continue
        spans: dict[str, Span] = getattr(run, kind)
        for i, one in enumerate(rows):
            at = (*path, kind, i)
            if not isinstance(one, dict):
                document.mistake(at, shown(one), "an object: name, start_s and end_s, or lasts_s")
                continue
            _only(document, at, one, ("name", "start_s", "end_s", "lasts_s"))
            name = one.get("name")
            if not isinstance(name, str) or not name or name in spans:
                again = " a second time" if isinstance(name, str) and name in spans else ""
                document.mistake(at, f"{shown(name)} as name{again}", f"each of {kind} once")
                continue
            try:
                spans[name] = _span(one)
            except ValueError as error:
                document.mistake(at, *error.args)
    return run


def _only(document: Document, path: Place, row: Mapping[str, Any], keys: Sequence[str]) -> None:
    for key in row:
        if key not in keys:
            document.mistake((*path, key), f"the key {key!r}", ", ".join(keys), key=True)


def _executed(document: Document) -> MeasuredRun:
    """Measured run of an executed instance: run times by task id, a makespan."""
    from penstock.parts.prediction.workloads.formats.instance import read_instance

    instance = read_instance(document)
    workflow = document.value["workflow"]
    execution = workflow.get("execution")
    values = execution if isinstance(execution, dict) else workflow
    makespan = _number(values.get(names_of(instance.version).makespan))
    tasks = {j.id: Span(j.runtime_s) for j in instance.jobs if j.runtime_s is not None}
    return MeasuredRun(document.file, makespan or None, tasks=tasks)


# ---------------------------------------------------------------- tables


def _csv(raw: bytes, file: str) -> Iterable[tuple[str, Mapping[str, Any]]]:
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(
            f"{file}: found the byte 0x{raw[error.start]:02x}; expected text in UTF-8"
        ) from None
    rows = csv.DictReader(io.StringIO(text, newline=""))
    try:
        _columns(rows.fieldnames or (), file)
        for row in rows:
            where = f"{file}:{rows.line_num}"
            if None in row:
                raise BadInput(f"{where}: found more cells than columns; expected as many")
            yield where, {k: v for k, v in row.items() if v not in ("", None)}
    except csv.Error as error:
        raise BadInput(f"{file}:{rows.line_num}: found {error}; expected a CSV table") from None


def _parquet(raw: bytes, file: str) -> Iterable[tuple[str, Mapping[str, Any]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(pa.BufferReader(raw))
    except (OSError, pa.ArrowException) as error:
        raise BadInput(f"{file}: found a file that is not Parquet ({error})") from None
    _columns(table.column_names, file)
    for i, row in enumerate(table.to_pylist(), 1):
        yield f"{file}, row {i}", {k: v for k, v in row.items() if v is not None}


def _columns(names: Sequence[str], where: str) -> None:
    odd = [str(n) for i, n in enumerate(names) if n not in COLUMNS or n in names[:i]]
    if odd or "kind" not in names:
        fault = f"the column {odd[0]!r}" if odd else "no column kind"
        raise BadInput(f"{where}: found {fault}; expected some of {', '.join(COLUMNS)}, each once")


def _table(rows: Iterable[tuple[str, Mapping[str, Any]]], file: str) -> list[MeasuredRun]:
    runs: dict[str, MeasuredRun] = {}
    for where, row in rows:
        kind, name = row.get("kind"), str(row.get("name", ""))
        number = str(row.get("run", "1"))
        run = runs.setdefault(number, MeasuredRun(f"{file}, run {number}"))
        if kind not in KINDS:
            raise BadInput(f"{where}: found {shown(kind)} as kind; expected {', '.join(KINDS)}")
        try:
            span = _span(row)
        except ValueError as error:
            actual, expected = error.args
            raise BadInput(f"{where}: found {actual}; expected {expected}") from None
        if kind == "run":
            if run.makespan_s is not None or span.lasts_s == 0:
                fault = "0 s" if span.lasts_s == 0 else "a second makespan"
                raise BadInput(f"{where}: found {fault}; expected one above 0 for each run")
            run.makespan_s = span.lasts_s
            continue
        spans = run.stages if kind == "stage" else run.tasks
        if not name or name in spans:
            fault = f"the {kind} {name} a second time" if name else f"a {kind} without name"
            raise BadInput(f"{where}: found {fault}; expected each of a run once, by its name")
        spans[name] = span
    if not runs:
        raise BadInput(f"{file}: found no row; expected one for each run, stage or task")
    return list(runs.values())


def _span(row: Mapping[str, Any]) -> Span:
    """Span of a row. ValueError with the actual and the expected value."""
    start, end, lasts = (
        None if row.get(key) is None else _number(row[key])
        for key in ("start_s", "end_s", "lasts_s")
    )
    for key, value in (("start_s", start), ("end_s", end), ("lasts_s", lasts)):
        if row.get(key) is not None and value is None:
            raise ValueError(f"{shown(row[key])} as {key}", "seconds of at least 0")
    if lasts is not None and start is None and end is None:
        return Span(lasts)
    if start is None or end is None or lasts is not None:
        present = [key for key in ("start_s", "end_s", "lasts_s") if row.get(key) is not None]
        raise ValueError(
            listed(present) if present else "no time", "start_s and end_s, or only lasts_s"
        )
    if end < start:
        raise ValueError(f"an end ({end:g}) before the start ({start:g})", "start_s ≤ end_s")
    return Span(end - start, start, end)


def _number(value: Any) -> float | None:
    """A finite number of at least 0, also as text; None for other values."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None
