"""Points of servers elsewhere, fetched into an experiment: they are read once, and kept with the question.

    fetch(store, running, question, target)            # of one that runs: from where it was fetched before
    fetch_named(store, targets, running, end_ns)       # all metrics that a configuration names, at the end
    fetch(store, ended, question, target)              # its bundle gets the series, too

The source of a question's points is `SERVER/METRIC`. How often a point was due there is the server's affair,
so nothing is expected of its series, and how complete they are is `unknown`; steps without a value between
two that have one are gaps.
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
from penstock.parts.monitoring.queries import remote_query as elsewhere
from penstock.parts.monitoring.queries.fetch_records import Receipt
from penstock.parts.monitoring.queries.remote_query import Question

if TYPE_CHECKING:
    from penstock.parts.monitoring.servers.reader import Kept

#: points of one batch
BATCH_POINTS = 100_000
#: gaps that are written down of one batch
_MOST_GAPS = 1_000


def source_of(question: Question) -> str:
    """What the points of a question are from. BadInput for one that no source can be called by."""
    name = f"{question.server}/{question.metric}"
    if len(name) > MOST_NAME or not name.isprintable():
        raise BadInput(
            f"found {len(name)} characters of server and metric, or some that are not printable; expected a "
            f"metric's name that makes them {MOST_NAME} at most"
        )
    return name


def questions(targets: Targets) -> list[Question]:
    """What a configuration's named metrics ask of servers elsewhere."""
    named = targets.metrics.values()
    return [Question.of(options) for options in named if elsewhere.asks_elsewhere(options)]


def fetch_asked(
    store: Experiments, targets: Targets, found: Experiment, said: Mapping[str, Any]
) -> list[Receipt]:
    """Fetches what is said by options of a request: a query or measurement, a named metric, or all of these.

    Raises as `fetch` and `fetch_named` do; Unknown for a metric or server that the configuration has not.
    """
    options = targets.options(checked_options(said))
    if elsewhere.asks_elsewhere(options):
        question = Question.of(options)
        return [fetch(store, found, question, elsewhere.target_of(question, targets))]
    names = ", ".join(q.metric for q in questions(targets)) or "none"
    if "metric" in options:
        raise Unknown(f"found metric {options['metric']!r}; expected a query, or one of {names}")
    if names == "none":
        raise BadInput("found no query and no named metric; expected a query, or a configuration")
    return fetch_named(store, targets, found)


def fetch_named(
    store: Experiments, targets: Targets, found: Experiment, end_ns: int | None = None
) -> list[Receipt]:
    """Fetches all named metrics; gives their receipts. Upstream, after all were asked, where some failed."""
    done, failed = [], []
    silent: dict[str, NoAnswer] = {}
    for question in questions(targets):
        try:
            target = elsewhere.target_of(question, targets)
            known = silent.get(question.server)
            done.append(fetch(store, found, question, target, end_ns, missed=True, silent=known))
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
    found: Experiment,
    question: Question,
    target: Target,
    end_ns: int | None = None,
    *,
    missed: bool = False,
    silent: NoAnswer | None = None,
) -> Receipt:
    """Fetches what a server has of an experiment, up to its end or to now; gives the receipt.

    Fetched again, it asks for nothing that it has. `missed`: where the server does not give it, the
    experiment lacks it. `silent`: the server was found not to answer just before, and is not asked. BadInput
    for a name that another query has, Upstream where the server does not answer; Taken for a run of a study.
    """
    if not found.by_hand:
        raise Taken(f"{found.name} is a run of a study; expected an experiment")
    source = source_of(question)
    asked = {
        **question.document(),
        "type": target.type,
        "address": elsewhere.address_of(target),
    }
    if found.running:
        return _into_spool(store, found, question, target, source, asked, end_ns, missed, silent)
    if silent is not None:
        raise silent
    return _into_bundle(store, found, question, target, source, asked)


def _into_spool(
    store: Experiments,
    found: Experiment,
    question: Question,
    target: Target,
    source: str,
    asked: Mapping[str, Any],
    end_ns: int | None,
    missed: bool,
    silent: NoAnswer | None,
) -> Receipt:
    live, sink = found.live, store.sink(found)
    told: Receipt = {"source": source, "asked": asked}
    with fetched.one_at_a_time(live):
        until_ns = time.time_ns() if end_ns is None else end_ns
        mine = [line for line in fetched.lines_of(live) if line["source"] == source]
        start_ns, number, pinned = fetched.window(mine, found.start_ns)
        kept_before = [line for line in mine if line["state"] == "kept"]
        _check_same(source, asked, kept_before if pinned is None else mine[-1:])
        while pinned is not None or start_ns <= until_ns:
            again = pinned is not None
            low, high, number = pinned or (start_ns, until_ns, number)
            pinned = None
            if not again:
                begun = {"state": "begun", "start_ns": low, "end_ns": high, "number": number}
                fetched.append(live, {**told, **begun})
            try:
                if silent is not None:
                    raise silent
                kept = elsewhere.read(target, question, low, high)
            except PenstockError as error:
                state = {"state": "failed", "error": str(error)[:1000]}
                if missed or not again:
                    state = state if missed else {"state": "dropped"}
                    fetched.append(live, {**told, **state, "again": again})
                raise
            batches = list(_batches(source, number, kept, question.step_ns))
            for batch in batches:
                sink.write(batch)
            number += len(batches)
            start_ns = kept.ranges[-1][1] + question.step_ns if kept.ranges else high + 1
            line = {"state": "kept", "next_number": number, "next_ns": start_ns}
            fetched.append(live, {**told, **line, **_told(kept, len(batches), low, high)})
        every = fetched.receipts(fetched.lines_of(live))
        return next(r for r in every if r["source"] == source)


def _into_bundle(
    store: Experiments,
    found: Experiment,
    question: Question,
    target: Target,
    source: str,
    asked: Mapping[str, Any],
) -> Receipt:
    with fetched.one_at_a_time(found.path):
        bundle = Bundle.open(found.path)
        before: list[Receipt] = bundle.manifest.get("fetched", [])
        mine = [r for r in before if r["source"] == source]
        _check_same(source, asked, [{"asked": r} for r in mine if "error" not in r])
        if mine and "error" not in mine[0]:
            return mine[0]
        start_ns, end_ns = span_of(bundle)
        kept = elsewhere.read(target, question, start_ns, end_ns)
        made = list(_batches(source, 0, kept, question.step_ns))
        told = _told(kept, len(made), start_ns, end_ns)
        receipt: Receipt = {**asked, "source": source, **told}
        more = recorded(made, start_ns, end_ns)
        whole = joined(_without(recorded_plain(bundle), source), more)
        # what a kill leaves of these is put right by the next fetch: ids that are no series, then a series
        # of the source without a receipt
        bundle.write_table("points", whole.points)
        bundle.write_table("series", whole.series)
        bundle.write_table("gaps", whole.gaps)
        receipts = [*(r for r in before if r["source"] != source), receipt]
        said = bundle.manifest
        said["fetched"] = receipts
        said["reason"] = reason_of(
            said["state"], said.get("exit_status"), whole, fetched.missing(receipts)
        )
        said["valid"] = not said["reason"]
        said["experiment"]["verdict"] = whole.verdict
        bundle.amend()
        store.index(bundle)
        return receipt


def _check_same(source: str, asked: Mapping[str, Any], before: Sequence[Mapping[str, Any]]) -> None:
    for line in before:
        for key in ("query", "step_ns", "database"):
            if line["asked"][key] != asked[key]:
                raise BadInput(
                    f"{source}: found {key} {asked[key]!r}; expected {line['asked'][key]!r}, by which it was "
                    "fetched before, or another metric"
                )


def _told(kept: Kept, batches: int, start_ns: int, end_ns: int) -> dict[str, Any]:
    return {
        "sent": kept.query,
        "requests": kept.requests,
        "points": kept.points.num_rows,
        "batches": batches,
        "ranges": [list(r) for r in kept.ranges or ((start_ns, end_ns),)],
    }


def _batches(source: str, number: int, kept: Kept, step_ns: int) -> Iterator[Batch]:
    gaps = _gaps(kept.points, step_ns) if kept.ranges else []
    for low in range(0, kept.points.num_rows, BATCH_POINTS):
        part = kept.points.slice(low, BATCH_POINTS)
        yield Batch(source, number, part, _free(part), () if low else gaps)
        number += 1


def _free(table: pa.Table) -> list[Account]:
    """Of each series, that nothing was due."""
    names = table.select(["metric", "labels"]).cast(
        pa.schema([("metric", pa.string()), ("labels", pa.string())])
    )
    rows = names.group_by(["metric", "labels"]).aggregate([]).to_pylist()
    return [Account(row["metric"], row["labels"], free=True) for row in rows]


def _gaps(table: pa.Table, step_ns: int) -> list[Event]:
    """Steps without a value between two of a series that have one."""
    found: list[Event] = []
    labels = table["labels"].combine_chunks()
    codes, times = np.asarray(labels.indices), table["utc_ns"].to_numpy()
    order = np.lexsort((times, codes))
    codes, times = codes[order], times[order]
    apart = (np.diff(codes) == 0) & (np.diff(times) > step_ns)
    for at in np.flatnonzero(apart)[:_MOST_GAPS]:
        metric, text = table["metric"][0].as_py(), labels.dictionary[int(codes[at])].as_py()
        low, high = int(times[at]), int(times[at + 1])
        absent = (high - low) // step_ns - 1
        found.append(Event("gap", low, high, metric, text, f"{absent} steps without a value"))
    return found


def _without(old: Recorded, source: str) -> Recorded:
    """All but the series of a source."""
    mine = pc.equal(old.series["source"].cast(pa.string()), source)
    series = old.series.filter(pc.invert(mine))
    points = old.points.filter(
        pc.is_in(old.points["series_id"], series["series_id"].combine_chunks())
    )
    gaps = old.gaps.filter(pc.not_equal(old.gaps["source"].cast(pa.string()), source))
    return Recorded(series, points, gaps)
