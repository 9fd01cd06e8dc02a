"""The rows of a traced run's bundle, batch by batch: never a table whole in memory."""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.archive.bundle import Bundle
from penstock.errors import BadInput, PenstockError

_native: Any = importlib.import_module("penstock._native")

Numbers = npt.NDArray[np.int64]

#: rows handled at once
BATCH_ROWS = 1 << 17

#: columns of `io_events` in the order in which the exporters take them; `op` as its number
EVENT_COLUMNS = (
    "t_ns op file_id offset_bytes size_bytes done_bytes errno latency_ns pid tid flags".split()
)
REQUEST_OPS = ("read", "write", "flush", "discard")

#: what a verdict of `patterns` rests on, what tells most about the program first
BASES = ("calls", "counters", "faults", "device")


@dataclass(frozen=True)
class Outline:
    """What one pass over the events gives: how many, from when to when [ns], by which threads.

    `threads` are (pid, tid) in the order of their first event.
    """

    events: int
    start_ns: int
    end_ns: int
    threads: list[tuple[int, int]]


class TraceRows:
    """A trace bundle opened for reading.

    Raises BadInput if `path` is no bundle of a traced run, or one that cannot be read.
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            self.bundle = Bundle.open(path)
        except PenstockError as error:
            raise BadInput(str(error)) from error
        self.manifest = self.bundle.manifest
        if "files" not in self.bundle.tables:
            raise BadInput(f"{path}: found no table `files`; expected the bundle of a traced run")

    @cached_property
    def paths(self) -> dict[int, str]:
        """Path of each file by its number; `file N` where nobody could name it."""
        with _told(self.path):
            files = self.bundle.table("files", ["file_id", "path"])
        pairs = zip(files["file_id"].to_pylist(), files["path"].to_pylist(), strict=True)
        return {number: path or f"file {number}" for number, path in pairs}

    @cached_property
    def operations(self) -> dict[str, tuple[int, str]]:
        """Number and direction of each operation that the tracer knows, by its name."""
        return {name: (number, way) for number, name, way in _native.trace_operations()}

    def need_events(self) -> None:
        """Raises BadInput if the bundle holds no single events."""
        if "io_events" not in self.bundle.tables:
            raise BadInput(
                f"{self.path}: found no table `io_events`, only counts; "
                "record every call with `penstock trace --mode trace`"
            )

    def event_batches(self, names: list[str] | None = None) -> Iterator[dict[str, Numbers]]:
        """Columns of `io_events` as int64 arrays, by name; one that the bundle lacks is 0."""
        self.need_events()
        wanted = names or EVENT_COLUMNS
        numbers = {name: number for name, (number, _) in self.operations.items()}
        with _told(self.path / "io_events.parquet"):
            table = pq.ParquetFile(self.path / "io_events.parquet")
            there = [name for name in wanted if name in table.schema_arrow.names]
            if "t_ns" not in table.schema_arrow.names or "op" not in table.schema_arrow.names:
                raise BadInput(f"{self.path}: `io_events` has no column t_ns or op")
            for batch in table.iter_batches(BATCH_ROWS, columns=there):
                made = {}
                for name in wanted:
                    if name not in there:
                        made[name] = np.zeros(batch.num_rows, np.int64)
                    elif name == "op":
                        made[name] = _numbered(batch.column(name), numbers)
                    else:
                        made[name] = _int64(batch.column(name))
                yield made

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
        """Program of each (pid, tid), where the bundle knows it."""
        if "threads" not in self.bundle.tables:
            return {}
        with _told(self.path / "threads.parquet"):
            rows = self.bundle.table("threads").to_pylist()
        return {(r["pid"], r["tid"]): r.get("program") or r.get("name") or "" for r in rows}

    def request_batches(self) -> tuple[list[str], Iterator[dict[str, Numbers]]]:
        """Disks, and columns of `device_requests` in order of arrival as int64 arrays.

        Columns: t_ns, done_ns, op (place in REQUEST_OPS), offset, size, disk (place in the disks), tid
        (0: not known).
        """
        place = self.path / "device_requests.parquet"
        if not place.exists():
            return [], iter(())
        with _told(place):
            table = pq.ParquetFile(place)
            times = pc.cast(
                pq.read_table(place, columns=["t_ns"])["t_ns"], pa.int64()
            ).combine_chunks()
            in_order = bool(np.all(np.diff(times.to_numpy(zero_copy_only=False)) >= 0))
            column = "disk_id" if "disk_id" in table.schema_arrow.names else None
            disks: list[str] = []
            if column:
                found = pc.unique(
                    pc.cast(pq.read_table(place, columns=[column])[column], pa.string())
                )
                disks = [name or "" for name in found.to_pylist()]
        return disks or [""], self._requests(place, disks or [""], in_order)

    def _requests(
        self, place: Path, disks: list[str], in_order: bool
    ) -> Iterator[dict[str, Numbers]]:
        wanted = "t_ns done_ns op device_offset_bytes offset_bytes size_bytes disk_id tid pid"
        ops = {name: number for number, name in enumerate(REQUEST_OPS)}
        codes = {name: number for number, name in enumerate(disks)}
        with _told(place):
            table = pq.ParquetFile(place)
            there = [n for n in wanted.split() if n in table.schema_arrow.names]
            if in_order:
                batches = table.iter_batches(BATCH_ROWS, columns=there)
            else:
                whole = pq.read_table(place, columns=there).sort_by("t_ns")
                batches = iter(whole.to_batches(BATCH_ROWS))
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

    @property
    def lost(self) -> int:
        """Events lost while tracing."""
        return sum(int(n or 0) for n in (self.manifest.get("losses") or {}).values())

    def clock(self) -> dict[str, int] | None:
        """The clocks at the start, None where the bundle has no such table."""
        if "clocks" not in self.bundle.tables:
            return None
        with _told(self.path / "clocks.parquet"):
            rows = self.bundle.table("clocks").to_pylist()
        for row in rows:
            if row["point"] == "start":
                return {k: row[k] for k in ("monotonic_ns", "realtime_ns", "boottime_ns")}
        return None

    def pattern_rows(self) -> list[dict[str, Any]]:
        """Verdicts over the whole run, `evidence` parsed; phases' own verdicts are left out."""
        if "patterns" not in self.bundle.tables:
            return []
        with _told(self.path / "patterns.parquet"):
            rows = self.bundle.table("patterns").to_pylist()
        made = []
        for row in rows:
            if row.get("phase_id") in (None, ""):
                with contextlib.suppress(ValueError, TypeError):
                    row["evidence"] = json.loads(row.get("evidence") or "{}")
                made.append(row)
        return made


def first_of_path(paths: Mapping[int, str | None]) -> dict[int, int]:
    """For each file the first file of its path: one that is removed and made again has a new number."""
    first: dict[str, int] = {}
    return {n: first.setdefault(paths[n] or f"file {n}", n) for n in sorted(paths)}


def by_path(file_id: Numbers, first_of: Mapping[int, int]) -> Numbers:
    """Numbers of files as those that stand for their paths (`first_of_path`)."""
    if all(number == first for number, first in first_of.items()):
        return file_id
    found, places = np.unique(file_id, return_inverse=True)
    firsts = np.array([first_of.get(number, number) for number in found.tolist()], np.int64)
    return firsts[places]


def of_best_basis(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of rows of `patterns`, for each file and direction those with the best basis there is (BASES)."""
    best: dict[tuple[Any, Any], int] = {}
    ranked = []
    for row in rows:
        basis = row.get("basis") or BASES[0]
        rank = BASES.index(basis) if basis in BASES else len(BASES)
        key = (row.get("file_id"), row.get("direction"))
        best[key] = min(best.get(key, rank), rank)
        ranked.append((key, rank, row))
    return [row for key, rank, row in ranked if rank == best[key]]


def _int64(column: pa.Array) -> Numbers:
    """Whatever numbers as int64, null as 0."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    filled = pc.fill_null(column.cast(pa.int64(), safe=False), 0)
    return np.ascontiguousarray(filled.to_numpy(zero_copy_only=False))


def _numbered(column: pa.Array, numbers: dict[str, int]) -> Numbers:
    """Names as their numbers; one not known gets the next number above 255."""
    if not pa.types.is_dictionary(column.type):
        column = column.cast(pa.string()).dictionary_encode()
    names = [str(name) for name in column.dictionary.to_pylist()]
    for name in names:
        if name not in numbers:
            numbers[name] = max(255, *numbers.values()) + 1
    table = np.array([numbers[name] for name in names] + [0], np.int64)
    codes = _int64(pc.fill_null(column.indices, len(names)))
    return np.ascontiguousarray(table[codes])


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """A table that cannot be read is the user's: BadInput with its name."""
    try:
        yield
    except (pa.ArrowException, OSError, KeyError, PenstockError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{path}: cannot be read: {error}") from error
