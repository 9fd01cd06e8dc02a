"""Series of users' tables: CSV and Parquet files, data frames."""

from __future__ import annotations

import contextlib
import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from penstock.archive.completeness import TAKEN
from penstock.archive.series import delimited
from penstock.archive.series.series import (
    MOST_SERIES,
    Array,
    Axis,
    Recorded,
    Series,
    check_count,
)
from penstock.errors import BadInput, printable
from penstock.text import TIME_SPELLINGS

#: maximum size of one table
MOST_BYTES = 2 << 30
#: names of a first column with times; the others of `_INDEX` are for indices of a sequence
_TIMES = re.compile(
    r"(?i)^(time|timestamp|t|date|datetime|utc|when|elapsed|duration)(_?(ns|us|ms|s))?$"
)
_INDEX = re.compile(r"(?i)^(index|sample|seq|sequence|n|#|request)$")
#: a name with a unit in brackets, which is neither an index nor an end of markup
_UNIT = re.compile(r"^(.*?)\s*[(\[](?!\d+[)\]]|/)([^()\[\]]{1,30})[)\]]$")
_LABELLED = re.compile(r"^([^{}]+)\{(.*)\}$")
_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')
#: unit suffixes of metric names, by the conventions of Prometheus
_SUFFIXES = {
    "bytes": "B",
    "seconds": "s",
    "percent": "%",
    "watts": "W",
    "joules": "J",
    "celsius": "°C",
    "volts": "V",
    "hertz": "Hz",
}
#: seconds per unit of a time column: suffixes of its name, and further ones in brackets
_PER_SECOND = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_PER_BRACKET = _PER_SECOND | {"\u00b5s": 1e-6, "min": 60.0, "h": 3600.0, "d": 86400.0}
_PER_BRACKET |= {spelling: _PER_BRACKET[unit] for spelling, unit in TIME_SPELLINGS.items()}
_ENDING = re.compile(rf"[_ ]({'|'.join(_PER_SECOND)})$")
#: number of entities that may have a single row each
_FEW_ENTITIES = 100
#: years 1678 to 2262 in seconds since 1970
_MOST_S = 2**63 / 1e9


def names_a_time(column: str) -> bool:
    """True for the name of a time column."""
    return _TIMES.match(_parted(column)[0]) is not None


def names_an_index(column: str) -> bool:
    """True for the name of an index column."""
    return _INDEX.match(_parted(column)[0]) is not None


def seconds_per_unit(column: str) -> float | None:
    """Seconds per unit of a time column, by its name; None if the name has no unit."""
    if ending := _ENDING.search(column):
        return _PER_SECOND[ending[1]]
    return _PER_BRACKET.get(_parted(column)[1].strip().lower())


def of_file(path: Path, x: str | None = None, *, partial: bool = True) -> Recorded:
    """Series of a CSV, JSON Lines or Parquet file with a column of times or of sequence indices.

    Raises BadInput with the file and the error.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise BadInput(
                f"{path}: found {path.stat().st_size} bytes; expected {MOST_BYTES} at most"
            )
        if path.suffix == ".parquet":
            return of_frame(_parquet(path, partial), str(path), x)
        if path.suffix in (".jsonl", ".ndjson"):
            text = path.read_bytes().decode("utf-8-sig")
            return of_frame(delimited.json_lines(text, str(path)), str(path), x)
        with path.open("rb") as file:
            return of_csv(file.read(MOST_BYTES + 1), str(path), x)
    except OSError as error:
        raise BadInput(
            f"{path}: {error.strerror or error}; expected a table that can be read"
        ) from None
    except pa.ArrowException as error:
        raise BadInput(f"{path}: found no Parquet ({error}); expected a table") from None
    except ValueError as error:
        raise BadInput(f"{path}: {str(error).splitlines()[0]}; expected a table") from None


def _parquet(path: Path, partial: bool) -> pd.DataFrame:
    table = pq.read_table(path)
    # exports mark incomplete series
    verdicts = {
        f.name: (f.metadata or {}).get(b"verdict", b"complete").decode() for f in table.schema
    }
    bad = [f"{printable(n)}: {verdict}" for n, verdict in verdicts.items() if verdict not in TAKEN]
    if bad and not partial:
        raise BadInput(
            f"{path}: found {', '.join(bad[:5])}; expected complete series, or --partial"
        )
    units = {f.name: (f.metadata or {}).get(b"unit", b"").decode() for f in table.schema}
    frame: pd.DataFrame = table.to_pandas()
    named = {n: f"{n} ({u})" for n, u in units.items() if u and not _UNIT.match(n)}
    return frame.rename(columns=named)


def of_csv(content: bytes, name: str, x: str | None = None) -> Recorded:
    """Series of a CSV text (RFC 4180, LF or CRLF, header row); empty cells are missing values."""
    if len(content) > MOST_BYTES:
        raise BadInput(f"{name}: found more than {MOST_BYTES} bytes; expected {MOST_BYTES} at most")
    separator = delimited.separator_of(content)
    header = delimited.header_row(io.BytesIO(content), separator)
    if header and all(map(delimited.is_number, header)):
        raise BadInput(f"{name}:1: found only numbers; expected a header row with names of columns")
    frame = delimited.read_frame(content, name, separator=separator)
    names = delimited.unique_names(header)
    if len(names) != len(frame.columns):
        return of_frame(frame, name, x)
    frame.columns = pd.Index([n or c for n, c in zip(names, frame.columns, strict=True)])
    exact = frame if x is not None else _with_exact_times(frame, content, separator)
    return of_frame(exact, name, x)


def _with_exact_times(frame: pd.DataFrame, content: bytes, separator: str) -> pd.DataFrame:
    """The table with seconds since 1970 with decimals, which floats round to 238 ns, as dates."""
    place = next((i for i, c in enumerate(frame.columns) if names_a_time(str(c))), None)
    if place is None or not pd.api.types.is_float_dtype(frame.iloc[:, place]):
        return frame
    column = str(frame.columns[place])
    largest = frame.iloc[:, place].abs().max()
    if seconds_per_unit(column) not in (None, 1.0) or not 1e8 <= largest < _MOST_S:
        return frame
    try:
        table = pa_csv.read_csv(
            io.BytesIO(content),
            pa_csv.ReadOptions(skip_rows=1, autogenerate_column_names=True),
            pa_csv.ParseOptions(delimiter=separator, newlines_in_values=True),
            pa_csv.ConvertOptions(
                include_columns=[f"f{place}"],
                column_types={f"f{place}": pa.decimal128(28, 9)},
                null_values=[*delimited.MISSING],
            ),
        )
    except pa.ArrowException:  # exponents, or more decimals
        return frame
    if table.num_rows != len(frame):
        return frame
    seconds = table.column(0).combine_chunks()
    # the lower half of each decimal: its nanoseconds
    ns = np.frombuffer(seconds.buffers()[1], np.int64)[::2][: len(seconds)]
    times = pd.Series(pd.to_datetime(ns, utc=True), index=frame.index)
    there = np.asarray(seconds.is_valid())
    return frame.assign(**{column: times.where(there)})


def of_frame(frame: pd.DataFrame, name: str, x: str | None = None) -> Recorded:
    """Series of a table: `x` or the first time or index column, and numeric columns.

    If rows with the same time differ in columns of texts, each combination of these is a series: the texts
    are its labels, except those of columns `metric` and `unit`. Rows that their texts do not distinguish are
    one series, and noted.
    """
    frame = frame.rename(columns=str)
    check_count(len(frame.columns), name)
    if not len(frame.columns):
        raise BadInput(f"{name}: found no column; expected a time and a value at least")
    if x is None:
        frame = _with_dates(frame)
    at, axis = _axis_column(frame, name, x)
    values = frame[at]
    mark = delimited.decimal_mark(frame)
    start: int | None = None
    notes: list[str] = []
    if axis == "time":
        where, start = seconds_of(values, at, name, mark)
        notes += delimited.without_zone(values)
        if values.isna().any():
            notes.append(f"{int(values.isna().sum())} rows without a time were skipped")
    else:
        where = _numbers(values, at, name)
    columns: dict[str, tuple[Array, Any]] = {}
    for column in (c for c in frame.columns if c != at):
        try:
            y = delimited.numbers_of(frame[column], mark).to_numpy(float)
        except ValueError as error:
            raise BadInput(f"{name}: column {printable(column)}: {error}") from None
        filled = frame[column].notna().to_numpy()
        if filled.any() and np.isfinite(y[filled]).any():
            columns[column] = y, filled & np.isfinite(where)
            notes += delimited.no_numbers(column, frame[column], y)
    texts = [c for c in frame.columns if c not in (at, *columns) and frame[c].notna().any()]
    groups = [] if axis == "value" else _entities(frame, texts, where)
    if groups:
        shown = " and ".join(map(printable, texts))
        notes.append(f"rows of one {printable(at)} were read as series of {shown}")
    series = []
    for labels, rows in groups or [({}, np.arange(len(frame)))]:
        for column, (y, use) in columns.items():
            chosen = rows[use[rows]]
            if axis != "value":
                chosen = chosen[np.argsort(where[chosen], kind="stable")]
            if len(chosen) or not groups:
                one = _of_column(column, where[chosen], y[chosen])
                series.append(_of_entity(one, labels, len(columns) == 1))
    check_count(len(series), name)
    if not series:
        raise BadInput(f"{name}: found no column of numbers next to {at}; expected one at least")
    if axis == "time" and not groups:
        notes += _mixed_rows(frame[texts], where)
    label, unit = _parted(at)
    if pd.api.types.is_timedelta64_dtype(values):
        unit = "s"
    return Recorded(series, axis, label, unit, start_utc_ns=start, notes=notes)


def _mixed_rows(texts: pd.DataFrame, where: Array) -> list[str]:
    """A note on rows of one time that differ in a text, such as the name of a host."""
    times = pd.Series(where, index=texts.index)
    same = times.notna() & times.duplicated(keep=False)
    if not same.any():
        return []
    differ = [
        c for c in map(str, texts) if (texts[c][same].groupby(times[same]).nunique() > 1).any()
    ]
    if not differ:
        return []
    shown = ", ".join(printable(c) for c in differ[:5])
    return [
        f"{int(same.sum())} rows have the time of another row and differ in {shown}: they are read as one "
        "series (--words with `entity` separates them)"
    ]


def _entities(
    frame: pd.DataFrame, texts: list[str], where: Array
) -> list[tuple[dict[str, str], npt.NDArray[np.intp]]]:
    """Texts and rows of each entity of a table that has a row for each of them at each time.

    Empty for a table with one row for each time, and if the texts do not distinguish the rows of a time.
    """
    there = np.isfinite(where)
    if not texts or len(np.unique(where[there])) == there.sum():
        return []
    keys = frame[texts].astype(object).fillna("").astype(str)
    numbers = keys.groupby(texts, sort=False).ngroup().to_numpy()
    names = keys.drop_duplicates().to_dict("records")
    placed = pd.DataFrame({"entity": numbers[there], "at": where[there]})
    most = min(MOST_SERIES, max(_FEW_ENTITIES, len(frame) // 2))
    if placed.duplicated().any() or len(names) > most:
        return []
    order = np.argsort(numbers, kind="stable")
    parts = np.split(order, np.searchsorted(numbers[order], np.arange(1, len(names))))
    labels = [{str(k): str(v) for k, v in one.items() if v} for one in names]
    return list(zip(labels, parts, strict=True))


def _of_entity(series: Series, texts: dict[str, str], single: bool) -> Series:
    """A series with the texts of its entity as labels; `single`: its column is the only one of numbers."""
    if not texts:
        return series
    labels = {name: text for name, text in texts.items() if name not in ("metric", "unit")}
    metric = texts.get("metric")
    if metric is not None:
        column = "" if single else series.name
        one = _of_column(" ".join(filter(None, [metric, column])), series.x, series.y)
        series = replace(one, unit=series.unit or one.unit)
    node = " ".join(filter(None, [series.node, *labels.values()]))
    return replace(
        series,
        name=f"{series.name} {node}".strip(),
        unit=texts.get("unit", series.unit),
        node=node,
        labels={**series.labels, **labels},
    )


def _axis_column(frame: pd.DataFrame, name: str, x: str | None) -> tuple[str, Axis]:
    plain = {c: (m.group(1) if (m := _UNIT.match(c)) else c) for c in frame.columns}
    if x is not None:
        named = [c for c in frame.columns if x in (c, plain[c])]
        if not named:
            shown = ", ".join(printable(c) for c in list(frame.columns)[:12])
            raise BadInput(f"--x: found {x}; expected a column of {name}: {shown}")
        column = named[0]
        return column, (
            "time"
            if _TIMES.match(plain[column])
            else "index"
            if _INDEX.match(plain[column])
            else "value"
        )
    for column in frame.columns:
        if _TIMES.match(plain[column]):
            return column, "time"
    for column in frame.columns:
        if _INDEX.match(plain[column]):
            return column, "index"
    return frame.columns[0], "value"


def _with_dates(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with one column of times in place of one of dates and one of times of day."""
    named = {c.strip().lower(): c for c in frame.columns}
    date, time = named.get("date"), named.get("time")
    if date is None or time is None:
        return frame
    texts = frame[time].dropna().astype(str)
    if texts.empty or not texts.str.match(r"\d{1,2}:\d\d").all():
        return frame
    padded = frame[time].astype(str).str.replace(r"^(\d):", r"0\1:", regex=True)
    joined = (frame[date].astype(str) + "T" + padded).where(
        frame[date].notna() & frame[time].notna()
    )
    return frame.assign(**{date: joined}).drop(columns=[time])


def seconds_of(
    values: pd.Series[Any], column: str, name: str, mark: str = ""
) -> tuple[Array, int | None]:
    """Times in seconds since the first, and that in UTC [ns]: ISO 8601, or numbers with a unit.

    The unit comes from the suffix of the column's name, else from the magnitude; numbers too small for a time
    since 1970 are relative and remain unchanged. `mark` is the decimal mark of the table.
    """
    if pd.api.types.is_timedelta64_dtype(values):
        return values.dt.total_seconds().to_numpy(float), None
    # a Parquet file may have dates, of any unit
    dated = pd.api.types.is_datetime64_any_dtype(values)
    numeric = None if dated else _seconds_of_numbers(values, column, name, mark)
    if numeric is not None:
        return numeric
    times = delimited.iso_times(values, "coerce")
    bad = times.isna() & values.notna()
    if bad.any():
        row = int(np.flatnonzero(bad.to_numpy())[0])
        raise BadInput(
            f"{name}:{row + 2}: found {printable(str(values.iloc[row])[:60])!r} in column {column}; "
            "expected a time: seconds, nanoseconds since 1970 or ISO 8601"
        )
    first = times.min()
    since = (times - first).dt.total_seconds().to_numpy(float)
    try:
        return np.asarray(since), int(first.as_unit("ns").value)
    except pd.errors.OutOfBoundsDatetime:
        raise BadInput(
            f"{name}: found the time {first} in column {column}; expected the years 1678 to 2262"
        ) from None


def _seconds_of_numbers(
    values: pd.Series[Any], column: str, name: str, mark: str
) -> tuple[Array, int | None] | None:
    """As `seconds_of`; None for a column that is not of numbers."""
    parsed = pd.to_numeric(values, errors="coerce")
    if not pd.api.types.is_numeric_dtype(values):
        with contextlib.suppress(ValueError):  # dates with points
            parsed = delimited.numbers_of(values, mark)
    numbers = parsed.to_numpy(float)
    filled = values.notna().to_numpy()
    if not filled.any() or not np.isfinite(numbers[filled]).all():
        return None
    first = parsed.min()
    largest = float(np.nanmax(np.abs(numbers)))
    stated = seconds_per_unit(column)
    per = stated or _by_size(largest)
    if largest * per >= _MOST_S:
        raise BadInput(
            f"{name}: found the time {largest:.6g} in column {column}; expected the years 1678 to 2262"
        )
    if largest * per < 1e8:  # a relative time
        unit = _parted(column)[1]
        if unit and stated is None:
            raise BadInput(
                f"{name}: found the unit {printable(unit)!r} of the times in column "
                f"{printable(column)}; expected ns, us, ms, s, min, h or d"
            )
        return np.asarray(parsed.to_numpy(float) * per), None
    since = np.asarray((parsed - first).to_numpy(float) * per)
    exact = pd.api.types.is_integer_dtype(parsed)
    return since, int(first) * round(per * 1e9) if exact else round(float(first) * per * 1e9)


def _by_size(largest: float) -> float:
    """Seconds per unit of a time since 1970, from its magnitude."""
    if largest > 1e17:
        return 1e-9
    if largest > 1e14:
        return 1e-6
    return 1e-3 if largest > 1e11 else 1.0


def _numbers(values: pd.Series[Any], column: str, name: str) -> Array:
    numbers = pd.to_numeric(values, errors="coerce").to_numpy(float)
    bad = values.notna().to_numpy() & ~np.isfinite(numbers)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise BadInput(
            f"{name}:{row + 2}: found {printable(str(values.iloc[row])[:60])!r} in column {column}; "
            "expected a number (or --x COLUMN with the times)"
        )
    return numbers


def _parted(column: str) -> tuple[str, str]:
    match = _UNIT.match(column)
    return (match.group(1), match.group(2)) if match else (column, "")


def _of_column(column: str, x: Array, y: Array) -> Series:
    name, unit = _parted(column)
    labelled = _LABELLED.match(name)
    node, quantity, labels = "", name, {}
    if labelled:
        quantity = labelled.group(1)
        labels = dict(_LABEL.findall(labelled.group(2)))
        node = " ".join(labels.values()) or labelled.group(2)
    alias = quantity
    if not unit:
        parts = quantity.removesuffix("_total").rsplit("_", 1)
        unit = _SUFFIXES.get(parts[-1], "") if len(parts) > 1 else ""
        quantity = parts[0] if unit else quantity
    return Series(name, x, y, unit, node, quantity, labels=labels, alias=alias)
