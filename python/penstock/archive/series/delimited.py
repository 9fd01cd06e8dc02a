"""Tables as text: separated by commas, tabs, semicolons or bars, with decimal points or commas.

The separator is the one that divides the header row and the rows below it into the same number of fields.
Marks of a missing value are not text: `-`, `NA`, `null`, `\\N` and the like.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import IO, Any, Literal

import pandas as pd

from penstock import numerals
from penstock.errors import BadInput, printable

#: in order of preference
SEPARATORS = (",", "\t", ";", "|")
#: marks of a missing value: those of pandas, and of other programs
MISSING = (
    *(
        "",
        "#N/A",
        "#N/A N/A",
        "#NA",
        "-1.#IND",
        "-1.#QNAN",
        "-NaN",
        "-nan",
        "1.#IND",
        "1.#QNAN",
        "<NA>",
    ),
    *("N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
    *("-", "--", "\u2013", "?", ".", "n.a.", "N.A.", "none", "nil", "NIL", "(null)", "\\N"),
)
_HEAD_BYTES = 1 << 16
_MOST_ROWS = 20
#: possible number of some locale that Python does not parse
_NUMBER_LIKE = re.compile(r"[+-]?\d[\d.,'\u2019 \u00a0\u202f\u2009]*(?:[eE][+-]?\d+)?")
#: end of a time that names its zone
_ZONE = re.compile(r"\d:?\d\d(?:[.,]\d+)?\s*(?:[Zz]|UTC|GMT|[+-]\d\d(?::?\d\d)?(?: UTC)?)\s*$")
#: forms of times next to ISO 8601 with one meaning: UTC by its name, also behind an offset of 0 (Go)
_NAMED_UTC = re.compile(r"(?<=\d)\s*(?:[+-]00:?00 )?(?:UTC|GMT)\s*$")
_DECIMAL_COMMA = re.compile(r"(?<=:\d\d),(?=\d)")


def separator_of(content: bytes) -> str:
    """Separator of a table by its first rows; a comma if there is none."""
    head = content[:_HEAD_BYTES].decode("utf-8-sig", "replace")
    lines = [line for line in head.splitlines() if line.strip()][:_MOST_ROWS]
    if len(content) > _HEAD_BYTES and len(lines) > 1:
        lines.pop()  # it may be truncated
    best, chosen = (False, 1), ","
    for separator in SEPARATORS:
        with contextlib.suppress(csv.Error):
            fields = [len(row) for row in csv.reader(lines, delimiter=separator)]
            if fields and fields[0] > 1:
                key = (len(set(fields)) == 1, fields[0])
                if key > best:
                    best, chosen = key, separator
    return chosen


def separator_of_file(file: IO[bytes]) -> str:
    """As `separator_of`, for an open file, which is at its start before and after."""
    separator = separator_of(file.read(_HEAD_BYTES + 1))
    file.seek(0)
    return separator


def read_frame(
    content: bytes,
    name: str,
    *,
    separator: str = "",
    texts: Collection[str] = (),
    missing: Collection[str] = (),
    decimal: str = "",
) -> pd.DataFrame:
    """Table of a text; columns `texts` are not converted. BadInput for an invalid table.

    `decimal`: its decimal mark, if given. With decimal commas, `1.234` may be 1234: such columns stay texts.
    """
    separator = separator or separator_of(content)
    content = _without_trailing_separators(content, name, separator)
    _check_last_row(content, name, separator)
    options: dict[str, Any] = {
        "encoding": "utf-8-sig",
        "sep": separator,
        "keep_default_na": False,
        "low_memory": False,  # complete columns: a column is either numeric or text
    }
    marks: Any = [*MISSING, *missing]
    try:
        if texts:
            names = pd.read_csv(io.BytesIO(content), nrows=0, **options).columns
            marks = {c: marks for c in names if c not in texts}
            options["dtype"] = dict.fromkeys(texts, str)
        frame: pd.DataFrame = pd.read_csv(io.BytesIO(content), na_values=marks, **options)
        floats = [c for c in map(str, frame) if pd.api.types.is_float_dtype(frame[c])]
        if floats and (decimal or decimal_mark(frame)) == ",":
            options["dtype"] = str
            raw: pd.DataFrame = pd.read_csv(io.BytesIO(content), na_values=marks, **options)
            frame = frame.assign(**{c: raw[c] for c in floats if _is_grouped(raw[c])})
        return frame
    except pd.errors.EmptyDataError:
        raise BadInput(f"{name}: found nothing; expected CSV with a header row") from None
    except (pd.errors.ParserError, UnicodeDecodeError, ValueError) as error:
        shown = " ".join(str(error).split())
        raise BadInput(f"{name}: found {shown}; expected CSV with a header row") from None


def _check_last_row(content: bytes, name: str, separator: str) -> None:
    """BadInput for a last row without its last fields and its end: its last number may lack digits."""
    before, _, last = content.rpartition(b"\n")
    if not last.strip() or b'"' in last:
        return
    rows = io.BytesIO(before[:_HEAD_BYTES])
    names, first = len(header_row(rows, separator)), len(next_row(rows, separator))
    expected = min(names, first) if first else names
    fields = len(next_row(io.BytesIO(last), separator))
    if fields < expected:
        line = before.count(b"\n") + 2
        raise BadInput(
            f"{name}:{line}: found {fields} fields and no end of the line; expected {expected} "
            "(a truncated file?)"
        )


def _is_grouped(column: pd.Series[Any]) -> bool:
    """True if there are points in a column of texts, all of which may separate groups of digits."""
    pointed = [t.strip() for t in column.dropna().unique() if isinstance(t, str) and "." in t]
    return bool(pointed) and all(map(numerals.is_ambiguous, pointed))


def _without_trailing_separators(content: bytes, name: str, separator: str) -> bytes:
    """The text without trailing separators of its rows; BadInput for a first row with further fields."""
    rows = io.BytesIO(content)
    names, first = len(header_row(rows, separator)), next_row(rows, separator)
    if not 0 < names < len(first):
        return content
    if any(first[names:]):
        raise BadInput(
            f"{name}: found {len(first)} fields below {names} names; expected a name for each"
        )
    ends = re.escape(separator.encode()) + b"{%d}(?=\r?$)" % (len(first) - names)
    return re.sub(ends, b"", content, flags=re.MULTILINE)


def json_lines(text: str, name: str, *, texts: Collection[str] = ()) -> pd.DataFrame:
    """Table of JSON Lines, an object per line; truth values, lists and objects in it are texts.

    Keys `texts` are texts, empty for null and in objects without the key. BadInput for other lines, and for
    an object with a key several times.
    """
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line, object_pairs_hook=_Object)
        except (ValueError, RecursionError) as error:
            reason = str(error).splitlines()[0]
            raise BadInput(f"{name}:{number}: found {reason}; expected JSON Lines") from None
        if not isinstance(row, _Object) or not row:
            raise BadInput(f"{name}:{number}: found no object; expected JSON Lines")
        if row.repeats:
            raise BadInput(f"{name}:{number}: found a key several times; expected JSON Lines")
        rows.append({k: _text(v) if k in texts else _cell(v) for k, v in row.items()})
    frame = pd.DataFrame(rows)
    return frame.fillna(dict.fromkeys(frame.columns.intersection(list(texts)), ""))


class _Object(dict[str, Any]):
    """A JSON object; `repeats` is true if it has a key several times."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.repeats = len(self) < len(pairs)


def _text(value: Any) -> str:
    """A text for the value of a key, as in CSV."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def _cell(value: Any) -> Any:
    """A cell for the value of a key."""
    if isinstance(value, bool | list | dict):
        return json.dumps(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return float(str(value))
    return value


def without_missing(column: pd.Series[Any], missing: Collection[str] = ()) -> pd.Series[Any]:
    """A column without marks of a missing value."""
    if pd.api.types.is_numeric_dtype(column):
        return column
    return column.where(~column.isin([*MISSING, *missing]))


def decimal_mark(frame: pd.DataFrame) -> str:
    """Decimal mark of a number in a text column of a table; empty if there is none."""
    shown: set[str] = set()
    for column in frame.columns:
        values = frame[column]
        if pd.api.types.is_numeric_dtype(values):
            continue
        texts = values.dropna().unique()
        alike = [t for t in texts if isinstance(t, str) and _NUMBER_LIKE.fullmatch(t.strip())]
        if any("," in t for t in alike):
            shown.add(numerals.decimal_mark(alike))
    return shown.pop() if len(shown) == 1 else ""


def numbers_of(column: pd.Series[Any], mark: str, *, stated: bool = False) -> pd.Series[Any]:
    """A column as numbers, NaN for other cells, with the decimal mark of its table.

    ValueError, with the cell's text, for an ambiguous number: in a column without commas, 1.234 is one if the
    mark is a comma, unless the user `stated` it.
    """
    plain = pd.to_numeric(column, errors="coerce")
    if pd.api.types.is_numeric_dtype(column):
        return plain
    texts = column[plain.isna() & column.notna()].unique()
    if not any(isinstance(t, str) and _NUMBER_LIKE.fullmatch(t.strip()) for t in texts):
        if mark != "," or not _is_grouped(column):
            return plain
        if not stated:
            first = next(t for t in column.dropna().unique() if isinstance(t, str) and "." in t)
            raise ValueError(
                f"found {printable(first[:40])!r} in a table with decimal commas; expected a number with one "
                "meaning"
            )
    numbers: dict[Any, float] = {}
    for text in column.dropna().unique():
        if isinstance(text, str) and _NUMBER_LIKE.fullmatch(text.strip()):
            try:
                numbers[text] = numerals.number(text, mark)
            except ValueError as error:
                raise ValueError(f"found {printable(text[:40])!r}; expected {error}") from None
    return column.map(numbers).astype(float).where(column.isin(list(numbers)), plain)


def no_numbers(name: str, column: pd.Series[Any], numbers: Any) -> list[str]:
    """A note on the texts of a column of numbers that are not numbers, which are skipped."""
    if pd.api.types.is_numeric_dtype(column):
        return []
    texts = without_missing(column)
    odd = texts[texts.notna() & pd.isna(numbers)]
    if odd.empty:
        return []
    first, row = printable(str(odd.iloc[0])[:40]), int(str(odd.index[0])) + 2
    cells = f"{len(odd)} {'cells' if len(odd) > 1 else 'cell'} without a number"
    return [f"{cells} in column {printable(name)} skipped: the first is {first!r} in row {row}"]


def iso_times(values: pd.Series[Any], errors: Literal["raise", "coerce"]) -> pd.Series[Any]:
    """Column of ISO 8601 times in UTC, also with `UTC` or `GMT` for `Z`, and with decimal commas."""
    if not pd.api.types.is_datetime64_any_dtype(values):
        texts = values.astype(str).str.replace(_NAMED_UTC, "Z", regex=True)
        values = texts.str.replace(_DECIMAL_COMMA, ".", regex=True).where(values.notna())
    return pd.to_datetime(values, utc=True, errors=errors, format="ISO8601")


def without_zone(times: pd.Series[Any]) -> list[str]:
    """A note on the ISO 8601 times of a column that have no time zone, which are read as UTC."""
    if isinstance(times.dtype, pd.DatetimeTZDtype) or pd.api.types.is_numeric_dtype(times):
        return []
    if pd.api.types.is_timedelta64_dtype(times):
        return []
    texts = times.dropna().astype(str)
    numbers = texts.str.fullmatch(_NUMBER_LIKE) | pd.to_numeric(texts, errors="coerce").notna()
    local = texts[~texts.str.contains(_ZONE) & ~numbers]
    if local.empty:
        return []
    return [f"{len(local)} times without a time zone were read as UTC, such as {local.iloc[0]!r}"]


def unique_names(names: Sequence[str]) -> list[str]:
    """Names of columns, duplicates as `NAME#2`."""
    unique, taken, seen = [], set(names), Counter[str]()
    for name in names:
        own = name
        while name and seen[name] and own in taken:
            seen[name] += 1
            own = f"{name}#{seen[name]}"
        seen[name] = max(1, seen[name])
        taken.add(own)
        unique.append(own)
    return unique


def strange_header(path: Path) -> list[str]:
    """Notes on a CSV's header row: duplicate names, and names without a field."""
    with path.open("rb") as file:
        separator = separator_of_file(file)
        names, fields = header_row(file, separator), len(next_row(file, separator))
    if 0 < fields < len(names):
        return [f"its header row has {len(names)} names over {fields} fields: the last are of none"]
    again = [printable(n) for n in unique_names(names) if n not in names]
    return [f"names that are in its header row already: {', '.join(again[:10])}"] if again else []


def header_row(file: IO[bytes], separator: str) -> list[str]:
    """The names of a table's columns."""
    row = next_row(file, separator)
    return [row[0].removeprefix("\ufeff"), *row[1:]] if row else []


def next_row(file: IO[bytes], separator: str) -> list[str]:
    """Next non-empty row of a CSV, if it is on one line."""
    for line in file:
        if line.strip():
            with contextlib.suppress(csv.Error):
                text = line.decode("utf-8", "replace").rstrip("\r\n")
                return next(csv.reader([text], delimiter=separator), [])
            break
    return []


def is_number(text: str) -> bool:
    """True for a number of any locale."""
    return _NUMBER_LIKE.fullmatch(text.strip()) is not None


def first_name(head: bytes) -> str:
    """Name of the first column of a table with several, empty for other text."""
    names = header_row(io.BytesIO(head), separator_of(head))
    return names[0].strip() if len(names) > 1 else ""
