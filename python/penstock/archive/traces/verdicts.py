"""Stored verdicts on access patterns: the table `patterns`, of this version or an earlier one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.json import ParseOptions, ReadOptions, read_json

from penstock.archive.schemas import TABLES
from penstock.archive.schemas.table import EVIDENCE
from penstock.errors import BadInput, PenstockError

#: basis of a verdict in `patterns`, most specific to the program first
BASES = ("calls", "counters", "faults", "device")


@dataclass(frozen=True)
class Verdict:
    """A row of `patterns` with its column names, except for `kind` (`class`) and `nbytes` (`bytes`).

    `tid` is None for all threads, `phase_id` for the complete run. `evidence` is the classifier's output; it
    is read from the table on access.
    """

    file_id: int
    path: str
    direction: str
    tid: int | None
    basis: str
    phase_id: str | None
    kind: str
    k: int | None
    requests: int
    nbytes: int
    confidence: float | None
    consecutive_share: float | None
    forward_share: float | None
    sequential_share: float | None
    reverse_share: float | None
    median_size_bytes: float
    calls: int
    time_ns: int
    sentence: str
    joint_class: str | None
    joint_k: int | None
    joint_confidence: float | None
    joint_sentence: str | None
    started_ns: int | None = None
    #: evidence column and row
    place: tuple[pa.StructArray, int] | None = field(default=None, repr=False, compare=False)

    @cached_property
    def evidence(self) -> dict[str, Any]:
        """Evidence of the classifier, without nulls: of a million rows hardly any are read."""
        if self.place is None:
            return {}
        column, number = self.place
        return dict(_without_nulls(column[number].as_py() or {}))

    @property
    def mean_ns(self) -> float:
        """Mean latency of a call."""
        return self.time_ns / max(self.calls, 1)

    @property
    def overall(self) -> bool:
        """True if it is on all threads and the complete run."""
        return self.tid is None and self.phase_id is None

    def document(self) -> dict[str, Any]:
        """JSON value: the row of the table, with the non-null evidence."""
        row = {**vars(self), "evidence": self.facts}
        row.pop("place", None)
        row["class"], row["bytes"] = row.pop("kind"), row.pop("nbytes")
        return row

    @property
    def facts(self) -> dict[str, Any]:
        """The evidence; for all threads also the calls and their time."""
        summed = {"calls": self.calls, "time_ns": self.time_ns} if self.tid is None else {}
        return {**self.evidence, **summed}


def of_best_basis(rows: Iterable[Verdict]) -> list[Verdict]:
    """Verdicts with the best available basis (BASES), for each file and direction."""
    best: dict[tuple[int, str], int] = {}
    ranked = []
    for row in rows:
        rank = BASES.index(row.basis) if row.basis in BASES else len(BASES)
        key = (row.file_id, row.direction)
        best[key] = min(best.get(key, rank), rank)
        ranked.append((key, rank, row))
    return [row for key, rank, row in ranked if rank == best[key]]


def verdicts_of(
    patterns: pa.Table,
    place: Path = Path("patterns.parquet"),
    shown: Callable[[str], str] | None = None,
) -> list[Verdict]:
    """Rows of a table `patterns` in order; errors name `place`, `shown` formats a path."""
    table = _with_defaults(patterns_as_now(patterns, place))
    names = [
        "kind" if n == "class" else "nbytes" if n == "bytes" else n for n in table.column_names
    ]
    names.remove("evidence")
    columns = [values_of(table[name]) for name in table.column_names if name != "evidence"]
    places = names.index("path"), names.index("file_id")
    evidence = table["evidence"].combine_chunks()
    columns[places[0]] = [
        (shown(path) if shown is not None else path) if path else f"file {number}"
        for path, number in zip(columns[places[0]], columns[places[1]], strict=True)
    ]
    verdicts = []
    names.append("place")
    for number, values in enumerate(zip(*columns, strict=True)):
        verdict = Verdict.__new__(
            Verdict
        )  # a dataclass's initialisation takes seconds for a million rows
        verdict.__dict__.update(zip(names, (*values, (evidence, number)), strict=True))
        verdicts.append(verdict)
    return verdicts


def _with_defaults(table: pa.Table) -> pa.Table:
    """The table with defaults for columns missing in earlier versions: the basis, and zeros for times and
    calls.
    """
    requests = pc.fill_null(table["requests"], 0)
    calls = pc.fill_null(table["calls"], 0)
    basis, phase = (pc.fill_null(table[name], "") for name in ("basis", "phase_id"))
    filled = {
        "requests": requests,
        "calls": pc.if_else(pc.equal(calls, 0), requests, calls),
        "bytes": pc.fill_null(table["bytes"], 0),
        "time_ns": pc.fill_null(table["time_ns"], 0),
        "median_size_bytes": pc.fill_null(table["median_size_bytes"], 0.0),
        "sentence": pc.fill_null(table["sentence"], ""),
        "basis": pc.if_else(pc.equal(basis, ""), BASES[0], basis),
        "phase_id": pc.if_else(pc.equal(phase, ""), None, phase),
    }
    arrays = [filled.get(name, table[name]) for name in table.column_names]
    return pa.Table.from_arrays(arrays, schema=table.schema)


def values_of(column: pa.ChunkedArray) -> list[Any]:
    """A numeric or text column as a list, None for null: many times faster than `to_pylist`."""
    if column.null_count == len(column):
        return [None] * len(column)
    if pa.types.is_string(column.type) or pa.types.is_dictionary(column.type):
        coded = column.combine_chunks()
        if not pa.types.is_dictionary(column.type):
            coded = coded.dictionary_encode()
        names = [*coded.dictionary.to_pylist(), None]
        places = coded.indices.cast(pa.int64()).fill_null(len(names) - 1).to_numpy()
        return [names[place] for place in places.tolist()]
    if not column.null_count:
        return list(column.to_numpy().tolist())
    values: list[Any] = column.fill_null(0).to_numpy().tolist()
    for place in pc.indices_nonzero(column.is_null()).to_pylist():
        values[place] = None
    return values


def patterns_as_now(patterns: pa.Table, place: Path = Path("patterns.parquet")) -> pa.Table:
    """A table `patterns` of any version with the present columns: missing ones are null, JSON evidence is
    converted to columns."""
    schema = TABLES["patterns"].arrow
    columns = {name: patterns[name] for name in patterns.column_names if name in schema.names}
    with as_input(place):
        if "evidence" in columns and not pa.types.is_struct(columns["evidence"].type):
            columns |= _from_json(columns["evidence"].cast(pa.string()), place)
        none = pa.nulls(patterns.num_rows)
        arrays = [columns.get(field.name, none).cast(field.type) for field in schema]
        return pa.Table.from_arrays(arrays, schema=schema)


def _from_json(texts: pa.ChunkedArray, place: Path) -> dict[str, pa.Array]:
    """Evidence of earlier versions, with the calls and their time."""
    lines = [(text or "{}").replace("\n", " ") for text in texts.to_pylist()]
    fields = [pa.field("calls", pa.int64()), pa.field("time_ns", pa.int64()), *EVIDENCE]
    try:
        evidence = evidence_of(lines, fields, unknown="ignore")
    except ValueError as error:
        raise BadInput(
            f"{place}: found evidence that cannot be read ({error}); expected JSON"
        ) from error
    summed = {name: evidence.field(name) for name in ("calls", "time_ns")}
    rest = [evidence.field(field.name) for field in EVIDENCE]
    return {**summed, "evidence": pa.StructArray.from_arrays(rest, fields=list(EVIDENCE))}


def evidence_of(
    lines: list[str], fields: Iterable[pa.Field] = EVIDENCE, *, unknown: str = "error"
) -> pa.StructArray:
    """JSON objects as a struct array, many times faster than from Python's dictionaries.

    Raises ValueError for other values, and, unless `unknown` is `ignore`, for a field not in `fields`.
    """
    text = "\n".join(lines).encode()
    schema = pa.schema(list(fields))
    if not lines:
        return pa.array([], pa.struct(list(schema)))
    table = read_json(
        pa.BufferReader(text),
        ReadOptions(use_threads=False, block_size=max(1 << 20, min(len(text) + 1, 1 << 30))),
        ParseOptions(explicit_schema=schema, unexpected_field_behavior=unknown),
    )
    if table.num_rows != len(lines):
        raise ValueError(f"{table.num_rows} objects in {len(lines)} rows")
    return table.select(schema.names).to_struct_array().combine_chunks()


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_without_nulls(v) for v in value]
    return value


@contextlib.contextmanager
def as_input(place: Path) -> Iterator[None]:
    """Report an unreadable table as the user's input: BadInput with its name."""
    try:
        yield
    except (pa.ArrowException, OSError, KeyError, PenstockError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{place}: cannot be read: {error}; expected Parquet") from error
