"""Push the content of a file to an experiment in batches, with retries.

The source of the points is a hash of their content. So pushing a file twice duplicates no points, and another
file of the same metric is another source.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import Away, BadInput, PenstockError, printable
from penstock.parts.monitoring.experiments.points import (
    MOST_POINTS,
    VALUES,
    Account,
    Batch,
    canonical_labels,
    points,
)
from penstock.parts.monitoring.outbox.client import Client, patiently

#: number of points of one batch
BATCH_POINTS = 100_000
MOST_BYTES = 4 << 30
#: a number with a decimal comma, which Arrow reads as text
_DECIMAL_COMMA = r"^[+-]?[0-9][0-9.' ]*,[0-9]+$"


@dataclass(frozen=True)
class Pushed:
    """Number of points and batches that were pushed, and their source."""

    points: int
    batches: int
    source: str


def read_table(place: Path, table: str | None = None) -> pa.Table:
    """Read a CSV, JSON Lines or Parquet file, or a table of a bundle. BadInput for others."""
    if place.is_dir():
        file = place / f"{table or 'io_events'}.parquet"
        if not (place / "manifest.json").is_file() or (table and "/" in table):
            raise BadInput(f"{place}: found no manifest.json; expected a bundle, or a file")
        if not file.is_file():
            names = ", ".join(sorted(p.stem for p in place.glob("*.parquet"))) or "none"
            raise BadInput(f"{place}: found the tables {names}; expected {file.stem}")
        place = file
    try:
        if place.stat().st_size > MOST_BYTES:
            raise BadInput(f"{place}: found more than {MOST_BYTES} bytes; expected that at most")
        with place.open("rb") as content:
            return parsed(content, place.suffix, str(place))
    except OSError as error:
        raise BadInput(f"{place}: {error.strerror or error}") from None


def parsed(file: IO[bytes], ending: str, name: str) -> pa.Table:
    """Read a table from an open file, by the suffix of its name. BadInput if it is invalid."""
    try:
        if ending == ".parquet":
            import pyarrow.parquet as pq

            # threads of Arrow that hold a Python file abort some processes (SIGABRT)
            table = pq.read_table(file, use_threads=False, pre_buffer=False)
        elif ending in (".jsonl", ".ndjson"):
            import pandas as pd

            # Arrow's JSON reader crashes on some damaged files
            # by default pandas converts texts to numbers, and numbers with an error
            frame = pd.read_json(file, lines=True, dtype=False, precise_float=True)
            table = pa.Table.from_pandas(frame, preserve_index=False)
        elif ending == ".csv":
            import pyarrow.csv

            from penstock.archive.series import delimited

            options = pyarrow.csv.ParseOptions(delimiter=delimited.separator_of_file(file))
            table = pyarrow.csv.read_csv(file, parse_options=options)
        else:
            actual = ending or "no ending"
            raise BadInput(f"{name}: found {actual}; expected .csv, .jsonl or .parquet")
        names = table.column_names
    except (pa.ArrowException, OSError, ValueError, OverflowError, TypeError) as error:
        reason = printable((str(error).splitlines() or [""])[0][:200])
        raise BadInput(f"{name}: {reason}; expected a table") from None
    if not all(n.isprintable() for n in names):
        raise BadInput(f"{name}: found a column's name that is not printable; expected text")
    return table


def file_id_of(bundle: Path, path: str) -> int:
    """Number of a file of a bundle, by its path or a suffix of it. BadInput unless exactly one matches."""
    files = read_table(bundle, "files")
    matches = [
        (number, name)
        for number, name in zip(
            files["file_id"].to_pylist(), files["path"].to_pylist(), strict=True
        )
        if name is not None and (name == path or name.endswith(f"/{path.lstrip('/')}"))
    ]
    if len(matches) != 1:
        names = ", ".join(name for _, name in matches[:5]) or "none"
        raise BadInput(f"{bundle}: found {names} that ends with {path}; expected one file")
    return int(matches[0][0])


def rows_where(table: pa.Table, values: Mapping[str, str]) -> pa.Table:
    """Rows whose columns have these values as text. BadInput for a missing column."""
    for name, value in values.items():
        table = table.filter(pc.equal(column_of(table, name).cast(pa.string()), value))
    return table


def column_of(table: pa.Table, name: str) -> pa.ChunkedArray:
    """Column by name. BadInput if it is missing."""
    if table.column_names.count(name) != 1:
        raise BadInput(f"found columns {', '.join(table.column_names)}; expected {name} among them")
    column: pa.ChunkedArray = table[name]
    return column


def batches_of(
    values: pa.ChunkedArray,
    *,
    metric: str,
    labels: Mapping[str, str],
    unit: str = "",
    utc_ns: pa.ChunkedArray | None = None,
    source: str | None = None,
    batch_points: int = BATCH_POINTS,
    interval_s: float | None = None,
) -> Iterator[Batch]:
    """Values as batches: a sequence 0, 1, 2, …, or, with times, a time series.

    `interval_s`: interval between points of a time series. The last batch has the total number of points.
    BadInput for values of other types and for empty cells.
    """
    if interval_s is not None and (utc_ns is None or not 1e-9 <= interval_s <= 1e9):
        actual = "an interval without times" if utc_ns is None else f"interval {interval_s:g} s"
        raise BadInput(f"found {actual}; expected more than 0 s, with times")
    if not 0 < batch_points <= MOST_POINTS:
        raise BadInput(f"found {batch_points} points a batch; expected 1 to {MOST_POINTS}")
    if not len(values):
        raise BadInput("found no row; expected at least one")
    if values.null_count or (utc_ns is not None and utc_ns.null_count):
        raise BadInput(f"found {values.null_count} empty cells; expected a value in each row")
    kind, values = _as_values(values)
    if kind == "text" and pc.all(pc.match_substring_regex(values, _DECIMAL_COMMA)).as_py():
        raise BadInput(f"found {values[0].as_py()!r}; expected numbers with a decimal point")
    label_text = canonical_labels(labels)
    source_name = source or f"push-{_digest(metric, label_text, values, utc_ns)}"
    count = len(values)
    for number, low in enumerate(range(0, count, batch_points)):
        part = values.slice(low, batch_points)
        places = {"index": np.arange(low, low + len(part))}
        if utc_ns is not None:
            places = {"utc_ns": utc_ns.slice(low, batch_points)}
        table = points(metric=metric, labels=label_text, unit=unit, **places, **{kind: part})
        last = low + batch_points >= count
        interval_ns = None if interval_s is None else round(interval_s * 1e9)
        account = Account(metric, label_text, interval_ns, produced=count)
        accounts: Sequence[Account] = [account] if last else []
        yield Batch(source_name, number, table, accounts)


def push(
    client: Client,
    experiment: str,
    batches: Iterator[Batch],
    *,
    patience_s: float = 60.0,
    report: Callable[[str], None] = lambda _: None,
) -> Pushed:
    """Write batches, with retries. PenstockError if the server remains unreachable."""
    sent = count = 0
    source = ""
    for batch in batches:
        source = batch.source
        try:
            patiently(functools.partial(client.write, experiment, batch), patience_s, report)
        except Away as error:
            raise PenstockError(
                f"{error}; {count} points were acknowledged; push again, without duplicates"
            ) from None
        sent += 1
        count += batch.points.num_rows
    return Pushed(count, sent, source)


def _as_values(values: pa.ChunkedArray) -> tuple[str, pa.ChunkedArray]:
    kind = values.type
    for test, name, to in (
        (pa.types.is_boolean, "boolean", pa.bool_()),
        (pa.types.is_integer, "integer", pa.int64()),
        (pa.types.is_floating, "float", pa.float64()),
        (pa.types.is_string, "text", pa.string()),
        (pa.types.is_dictionary, "text", pa.string()),
    ):
        if test(kind):
            assert name in VALUES
            try:
                return name, values.cast(to)
            except pa.ArrowException as error:
                raise BadInput(f"found {error}; expected values of {to}") from None
    raise BadInput(f"found values of {kind}; expected numbers, texts or truth values")


def _digest(
    metric: str, labels: str, values: pa.ChunkedArray, utc_ns: pa.ChunkedArray | None
) -> str:
    digest = hashlib.sha256(f"{metric}\0{labels}\0".encode())
    columns = [values] if utc_ns is None else [values, utc_ns]
    sink = pa.BufferOutputStream()
    table = pa.table(
        [c.combine_chunks() for c in columns], names=[str(n) for n in range(len(columns))]
    )
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    digest.update(memoryview(sink.getvalue()))
    return digest.hexdigest()[:16]
