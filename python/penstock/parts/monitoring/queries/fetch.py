"""Points of remote servers, fetched into an experiment: read once, and stored with the query.

    fetch(store, running, question, target)            # of a running one: since the last fetch
    fetch_named(store, targets, running, end_ns)       # all metrics of a configuration, at the end
    fetch(store, ended, question, target)              # its bundle gets the series, too

The source of a question's points is `SERVER/METRIC`. The interval of points there is unknown, so no
points of its series are expected, and their completeness is `unknown`; steps without a value between two with
a value are gaps.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.archive.bundle import Bundle
from penstock.errors import BadInput, NoAnswer, PenstockError, Upstream
from penstock.parts.monitoring.experiments.experiment import Experiment, Taken, Unknown
from penstock.parts.monitoring.experiments.experiment_bundle import reason_of
from penstock.parts.monitoring.experiments.experiments import Experiments
from penstock.parts.monitoring.experiments.points import MOST_NAME, Account, Batch, Closed, Event
from penstock.parts.monitoring.experiments.recorded import (
    Recorded,
    joined,
    recorded,
    recorded_plain,
    span_of,
)
from penstock.parts.monitoring.experiments.targets import Target, Targets, checked_options
from penstock.parts.monitoring.queries import fetch_records as fetched
from penstock.parts.monitoring.queries import remote_query
from penstock.parts.monitoring.queries.fetch_records import Receipt
from penstock.parts.monitoring.queries.remote_query import Question

if TYPE_CHECKING:
    from penstock.parts.monitoring.servers.reader import Kept

#: points of one batch
BATCH_POINTS = 100_000
#: gaps of one batch that are recorded at most
_MOST_GAPS = 1_000


def source_of(question: Question) -> str:
    """Source of the points of a question. BadInput for a name that no source can have."""
    name = f"{question.server}/{question.metric}"
    if len(name) > MOST_NAME or not name.isprintable():
        raise BadInput(
            f"found {len(name)} characters of server and metric, or some that are not printable; expected a "
            f"metric's name that makes them {MOST_NAME} at most"
        )
    return name


def questions(targets: Targets) -> list[Question]:
    """Questions of a configuration's named metrics to remote servers."""
    named = targets.metrics.values()
    return [Question.of(options) for options in named if remote_query.is_remote(options)]


def fetch_requested(
    store: Experiments, targets: Targets, experiment: Experiment, request: Mapping[str, Any]
) -> list[Receipt]:
    """Fetch by options of a request: a query or measurement, a named metric, or all named metrics.

    Raises as `fetch` and `fetch_named` do; Unknown for a metric or server missing in the configuration.
    """
    options = targets.options(checked_options(request))
    if remote_query.is_remote(options):
        question = Question.of(options)
        return [fetch(store, experiment, question, remote_query.target_of(question, targets))]
    names = ", ".join(q.metric for q in questions(targets)) or "none"
    if "metric" in options:
        raise Unknown(f"found metric {options['metric']!r}; expected a query, or one of {names}")
    if names == "none":
        raise BadInput("found no query and no named metric; expected a query, or a configuration")
    return fetch_named(store, targets, experiment)


def fetch_named(
    store: Experiments, targets: Targets, experiment: Experiment, end_ns: int | None = None
) -> list[Receipt]:
    """Fetch all named metrics; returns their receipts. Raises Upstream at the end if some failed."""
    done, failed = [], []
    silent: dict[str, NoAnswer] = {}
    for question in questions(targets):
        try:
            target = remote_query.target_of(question, targets)
            outage = silent.get(question.server)
            done.append(
                fetch(store, experiment, question, target, end_ns, missed=True, silent=outage)
            )
        except (Taken, Closed):
            raise
        except PenstockError as error:
            if isinstance(error, NoAnswer):
                silent[question.server] = error
            failed.append(f"{question.metric}: {error}")
    if failed:
        raise Upstream("; ".join(failed))
    return done


def fetch(
    store: Experiments,
    experiment: Experiment,
    question: Question,
    target: Target,
    end_ns: int | None = None,
    *,
    missed: bool = False,
    silent: NoAnswer | None = None,
) -> Receipt:
    """Fetch a server's points of an experiment, up to its end or to now; returns the receipt.

    Fetching again requests only points after the last fetch. `missed`: record a failure as missing data of
    the experiment. `silent`: the error of a server that has just failed to answer; it is raised without a
    request. BadInput for a name that another query has, Upstream if the server does not answer; Taken for a
    run of a study.
    """
    if not experiment.by_hand:
        raise Taken(f"{experiment.name} is a run of a study; expected an experiment")
    source = source_of(question)
    request = {
        **question.document(),
        "type": target.type,
        "address": remote_query.address_of(target),
    }
    head: Receipt = {"source": source, "asked": request}
    if experiment.running:
        return _into_spool(
            store, experiment, question, target, head, end_ns, missed=missed, silent=silent
        )
    if silent is not None:
        raise silent
    return _into_bundle(store, experiment, question, target, source, request)


def _into_spool(
    store: Experiments,
    experiment: Experiment,
    question: Question,
    target: Target,
    head: Receipt,
    end_ns: int | None,
    *,
    missed: bool,
    silent: NoAnswer | None,
) -> Receipt:
    live, sink, source = experiment.live, store.sink(experiment), head["source"]
    with fetched.one_at_a_time(live):
        until_ns = time.time_ns() if end_ns is None else end_ns
        lines = [line for line in fetched.lines_of(live) if line["source"] == source]
        start_ns, number, pinned = fetched.window(lines, experiment.start_ns)
        earlier = [line for line in lines if line["state"] == "kept"]
        _check_same(source, head["asked"], earlier if pinned is None else lines[-1:])
        while pinned is not None or start_ns <= until_ns:
            again = pinned is not None
            low, high, number = pinned or (start_ns, until_ns, number)
            pinned = None
            if not again:
                begun = {"state": "begun", "start_ns": low, "end_ns": high, "number": number}
                fetched.append(live, {**head, **begun})
            try:
                if silent is not None:
                    raise silent
                reply = remote_query.read(target, question, low, high)
            except PenstockError as error:
                state = {"state": "failed", "error": str(error)[:1000]}
                if missed or not again:
                    state = state if missed else {"state": "dropped"}
                    fetched.append(live, {**head, **state, "again": again})
                raise
            batches = list(_batches(source, number, reply, question.step_ns))
            for batch in batches:
                sink.write(batch)
            number += len(batches)
            start_ns = reply.ranges[-1][1] + question.step_ns if reply.ranges else high + 1
            line = {"state": "kept", "next_number": number, "next_ns": start_ns}
            fetched.append(live, {**head, **line, **_counts(reply, len(batches), low, high)})
        every = fetched.receipts(fetched.lines_of(live))
        return next(r for r in every if r["source"] == source)


def _into_bundle(
    store: Experiments,
    experiment: Experiment,
    question: Question,
    target: Target,
    source: str,
    request: Mapping[str, Any],
) -> Receipt:
    with fetched.one_at_a_time(experiment.path):
        bundle = Bundle.open(experiment.path)
        before: list[Receipt] = bundle.manifest.get("fetched", [])
        earlier = [r for r in before if r["source"] == source]
        _check_same(source, request, [{"asked": r} for r in earlier if "error" not in r])
        if earlier and "error" not in earlier[0]:
            return earlier[0]
        start_ns, end_ns = span_of(bundle)
        reply = remote_query.read(target, question, start_ns, end_ns)
        batches = list(_batches(source, 0, reply, question.step_ns))
        counts = _counts(reply, len(batches), start_ns, end_ns)
        receipt: Receipt = {**request, "source": source, **counts}
        more = recorded(batches, start_ns, end_ns)
        combined = joined(_without(recorded_plain(bundle), source), more)
        # after a kill between these writes (points without a series, or a series without a receipt) the next
        # fetch completes them
        bundle.write_table("points", combined.points)
        bundle.write_table("series", combined.series)
        bundle.write_table("gaps", combined.gaps)
        receipts = [*(r for r in before if r["source"] != source), receipt]
        manifest = bundle.manifest
        manifest["fetched"] = receipts
        manifest["reason"] = reason_of(
            manifest["state"], manifest.get("exit_status"), combined, fetched.missing(receipts)
        )
        manifest["valid"] = not manifest["reason"]
        manifest["experiment"]["verdict"] = combined.verdict
        bundle.amend()
        store.index(bundle)
        return receipt


def _check_same(
    source: str, request: Mapping[str, Any], before: Sequence[Mapping[str, Any]]
) -> None:
    for line in before:
        for key in ("query", "step_ns", "database"):
            if line["asked"][key] != request[key]:
                raise BadInput(
                    f"{source}: found {key} {request[key]!r}; expected {line['asked'][key]!r}, by which it "
                    "was fetched before, or another metric"
                )


def _counts(reply: Kept, batches: int, start_ns: int, end_ns: int) -> dict[str, Any]:
    return {
        "sent": reply.query,
        "requests": reply.requests,
        "points": reply.points.num_rows,
        "batches": batches,
        "ranges": [list(r) for r in reply.ranges or ((start_ns, end_ns),)],
    }


def _batches(source: str, number: int, reply: Kept, step_ns: int) -> Iterator[Batch]:
    gaps = _gaps(reply.points, step_ns) if reply.ranges else []
    for low in range(0, reply.points.num_rows, BATCH_POINTS):
        part = reply.points.slice(low, BATCH_POINTS)
        yield Batch(source, number, part, _free(part), () if low else gaps)
        number += 1


def _free(table: pa.Table) -> list[Account]:
    """Accounts of all series, with no points due."""
    names = table.select(["metric", "labels"]).cast(
        pa.schema([("metric", pa.string()), ("labels", pa.string())])
    )
    rows = names.group_by(["metric", "labels"]).aggregate([]).to_pylist()
    return [Account(row["metric"], row["labels"], free=True) for row in rows]


def _gaps(table: pa.Table, step_ns: int) -> list[Event]:
    """Steps without a value between two steps of a series that have one."""
    gaps: list[Event] = []
    labels = table["labels"].combine_chunks()
    codes, times = np.asarray(labels.indices), table["utc_ns"].to_numpy()
    order = np.lexsort((times, codes))
    codes, times = codes[order], times[order]
    apart = (np.diff(codes) == 0) & (np.diff(times) > step_ns)
    for at in np.flatnonzero(apart)[:_MOST_GAPS]:
        metric, text = table["metric"][0].as_py(), labels.dictionary[int(codes[at])].as_py()
        low, high = int(times[at]), int(times[at + 1])
        absent = (high - low) // step_ns - 1
        gaps.append(Event("gap", low, high, metric, text, f"{absent} steps without a value"))
    return gaps


def _without(old: Recorded, source: str) -> Recorded:
    """All but the series of a source."""
    of_source = pc.equal(old.series["source"].cast(pa.string()), source)
    series = old.series.filter(pc.invert(of_source))
    points = old.points.filter(
        pc.is_in(old.points["series_id"], series["series_id"].combine_chunks())
    )
    gaps = old.gaps.filter(pc.not_equal(old.gaps["source"].cast(pa.string()), source))
    return Recorded(series, points, gaps)
