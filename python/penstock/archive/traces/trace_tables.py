"""One traced run for reading: its bundle, or tables in memory without a bundle.

The only reader of traces. Small tables are loaded completely, events and requests batch by batch or by SQL:
memory is independent of the trace's length.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.archive.sql import Database
from penstock.archive.traces.verdicts import Verdict, as_input, verdicts_of
from penstock.errors import BadInput

_native: Any = importlib.import_module("penstock._native")

Numbers = npt.NDArray[np.int64]

#: rows per batch
BATCH_ROWS = 1 << 17

#: columns of `io_events` in the order of the exporters; `op` as its number
EVENT_COLUMNS = (
    "t_ns op file_id offset_bytes size_bytes done_bytes errno latency_ns pid tid flags".split()
)
REQUEST_OPS = ("read", "write", "flush", "discard")


@dataclass(frozen=True)
class Outline:
    """Result of one pass over the events: their number, first and last time [ns], threads.

    `threads` are (pid, tid) in order of their first event.
    """

    events: int
    start_ns: int
    end_ns: int
    threads: list[tuple[int, int]]


@dataclass(frozen=True)
class Span:
    """A named interval of the run [ns, CLOCK_MONOTONIC]."""

    start_ns: int
    end_ns: int
    name: str


class TraceTables:
    """A traced run opened for reading: the directory of its bundle, or its tables by name and the manifest.

    Raises BadInput for another directory, and for an unreadable table.
    """

    def __init__(
        self, source: Path | Mapping[str, pa.Table], manifest: dict[str, Any] | None = None
    ) -> None:
        self._sources: Mapping[str, Path | pa.Table]
        if isinstance(source, Path):
            self.path = source
            self._sources = {table.stem: table for table in sorted(source.glob("*.parquet"))}
        else:
            self.path = Path("the trace")
            self._sources = source
        try:
            if manifest is None:
                manifest = json.loads((self.path / "manifest.json").read_text())
            self.manifest: dict[str, Any] = manifest or {}
            self.receipt: dict[str, Any] = self.manifest.get("receipts", {}).get("trace", {})
        except (OSError, ValueError, AttributeError) as error:
            raise BadInput(
                f"{self.path} is not a bundle: {error}; expected one, as `penstock trace -o` writes it"
            ) from error

    # ------------------------------------------------------------ tables

    @cached_property
    def columns(self) -> dict[str, set[str]]:
        """Names of the columns of each table."""
        columns = {}
        for name, source in self._sources.items():
            with as_input(self._place(name)):
                schema = pq.read_schema(source) if isinstance(source, Path) else source.schema
            columns[name] = set(schema.names)
        return columns

    def has(self, table: str, *columns: str) -> bool:
        """True if the table exists with these columns."""
        return table in self._sources and (not columns or set(columns) <= self.columns[table])

    def table(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """A table, or its existing columns among these. Raises BadInput for an unknown table."""
        source = self._sources.get(name)
        if source is None:
            raise BadInput(
                f"{self.path}: found no table `{name}`; expected the bundle of a traced run"
            )
        present = None if columns is None else [c for c in columns if c in self.columns[name]]
        if not isinstance(source, Path):
            return source if present is None else source.select(present)
        with as_input(source):
            return pq.ParquetFile(source).read(columns=present)

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """Rows of a query; `values` are its parameters."""
        return self._sql.query(sql, values)

    def arrays(self, sql: str, values: Sequence[Any] = ()) -> Mapping[str, Any]:
        """Columns of a query as NumPy arrays."""
        return self._sql.arrays(sql, values)

    def rows(self, table: str, first: int, most: int) -> list[dict[str, Any]]:
        """At most `most` rows of a table from row `first` on."""
        return self._sql.rows(table, first, most)

    @cached_property
    def _sql(self) -> Database:
        return Database(self._sources)

    def _place(self, name: str) -> Path:
        source = self._sources.get(name)
        return source if isinstance(source, Path) else self.path / f"{name}.parquet"

    # ------------------------------------------------------------ files

    @cached_property
    def paths(self) -> dict[int, str | None]:
        """Path of each file by its number, None if unknown."""
        if not self.has("files", "file_id", "path"):
            return {}
        files = self.table("files", ["file_id", "path"])
        return dict(zip(files["file_id"].to_pylist(), files["path"].to_pylist(), strict=True))

    @cached_property
    def named(self) -> dict[int, str]:
        """The same, with `file N` for unknown paths."""
        return {number: path or f"file {number}" for number, path in self.paths.items()}

    @cached_property
    def _below_disks(self) -> re.Pattern[str] | None:
        """Prefix of a disk's name in the paths of a study's run."""
        disks, run_id = self.manifest.get("disks"), self.manifest.get("run_id")
        if not isinstance(disks, dict) or not disks or not run_id:
            return None
        ids = "|".join(re.escape(str(name)) for name in disks)
        return re.compile(rf"/(?:[^/\s]+/)*{re.escape(str(run_id))}/(?=(?:{ids})(?:/|$))")

    def from_disk(self, text: str) -> str:
        """Text with paths as the readers of a study know them: from the disk on, `node1.data/t.db`."""
        return self._below_disks.sub("", text) if self._below_disks else text

    def name(self, file_id: int) -> str:
        """The file's path (from the disk on for a file on a study's disk), or its number if unknown."""
        return self.from_disk(self.named.get(file_id) or f"file {file_id}")

    def name_of_all(self, file_id: int) -> str:
        """The same, with the number of files of the path: `t.db-journal × 50 files`."""
        again = len(self.files_of_path(file_id))
        return self.name(file_id) + (f" × {again} files" if again > 1 else "")

    @cached_property
    def first_of(self) -> dict[int, int]:
        """For each file the first file of its path, see `first_of_path`."""
        return first_of_path(self.paths)

    def files_of_path(self, file_id: int) -> list[int]:
        """All files with the path of `file_id`, including itself."""
        return self._of_path.get(self.first_of.get(file_id, file_id), [file_id])

    @cached_property
    def _of_path(self) -> dict[int, list[int]]:
        by_first: dict[int, list[int]] = {}
        for number, first in self.first_of.items():
            by_first.setdefault(first, []).append(number)
        return by_first

    # ------------------------------------------------------------ verdicts

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """All rows of `patterns`, most requests first."""
        return [] if self._patterns is None else self._verdicts(self._patterns)

    @cached_property
    def _patterns(self) -> pa.Table | None:
        there = self.has("patterns", "file_id", "direction", "class")
        return self.table("patterns") if there else None

    def _verdicts(self, patterns: pa.Table) -> list[Verdict]:
        shown = self.from_disk if self._below_disks else None
        rows = verdicts_of(patterns, self._place("patterns"), shown)
        return sorted(rows, key=lambda row: -row.requests)

    @cached_property
    def overall_verdicts(self) -> list[Verdict]:
        """Verdicts on all threads and the complete run."""
        if self._patterns is None:
            return []
        patterns = self._patterns
        for name in {"tid", "phase_id"} & set(patterns.column_names):
            column = patterns[name]
            missing = pc.is_null(column)
            if pa.types.is_string(column.type):  # an empty name of a phase means none
                missing = pc.or_(missing, pc.equal(pc.fill_null(column, ""), ""))
            patterns = patterns.filter(missing)
        return [row for row in self._verdicts(patterns) if row.overall]

    def thread_verdicts(self, file_id: int) -> list[Verdict]:
        """Verdicts on single threads and one file, of the complete run."""
        if self._patterns is None or "tid" not in self._patterns.column_names:
            return []
        patterns = self._patterns
        chosen = pc.and_(pc.equal(patterns["file_id"], file_id), pc.is_valid(patterns["tid"]))
        return [r for r in self._verdicts(patterns.filter(chosen)) if r.phase_id is None]

    # ------------------------------------------------------------ times

    @cached_property
    def spans(self) -> list[Span]:
        """The run's phases, in order of start."""
        if not self.has("phases", "phase_id", "start_ns", "end_ns"):
            return []
        rows = self.table("phases", ["phase_id", "start_ns", "end_ns"]).to_pylist()
        spans = [
            Span(int(r["start_ns"]), int(r["end_ns"]), str(r["phase_id"]))
            for r in rows
            if r["start_ns"] is not None and r["end_ns"] is not None
        ]
        return sorted(spans, key=lambda span: span.start_ns)

    @cached_property
    def workload(self) -> Span | None:
        """From the command's start to its end."""
        named = [s for s in self.spans if s.name == "workload"]
        if named:
            return named[0]
        times = self.manifest.get("times") or {}
        if {"start_ns", "end_ns"} <= set(times):
            return Span(int(times["start_ns"]), int(times["end_ns"]), "workload")
        return None

    @cached_property
    def gaps(self) -> list[Span]:
        """Intervals with lost events, named by their number."""
        spans = []
        for gap in self.receipt.get("lost_intervals") or []:
            lost = gap.get("lost")  # None: not counted
            named = "not recorded" if lost is None else f"{int(lost):,} lost"
            spans.append(Span(int(gap["start_ns"]), int(gap["end_ns"]), named))
        return spans

    def clock(self) -> dict[str, int] | None:
        """Clocks at the start, None if the bundle has no such table."""
        rows = self.table("clocks").to_pylist() if self.has("clocks") else []
        for row in rows:
            if row["point"] == "start":
                return {k: row[k] for k in ("monotonic_ns", "realtime_ns", "boottime_ns")}
        return None

    @property
    def lost(self) -> int:
        """Events lost while tracing."""
        return sum(int(n or 0) for n in (self.manifest.get("losses") or {}).values())

    # ------------------------------------------------------------ events and requests

    @cached_property
    def operations(self) -> dict[str, tuple[int, str]]:
        """Number and direction of each of the tracer's operations, by name."""
        return {name: (number, way) for number, name, way in _native.trace_operations()}

    def need_events(self) -> None:
        """Raise BadInput if the bundle has no individual events."""
        if not self.has("io_events"):
            raise BadInput(
                f"{self.path}: found no table `io_events`, only counts; "
                "record every call with `penstock trace --mode trace`"
            )

    @cached_property
    def event_groups(self) -> int:
        """Number of parts of `io_events` that can be read independently (its row groups)."""
        self.need_events()
        with self._parquet("io_events") as file:
            return int(file.metadata.num_row_groups)

    def event_batches(
        self,
        names: Sequence[str] = EVENT_COLUMNS,
        *,
        groups: Sequence[int] | None = None,
        rows: int = BATCH_ROWS,
    ) -> Iterator[dict[str, Numbers]]:
        """Columns of `io_events` as int64 arrays, by name; 0 for missing ones.

        With `groups` only these parts (`event_groups`), for one of several threads.
        """
        self.need_events()
        numbers = {name: number for name, (number, _) in self.operations.items()}
        there = [name for name in names if self.has("io_events", name)]
        if not self.has("io_events", "t_ns", "op"):
            raise BadInput(f"{self.path}: `io_events` has no column t_ns or op")
        with self._parquet("io_events") as file:
            for batch in file.iter_batches(
                rows, row_groups=groups, columns=there, use_threads=groups is None
            ):
                arrays = {}
                for name in names:
                    if name not in there:
                        arrays[name] = np.zeros(batch.num_rows, np.int64)
                    elif name == "op":
                        arrays[name] = _numbered(batch.column(name), numbers)
                    else:
                        arrays[name] = _int64(batch.column(name))
                yield arrays

    @cached_property
    def outline(self) -> Outline:
        """One pass over the events."""
        events, start, end = 0, np.iinfo(np.int64).max, 0
        threads: dict[tuple[int, int], None] = {}
        for batch in self.event_batches(["t_ns", "latency_ns", "pid", "tid"]):
            if len(batch["t_ns"]) == 0:
                continue
            events += len(batch["t_ns"])
            start = min(start, int(batch["t_ns"].min()))
            end = max(end, int((batch["t_ns"] + np.maximum(batch["latency_ns"], 0)).max()))
            keys, first = np.unique(batch["pid"] << 32 | batch["tid"], return_index=True)
            for key in keys[np.argsort(first)]:
                threads.setdefault((int(key) >> 32, int(key) & 0xFFFFFFFF))
        times = self.manifest.get("times", {})
        begun = times.get("start_ns")
        if isinstance(begun, int) and 0 < begun <= start:
            start = begun
        return Outline(events, min(start, end), end, list(threads))

    def thread_names(self) -> dict[tuple[int, int], str]:
        """Program of each (pid, tid), if known."""
        rows = self.table("threads").to_pylist() if self.has("threads") else []
        return {(r["pid"], r["tid"]): r.get("program") or r.get("name") or "" for r in rows}

    def request_batches(self) -> tuple[list[str], Iterator[dict[str, Numbers]]]:
        """Disks, and columns of `device_requests` in order of arrival as int64 arrays.

        Columns: t_ns, done_ns, op (index of REQUEST_OPS), offset, size, disk (index of the disks), tid (0:
        unknown).
        """
        if not self.has("device_requests"):
            return [], iter(())
        times = self.table("device_requests", ["t_ns"])["t_ns"].cast(pa.int64()).combine_chunks()
        in_order = bool(np.all(np.diff(times.to_numpy(zero_copy_only=False)) >= 0))
        disks: list[str] = []
        if self.has("device_requests", "disk_id"):
            column = self.table("device_requests", ["disk_id"])["disk_id"].cast(pa.string())
            disks = [name or "" for name in column.unique().to_pylist()]
        return disks or [""], self._requests(disks or [""], in_order)

    def _requests(self, disks: list[str], in_order: bool) -> Iterator[dict[str, Numbers]]:
        names = "t_ns done_ns op device_offset_bytes offset_bytes size_bytes disk_id tid pid"
        ops = {name: number for number, name in enumerate(REQUEST_OPS)}
        codes = {name: number for number, name in enumerate(disks)}
        there = [n for n in names.split() if self.has("device_requests", n)]
        with contextlib.ExitStack() as stack:
            if in_order:
                file = stack.enter_context(self._parquet("device_requests"))
                batches = file.iter_batches(BATCH_ROWS, columns=there)
            else:
                table = self.table("device_requests", there).sort_by("t_ns")
                batches = iter(table.to_batches(BATCH_ROWS))
            for batch in batches:
                none = np.zeros(batch.num_rows, np.int64)

                def column(
                    *names: str, batch: pa.RecordBatch = batch, none: Numbers = none
                ) -> Numbers:
                    for name in names:
                        if name in batch.schema.names:
                            return _int64(batch.column(name))
                    return none

                disk = _numbered(batch.column("disk_id"), codes) if "disk_id" in there else none
                yield {
                    "t_ns": column("t_ns"),
                    "done_ns": column("done_ns", "t_ns"),
                    "op": _numbered(batch.column("op"), ops),
                    "offset": column("device_offset_bytes", "offset_bytes"),
                    "size": column("size_bytes"),
                    "disk": disk,
                    "tid": column("tid", "pid"),
                }

    @contextlib.contextmanager
    def _parquet(self, name: str) -> Iterator[pq.ParquetFile]:
        """A table's file for reading in parts."""
        place = self._place(name)
        with as_input(place), pq.ParquetFile(place, read_dictionary=["op"]) as file:
            yield file


def first_of_path(paths: Mapping[int, str | None]) -> dict[int, int]:
    """For each file the first file of its path: a recreated file has a new number."""
    first: dict[str, int] = {}
    return {n: first.setdefault(paths[n] or f"file {n}", n) for n in sorted(paths)}


def by_path(file_id: Numbers, first_of: Mapping[int, int]) -> Numbers:
    """Numbers of files replaced by the representatives of their paths (`first_of_path`)."""
    if all(number == first for number, first in first_of.items()):
        return file_id
    distinct, places = np.unique(file_id, return_inverse=True)
    firsts = np.array([first_of.get(number, number) for number in distinct.tolist()], np.int64)
    return firsts[places]


def _int64(column: pa.Array) -> Numbers:
    """Integers of any type as int64, null as 0."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.type != pa.int64():
        column = column.cast(pa.int64(), safe=False)
    if column.null_count:
        column = pc.fill_null(column, 0)
    return np.ascontiguousarray(column.to_numpy(zero_copy_only=False))


def _numbered(column: pa.Array, numbers: dict[str, int]) -> Numbers:
    """Names as numbers; unknown ones get the next number above 255."""
    if not pa.types.is_dictionary(column.type):
        column = column.cast(pa.string()).dictionary_encode()
    names = [str(name) for name in column.dictionary.to_pylist()]
    for name in names:
        if name not in numbers:
            numbers[name] = max(255, *numbers.values()) + 1
    table = np.array([numbers[name] for name in names] + [0], np.int64)
    indices = column.indices
    if indices.null_count:
        indices = pc.fill_null(indices.cast(pa.int64()), len(names))
    return np.ascontiguousarray(table[indices.to_numpy(zero_copy_only=False)])
