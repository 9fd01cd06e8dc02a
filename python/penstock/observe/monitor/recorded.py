"""What an experiment recorded, as tables: series, points, gaps, and how complete each series is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.archive.bundle import Bundle
from penstock.archive.schemas import TABLES
from penstock.observe.monitor.points import VALUES, Account, Batch, Event

Ints = npt.NDArray[np.int64]
Verdict = Literal["complete", "partial", "unusable"]

SERIES_SCHEMA = TABLES["series"].arrow
POINTS_SCHEMA = TABLES["points"].arrow
GAPS_SCHEMA = TABLES["gaps"].arrow
#: a series is complete with so many of its points, and no gap over so many intervals
COMPLETE_SHARE = 0.99
LONGEST_GAP = 5
#: a hole between two points is a gap from so many intervals on
_GAP = 1.5
#: gaps that are written down of one series; all are counted
_MOST_GAPS = 10_000


@dataclass(frozen=True)
class Recorded:
    """Tables `series`, `points` (sorted by series, then time or index) and `gaps`."""

    series: pa.Table
    points: pa.Table
    gaps: pa.Table

    @property
    def verdict(self) -> Verdict:
        """The worst of its series; complete where there are none."""
        return worst(self.series["verdict"].to_pylist())

    @property
    def lost(self) -> int:
        """Points that are known to be missing."""
        return int(pc.sum(self.series["lost"]).as_py() or 0)


def worst(verdicts: Iterable[str]) -> Verdict:
    """What is to be said of several series together."""
    found = set(verdicts)
    return "unusable" if "unusable" in found else "partial" if "partial" in found else "complete"


def verdict(
    stored: int, expected: int | None, longest_gap_ns: int, interval_ns: int | None, holes: int
) -> Verdict:
    """Of one series: `complete` from 99 % on, where no gap is longer than five intervals."""
    if stored == 0 or (stored < 2 and (expected or 0) >= 2):
        return "unusable"
    enough = stored >= COMPLETE_SHARE * expected if expected is not None else holes == 0
    short = interval_ns is None or longest_gap_ns <= LONGEST_GAP * interval_ns
    return "complete" if enough and short else "partial"


def recorded(batches: Iterable[Batch], start_ns: int, end_ns: int) -> Recorded:
    """The tables of an experiment's batches; `start_ns` and `end_ns` are its marks [ns since 1970 UTC].

    Of points of one series and time (or index) the last that came is kept.
    """
    by_source: dict[str, list[Batch]] = {}
    for batch in batches:
        by_source.setdefault(batch.source, []).append(batch)
    series: list[dict[str, Any]] = []
    tables: list[pa.Table] = []
    gaps: list[dict[str, Any]] = []
    for source in sorted(by_source):
        rows, table, holes = _of_source(source, by_source[source], len(series), start_ns, end_ns)
        series += rows
        tables.append(table)
        gaps += holes
    points = pa.concat_tables(tables) if tables else POINTS_SCHEMA.empty_table()
    return Recorded(
        pa.Table.from_pylist(series, SERIES_SCHEMA),
        points,
        pa.Table.from_pylist(gaps, GAPS_SCHEMA),
    )


def _of_source(
    source: str, batches: Sequence[Batch], first_id: int, start_ns: int, end_ns: int
) -> tuple[list[dict[str, Any]], pa.Table, list[dict[str, Any]]]:
    whole = pa.concat_tables([b.points for b in batches]).unify_dictionaries().combine_chunks()
    accounts = {(a.metric, a.labels): a for b in batches for a in b.accounts}
    events = [e for b in batches for e in b.events]
    numbers = np.array(sorted({b.number for b in batches}), np.int64)
    holes = _missing_numbers(source, numbers)
    codes, names = _series_codes(whole, accounts)
    order, places, repeated = _sorted(whole, codes, len(names))
    kept = (
        whole.take(pa.array(order)) if len(order) != len(codes) or not _is_range(order) else whole
    )
    codes = codes[order]
    edges = np.searchsorted(codes, np.arange(len(names) + 1))
    off = _stretches(events, end_ns)
    rows: list[dict[str, Any]] = []
    units = kept["unit"].combine_chunks()
    for code, (metric, labels) in enumerate(names):
        low, high = int(edges[code]), int(edges[code + 1])
        account = accounts.get((metric, labels), Account(metric, labels))
        mine = [e for e in events if e.metric in (None, metric) and e.labels in (None, labels)]
        part = kept.slice(low, high - low)
        sequence = high > low and part["index"].null_count == 0
        found = _gaps(places[low:high], sequence, account, off, start_ns, end_ns)
        lost = sum(g["missing"] for g in found if g["kind"] == "lost")
        longest = max(
            (
                g["end_utc_ns"] - g["start_utc_ns"]
                for g in found
                if g["kind"] == "lost" and not sequence
            ),
            default=0,
        )
        expected = _expected(account, sequence, places[low:high], off, start_ns, end_ns)
        stored = high - low
        rows.append(
            {
                "series_id": first_id + code,
                "source": source,
                "metric": metric,
                "labels": labels,
                "kind": "sequence" if sequence else "time",
                "type": next((v for v in VALUES if part[v].null_count < stored), "float"),
                "unit": units[low].as_py() if stored else "",
                "interval_ns": account.interval_ns,
                "produced": account.produced,
                "received": stored + int(repeated[code]),
                "stored": stored,
                "expected": expected,
                "late": account.late,
                "duplicate": int(repeated[code]),
                "lost": lost,
                "gaps": len(found),
                "longest_gap_ns": longest,
                "resets": sum(e.kind == "reset" for e in mine),
                "restarts": sum(e.kind == "restart" for e in mine),
                "verdict": verdict(
                    stored,
                    expected if expected is not None else account.produced,
                    longest,
                    account.interval_ns,
                    len(holes),
                ),
            }
        )
        holes += [{"source": source, "series_id": first_id + code, **g} for g in found[:_MOST_GAPS]]
    ids = {name: first_id + code for code, name in enumerate(names)}
    holes += [_told(source, e, ids) for e in events if e.kind not in ("enabled", "disabled")]
    table = pa.table(
        [pa.array(codes + first_id), *(kept[n] for n in POINTS_SCHEMA.names[1:])],
        schema=POINTS_SCHEMA,
    )
    return rows, table, holes


def _series_codes(
    table: pa.Table, accounts: Mapping[tuple[str, str], Account]
) -> tuple[Ints, list[tuple[str, str]]]:
    """The number of each row's series, in the order of metric and labels; those without a point, too."""
    metric, labels = (table[n].combine_chunks() for n in ("metric", "labels"))
    metrics, texts = metric.dictionary.to_pylist(), labels.dictionary.to_pylist()
    pairs = np.asarray(metric.indices, np.int64) * max(1, len(texts)) + np.asarray(labels.indices)
    used, inverse = np.unique(pairs, return_inverse=True)
    of_used = [(metrics[p // max(1, len(texts))], texts[p % max(1, len(texts))]) for p in used]
    names = sorted({*of_used, *accounts})
    number = {name: code for code, name in enumerate(names)}
    return np.array([number[n] for n in of_used], np.int64)[inverse.reshape(-1)], names


def _sorted(table: pa.Table, codes: Ints, series: int) -> tuple[Ints, Ints, Ints]:
    """Rows by series and place, the last of each place; the places; how many of each series were left out."""
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


def _is_range(order: Ints) -> bool:
    return bool(len(order) == 0 or (order[0] == 0 and (np.diff(order) == 1).all()))


def _missing_numbers(source: str, numbers: Ints) -> list[dict[str, Any]]:
    """Stretches of batch numbers, from 0 on, that never came."""
    around = np.concatenate([[-1], numbers])
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


def _stretches(events: Sequence[Event], end_ns: int) -> list[tuple[int, int, Event]]:
    """When something was switched off."""
    found: list[tuple[int, int, Event]] = []
    # one that a kill had told twice is one
    for event in sorted(set(events), key=lambda e: e.utc_ns):
        if event.kind == "disabled":
            end = event.end_utc_ns
            if end is None:
                back = [
                    e.utc_ns for e in events if e.kind == "enabled" and e.utc_ns >= event.utc_ns
                ]
                end = min(back, default=end_ns)
            found.append((event.utc_ns, end, event))
    return found


def _off_ns(low: int, high: int, account: Account, off: Sequence[tuple[int, int, Event]]) -> int:
    """How much of a stretch of time a series was switched off."""
    total = 0
    for start, end, event in off:
        if event.metric in (None, account.metric) and event.labels in (None, account.labels):
            total += max(0, min(high, end) - max(low, start))
    return total


def _expected(
    account: Account,
    sequence: bool,
    places: Ints,
    off: Sequence[tuple[int, int, Event]],
    start_ns: int,
    end_ns: int,
) -> int | None:
    if account.expected is not None:
        return account.expected
    if sequence:
        return max(int(places[-1]) + 1, account.produced or 0)
    if account.interval_ns:
        on = end_ns - start_ns - _off_ns(start_ns, end_ns, account, off)
        return max(0, on) // account.interval_ns
    return None


def _gaps(
    places: Ints,
    sequence: bool,
    account: Account,
    off: Sequence[tuple[int, int, Event]],
    start_ns: int,
    end_ns: int,
) -> list[dict[str, Any]]:
    if sequence:
        around = np.concatenate([[-1], places])
        if account.produced is not None:
            around = np.append(around, max(account.produced, int(places[-1]) + 1))
        return [
            {
                "kind": "lost",
                "start_index": int(around[i]) + 1,
                "end_index": int(around[i + 1]) - 1,
                "missing": int(around[i + 1] - around[i]) - 1,
            }
            for i in np.flatnonzero(np.diff(around) > 1)
        ]
    step = account.interval_ns
    if not step:
        return []
    inside = places[(places >= start_ns) & (places <= end_ns)]
    # before the first and after the last a point may be one interval away
    around = np.concatenate([[start_ns - step // 2], inside, [end_ns + step // 2]])
    found = []
    for i in np.flatnonzero(np.diff(around) > _GAP * step):
        low, high = max(int(around[i]), start_ns), min(int(around[i + 1]), end_ns)
        was_off = _off_ns(low, high, account, off)
        # on both sides of what was off a point may be one interval away
        sides = 2 if was_off else 1
        missing = max(0, round((around[i + 1] - around[i] - was_off) / step) - sides)
        kind = "disabled" if was_off and missing == 0 else "lost"
        found.append({"kind": kind, "start_utc_ns": low, "end_utc_ns": high, "missing": missing})
    return [g for g in found if g["missing"] or g["kind"] == "disabled"]


def _told(source: str, event: Event, ids: Mapping[tuple[str, str], int]) -> dict[str, Any]:
    known = ids.get((event.metric or "", event.labels or "{}"))
    return {
        "source": source,
        "series_id": known,
        "kind": "lost" if event.kind == "gap" else event.kind,
        "start_utc_ns": event.utc_ns,
        "end_utc_ns": event.end_utc_ns,
        "detail": event.detail,
    }


def recorded_in(bundle: Bundle, metric: str | None = None) -> Recorded:
    """What a bundle recorded: its points, or the samples of a run's monitor on the time of day.

    With `metric` only series of that name are read. Series that were derived come from the source `derived`.
    """
    from penstock.observe.monitor.derived import batch_of

    found = recorded_plain(bundle, metric)
    extra = batch_of(bundle, metric)
    if extra is None:
        return found
    more = recorded([extra], *span_of(bundle))
    first = pa.scalar(1 + (pc.max(found.series["series_id"]).as_py() or 0), pa.int64())
    moved = [
        table.set_column(at, "series_id", pc.add(table["series_id"], first))
        for table in (more.series, more.points)
        for at in [table.schema.get_field_index("series_id")]
    ]
    return Recorded(
        pa.concat_tables([found.series, moved[0].cast(SERIES_SCHEMA)]),
        pa.concat_tables([found.points, moved[1].cast(POINTS_SCHEMA)]),
        found.gaps,
    )


def recorded_plain(bundle: Bundle, metric: str | None = None) -> Recorded:
    """As `recorded_in`, without what was derived."""
    if (bundle.path / "points.parquet").is_file():
        series = bundle.table("series", SERIES_SCHEMA.names)
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
    """The samples of a run's monitor: a metric is `SOURCE_METRIC`, what it is of is the label `entity`, and
    `le` up to where a bucket of block latency goes."""
    from penstock.observe.monitor.latency import labels_of_entity
    from penstock.observe.monitor.points import points

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
    return Batch(
        "monitor",
        0,
        points(
            metric=metrics,
            labels=labels,
            utc_ns=pc.add(table["t_ns"], shift_ns(bundle)),
            float=table["value"],
            unit=table["unit"],
        ),
    )


def _plain(table: pa.Table, schema: pa.Schema) -> pa.Table:
    return table.select(schema.names).cast(schema).replace_schema_metadata(None)


def labels_of(text: str) -> dict[str, str]:
    """Labels of a row of `series`."""
    found: dict[str, str] = json.loads(text)
    return found
