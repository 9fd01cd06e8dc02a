"""One traced run: its tables and the findings on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from penstock.analyse.findings.finding import Finding
from penstock.analyse.traces.served import FLUSHES, Served, all_served, quick_ns
from penstock.archive.traces.trace_tables import TraceTables
from penstock.archive.traces.verdicts import Verdict
from penstock.plugins import TRACE_FINDINGS

_FLUSHES = f"""SELECT file_id, sum(calls) AS flushes, sum(time_ns) AS ns FROM operations
    WHERE op IN ({", ".join(f"'{name}'" for name in FLUSHES)}) GROUP BY file_id"""
_FLUSH_EVENTS = """SELECT file_id, count(*) AS flushes, sum(latency_ns) AS ns FROM io_events
    WHERE direction = 'sync' GROUP BY file_id"""
#: maximum number of individual flushes of a path
MOST_FLUSHES = 1000
_FLUSH_MOMENTS = f"""SELECT t_ns FROM (SELECT t_ns, row_number() OVER (ORDER BY t_ns) - 1 AS number,
        count(*) OVER () AS flushes FROM io_events
        WHERE direction = 'sync' AND file_id IN (SELECT unnest(?)))
    WHERE number % greatest(1, (flushes + {MOST_FLUSHES - 1}) // {MOST_FLUSHES}) = 0 ORDER BY t_ns"""


@dataclass(frozen=True)
class Waits:
    """Calls of one row that waited for a device and their time; `inferred`: from their mean latency."""

    calls: int
    time_ns: int
    inferred: bool

    @property
    def mean_ns(self) -> float:
        """Mean latency of a call that waited."""
        return self.time_ns / max(self.calls, 1)


class TracedRun(TraceTables):
    """A traced run and its findings. BadInput if the directory is not a bundle."""

    @cached_property
    def findings(self) -> list[Finding]:
        """The cost of its I/O, the causes, and possible remedies (`trace_findings`), warnings first."""
        results = [result for name in TRACE_FINDINGS for result in TRACE_FINDINGS.load(name)(self)]
        order = {"error": 0, "warning": 1, "info": 2}
        return sorted(results, key=lambda finding: order[finding.severity])

    @cached_property
    def flushes(self) -> list[dict[str, Any]]:
        """Flushes per path (file_id, flushes, ns), in descending order of time: from the sums that every
        mode records, else from the events."""
        if self.has("operations", "op", "calls", "time_ns"):
            rows = self.query(_FLUSHES)
        elif self.has("io_events", "direction", "latency_ns"):
            rows = self.query(_FLUSH_EVENTS)
        else:
            return []
        paths: dict[int, dict[str, Any]] = {}
        for row in rows:
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
    def judged(self) -> list[Verdict]:
        """One row per file and direction at the level of calls (or faults), in descending order of time."""
        rows = [row for row in self._timed if row.basis != "device"]
        return sorted(rows, key=lambda row: -row.time_ns)

    @property
    def _timed(self) -> list[Verdict]:
        """The verdicts with recorded times of calls."""
        timed = self.has("patterns", "time_ns") or self.has("patterns", "evidence")
        return self.overall_verdicts if timed else []

    @cached_property
    def device(self) -> dict[tuple[int, str], Verdict]:
        """The verdicts at device order, if recorded."""
        rows = [row for row in self._timed if row.basis == "device"]
        return {(row.file_id, row.direction): row for row in rows}

    def verdicts_on(self, file_id: int) -> list[Verdict]:
        """The verdicts on one path: reads before writes, calls before faults before the device."""
        # for files of one path, the verdict on the one with most requests, which comes first
        most: dict[tuple[str, str], Verdict] = {}
        for row in self._of_first.get(self.first_of.get(file_id, file_id), []):
            most.setdefault((row.basis, row.direction), row)
        order = {"calls": 0, "faults": 1, "device": 2}
        return sorted(most.values(), key=lambda r: (order.get(r.basis, 9), r.direction))

    @cached_property
    def _of_first(self) -> dict[int, list[Verdict]]:
        """The verdicts by the first file of their path, in descending order of requests."""
        by_file: dict[int, list[Verdict]] = {}
        for row in self.overall_verdicts:
            by_file.setdefault(self.first_of.get(row.file_id, row.file_id), []).append(row)
        return by_file

    def class_phases(self, file_id: int) -> list[tuple[str, list[dict[str, Any]]]]:
        """For each direction, the stretches of one class of a mixed file: first and end request, class.

        Empty for a path of several files: their requests are counted together.
        """
        if len(self.files_of_path(file_id)) > 1:
            return []
        return [
            (row.direction, row.evidence["phases"])
            for row in self.verdicts_on(file_id)
            if row.basis != "device" and row.evidence.get("phases")
        ]

    @cached_property
    def _flush_moments(self) -> dict[int, list[int]]:
        return {}

    def flush_moments(self, file_id: int) -> list[int]:
        """Flush times of the path [ns], in order; an even selection if there are too many."""
        if file_id not in self._flush_moments:
            files = self.files_of_path(file_id)
            rows = self.query(_FLUSH_MOMENTS, [files]) if self.has("io_events") else []
            self._flush_moments[file_id] = [int(row["t_ns"]) for row in rows]
        return self._flush_moments[file_id]

    @cached_property
    def all_served(self) -> Mapping[tuple[int, str, str], Served]:
        """Calls by source for each file, direction and basis; empty if not recorded."""
        return all_served(self.arrays, self.columns, self.receipt.get("layers"))

    def served_on(
        self, file_id: int, direction: str | None = None, basis: str | None = None
    ) -> list[Served]:
        """Calls on a path by source: all of them, or those of one direction, and basis."""
        keys = (
            (number, way, kind)
            for number in self.files_of_path(file_id)
            for way in ("read", "write")
            for kind in ("calls", "faults")
            if direction in (None, way) and basis in (None, kind)
        )
        return [self.all_served[key] for key in keys if key in self.all_served]

    def served(self, row: Verdict) -> Served | None:
        """Calls of a verdict by source; None if the tables have too few of them."""
        calls = self.all_served.get((row.file_id, row.direction, row.basis))
        return calls if calls is not None and calls.sufficient else None

    def waits(self, row: Verdict) -> Waits:
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

    def share(self, ns: float) -> float:
        """Share of the run's wall time; more than 1 if threads wait in parallel."""
        return ns / self.wall_ns
