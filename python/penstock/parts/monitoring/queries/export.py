"""Series of an experiment as one table, joined by time: CSV, JSON Lines, Parquet, OpenMetrics.

Rows are the union of the time stamps inside of the window; a series that has no value at one leaves an empty
cell. Series of sequences have a row per index. Numbers are in shortest exact form.
"""

from __future__ import annotations

import io
import json
import re
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.errors import BadInput
from penstock.parts.monitoring.experiments.points import values_of
from penstock.parts.monitoring.experiments.recorded import Recorded, labels_of
from penstock.parts.monitoring.queries.prometheus_names import exposed

Axis = Literal["timestamp", "duration", "sample"]
Format = Literal["csv", "jsonl", "parquet", "openmetrics"]

MEDIA = {
    "csv": "text/csv",
    "jsonl": "application/jsonl",
    "parquet": "application/vnd.apache.parquet",
    "openmetrics": "application/openmetrics-text; version=1.0.0; charset=utf-8",
}
#: rows converted to text at a time
_ROWS = 50_000
#: cells of CSV that one thread converts to text at a time, and number of such parts computed ahead
_CELLS = 250_000
_AHEAD = 2
_EXACT = float(1 << 53)
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Joined:
    """Columns by name over the rows' places: ns since 1970 UTC (or since `origin_ns`), or numbers from 0."""

    axis: Axis
    places: Ints
    origin_ns: int
    columns: dict[str, pa.Array]
    about: dict[str, dict[str, Any]]
    totals: dict[str, Any]

    @property
    def first(self) -> pa.Array:
        """The first column, as text."""
        if self.axis == "sample":
            return pa.array(self.places).cast(pa.string())
        return _seconds(self.places - self.origin_ns)


def joined(
    recorded: Recorded,
    metric: str,
    start_ns: int,
    end_ns: int,
    *,
    axis: Axis | None = None,
    labels: Sequence[str] | None = None,
    origin_ns: int | None = None,
) -> Joined | None:
    """The series of a metric inside of [start, end]; None if there is none of that name.

    `axis`: the first column, by default `timestamp`, of sequences `sample`. `labels`: their values, joined by
    `_`, name a column. `duration` counts from `origin_ns`, by default `start_ns`. BadInput for series that
    cannot be joined.
    """
    rows = [r for r in recorded.series.to_pylist() if r["metric"] == metric]
    if not rows:
        return None
    sequences = [r for r in rows if r["kind"] == "sequence"]
    if axis == "sample" and sequences:
        rows = sequences
    elif axis is None and len(sequences) == len(rows):
        axis = "sample"
    elif sequences:
        rows = [r for r in rows if r["kind"] == "time"]
        if not rows:
            raise BadInput(
                f"{metric} is a sequence, which is never joined by time; expected type sample"
            )
    axis = axis or "timestamp"
    by_index = rows[0]["kind"] == "sequence"
    parts = _parts(recorded.points, [r["series_id"] for r in rows], by_index)
    selected = []
    for row in rows:
        places, table = parts[row["series_id"]]
        if not by_index:
            low = int(np.searchsorted(places, start_ns, "left"))
            high = int(np.searchsorted(places, end_ns, "right"))
            places, table = places[low:high], table.slice(low, high - low)
        selected.append((row, places, table))
    union = _union([places for _, places, _ in selected])
    columns, about = {}, {}
    names = _names([row for row, _, _ in selected], labels, axis)
    for name, (row, places, table) in zip(names, selected, strict=True):
        values = values_of(table, row["type"]).combine_chunks()
        if len(places) != len(union):
            at = np.full(len(union), -1, np.int64)
            at[np.searchsorted(union, places)] = np.arange(len(places))
            values = values.take(pa.array(at, mask=at < 0))
        columns[name] = values
        about[name] = row
    if axis == "sample" and not by_index:
        union = np.arange(len(union), dtype=np.int64)
    totals = {
        k: sum(r[k] or 0 for r in rows) for k in ("received", "stored", "late", "duplicate", "lost")
    }
    origin = (start_ns if origin_ns is None else origin_ns) if axis == "duration" else 0
    return Joined(axis, union, origin, columns, about, totals)


def empty(axis: Axis) -> Joined:
    """A table without series and rows: its header is that of the first column."""
    return Joined(axis, np.array([], np.int64), 0, {}, {}, {})


def _parts(
    points: pa.Table, ids: Sequence[int], by_index: bool
) -> dict[int, tuple[Ints, pa.Table]]:
    """By series its places, in order, and its rows; `points` is sorted by series and place."""
    series = np.asarray(points["series_id"].combine_chunks() if points.num_rows else [], np.int64)
    by_series = {}
    for number in ids:
        low, high = np.searchsorted(series, [number, number + 1])
        part = points.slice(int(low), int(high - low))
        column = part["index" if by_index else "utc_ns"]
        by_series[number] = (np.asarray(column.combine_chunks(), np.int64), part)
    return by_series


def _union(places: Sequence[Ints]) -> Ints:
    first = places[0]
    if all(p is first or np.array_equal(p, first) for p in places):
        return first
    return np.unique(np.concatenate(places))


def _names(rows: Sequence[dict[str, Any]], labels: Sequence[str] | None, axis: Axis) -> list[str]:
    """A name for each column, all different, also from the first one."""
    if labels is not None:
        names = ["_".join(labels_of(r["labels"]).get(n, "") for n in labels) for r in rows]
    else:
        names = [_with_labels(r["metric"], labels_of(r["labels"])) for r in rows]
    number = Counter([*names, axis])
    names = [f"{r['source']}:{n}" if number[n] > 1 else n for n, r in zip(names, rows, strict=True)]
    seen: dict[str, int] = {}
    for i, name in enumerate(names):
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:
            names[i] = f"{name}#{seen[name]}"
    return names


def _with_labels(metric: str, labels: dict[str, str]) -> str:
    if not labels:
        return metric
    return f"{metric}{{{','.join(f'{k}={json.dumps(v, ensure_ascii=False)}' for k, v in labels.items())}}}"


def _seconds(ns: Ints) -> pa.Array:
    """Nanoseconds as seconds, in shortest exact form."""
    if (
        len(ns) and np.abs(ns).min() < 10**9
    ):  # a decimal so near to 0 would be written with an exponent
        seconds, rest = np.divmod(np.abs(ns), 10**9)
        sign = pa.array(np.where(ns < 0, "-", "")).cast(pa.string())
        decimals = pc.utf8_lpad(pa.array(rest).cast(pa.string()), 9, "0")
        near = pc.binary_join_element_wise(sign, pa.array(seconds).cast(pa.string()), "")
        text = pc.binary_join_element_wise(near, decimals, ".")
        return pc.ascii_rtrim(pc.ascii_rtrim(text, "0"), ".")
    wide = np.empty((len(ns), 2), np.int64)
    wide[:, 0], wide[:, 1] = ns, ns >> 63
    kind = pa.decimal128(28, 9)
    exact = pa.Array.from_buffers(kind, len(ns), [None, pa.py_buffer(wide)]).cast(pa.string())
    return pc.ascii_rtrim(pc.ascii_rtrim(exact, "0"), ".")


def numbers_as_text(values: pa.Array) -> pa.Array:
    """Numbers in shortest exact form: `0`, `0.1`, `1e+300`; `NaN`, `Inf`, `-Inf`. Nulls stay."""
    if not pa.types.is_floating(values.type):
        return values.cast(pa.string())
    plain = np.asarray(values.fill_null(0.0))
    with np.errstate(invalid="ignore"):
        integral = (np.abs(plain) < _EXACT) & (plain == np.trunc(plain))
    if integral.all():
        text = pa.array(plain.astype(np.int64)).cast(pa.string())
    else:
        text = pc.cast(pa.array(plain), pa.string())
        if integral.any():
            ints = pa.array(plain[integral].astype(np.int64)).cast(pa.string())
            text = pc.replace_with_mask(text, pa.array(integral), ints)
        if not np.isfinite(plain).all():
            for spelling, standard in (
                ("nan", "NaN"),
                ("-nan", "NaN"),
                ("inf", "Inf"),
                ("-inf", "-Inf"),
            ):
                text = pc.if_else(pc.equal(text, spelling), standard, text)
    return (
        pc.if_else(values.is_valid(), text, pa.scalar(None, pa.string()))
        if values.null_count
        else text
    )


def as_bytes(table: Joined, form: Format) -> Iterator[bytes]:
    """The table in a format, in parts."""
    if form == "parquet":
        yield _parquet(table)
    elif form == "openmetrics":
        yield from _openmetrics(table)
    elif form == "jsonl":
        yield from _jsonl(table)
    else:
        yield from _csv(table)


def _slices(table: Joined, rows: int = _ROWS) -> Iterator[tuple[Joined, int]]:
    for low in range(0, len(table.places), rows):
        part = {n: c.slice(low, rows) for n, c in table.columns.items()}
        places = table.places[low : low + rows]
        yield Joined(table.axis, places, table.origin_ns, part, table.about, {}), low


def _csv(table: Joined) -> Iterator[bytes]:
    """RFC 4180, but lines end as on Unix."""
    head = [table.axis, *table.columns]
    yield (",".join(_quoted(h) for h in head) + "\n").encode()
    rows = max(1_000, min(_ROWS, _CELLS // (1 + len(table.columns))))
    with ThreadPoolExecutor() as pool:
        begun: deque[Future[bytes]] = deque()
        for part, _ in _slices(table, rows):
            begun.append(pool.submit(_csv_lines, part))
            if len(begun) > _AHEAD:
                yield begun.popleft().result()
        for one in begun:
            yield one.result()


def _csv_lines(part: Joined) -> bytes:
    cells = [part.first, *(_csv_cells(c) for c in part.columns.values())]
    return _lines(
        pc.binary_join_element_wise(*cells, ",", null_handling="replace", null_replacement="")
    )


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if re.search(r'[",\r\n]', text) else text


def _csv_cells(column: pa.Array) -> pa.Array:
    if not pa.types.is_string(column.type):
        return numbers_as_text(column)
    doubled = pc.replace_substring(column, '"', '""')
    quoted = pc.binary_join_element_wise('"', doubled, '"', "")
    # an empty text is one, and no missing value
    special = pc.or_(pc.match_substring_regex(column, '[",\r\n]'), pc.equal(column, ""))
    return pc.if_else(special, quoted, column)


def _jsonl(table: Joined) -> Iterator[bytes]:
    for part, _ in _slices(table):
        cells = [_named(table.axis, part.first)]
        cells += [_named(name, _json_cells(column)) for name, column in part.columns.items()]
        inner = pc.binary_join_element_wise(*cells, ",")
        yield _lines(pc.binary_join_element_wise("{", inner, "}", ""))


def _named(name: str, cells: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(json.dumps(name), cells, ":")


def _json_cells(column: pa.Array) -> pa.Array:
    if pa.types.is_string(column.type):
        coded = column.dictionary_encode()
        quoted = pa.array([json.dumps(t) for t in coded.dictionary.to_pylist()], pa.string())
        text = quoted.take(coded.indices)
    else:
        text = numbers_as_text(column)
        if pa.types.is_floating(column.type):
            # JSON has no such numbers
            text = pc.if_else(pc.is_finite(column), text, pa.scalar(None, pa.string()))
    return pc.fill_null(text, "null")


def _openmetrics(table: Joined) -> Iterator[bytes]:
    """One sample per value; texts have no place in the format."""
    if table.axis != "timestamp":
        raise BadInput(
            f"found type {table.axis} with OpenMetrics, whose samples have times; expected timestamp"
        )
    first = True
    for name, column in table.columns.items():
        row = table.about[name]
        metric, labels = exposed(row)
        if first:
            yield f"# TYPE {metric} unknown\n".encode()
            first = False
        if pa.types.is_string(column.type):
            continue
        label_text = ",".join(f'{k}="{escaped(v)}"' for k, v in labels.items())
        values = column.cast(pa.int8()) if pa.types.is_boolean(column.type) else column
        for low in range(0, len(table.places), _ROWS):
            chunk = values.slice(low, _ROWS)
            there = chunk.is_valid()
            text = numbers_as_text(chunk).filter(there)
            times = _seconds(table.places[low : low + _ROWS]).filter(there)
            if len(text):
                yield _lines(
                    pc.binary_join_element_wise(f"{metric}{{{label_text}}}", text, times, " ")
                )
    yield b"# EOF\n"


def escaped(text: str) -> str:
    """A label's value, escaped for quotes in OpenMetrics."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _parquet(table: Joined) -> bytes:
    if table.axis == "timestamp":
        first = pa.array(table.places).cast(pa.timestamp("ns", "UTC"))
    elif table.axis == "duration":
        first = pa.array(table.places - table.origin_ns).cast(pa.duration("ns"))
    else:
        first = pa.array(table.places)
    metadata = {"penstock.losses": json.dumps(table.totals)}
    fields = [pa.field(table.axis, first.type)]
    for name, column in table.columns.items():
        row = table.about[name]
        fields.append(
            pa.field(name, column.type, metadata={"unit": row["unit"], "verdict": row["verdict"]})
        )
    sink = io.BytesIO()
    combined = pa.table(
        [first, *table.columns.values()], schema=pa.schema(fields, metadata=metadata)
    )
    pq.write_table(combined, sink, compression="zstd")
    return sink.getvalue()


def _lines(text: pa.Array) -> bytes:
    """Texts as lines; their bytes are contiguous already."""
    ended = pc.binary_join_element_wise(text, "", "\n")
    if isinstance(ended, pa.ChunkedArray):
        ended = ended.combine_chunks()
    offsets = np.frombuffer(ended.buffers()[1], np.int32)[
        ended.offset : ended.offset + len(ended) + 1
    ]
    return bytes(memoryview(ended.buffers()[2])[int(offsets[0]) : int(offsets[-1])])
