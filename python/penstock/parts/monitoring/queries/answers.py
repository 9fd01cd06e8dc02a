"""Queries of an experiment's data, answered with a table in a format, part by part."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.archive.series.incomplete import Verdict, verdict_of
from penstock.errors import BadInput
from penstock.host.probe.clock_offset import CLOCK
from penstock.parts.monitoring.experiments.experiment import Experiment, Unknown
from penstock.parts.monitoring.experiments.experiments import Experiments
from penstock.parts.monitoring.experiments.points import Batch
from penstock.parts.monitoring.experiments.recorded import Recorded, labels_of, recorded
from penstock.parts.monitoring.experiments.targets import Targets, checked_options
from penstock.parts.monitoring.queries import fetch_records as fetched
from penstock.parts.monitoring.queries import remote_query
from penstock.parts.monitoring.queries.export import MEDIA, as_bytes, empty, joined
from penstock.parts.monitoring.queries.fetch_records import Receipt
from penstock.parts.monitoring.queries.remote_query import Question
from penstock.spec.names import suggestion


@dataclass(frozen=True)
class Answer:
    """Parts and media type of an answer, the experiment's state, counts of lost, late and duplicate points,
    and incomplete series. `remote`: of a remote server's data, the query `sent` and the number of
    `requests`."""

    parts: Iterator[bytes]
    media: str
    state: str
    totals: Mapping[str, int]
    verdict: Verdict
    remote: Mapping[str, Any] | None = None


def answer(
    store: Experiments, targets: Targets, name: str, sees: str | None, request: Mapping[str, Any]
) -> Answer:
    """Data of the experiment `name` as a user sees it, by options of `targets.OPTIONS`.

    Raises Unknown for an unknown experiment, metric or phase, BadInput for invalid options.
    """
    options = targets.options(checked_options(request))
    experiment = store.find(name, sees)
    form = options.get("format", "csv")
    axis = options.get("type")
    if form not in MEDIA:
        raise BadInput(f"found format {form!r}; expected one of {', '.join(MEDIA)}")
    if axis not in (None, "timestamp", "duration", "sample"):
        raise BadInput(f"found type {axis!r}; expected timestamp, duration or sample")
    spans = spans_of(experiment, options.get("phase"))
    start_ns, end_ns = min(span[0] for span in spans), max(span[1] for span in spans)
    tables, metric, remote = data_of(store, targets, experiment, options, start_ns, end_ns)
    if options.get("clocks", "recorded") == "corrected":
        tables = corrected(tables, store.recorded(experiment, CLOCK), experiment.name)
    elif options.get("clocks", "recorded") != "recorded":
        raise BadInput(f"found clocks {options['clocks']!r}; expected recorded or corrected")
    tables = _inside(tables, spans)
    labels, origin_ns = options.get("labels"), experiment.start_ns
    table = joined(tables, metric, start_ns, end_ns, axis=axis, labels=labels, origin_ns=origin_ns)
    if table is None and remote is not None:  # the server answered: it has no series for this query
        table = empty(axis or "timestamp")
    if table is None:
        raise Unknown(
            f"found no metric {metric!r} in {experiment.name}#{experiment.repeat}"
            f"{suggestion(metric, _metrics(store, experiment))}"
        )
    parts = as_bytes(table, form)
    head = next(parts, b"")  # errors of formatting are raised before the answer begins

    def content() -> Iterator[bytes]:
        yield head
        yield from parts

    kinds = tables.gaps["kind"].cast(pa.string())
    refused = tables.gaps.filter(pc.starts_with(kinds, "refused")).to_pylist()
    verdict = verdict_of(table.about, experiment.running, refused)
    return Answer(content(), MEDIA[form], experiment.state, table.totals, verdict, remote)


def _metrics(store: Experiments, experiment: Experiment) -> list[str]:
    """The names of the metrics that an experiment recorded, in order."""
    return sorted(set(store.recorded(experiment).series["metric"].to_pylist()))


def corrected(tables: Recorded, clock: Recorded, name: str) -> Recorded:
    """Points on the store's clock, for each source that measured the offset of its own, by linear
    interpolation between these measurements. BadInput if no source has any."""
    offsets = {
        labels_of(r["labels"]).get("source"): r["series_id"] for r in clock.series.to_pylist()
    }
    numbers = tables.points["series_id"].to_numpy()
    recorded_ns = tables.points["utc_ns"]
    times = np.asarray(recorded_ns.fill_null(0), np.int64).copy()
    measured = False
    for row in tables.series.to_pylist():
        readings = clock.points.filter(
            pc.equal(clock.points["series_id"], offsets.get(row["source"], -1))
        )
        if not len(readings) or row["kind"] != "time":
            continue
        measured = True
        at, ahead_s = readings["utc_ns"].to_numpy(), readings["float"].to_numpy()
        which = numbers == row["series_id"]
        since = (times[which] - at[0]).astype(np.float64)
        ahead_ns = np.interp(since, (at - at[0]).astype(np.float64), ahead_s * 1e9)
        times[which] -= np.rint(ahead_ns).astype(times.dtype)
    if not measured:
        raise BadInput(
            f"found no measured clock of who sent this to {name}; expected recorded times"
        )
    column = tables.points.schema.get_field_index("utc_ns")
    field = tables.points.schema.field(column)
    # points of a sequence may have none
    corrected_ns = pa.array(times, field.type, mask=np.asarray(recorded_ns.is_null()))
    moved = tables.points.set_column(column, field, corrected_ns)
    return replace(tables, points=moved)


def spans_of(experiment: Experiment, phase: str | None) -> list[tuple[int, int]]:
    """Start and end of an experiment, or of each of its phases of one name [ns since 1970 UTC]."""
    end_ns = experiment.end_ns if experiment.end_ns is not None else time.time_ns()
    if phase is None:
        return [(experiment.start_ns, end_ns)]
    named = [p for p in experiment.phases if p.name == phase]
    named = named or [p for p in experiment.phases if p.name.rpartition("/")[2] == phase]
    if not named:
        names = ", ".join(p.name for p in experiment.phases) or "none"
        raise Unknown(f"found no phase {phase!r} in {experiment.name}; expected one of {names}")
    return [(p.start_ns, p.end_ns or end_ns) for p in named]


def _inside(tables: Recorded, spans: Sequence[tuple[int, int]]) -> Recorded:
    """Without the points between several spans; those of a sequence without times stay."""
    if len(spans) == 1:
        return tables
    column = tables.points["utc_ns"]
    times = np.asarray(column.fill_null(spans[0][0]), np.int64)
    inside = np.any([(times >= start_ns) & (times <= end_ns) for start_ns, end_ns in spans], axis=0)
    return replace(tables, points=tables.points.filter(pa.array(inside)))


def data_of(
    store: Experiments,
    targets: Targets,
    experiment: Experiment,
    options: Mapping[str, Any],
    start_ns: int,
    end_ns: int,
) -> tuple[Recorded, str, Receipt | None]:
    """Tables of a request, its metric's name, and the receipt of a remote server's data. These come from this
    store if the experiment has ended and they were fetched, else from the server."""
    if not remote_query.is_remote(options):
        if "metric" not in options:
            raise BadInput("found no metric; expected metric, or server with query or measurement")
        return store.recorded(experiment, options["metric"]), options["metric"], None
    question = Question.of(options)
    name = question.metric
    receipts = [] if experiment.running else fetched.receipts_of(experiment)
    for receipt in receipts:
        if question.is_of(receipt) and "error" not in receipt:
            return (
                _called(store.recorded(experiment, receipt["metric"]), receipt, name),
                name,
                receipt,
            )
    reply = remote_query.read(remote_query.target_of(question, targets), question, start_ns, end_ns)
    tables = recorded([Batch(question.server, 0, reply.points)], start_ns, end_ns)
    return tables, name, {"sent": reply.query, "requests": reply.requests}


def _called(tables: Recorded, receipt: Receipt, name: str) -> Recorded:
    """The series of a receipt, renamed to a metric."""
    series = tables.series.filter(
        pc.equal(tables.series["source"].cast(pa.string()), receipt["source"])
    )
    at = series.schema.get_field_index("metric")
    names = pa.array([name] * len(series), pa.string()).cast(series.schema.field(at).type)
    return replace(tables, series=series.set_column(at, series.schema.field(at), names))
