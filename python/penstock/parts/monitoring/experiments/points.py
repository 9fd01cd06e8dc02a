"""Points of series as collectors deliver them: a batch, and the sink that stores it.

    batch = Batch("scraper", 17, points(metric=["disk_read_bytes"], utc_ns=[now], integer=[4096], unit=["B"]))
    accepted = sink.write(batch)          # on the disk when it returns
    sink.write(batch).duplicate           # True: the same number again changes nothing

A series is a metric with its labels, from one source. It is indexed by time (`utc_ns`), or by sequence
(`index` 0, 1, 2, … with or without a time), and one experiment may have both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadInput, PenstockError, Refused, printable

#: one row for each point; exactly one of the four columns of values is not null
POINTS = pa.schema(
    [
        pa.field("metric", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        # `canonical_labels`
        pa.field("labels", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        # since 1970-01-01 UTC [ns]; null only where there is an index
        pa.field("utc_ns", pa.int64()),
        # place in a sequence, from 0; null in a series of times
        pa.field("index", pa.int64()),
        pa.field("float", pa.float64()),
        pa.field("integer", pa.int64()),
        pa.field("text", pa.string()),
        pa.field("boolean", pa.bool_()),
        # of the value, as `B`, `1/s`, `%`; empty if it has none
        pa.field("unit", pa.dictionary(pa.int32(), pa.string()), nullable=False),
    ]
)
VALUES = ("float", "integer", "text", "boolean")

#: limits of one batch
MOST_POINTS = 2_000_000
MOST_SERIES = 100_000
MOST_NAME = 500
MOST_LABELS = 4_000
MOST_TEXT = 10_000

EventKind = Literal[
    "restart",
    "reset",
    "disabled",
    "enabled",
    "gap",
    "starting",
    "ending",
    "stale",
    "refused",
    "refused-messages",
]
#: reasons of refused points that are no loss: duplicates, and points without a value
NO_LOSS = frozenset({"duplicate", "not finite", "stale"})
#: the bits of Prometheus' staleness marker, the NaN at the end of a series, and of the NaN by which receivers
#: replace other values that are not finite (`crates/points`)
STALE_BITS, NO_VALUE_BITS = 0x7FF0000000000002, 0x7FF0000000000003


class Closed(PenstockError):  # noqa: N818 - reads as what it is
    """The experiment has ended and accepts no more points. Drop collected points."""


class Full(Closed):
    """There is no space for more points of this run. Drop collected points."""


class Held(Refused):
    """The source belongs to a running collector, whose batches would be taken for duplicates."""

    def __init__(self, source: str) -> None:
        super().__init__(
            f"found source {printable(source[:80])!r}, which is that of a running collector; expected another"
        )


@dataclass(frozen=True)
class Account:
    """A collector's counts of one series since the beginning of the experiment.

    `interval_ns`: interval between points, None if it is irregular. `produced`: points that the program
    produced, `expected`: points that should have arrived by now; None if the collector cannot know.
    `late`: points sampled or sent after their time. `since_ns`: time when the first of them was due, by
    default the experiment's beginning. `counter`: it only grows, except at resets. `free`: no point is ever
    due, so no interval is inferred from its points.
    """

    metric: str
    labels: str = "{}"
    interval_ns: int | None = None
    produced: int | None = None
    expected: int | None = None
    late: int = 0
    since_ns: int | None = None
    counter: bool = False
    free: bool = False


@dataclass(frozen=True)
class Event:
    """An event of a source: its target restarted, a counter was reset, it was switched off or on, a gap.

    Without a metric it applies to all series of the source. `gap` and `disabled` may have an end. `starting`
    ends when the collector's first poll was due, `ending` begins when it was stopped: nothing is missing
    before and after. `stale`: the sender declared that a series ended, until its next point. `refused`:
    `count` points that were not stored, `refused-messages`: messages with an unknown number of points;
    `detail` begins with the reason.
    """

    kind: EventKind
    utc_ns: int
    end_utc_ns: int | None = None
    metric: str | None = None
    labels: str | None = None
    detail: str = ""
    count: int = 0


@dataclass(frozen=True)
class Batch:
    """Points of one source, the `number`-th batch of an experiment from 0 on; a retry has the same number.

    `points` has the columns of `POINTS`. Of a point that came without a value, as a quantile of nothing or a
    staleness marker, `float` has the bits `NO_VALUE_BITS` or `STALE_BITS`: it is no row of an experiment's
    points, and nothing is missing at its time. `accounts` are the newest of each series, or none; the last of
    a series counts.
    """

    source: str
    number: int
    points: pa.Table
    accounts: Sequence[Account] = ()
    events: Sequence[Event] = ()


@dataclass(frozen=True)
class Accepted:
    """Result of a batch: points stored, or that it is a duplicate."""

    points: int
    duplicate: bool = False


class Sink(Protocol):
    """Stores batches of one experiment. Threads may share it."""

    def write(self, batch: Batch) -> Accepted:
        """Store a batch; it is durable when this returns.

        A batch with the source and number of an earlier one is a duplicate, whatever its content. Raises
        BadInput for invalid points, Closed once the experiment has ended, PenstockError if it could not be
        stored (a full disk): then none of it is stored, and the same batch may be written again.
        """

    def next_number(self, source: str) -> int:
        """The number of the source's next batch: one more than the last, 0 at first.

        So a restarted collector continues after the batches of its predecessor.
        """


def canonical_labels(labels: Mapping[str, str]) -> str:
    """Labels as JSON: sorted by name, without spaces, `{}` for none."""
    return json.dumps(
        {str(k): str(v) for k, v in labels.items()},
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
    )


def points(
    *,
    metric: Any,
    labels: Any = "{}",
    utc_ns: Any = None,
    index: Any = None,
    float: Any = None,
    integer: Any = None,
    text: Any = None,
    boolean: Any = None,
    unit: Any = "",
) -> pa.Table:
    """A table of points from columns: lists, NumPy or Arrow arrays of one length.

    A single text for `metric`, `labels` or `unit` is that of all rows; times may be time stamps of Arrow with
    a zone. Raises BadInput where they do not fit.
    """
    raw = {
        "metric": metric,
        "labels": labels,
        "utc_ns": utc_ns,
        "index": index,
        "float": float,
        "integer": integer,
        "text": text,
        "boolean": boolean,
        "unit": unit,
    }
    lengths = {len(c) for c in raw.values() if c is not None and not isinstance(c, str)}
    if len(lengths) != 1:
        raise BadInput(
            f"found columns of {sorted(lengths)} points; expected one length for all of them"
        )
    rows = lengths.pop()
    columns = []
    for field in POINTS:
        try:
            values = _without_clock(raw[field.name], field)
            columns.append(_column(values, field.type, rows))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise BadInput(f"found {error} in column {field.name}; expected {field.type}") from None
    return pa.table(columns, schema=POINTS)


def numbers_of(table: pa.Table) -> pa.ChunkedArray:
    """The values of points as floats, booleans as 0 and 1; null for texts and points without a value."""
    none = without_value(table)
    plain = table["float"]
    if none.any():
        plain = pc.if_else(pa.array(none), pa.scalar(None, pa.float64()), plain)
    numbers: pa.ChunkedArray = pc.coalesce(
        plain,
        table["integer"].cast(pa.float64(), safe=False),
        table["boolean"].cast(pa.int8()).cast(pa.float64()),
    )
    return numbers


def series_of(table: pa.Table) -> tuple[list[tuple[str, str]], npt.NDArray[np.int64]]:
    """Metric and labels of each series of points, and for each point the place of its series in this list."""
    metric, labels = (table[n].combine_chunks() for n in ("metric", "labels"))
    metrics, texts = metric.dictionary.to_pylist(), labels.dictionary.to_pylist()
    most = max(1, len(texts))
    pairs = np.asarray(metric.indices, np.int64) * most + np.asarray(labels.indices)
    used, of_row = np.unique(pairs, return_inverse=True)
    return [(metrics[p // most], texts[p % most]) for p in used.tolist()], of_row.reshape(-1)


def without_value(table: pa.Table) -> npt.NDArray[np.bool_]:
    """True for points that came without a value."""
    column = table["float"]
    if column.null_count == len(column):
        return np.zeros(len(column), bool)
    bits = column.to_numpy(zero_copy_only=False).view(np.uint64)
    empty: npt.NDArray[np.bool_] = (bits == STALE_BITS) | (bits == NO_VALUE_BITS)
    return empty


def with_values(table: pa.Table) -> pa.Table:
    """The points that have a value."""
    none = without_value(table)
    return table.filter(pa.array(~none)) if none.any() else table


def kind_of(table: pa.Table) -> str:
    """The column of `VALUES` that has the values of a series: of several kinds of numbers `float`, `text`
    where some are texts."""
    there = [v for v in VALUES if table[v].null_count < table.num_rows]
    if len(there) > 1:
        return "text" if "text" in there else "float"
    return there[0] if there else "float"


def values_of(table: pa.Table, kind: str) -> pa.ChunkedArray:
    """The values of a series, converted to its kind from whichever columns they are in."""
    values = table[kind]
    if values.null_count == 0:
        return values
    if kind == "float":
        return numbers_of(table)
    if kind == "text":
        others = [table[v].cast(pa.string()) for v in VALUES if v != "text"]
        values = pc.coalesce(values, *others)
    return values


def _without_clock(values: Any, field: pa.Field) -> Any:
    """Time stamps of Arrow as ns since 1970 UTC; other values unchanged.

    Arrow would convert any temporal value to a number of its own unit. BadInput for those without a zone, and
    in other columns.
    """
    arrow = isinstance(values, pa.Array | pa.ChunkedArray)
    if not arrow or field.type != pa.int64() or not pa.types.is_temporal(values.type):
        return values
    kind = values.type
    if field.name != "utc_ns" or not pa.types.is_timestamp(kind) or kind.tz is None:
        raise BadInput(
            f"found {kind} in column {field.name}; expected integers, as times ns since 1970 or time stamps "
            "with a zone"
        )
    return values.cast(pa.timestamp("ns", kind.tz)).cast(pa.int64())


def _column(values: Any, kind: pa.DataType, rows: int) -> pa.Array | pa.ChunkedArray:
    if values is None:
        return pa.nulls(rows, kind)
    if isinstance(values, str):
        zeros = pa.array(np.zeros(rows, np.int32))
        return pa.DictionaryArray.from_arrays(zeros, pa.array([values], pa.string()))
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return _as_dictionary(values) if pa.types.is_dictionary(kind) else values.cast(kind)
    if pa.types.is_dictionary(kind):
        return _as_dictionary(pa.array(values, pa.string()))
    return pa.array(values, kind)


def _as_dictionary(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if not pa.types.is_dictionary(combined.type):
        combined = combined.cast(pa.string()).dictionary_encode()
    return combined.cast(pa.dictionary(pa.int32(), pa.string()))


def checked(batch: Batch) -> Batch:
    """The batch with a table of exactly the columns of `POINTS`. Raises BadInput for invalid points."""
    if not 0 < len(batch.source) <= MOST_NAME or not batch.source.isprintable():
        raise BadInput(
            f"found source {printable(batch.source[:80])!r}; expected 1 to {MOST_NAME} printable characters"
        )
    if not 0 <= batch.number < 1 << 63:
        raise BadInput(f"found batch number {batch.number}; expected one from 0 to 2^63 - 1")
    table = batch.points
    if table.num_rows > MOST_POINTS:
        raise BadInput(f"found {table.num_rows} points in a batch; expected {MOST_POINTS} at most")
    strange = set(table.column_names) - set(POINTS.names)
    if strange or "metric" not in table.column_names:
        raise BadInput(
            f"found columns {', '.join(table.column_names)}; "
            f"expected metric and others of {', '.join(POINTS.names)}"
        )
    columns = {n: table[n] for n in table.column_names}
    # a column of texts is optional; if present, it has no nulls
    table = points(**{n: _without_nulls(n, c) for n, c in columns.items()})
    texts = {n: _dictionary_of(table[n]) for n in ("metric", "labels", "unit")}
    _check_texts(texts)
    values = [table[n].is_valid().cast(pa.int8()) for n in VALUES]
    counts = values[0]
    for more in values[1:]:
        counts = pc.add(counts, more)
    if table.num_rows and not pc.all(pc.equal(counts, 1)).as_py():
        raise BadInput(
            "found a point without a value, or with several; expected one of float, integer, text and boolean"
        )
    neither = pc.and_(table["utc_ns"].is_null(), table["index"].is_null())
    if pc.any(neither).as_py():
        raise BadInput("found a point with neither a time nor an index; expected one of them")
    if pc.any(pc.less(table["index"], 0)).as_py():
        raise BadInput("found an index below 0; expected 0, 1, 2, …")
    longest = pc.max(pc.utf8_length(table["text"])).as_py() or 0
    if longest > MOST_TEXT:
        raise BadInput(f"found a text of {longest} characters; expected {MOST_TEXT} at most")
    return Batch(batch.source, batch.number, table, tuple(batch.accounts), tuple(batch.events))


def _without_nulls(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    if name in ("metric", "labels", "unit") and column.null_count:
        raise BadInput(f"found an empty cell in column {name}; expected a text in each")
    return column


def _dictionary_of(column: pa.ChunkedArray) -> list[str]:
    combined = column.combine_chunks()
    used = pc.unique(combined.indices) if len(combined) else pa.array([], pa.int32())
    texts: list[str] = combined.dictionary.take(used).to_pylist()
    return texts


def _check_texts(texts: Mapping[str, list[str]]) -> None:
    for name, most in (("metric", MOST_NAME), ("labels", MOST_LABELS), ("unit", MOST_NAME)):
        if len(texts[name]) > MOST_SERIES:
            raise BadInput(
                f"found {len(texts[name])} different {name}; expected {MOST_SERIES} at most in a batch"
            )
        for text in texts[name]:
            if len(text) > most or not text.isprintable():
                raise BadInput(
                    f"found {name} {printable(text[:80])!r}; expected at most {most} printable characters"
                )
    if "" in texts["metric"]:
        raise BadInput("found a metric without a name; expected one of at least one character")
    _check_labels(set(texts["labels"]))


#: labels that were found right before: those of a series come again with each batch
_right: set[str] = set()
_MOST_RIGHT = 200_000


def _check_labels(texts: set[str]) -> None:
    new = texts - _right
    for text in new:
        try:
            labels = json.loads(text)
            right = isinstance(labels, dict) and canonical_labels(labels) == text
        except (ValueError, RecursionError):
            right = False
        if not right:
            raise BadInput(
                f"found labels {printable(text[:80])!r}; expected them as JSON of texts, sorted and without "
                "spaces, as canonical_labels gives them"
            )
    if len(_right) + len(new) > _MOST_RIGHT:
        _right.clear()
    _right.update(text for text in new if len(text) <= MOST_NAME)
