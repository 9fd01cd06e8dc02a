"""The tables of one traced run, asked by SQL, so that memory stays bounded whatever the trace's length."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import duckdb

from penstock.analyse.served import Served, served_by
from penstock.errors import BadInput


@dataclass(frozen=True)
class Judged:
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
        self._base = duckdb.connect(":memory:")
        self._base.execute(
            "SET memory_limit='1GB'; SET threads=2; SET preserve_insertion_order=false"
        )
        self._columns: dict[str, set[str]] = {}
        for table in sorted(path.glob("*.parquet")):
            place = str(table).replace("'", "''")
            name = table.stem.replace('"', '""')
            try:
                self._base.execute(
                    f"CREATE VIEW \"{name}\" AS SELECT * FROM read_parquet('{place}')"
                )
                described = self._base.execute(f'DESCRIBE "{name}"').fetchall()
            except duckdb.Error as error:
                raise BadInput(
                    f"{table}: {str(error).splitlines()[0]}; expected Parquet"
                ) from error
            self._columns[table.stem] = {row[0] for row in described}

    def has(self, table: str, *columns: str) -> bool:
        """Whether there is such a table with these columns."""
        return set(columns) <= self._columns.get(table, set()) and table in self._columns

    def ask(self, query: str) -> list[dict[str, Any]]:
        """The rows of a query."""
        answer = self._base.execute(query)
        names = [column[0] for column in answer.description or ()]
        return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]

    @cached_property
    def _paths(self) -> dict[int, str | None]:
        rows = self.ask("SELECT file_id, path FROM files") if self.has("files", "path") else []
        return {row["file_id"]: row["path"] for row in rows}

    def name(self, file_id: int) -> str:
        """The file's path, or its number where nobody could tell."""
        return self._paths.get(file_id) or f"file {file_id}"

    @cached_property
    def wall_ns(self) -> float:
        """Length of the run."""
        times = self.manifest.get("times") or {}
        if "start_ns" in times and "end_ns" in times:
            return float(max(times["end_ns"] - times["start_ns"], 1))
        wall_s = self.manifest.get("responses", {}).get("wall_s", {}).get("value") or 0
        return max(1e9 * float(wall_s), 1.0)

    @cached_property
    def judged(self) -> list[Judged]:
        """One row per file and direction at the level of calls (or faults), most time first."""
        return [row for row in self._verdicts if row.basis != "device"]

    @cached_property
    def device(self) -> dict[tuple[int, str], Judged]:
        """The same at device order, where there is one."""
        return {
            (row.file_id, row.direction): row for row in self._verdicts if row.basis == "device"
        }

    @cached_property
    def all_served(self) -> dict[tuple[int, str, str], Served]:
        """What served the calls, by file, direction and basis; empty where that was not recorded."""
        layers = self.receipt.get("layers")
        rows = served_by(self.ask, self._columns, layers)
        return {(row.file_id, row.direction, row.basis): row for row in rows}

    def served(self, row: Judged) -> Served | None:
        """What served the calls of a verdict; None where the tables do not tell, or of too few of them."""
        found = self.all_served.get((row.file_id, row.direction, row.basis))
        return found if found is not None and found.known else None

    @cached_property
    def others_ns(self) -> int:
        """Time of all calls on files other than reads and writes: flushes, open, truncate, …"""
        if self.has("operations", "time_ns"):
            query = "SELECT sum(time_ns) AS ns FROM operations"
        elif self.has("io_events", "direction", "latency_ns"):
            query = "SELECT sum(latency_ns) AS ns FROM io_events WHERE direction NOT IN ('read', 'write')"
        else:
            return 0
        return int(self.ask(query)[0]["ns"] or 0)

    @cached_property
    def _verdicts(self) -> list[Judged]:
        if not self.has("patterns", "class", "evidence"):
            return []
        basis = "coalesce(basis, 'calls')" if self.has("patterns", "basis") else "'calls'"
        whole = "AND phase_id IS NULL" if self.has("patterns", "phase_id") else ""
        rows = self.ask(
            f'SELECT file_id, path, direction, "class" AS kind, requests, bytes, median_size_bytes, '
            f"evidence, {basis} AS basis FROM patterns WHERE tid IS NULL {whole}"
        )
        found = []
        for row in rows:
            evidence = json.loads(row["evidence"] or "{}")
            found.append(
                Judged(
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
