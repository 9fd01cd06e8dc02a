"""What is asked of an experiment's data, and the answer: a table in a format, part by part."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
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
from penstock.parts.monitoring.queries import remote_query as elsewhere
from penstock.parts.monitoring.queries.export import MEDIA, as_bytes, empty, joined
from penstock.parts.monitoring.queries.fetch_records import Receipt
from penstock.parts.monitoring.queries.remote_query import Question
from penstock.spec.names import suggestion


@dataclass(frozen=True)
class Answer:
    """Its parts, their media type, the experiment's state, what of its points was lost, late or twice, and
    which of its series are not complete. `asked`: of data of a server elsewhere, what was `sent` and in how
    many `requests`."""

    parts: Iterator[bytes]
    media: str
    state: str
    totals: Mapping[str, int]
    verdict: Verdict
    asked: Mapping[str, Any] | None = None


def answer(
    store: Experiments, targets: Targets, name: str, sees: str | None, said: Mapping[str, Any]
) -> Answer:
    """Data of the experiment `name` as a user sees it, by options of `targets.OPTIONS`.

    Raises Unknown for an experiment, metric or phase that is none, BadInput for wrong options.
    """
    options = targets.options(checked_options(said))
    found = store.find(name, sees)
    wanted = options.get("format", "csv")
    axis = options.get("type")
    if wanted not in MEDIA:
        raise BadInput(f"found format {wanted!r}; expected one of {', '.join(MEDIA)}")
    if axis not in (None, "timestamp", "duration", "sample"):
        raise BadInput(f"found type {axis!r}; expected timestamp, duration or sample")
    start_ns, end_ns = window(found, options.get("phase"))
    made, metric, asked = data_of(store, targets, found, options, start_ns, end_ns)
    if options.get("clocks", "recorded") == "corrected":
        made = corrected(made, store.recorded(found, CLOCK), found.name)
    elif options.get("clocks", "recorded") != "recorded":
        raise BadInput(f"found clocks {options['clocks']!r}; expected recorded or corrected")
    labels, origin_ns = options.get("labels"), found.start_ns
    table = joined(made, metric, start_ns, end_ns, axis=axis, labels=labels, origin_ns=origin_ns)
    if table is None and asked is not None:  # the server answered: it has no series for this query
        table = empty(axis or "timestamp")
    if table is None:
        raise Unknown(
            f"found no metric {metric!r} in {found.name}#{found.repeat}"
            f"{suggestion(metric, _metrics(store, found))}"
        )
    parts = as_bytes(table, wanted)
    head = next(parts, b"")  # what cannot be written is told before the answer begins

    def content() -> Iterator[bytes]:
        yield head
        yield from parts

    kinds = made.gaps["kind"].cast(pa.string())
    refused = made.gaps.filter(pc.starts_with(kinds, "refused")).to_pylist()
    verdict = verdict_of(table.about, found.running, refused)
    return Answer(content(), MEDIA[wanted], found.state, table.totals, verdict, asked)


def _metrics(store: Experiments, found: Experiment) -> list[str]:
    """The names of the metrics that an experiment recorded, in order."""
    return sorted(set(store.recorded(found).series["metric"].to_pylist()))


def corrected(made: Recorded, clock: Recorded, name: str) -> Recorded:
    """Points on the store's clock: of each source that compared its own with it, by what it found before and
    after, and in between by a straight line. BadInput where none of these sources did."""
    offsets = {
        labels_of(r["labels"]).get("source"): r["series_id"] for r in clock.series.to_pylist()
    }
    numbers = made.points["series_id"].to_numpy()
    times = made.points["utc_ns"].to_numpy(zero_copy_only=False).copy()
    known = False
    for row in made.series.to_pylist():
        mine = clock.points.filter(
            pc.equal(clock.points["series_id"], offsets.get(row["source"], -1))
        )
        if not len(mine) or row["kind"] != "time":
            continue
        known = True
        at, ahead_s = mine["utc_ns"].to_numpy(), mine["float"].to_numpy()
        which = numbers == row["series_id"]
        since = (times[which] - at[0]).astype(np.float64)
        ahead_ns = np.interp(since, (at - at[0]).astype(np.float64), ahead_s * 1e9)
        times[which] -= np.rint(ahead_ns).astype(times.dtype)
    if not known:
        raise BadInput(
            f"found no measured clock of who sent this to {name}; expected recorded times"
        )
    column = made.points.schema.get_field_index("utc_ns")
    field = made.points.schema.field(column)
    moved = made.points.set_column(column, field, pa.array(times, field.type))
    return replace(made, points=moved)


def window(found: Experiment, phase: str | None) -> tuple[int, int]:
    """From when to when an experiment, or one of its phases, lasted [ns since 1970 UTC]."""
    end_ns = found.end_ns if found.end_ns is not None else time.time_ns()
    if phase is None:
        return found.start_ns, end_ns
    named = [p for p in found.phases if p.name == phase or p.name.rpartition("/")[2] == phase]
    if not named:
        said = ", ".join(p.name for p in found.phases) or "none"
        raise Unknown(f"found no phase {phase!r} in {found.name}; expected one of {said}")
    return named[0].start_ns, named[-1].end_ns or end_ns


def data_of(
    store: Experiments,
    targets: Targets,
    found: Experiment,
    options: Mapping[str, Any],
    start_ns: int,
    end_ns: int,
) -> tuple[Recorded, str, Receipt | None]:
    """What is asked for, its metric's name, and where it is of a server elsewhere the receipt: of this store,
    once the experiment has ended and it was fetched, else read from there."""
    if not elsewhere.asks_elsewhere(options):
        if "metric" not in options:
            raise BadInput("found no metric; expected metric, or server with query or measurement")
        return store.recorded(found, options["metric"]), options["metric"], None
    question = Question.of(options)
    name = question.metric
    receipts = [] if found.running else fetched.receipts_of(found)
    for receipt in receipts:
        if question.is_of(receipt) and "error" not in receipt:
            return _called(store.recorded(found, receipt["metric"]), receipt, name), name, receipt
    kept = elsewhere.read(elsewhere.target_of(question, targets), question, start_ns, end_ns)
    made = recorded([Batch(question.server, 0, kept.points)], start_ns, end_ns)
    return made, name, {"sent": kept.query, "requests": kept.requests}


def _called(made: Recorded, receipt: Receipt, name: str) -> Recorded:
    """The series of a receipt, under a metric's name."""
    series = made.series.filter(
        pc.equal(made.series["source"].cast(pa.string()), receipt["source"])
    )
    at = series.schema.get_field_index("metric")
    names = pa.array([name] * len(series), pa.string()).cast(series.schema.field(at).type)
    return replace(made, series=series.set_column(at, series.schema.field(at), names))
