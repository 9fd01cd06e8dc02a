"""The tables of one traced run, asked by SQL, so that memory stays bounded whatever the trace's length."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from penstock.analyse.served import FLUSHES, Served, quick_ns, served_by
from penstock.archive.sql import Database
from penstock.archive.trace_rows import first_of_path
from penstock.errors import BadInput

_FLUSHES = f"""SELECT file_id, sum(calls) AS flushes, sum(time_ns) AS ns FROM operations
    WHERE op IN ({", ".join(f"'{name}'" for name in FLUSHES)}) GROUP BY file_id"""
_FLUSH_EVENTS = """SELECT file_id, count(*) AS flushes, sum(latency_ns) AS ns FROM io_events
    WHERE direction = 'sync' GROUP BY file_id"""


@dataclass(frozen=True)
class FileVerdict:
    """All threads' verdict on one file and direction."""

    file_id: int
    path: str
    direction: str
    kind: str
    calls: int
    nbytes: int
    time_ns: int
    median_bytes: float
    basis: str

    @property
    def mean_ns(self) -> float:
        """Mean latency of a call."""
        return self.time_ns / max(self.calls, 1)


@dataclass(frozen=True)
class Waits:
    """Calls of one row that waited for a device and their time; `inferred`: from their mean latency alone."""

    calls: int
    time_ns: int
    inferred: bool

    @property
    def mean_ns(self) -> float:
        """Mean latency of a call that waited."""
        return self.time_ns / max(self.calls, 1)


class TracedRun:
    """The tables of a traced run, asked by SQL. Raises BadInput where the directory is not a bundle."""

    def __init__(self, path: Path):
        self.path = path
        try:
            self.manifest: dict[str, Any] = json.loads((path / "manifest.json").read_text())
            self.receipt: dict[str, Any] = self.manifest.get("receipts", {}).get("trace", {})
        except (OSError, ValueError, AttributeError) as error:
            raise BadInput(
                f"{path}: {error}; expected a bundle, as `penstock trace -o` leaves"
            ) from error
        self._tables = Database({table.stem: table for table in sorted(path.glob("*.parquet"))})

    def has(self, table: str, *columns: str) -> bool:
        """Whether there is such a table with these columns."""
        return table in self._tables.columns and set(columns) <= self._tables.columns[table]

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """The rows of a query; `values` are its parameters."""
        return self._tables.query(sql, values)

    def rows(self, table: str, first: int, most: int) -> list[dict[str, Any]]:
        """At most so many rows of a table, from row number `first` on."""
        return self._tables.rows(table, first, most)

    @cached_property
    def _paths(self) -> dict[int, str | None]:
        rows = self.query("SELECT file_id, path FROM files") if self.has("files", "path") else []
        return {row["file_id"]: row["path"] for row in rows}

    def name(self, file_id: int) -> str:
        """The file's path, or its number where nobody could tell."""
        return self._paths.get(file_id) or f"file {file_id}"

    def name_of_all(self, file_id: int) -> str:
        """The same, with how many files the path was: `t.db-journal × 50 files`."""
        again = len(self.files_of_path(file_id))
        return self.name(file_id) + (f" × {again} files" if again > 1 else "")

    @cached_property
    def first_of(self) -> dict[int, int]:
        """For each file the first file of its path, see `first_of_path`."""
        return first_of_path(self._paths)

    def files_of_path(self, file_id: int) -> list[int]:
        """All files that the path of `file_id` was made again as, itself among them."""
        return self._of_path.get(self.first_of.get(file_id, file_id), [file_id])

    @cached_property
    def _of_path(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for number, first in self.first_of.items():
            found.setdefault(first, []).append(number)
        return found

    @cached_property
    def flushes(self) -> list[dict[str, Any]]:
        """Flushes per path (file_id, flushes, ns), most time first: from the sums that every mode keeps, else
        from the events."""
        if self.has("operations", "op", "calls", "time_ns"):
            found = self.query(_FLUSHES)
        elif self.has("io_events", "direction", "latency_ns"):
            found = self.query(_FLUSH_EVENTS)
        else:
            return []
        paths: dict[int, dict[str, Any]] = {}
        for row in found:
            first = self.first_of.get(row["file_id"], row["file_id"])
            path = paths.setdefault(first, {"file_id": first, "flushes": 0, "ns": 0})
            path["flushes"] += int(row["flushes"] or 0)
            path["ns"] += int(row["ns"] or 0)
        return sorted(paths.values(), key=lambda row: -row["ns"])

    @cached_property
    def wall_ns(self) -> float:
        """Length of the run."""
        times = self.manifest.get("times") or {}
        if "start_ns" in times and "end_ns" in times:
            return float(max(times["end_ns"] - times["start_ns"], 1))
        of_trace = self.manifest.get("responses", {}).get("wall_s", {}).get("value")
        wall_s = times.get("wall_s") or of_trace or 0
        return max(1e9 * float(wall_s), 1.0)

    @cached_property
    def judged(self) -> list[FileVerdict]:
        """One row per file and direction at the level of calls (or faults), most time first."""
        return [row for row in self._verdicts if row.basis != "device"]

    @cached_property
    def device(self) -> dict[tuple[int, str], FileVerdict]:
        """The same at device order, where there is one."""
        return {
            (row.file_id, row.direction): row for row in self._verdicts if row.basis == "device"
        }

    @cached_property
    def all_served(self) -> dict[tuple[int, str, str], Served]:
        """What served the calls, by file, direction and basis; empty where that was not recorded."""
        layers = self.receipt.get("layers")
        rows = served_by(self.query, self._tables.columns, layers)
        return {(row.file_id, row.direction, row.basis): row for row in rows}

    def served(self, row: FileVerdict) -> Served | None:
        """What served the calls of a verdict; None where the tables do not tell, or of too few of them."""
        found = self.all_served.get((row.file_id, row.direction, row.basis))
        return found if found is not None and found.known else None

    def waits(self, row: FileVerdict) -> Waits:
        """The calls of a verdict that waited for a device."""
        served = self.served(row)
        if served is not None:
            return Waits(served.waiting, served.waiting_ns, inferred=False)
        if row.calls > 0 and row.mean_ns >= quick_ns(row.nbytes / row.calls):
            return Waits(row.calls, row.time_ns, inferred=True)
        return Waits(0, 0, inferred=True)

    @cached_property
    def others_ns(self) -> int:
        """Time of all calls on files other than reads and writes: flushes, open, truncate, …"""
        if self.has("operations", "time_ns"):
            query = "SELECT sum(time_ns) AS ns FROM operations"
        elif self.has("io_events", "direction", "latency_ns"):
            query = "SELECT sum(latency_ns) AS ns FROM io_events WHERE direction NOT IN ('read', 'write')"
        else:
            return 0
        return int(self.query(query)[0]["ns"] or 0)

    @cached_property
    def _verdicts(self) -> list[FileVerdict]:
        if not self.has("patterns", "class", "evidence"):
            return []
        basis = "coalesce(basis, 'calls')" if self.has("patterns", "basis") else "'calls'"
        whole = "AND phase_id IS NULL" if self.has("patterns", "phase_id") else ""
        rows = self.query(
            f'SELECT file_id, path, direction, "class" AS kind, requests, bytes, median_size_bytes, '
            f"evidence, {basis} AS basis FROM patterns WHERE tid IS NULL {whole}"
        )
        found = []
        for row in rows:
            evidence = json.loads(row["evidence"] or "{}")
            found.append(
                FileVerdict(
                    file_id=row["file_id"],
                    path=row["path"] or f"file {row['file_id']}",
                    direction=row["direction"],
                    kind=row["kind"],
                    calls=int(evidence.get("calls") or row["requests"] or 0),
                    nbytes=int(row["bytes"] or 0),
                    time_ns=int(evidence.get("time_ns") or 0),
                    median_bytes=float(row["median_size_bytes"] or 0),
                    basis=row["basis"],
                )
            )
        return sorted(found, key=lambda row: -row.time_ns)

    def share(self, ns: float) -> float:
        """Of the run's wall time; more than 1 where threads wait side by side."""
        return ns / self.wall_ns
