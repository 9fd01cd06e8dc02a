"""Description of a table: columns with type, unit and meaning, its place, its key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

#: version of the layout of bundles and tables
BUNDLE_SCHEMA = "penstock/bundle/1"


def _struct(text: str = "", i64: str = "", f64: str = "", **others: pa.DataType) -> pa.DataType:
    fields = [(name, pa.string()) for name in text.split()]
    fields += [(name, pa.int64()) for name in i64.split()]
    fields += [(name, pa.float64()) for name in f64.split()]
    return pa.struct([*fields, *others.items()])


#: what the classifier (crates/pattern) rests a verdict on, why a device's order is another, what mode count
#: has
EVIDENCE = _struct(
    text="basis reason of_calls",
    i64="epochs near_bytes darshan_consec darshan_seq asked_bytes",
    f64="main_stream_share held_by_threads_share largest_phase_share bytes_ratio size_ratio",
    chains=_struct(i64="count open_median", f64="held_share backward_share"),
    streams=pa.list_(_struct("kind", "requests size_bytes stride_bytes", "share")),
    strides_bytes=pa.list_(pa.int64()),
    spread=_struct(
        i64="block_bytes",
        f64="reaccess_share top_fifth_share top_fifth_low zipf_exponent zipf_half_width sampled_share",
    ),
    uniformity=_struct(i64="degrees_of_freedom", f64="chi_squared"),
    phases=pa.list_(
        _struct("class", "first end k start_ns end_ns", strides_bytes=pa.list_(pa.int64()))
    ),
)

_TYPES = {
    "text": pa.string(),
    "evidence": EVIDENCE,
    "i64": pa.int64(),
    "u64": pa.uint64(),
    "f64": pa.float64(),
    "bool": pa.bool_(),
}


@dataclass(frozen=True)
class Column:
    """One column: name, type (of `_TYPES`), unit ('' for none), meaning."""

    name: str
    type: str
    unit: str
    meaning: str

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type in which penstock writes it when it makes the table itself."""
        return _TYPES[self.type]


@dataclass(frozen=True)
class TableSchema:
    """One table: where it lies, what a row is, its key columns and its columns.

    `open_columns` says in words which further columns a study adds, None where there are no others.
    """

    name: str
    place: str
    row: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    open_columns: str | None = None

    def column(self, name: str) -> Column | None:
        """The column of that name, None if the table has none."""
        return next((c for c in self.columns if c.name == name), None)

    @property
    def arrow(self) -> pa.Schema:
        """The schema without the key columns that a bundle adds."""
        return pa.schema([(c.name, c.arrow) for c in self.columns])

    def arrow_with(self, types: Mapping[str, pa.DataType]) -> pa.Schema:
        """The same, with other types for columns that would be large in these."""
        return pa.schema([(c.name, types.get(c.name, c.arrow)) for c in self.columns])


#: columns that every table of a bundle begins with
BUNDLE_KEYS = (
    Column("study_id", "text", "", "the study: its name and 8 hexadecimal digits of its hash"),
    Column(
        "treatment_id",
        "text",
        "",
        "the combination of factor levels, t01, t02, … in standard order",
    ),
    Column("run_id", "text", "", "the planned run, r001, r002, … in the order of the plan"),
    Column("attempt", "i64", "", "1, or more where the run was made again"),
    Column("host_id", "text", "", "the host that made the run"),
    Column("node_id", "text", "", "the node of the platform that the row is about"),
)


def columns(text: str) -> tuple[Column, ...]:
    """Columns from lines of `name | type | unit | meaning`."""
    rows = (line.split("|", 3) for line in text.strip().splitlines())
    return tuple(Column(*(cell.strip() for cell in row)) for row in rows)


#: where a table of one run lies, and what its key begins with
BUNDLE = "runs/<run_id>/"
RUN_KEY = ("study_id", "run_id", "attempt")
