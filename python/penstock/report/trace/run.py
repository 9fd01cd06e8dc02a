"""What a trace bundle says besides its events, as its page and figures need it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from penstock.analyse.traced_run import TracedRun
from penstock.report.trace.gather import Marks

Row = dict[str, Any]

#: flushes marked in one figure at most
MOST_FLUSHES = 1000
_FLUSH_MOMENTS = f"""SELECT t_ns FROM (SELECT t_ns, row_number() OVER (ORDER BY t_ns) - 1 AS number,
        count(*) OVER () AS flushes FROM io_events
        WHERE direction = 'sync' AND file_id IN (SELECT unnest(?)))
    WHERE number % greatest(1, (flushes + {MOST_FLUSHES - 1}) // {MOST_FLUSHES}) = 0 ORDER BY t_ns"""


@dataclass(frozen=True)
class Span:
    """A named stretch of the run [ns, CLOCK_MONOTONIC]; `note` is said of it in words."""

    start_ns: int
    end_ns: int
    name: str


class Bundle:
    """A trace bundle read for figures. Raises BadInput where the directory is none."""

    def __init__(self, path: Path | str):
        self.path = Path(path)
        self.run = TracedRun(self.path)
        self.manifest = self.run.manifest
        self.receipt = self.run.receipt
        self._flush_moments: dict[int, list[int]] = {}

    @property
    def events(self) -> Path | None:
        """The table of events, where every call was recorded."""
        path = self.path / "io_events.parquet"
        return path if path.exists() else None

    @cached_property
    def spans(self) -> list[Span]:
        """The run's phases, in order of their start."""
        if not self.run.has("phases", "phase_id", "start_ns", "end_ns"):
            return []
        rows = self.run.query("SELECT phase_id, start_ns, end_ns FROM phases ORDER BY start_ns")
        return [
            Span(int(r["start_ns"]), int(r["end_ns"]), str(r["phase_id"]))
            for r in rows
            if r["start_ns"] is not None and r["end_ns"] is not None
        ]

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
    def drawn_spans(self) -> list[Span]:
        """Phases within the workload: what the figures mark. The workload itself fills them."""
        whole = self.workload
        if whole is None:
            return []
        inside = [
            s
            for s in self.spans
            if s.name != "workload" and s.end_ns > whole.start_ns and s.start_ns < whole.end_ns
        ]
        return inside[:40]

    @cached_property
    def gaps(self) -> list[Span]:
        """Stretches in which events were lost, each named by how many."""
        found = self.receipt.get("lost_intervals") or []
        spans = []
        for gap in found:
            lost = gap.get("lost")  # None: nobody counted
            named = "not recorded" if lost is None else f"{int(lost):,} lost"
            spans.append(Span(int(gap["start_ns"]), int(gap["end_ns"]), named))
        return spans

    @cached_property
    def verdicts(self) -> list[Row]:
        """Rows of `patterns` for all threads together and the whole run, most calls first."""
        return [r for r in self._patterns if r["tid"] is None and r["phase_id"] is None]

    @cached_property
    def threads(self) -> list[Row]:
        """Rows of `patterns` of single threads."""
        return [r for r in self._patterns if r["tid"] is not None and r["phase_id"] is None]

    @cached_property
    def _patterns(self) -> list[Row]:
        if not self.run.has("patterns", "file_id", "direction", "class", "sentence"):
            return []
        rows = self.run.query("SELECT * FROM patterns ORDER BY requests DESC NULLS LAST")
        for row in rows:
            row["evidence"] = json.loads(row.get("evidence") or "{}")
            row["basis"] = row.get("basis") or "calls"
            row.setdefault("phase_id", None)
            row.setdefault("tid", None)
        return rows

    def verdicts_of(self, file_id: int) -> list[Row]:
        """The verdicts on one file: reads before writes, calls before faults before the device."""
        of_path = set(self.run.files_of_path(file_id))
        # of the files of a path the verdict on that with most requests, which comes first
        most: dict[tuple[str, str], Row] = {}
        for row in self.verdicts:
            if row["file_id"] in of_path:
                most.setdefault((row["basis"], row["direction"]), row)
        mine = list(most.values())
        order = {"calls": 0, "faults": 1, "device": 2}
        return sorted(mine, key=lambda r: (order.get(r["basis"], 9), r["direction"]))

    def class_phases(self, file_id: int) -> list[tuple[str, list[Row]]]:
        """Per direction the stretches of one class that a mixed file has: first and end request, class.

        None of a path that was several files: their requests are counted together.
        """
        if len(self.run.files_of_path(file_id)) > 1:
            return []
        return [
            (str(r["direction"]), list(r["evidence"]["phases"]))
            for r in self.verdicts_of(file_id)
            if r["basis"] != "device" and r["evidence"].get("phases")
        ]

    def flush_moments(self, file_id: int) -> list[int]:
        """When the path was flushed [ns], in order; of more than can be told apart evenly chosen ones."""
        if file_id not in self._flush_moments:
            files = self.run.files_of_path(file_id)
            rows = self.run.query(_FLUSH_MOMENTS, [files]) if self.events else []
            self._flush_moments[file_id] = [int(row["t_ns"]) for row in rows]
        return self._flush_moments[file_id]

    def marks(self, file_id: int) -> Marks:
        """The moments and borders that the file's figures mark."""
        spans = [*self.drawn_spans, *self.gaps]
        moments = [edge for span in spans for edge in (span.start_ns, span.end_ns)]
        moments += self.flush_moments(file_id)
        borders = [
            (("read", "write").index(direction), int(border))
            for direction, phases in self.class_phases(file_id)
            for phase in phases
            for border in (phase["first"], phase["end"])
        ]
        return Marks(moments, borders)
