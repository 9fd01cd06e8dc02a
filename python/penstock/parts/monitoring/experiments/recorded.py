"""Tables of a recorded experiment: series with their completeness, points, and gaps."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.archive.bundle import Bundle
from penstock.archive.completeness import Verdict, verdict_of_run, worst
from penstock.archive.schemas import TABLES
from penstock.parts.monitoring.experiments.accounting import (
    AWAY_NS,
    RULES,
    Evaluation,
    Life,
    evaluate,
    of_refusals,
)
from penstock.parts.monitoring.experiments.counters import falls
from penstock.parts.monitoring.experiments.points import (
    NO_LOSS,
    STALE_BITS,
    Account,
    Batch,
    Event,
    kind_of,
    series_of,
    without_value,
)

Ints = npt.NDArray[np.int64]

SERIES_SCHEMA = TABLES["series"].arrow
POINTS_SCHEMA = TABLES["points"].arrow
GAPS_SCHEMA = TABLES["gaps"].arrow
#: kinds of rows of `gaps` for refused messages, and for everything refused
_MESSAGES = ("refused-messages",)
_REFUSED = ("refused", *_MESSAGES)
#: rows of `gaps` of one series at most; all are counted
_MOST_GAPS = 10_000


@dataclass(frozen=True)
class Recorded:
    """Tables `series`, `points` (sorted by series, then time or index) and `gaps`."""

    series: pa.Table
    points: pa.Table
    gaps: pa.Table

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of its series and on refusals of its sources; complete if there are neither."""
        of_sources = (one.verdict for one in refusals(self).values())
        return worst([*self.series["verdict"].to_pylist(), *of_sources])

    @property
    def lost(self) -> int:
        """Number of missing points."""
        return int(pc.sum(self.series["lost"]).as_py() or 0)


@dataclass(frozen=True)
class Refusals:
    """Refused points and messages of a source, by reason, and the number of points received."""

    received: int
    points: Mapping[str, int]
    messages: Mapping[str, int]

    @property
    def verdict(self) -> Verdict:
        """Verdict on the source; points without a value and duplicates are no loss."""
        lost = sum(n for why, n in self.points.items() if why not in NO_LOSS)
        return of_refusals(self.received, lost, sum(self.messages.values()))

    def __str__(self) -> str:
        points = [f"{n} points refused ({why})" for why, n in self.points.items()]
        messages = [f"{n} messages refused ({why})" for why, n in self.messages.items()]
        return ", ".join([*messages, *points])


def refusals(tables: Recorded) -> dict[str, Refusals]:
    """Refusals by source, of each source that has any."""
    kinds = pc.is_in(tables.gaps["kind"].cast(pa.string()), pa.array(_REFUSED))
    by_source: dict[str, Refusals] = {}
    for gap in tables.gaps.filter(kinds).to_pylist():
        if gap["source"] not in by_source:
            own = pc.equal(tables.series["source"].cast(pa.string()), gap["source"])
            received = pc.sum(tables.series["received"].filter(own)).as_py() or 0
            by_source[gap["source"]] = Refusals(received, {}, {})
        one = by_source[gap["source"]]
        of: dict[str, int] = one.messages if gap["kind"] in _MESSAGES else one.points  # type: ignore[assignment]
        reason = str(gap["detail"]).partition(": ")[0]
        of[reason] = of.get(reason, 0) + (gap["missing"] or 0)
    return by_source


def recorded(
    batches: Iterable[Batch], start_ns: int, end_ns: int, *, running: bool = False
) -> Recorded:
    """The tables of an experiment's batches; `start_ns` and `end_ns` are its marks [ns since 1970 UTC].

    Of points of one series and time (or index) the last to arrive is kept. While the experiment is `running`,
    the last points of a source may be in transit: they are missing once they are `AWAY_NS` late.
    """
    by_source: dict[str, list[Batch]] = {}
    for batch in batches:
        by_source.setdefault(batch.source, []).append(batch)
    series: list[dict[str, Any]] = []
    tables: list[pa.Table] = []
    gaps: list[dict[str, Any]] = []
    for source in sorted(by_source):
        of = by_source[source]
        rows, table, of_source = _of_source(source, of, len(series), start_ns, end_ns, running)
        series += rows
        tables.append(table)
        gaps += of_source
    points = pa.concat_tables(tables) if tables else POINTS_SCHEMA.empty_table()
    return Recorded(
        pa.Table.from_pylist(series, SERIES_SCHEMA),
        points,
        pa.Table.from_pylist(gaps, GAPS_SCHEMA),
    )


def _of_source(
    source: str,
    batches: Sequence[Batch],
    first_id: int,
    start_ns: int,
    end_ns: int,
    running: bool,
) -> tuple[list[dict[str, Any]], pa.Table, list[dict[str, Any]]]:
    points = pa.concat_tables([b.points for b in batches]).unify_dictionaries().combine_chunks()
    accounts = _accounts(batches)
    events = [e for b in batches for e in b.events]
    gaps = _missing_numbers(source, sorted({b.number for b in batches}))
    holes = len(gaps)
    codes, names, distinct = _series_codes(points, accounts)
    order, places, repeated = _sorted(points, codes, len(names))
    ordered = points if _is_range(order, len(codes)) else points.take(pa.array(order))
    codes = codes[order]
    edges = np.searchsorted(codes, np.arange(len(names) + 1))
    life = Life.of(events, start_ns, end_ns)
    if running:
        last_ns = pc.max(points["utc_ns"]).as_py() or 0
        life = replace(life, until_ns=min(life.until_ns, max(last_ns, end_ns - AWAY_NS)))
    resets, restarts = falls(ordered, places, edges, names, accounts, events)
    seen = [*events, *resets]
    refused = sum(e.count for e in events if e.kind == "refused")
    valueless = without_value(ordered)
    utc_ns = np.asarray(pc.fill_null(ordered["utc_ns"], start_ns).combine_chunks(), np.int64)
    outside = (utc_ns < start_ns) | (utc_ns > end_ns)
    ended = _ended_at(ordered, valueless)
    rows: list[dict[str, Any]] = []
    units = ordered["unit"].combine_chunks()
    declared = [accounts.get(name, Account(*name)) for name in names]
    for code, (metric, labels) in enumerate(names):
        low, high = int(edges[code]), int(edges[code + 1])
        account = declared[code] if code < distinct else Account(metric, labels)
        matching = [e for e in seen if e.metric in (None, metric) and e.labels in (None, labels)]
        part = ordered.slice(low, high - low)
        sequence = high > low and part["index"].null_count == 0
        stale = _stale(account, places, ended[(ended >= low) & (ended < high)], high, end_ns)
        own = replace(life, off=[*life.off, *stale]) if stale else life
        evaluation = evaluate(account, places[low:high], sequence, own, holes)
        empty = int(valueless[low:high].sum())
        astray = 0 if sequence else int((outside & ~valueless)[low:high].sum())
        rows.append(
            {
                "series_id": first_id + code,
                "source": source,
                "metric": metric,
                "labels": labels,
                "kind": "sequence" if sequence else "time",
                "type": kind_of(part),
                "unit": units[low].as_py() if high > low else "",
                "produced": account.produced,
                "received": high - low + int(repeated[code]),
                "stored": high - low - empty - astray,
                "late": account.late,
                "duplicate": int(repeated[code]),
                "without_value": empty,
                "outside": astray,
                "refused": refused,
                "resets": sum(e.kind == "reset" for e in matching),
                "restarts": sum(e.kind == "restart" for e in matching)
                + sum(r.is_of(labels) for r in restarts),
                "rules": RULES,
                **_columns(evaluation),
            }
        )
        gaps += [
            {"source": source, "series_id": first_id + code, **g}
            for g in evaluation.gaps[:_MOST_GAPS]
        ]
    ids = {name: first_id + code for code, name in enumerate(names[:distinct])}
    reported = [*seen[:_MOST_GAPS], *(r.event for r in restarts[:_MOST_GAPS])]
    gaps += [_event_row(source, e, ids) for e in _plain_events(reported, start_ns)]
    gaps += _refusals(source, events)
    table = pa.table(
        [pa.array(codes + first_id), *(ordered[n] for n in POINTS_SCHEMA.names[1:])],
        schema=POINTS_SCHEMA,
    )
    return rows, table.filter(pa.array(~valueless)) if valueless.any() else table, gaps


def _columns(evaluation: Evaluation) -> Mapping[str, Any]:
    """Columns of `series` from the evaluation of a series."""
    columns = {name: value for name, value in vars(evaluation).items() if name != "astray_ns"}
    return {**columns, "outside_by_ns": evaluation.astray_ns, "gaps": len(evaluation.gaps)}


def _plain_events(events: Sequence[Event], start_ns: int) -> list[Event]:
    """Events that are rows of `gaps`; a start of the source covers all of the time before it."""
    plain = [e for e in events if e.kind not in ("enabled", "disabled", *_REFUSED)]
    first = next((i for i, e in enumerate(plain) if e.kind == "starting"), None)
    if first is not None:
        plain[first] = replace(plain[first], utc_ns=min(plain[first].utc_ns, start_ns))
    return plain


def _ended_at(ordered: pa.Table, valueless: npt.NDArray[np.bool_]) -> Ints:
    """Rows that are staleness markers."""
    at = np.flatnonzero(valueless)
    bits = ordered["float"].take(pa.array(at)).to_numpy(zero_copy_only=False).view(np.uint64)
    ended: Ints = at[bits == STALE_BITS].astype(np.int64)
    return ended


def _stale(
    account: Account, places: Ints, ended: Ints, high: int, end_ns: int
) -> list[tuple[int, int, Event]]:
    """Stretches in which a series was stale: from a staleness marker to its next point."""
    stretches = []
    for at in ended.tolist():
        start = int(places[at])
        until = int(places[at + 1]) if at + 1 < high else max(end_ns, start)
        event = Event("stale", start, until, account.metric, account.labels)
        stretches.append((start, until, event))
    return stretches


def _accounts(batches: Sequence[Batch]) -> dict[tuple[str, str], Account]:
    """The last account of each series, with the earliest time when its first point was due."""
    accounts: dict[tuple[str, str], Account] = {}
    for account in (a for b in batches for a in b.accounts):
        name = account.metric, account.labels
        before = accounts.get(name)
        if before is not None and before.since_ns is not None:
            first = min(before.since_ns, account.since_ns or before.since_ns)
            account = replace(account, since_ns=first)
        accounts[name] = account
    return accounts


def _refusals(source: str, events: Sequence[Event]) -> list[dict[str, Any]]:
    """Rows of refusals, one for each reason."""
    by_reason: dict[tuple[str, str], list[Event]] = {}
    for event in (e for e in events if e.kind in _REFUSED):
        by_reason.setdefault((event.kind, event.detail.partition(": ")[0]), []).append(event)
    return [
        {
            "source": source,
            "kind": kind,
            "start_utc_ns": min(e.utc_ns for e in of),
            "end_utc_ns": max(e.end_utc_ns or e.utc_ns for e in of),
            "missing": sum(e.count for e in of),
            "detail": next((e.detail for e in of if e.detail != reason), reason),
        }
        for (kind, reason), of in by_reason.items()
    ]


def _series_codes(
    table: pa.Table, accounts: Mapping[tuple[str, str], Account]
) -> tuple[Ints, list[tuple[str, str]], int]:
    """The number of each row's series, and all series by metric and labels, also those without points.

    A series with points of both kinds is two: of its times and, once more at the end, of its indices. The
    third result is the number of the others.
    """
    of_used, of_row = series_of(table)
    names = sorted({*of_used, *accounts})
    distinct = len(names)
    number = {name: code for code, name in enumerate(names)}
    codes = np.array([number[n] for n in of_used], np.int64)[of_row]
    if 0 < table["index"].null_count < table.num_rows:
        indexed = np.asarray(table["index"].is_valid())
        both = np.intersect1d(codes[indexed], codes[~indexed])
        split = indexed & np.isin(codes, both)
        codes[split] = distinct + np.searchsorted(both, codes[split])
        names += [names[code] for code in both.tolist()]
    return codes, names, distinct


def _sorted(table: pa.Table, codes: Ints, series: int) -> tuple[Ints, Ints, Ints]:
    """Rows by series and place, the last of each place; the places; the number of duplicates by series."""
    place = pc.coalesce(table["index"], table["utc_ns"])
    places = np.asarray(place.combine_chunks() if isinstance(place, pa.ChunkedArray) else place)
    places = places.astype(np.int64, copy=False)
    back = np.diff(codes) < 0
    if len(codes) and (back.any() or ((np.diff(codes) == 0) & (np.diff(places) < 0)).any()):
        order = np.lexsort((places, codes))
    else:
        order = np.arange(len(codes))
    c, p = codes[order], places[order]
    last = np.ones(len(c), bool)
    last[:-1] = (c[1:] != c[:-1]) | (p[1:] != p[:-1])
    repeated = np.bincount(c[~last], minlength=series).astype(np.int64)
    return order[last].astype(np.int64), p[last], repeated


def _is_range(order: Ints, rows: int) -> bool:
    return len(order) == rows and bool((order == np.arange(rows)).all())


def _missing_numbers(source: str, numbers: Sequence[int]) -> list[dict[str, Any]]:
    """Stretches of missing batch numbers, from 0 on; `numbers` ascend."""
    around = np.array([-1, *numbers], np.int64)
    at = np.flatnonzero(np.diff(around) > 1)[:_MOST_GAPS]
    return [
        {
            "source": source,
            "kind": "batches",
            "start_index": int(around[i]) + 1,
            "end_index": int(around[i + 1]) - 1,
            "missing": int(around[i + 1] - around[i]) - 1,
        }
        for i in at
    ]


def _event_row(source: str, event: Event, ids: Mapping[tuple[str, str], int]) -> dict[str, Any]:
    series_id = ids.get((event.metric or "", event.labels or "{}"))
    return {
        "source": source,
        "series_id": series_id,
        "kind": "lost" if event.kind == "gap" else event.kind,
        "start_utc_ns": event.utc_ns,
        "end_utc_ns": event.end_utc_ns,
        "detail": event.detail,
    }


def recorded_in(bundle: Bundle, metric: str | None = None) -> Recorded:
    """Tables of a bundle: its points, and the samples of a run's monitor in the time of day.

    With `metric` only series of that name are read. Derived series have the source `derived`.
    """
    from penstock.parts.monitoring.queries.derived import batch_of

    plain = recorded_plain(bundle, metric)
    both = (bundle.path / "points.parquet").is_file() and "samples" in bundle.tables
    extra = [_of_samples(bundle, metric)] if both else []
    extra += [one for one in [batch_of(bundle, metric)] if one is not None]
    if not any(one.points.num_rows for one in extra):
        return plain
    more = recorded(extra, *span_of(bundle))
    # a derived series is no more complete than its sources
    computed = pc.equal(more.series["source"].cast(pa.string()), "derived")
    of = pa.scalar(verdict_of_run(bundle.manifest))
    verdicts = pc.if_else(computed, of, more.series["verdict"].cast(pa.string()))
    at = more.series.schema.get_field_index("verdict")
    more = replace(more, series=more.series.set_column(at, "verdict", verdicts).cast(SERIES_SCHEMA))
    return joined(plain, replace(more, gaps=more.gaps.slice(0, 0)))


def joined(old: Recorded, new: Recorded) -> Recorded:
    """Both, the series of `new` numbered after those of `old`."""
    last = pc.max(old.series["series_id"]).as_py()
    first = pa.scalar(0 if last is None else last + 1, pa.int64())

    def moved(table: pa.Table) -> pa.Table:
        at = table.schema.get_field_index("series_id")
        ids = pc.add(table["series_id"].cast(pa.int64()), first).cast(table.schema.field(at).type)
        return table.set_column(at, table.schema.field(at), ids)

    return Recorded(
        pa.concat_tables([old.series, moved(new.series).cast(SERIES_SCHEMA)]),
        pa.concat_tables([old.points, moved(new.points).cast(POINTS_SCHEMA)]).unify_dictionaries(),
        pa.concat_tables([old.gaps, moved(new.gaps)]),
    )


def recorded_plain(bundle: Bundle, metric: str | None = None) -> Recorded:
    """As `recorded_in`, without derived series."""
    if (bundle.path / "points.parquet").is_file():
        series = _with_new_columns(bundle.table("series"))
        if metric is not None:
            series = series.filter(pc.equal(series["metric"].cast(pa.string()), metric))
        import pyarrow.parquet as pq

        points = pq.read_table(
            bundle.path / "points.parquet",
            columns=POINTS_SCHEMA.names,
            filters=[("series_id", "in", series["series_id"].to_pylist() or [-1])],
        )
        gaps = bundle.table("gaps", GAPS_SCHEMA.names)
        return Recorded(
            _plain(series, SERIES_SCHEMA), _plain(points, POINTS_SCHEMA), _plain(gaps, GAPS_SCHEMA)
        )
    batches = [] if "samples" not in bundle.tables else [_of_samples(bundle, metric)]
    start_ns, end_ns = span_of(bundle)
    return recorded(batches, start_ns, end_ns)


def _with_new_columns(series: pa.Table) -> pa.Table:
    """A table `series` that was written before it had all of its columns."""
    before: dict[str, Any] = {"interval_from": "", "refused": 0, "rules": 1}
    before |= {"without_value": 0, "outside": 0, "outside_by_ns": None}
    for name, value in before.items():
        if name not in series.column_names:
            column = pa.repeat(pa.scalar(value, SERIES_SCHEMA.field(name).type), series.num_rows)
            series = series.append_column(name, column)
    return series


def span_of(bundle: Bundle) -> tuple[int, int]:
    """Begin and end of a bundle's run [ns since 1970 UTC]."""
    times = bundle.manifest.get("times", {})
    if times.get("start_realtime_ns") is not None and times.get("end_realtime_ns") is not None:
        return int(times["start_realtime_ns"]), int(times["end_realtime_ns"])
    shift = shift_ns(bundle)
    return int(times.get("start_ns", 0)) + shift, int(times.get("end_ns", 0)) + shift


def shift_ns(bundle: Bundle) -> int:
    """From CLOCK_MONOTONIC to the time of day, at the run's start."""
    if "clocks" not in bundle.tables:
        return 0
    row = bundle.table("clocks", ["monotonic_ns", "realtime_ns"]).slice(0, 1).to_pylist()
    return int(row[0]["realtime_ns"]) - int(row[0]["monotonic_ns"]) if row else 0


def _of_samples(bundle: Bundle, metric: str | None) -> Batch:
    """The samples of a run's monitor: a metric is `SOURCE_METRIC`, what it is of are labels, as
    `labels_of_entity` has them."""
    from penstock.parts.monitoring.experiments.entities import labels_of_entity
    from penstock.parts.monitoring.experiments.points import points

    table = bundle.table("samples", TABLES["samples"].arrow.names)
    source, entity, name = (table[n].cast(pa.string()) for n in ("source", "entity", "metric"))
    metrics = pc.binary_join_element_wise(source, name, "_")
    if metric is not None:
        chosen = pc.equal(metrics, metric)
        table, metrics, entity = (x.filter(chosen) for x in (table, metrics, entity))
    encoded = pc.dictionary_encode(entity).combine_chunks()
    labels = pa.DictionaryArray.from_arrays(
        encoded.indices,
        pa.array([labels_of_entity(e) for e in encoded.dictionary.to_pylist()], pa.string()),
    )
    columns = points(
        metric=metrics,
        labels=labels,
        utc_ns=pc.add(table["t_ns"], shift_ns(bundle)),
        float=table["value"],
        unit=table["unit"],
    )
    receipt = (bundle.manifest.get("receipts") or {}).get("monitor")
    return Batch("monitor", 0, columns, _accounts_of_samples(columns, table, receipt))


def _accounts_of_samples(columns: pa.Table, table: pa.Table, receipt: Any) -> list[Account]:
    """Accounts of samples; samples that the sampler missed are missing in each series since its first one."""
    stats = receipt if isinstance(receipt, Mapping) and "expected" in receipt else None
    missed = 0 if stats is None else int(stats["expected"]) - int(stats.get("samples", 0))
    counted = pa.table(
        {
            "metric": columns["metric"].cast(pa.string()),
            "labels": columns["labels"].cast(pa.string()),
            "counter": table["cumulative"],
        }
    ).group_by(["metric", "labels", "counter"])
    return [
        Account(
            row["metric"],
            row["labels"],
            # one more may have been due at its end
            expected=None if stats is None else row["metric_count"] + (missed if missed > 1 else 0),
            counter=bool(row["counter"]),
        )
        for row in counted.aggregate([("metric", "count")]).to_pylist()
    ]


def _plain(table: pa.Table, schema: pa.Schema) -> pa.Table:
    return table.select(schema.names).cast(schema).replace_schema_metadata(None)


def labels_of(text: str) -> dict[str, str]:
    """Labels of a row of `series`."""
    labels: dict[str, str] = json.loads(text)
    return labels
