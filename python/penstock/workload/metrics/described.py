"""Any table or JSON Lines, described in YAML: columns of times, names and values.

time: {column: ts, unit: ms}      # unit s, ms, us or ns since 1970; without a unit ISO 8601
source: my-bench
entity: [host, device]            # columns with the names of the row's entity
values: {lat: us, iops: 1/s}      # column: unit
counters: [bytes]                 # values that are counters
separator: "\t"                   # by default comma, tab, semicolon or bar, as in the header row
decimal: ","                      # decimal mark, if no number shows it
missing: [n/d]                    # marks of a missing value, in addition to -, NA, null etc.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from penstock.archive.series import delimited
from penstock.errors import BadInput, printable
from penstock.numerals import MARKS
from penstock.workload.metrics import Readings, samples, simultaneous, text_of

WHAT = "a table or JSON Lines, with --words FILE.yaml that describes its columns"
_KEYS = {"time", "source", "entity", "values", "counters", "separator", "decimal", "missing"}
_ARRAY = re.compile(r"\s*\[\s*[{\[]")
_PER_UNIT = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


def matches(path: Path, head: bytes) -> bool:
    """Never recognised automatically: it needs options."""
    return False


def read(path: Path, options: Mapping[str, Any]) -> Readings:
    """Values of the columns in `options`."""
    time, unit = _time(options)
    values, counters = _values(options)
    separator, decimal, missing = _form(options)
    text = text_of(path)
    entity = options.get("entity") or []
    entity = [entity] if isinstance(entity, str) else [str(e) for e in entity]
    if _ARRAY.match(text):
        raise BadInput(f"{path}: found a JSON array; expected JSON Lines, an object per line")
    if text.lstrip().startswith("{"):
        frame = delimited.json_lines(text, str(path), texts=entity)
    else:
        content = text.encode()
        separator = separator or delimited.separator_of(content)
        _check_unique(path, content, separator, [time, *entity, *values])
        frame = delimited.read_frame(
            content,
            str(path),
            separator=separator,
            texts=entity,
            missing=missing,
            decimal=decimal,
        )
    lacking = [c for c in (time, *entity, *values) if c not in frame]
    if lacking:
        shown = ", ".join(map(str, list(frame)[:12]))
        raise BadInput(f"{path}: found no column {lacking[0]!r}; expected one of {shown}")
    notes = []
    times = delimited.without_missing(frame[time], missing)
    if times.isna().any():
        notes.append(f"{int(times.isna().sum())} rows without a time were skipped")
        frame, times = frame[times.notna()], times[times.notna()]
    utc_ns = _utc_ns(times, unit, path, decimal)
    notes += [] if unit else delimited.without_zone(times)
    named = frame[entity].astype(str).agg(" ".join, axis=1) if entity else str(path.stem)
    parts = []
    cells = {c: delimited.without_missing(frame[c], missing) for c in values}
    stated, decimal = bool(decimal), decimal or delimited.decimal_mark(pd.DataFrame(cells))
    for column, of in values.items():
        try:
            number = delimited.numbers_of(cells[column], decimal, stated=stated)
        except ValueError as error:
            raise BadInput(f"{path}: column {column}: {error}; or `decimal` in --words") from None
        if pd.api.types.is_bool_dtype(cells[column]):
            raise BadInput(f"{path}: found truth values in {column}; expected numbers")
        bad = number.isna() & cells[column].notna()
        if bad.any():
            row = int(bad.to_numpy().argmax())
            text = printable(str(frame[column].iloc[row])[:60])
            at = int(str(frame.index[row])) + 1
            raise BadInput(f"{path}: row {at}: found {text!r} in {column}; expected a number")
        part = pd.DataFrame({"utc_ns": utc_ns, "value": number}).assign(
            source=str(options.get("source") or path.stem),
            entity=named,
            metric=column,
            unit=of,
            cumulative=column in counters,
        )
        parts.append(part[number.notna()])
    merged = pd.concat(parts, ignore_index=True)
    notes += simultaneous(merged, ": `entity` names the columns that distinguish them")
    return Readings(samples(merged), notes=notes)


def _check_unique(path: Path, content: bytes, separator: str, columns: Sequence[str]) -> None:
    """BadInput if the header row has one of the columns several times."""
    names = delimited.header_row(io.BytesIO(content), separator)
    for column in columns:
        if names.count(column) > 1:
            raise BadInput(
                f"{path}:1: found {column!r} {names.count(column)} times; expected it once"
            )


def _form(options: Mapping[str, Any]) -> tuple[str, str, list[str]]:
    """Separator, decimal mark and marks of a missing value, all optional."""
    separator, decimal = options.get("separator", ""), options.get("decimal", "")
    missing = options.get("missing") or []
    if separator not in ("", *delimited.SEPARATORS):
        raise BadInput(
            f"--words: found separator {separator!r}; expected a comma, tab, semicolon or bar"
        )
    if decimal not in ("", *MARKS):
        raise BadInput(f"--words: found decimal {decimal!r}; expected '.' or ','")
    if not isinstance(missing, list):
        raise BadInput(f"--words: found missing {missing!r}; expected a list of texts")
    return str(separator), str(decimal), [str(m) for m in missing]


def _time(options: Mapping[str, Any]) -> tuple[str, str]:
    strange = set(options) - _KEYS
    if strange:
        raise BadInput(
            f"--words: found {', '.join(sorted(strange))}; expected {', '.join(sorted(_KEYS))}"
        )
    time = options.get("time")
    time = {"column": time} if isinstance(time, str) else time
    if not isinstance(time, Mapping) or not isinstance(time.get("column"), str):
        raise BadInput(f"--words: found time {time!r}; expected {{column: NAME, unit: ms}}")
    unit = str(time.get("unit") or "")
    if unit and unit not in _PER_UNIT:
        raise BadInput(
            f"--words: found time in {unit}; expected {', '.join(_PER_UNIT)}, or none for ISO 8601"
        )
    return time["column"], unit


def _values(options: Mapping[str, Any]) -> tuple[dict[str, str], set[str]]:
    values = options.get("values")
    if not isinstance(values, Mapping) or not values:
        raise BadInput(f"--words: found values {values!r}; expected {{COLUMN: UNIT, …}}")
    counters = options.get("counters") or []
    if not isinstance(counters, list) or not set(map(str, counters)) <= set(map(str, values)):
        raise BadInput(f"--words: found counters {counters!r}; expected some of the values")
    return {str(k): str(v) for k, v in values.items()}, set(map(str, counters))


def _utc_ns(column: pd.Series[Any], unit: str, path: Path, decimal: str) -> Any:
    try:
        if unit:
            number = delimited.numbers_of(column, decimal, stated=bool(decimal))
            if number.isna().any() or pd.api.types.is_bool_dtype(column):
                raise ValueError(repr(printable(str(column[number.isna()].head(1).squeeze())[:60])))
            if (number.abs().astype(float) * _PER_UNIT[unit] >= 2.0**63).any():
                raise ValueError(f"{number.abs().max()} {unit}, beyond the year 2262,")
            if pd.api.types.is_integer_dtype(number):
                return (number * _PER_UNIT[unit]).astype("int64")
            return (number * _PER_UNIT[unit]).round().astype("int64")
        times = delimited.iso_times(column, "raise")
        return times.astype("datetime64[ns, UTC]").astype("int64")
    except (ValueError, TypeError, OverflowError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(f"{path}: found {reason} in {column.name}; expected times") from None
