"""Data of the figures of a traced run, from its events in two passes."""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass, field
from typing import Any

from penstock.analyse.traces.traced_run import TracedRun
from penstock.archive.traces.trace_tables import Span
from penstock.report.trace.columns import batches

_native: Any = importlib.import_module("penstock._native")

#: maximum number of files with figures, and the share of time at which the selection ends; most time first
FILES = 8
SHARE = 0.98
#: maximum number of requests of a file that is drawn in full, and of all such files
POINTS_EACH = 120_000
POINTS_ALL = 400_000
#: maximum number of cells of one figure and of all: they bound the size of a page
CELLS_EACH = 600_000
CELLS_ALL = 2_400_000

Totals = dict[str, Any]


@dataclass(frozen=True)
class Drawing:
    """Figures of one file: its totals, the description of its sections, and the sections."""

    totals: Totals
    head: dict[str, Any]
    sections: dict[str, bytes]


@dataclass(frozen=True)
class Marks:
    """Marks across a file's figures: times [ns, CLOCK_MONOTONIC], and (channel, number) borders."""

    moments: list[int] = field(default_factory=list)
    borders: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Gathered:
    """Totals of all files (most time first), drawings of some, the time that counts as 0 [ns]."""

    files: list[Totals]
    drawings: list[Drawing]
    origin_ns: int

    @property
    def events(self) -> int:
        """Number of drawable events, over all files."""
        return sum(sum(f["drawn"]) for f in self.files)


def drawn_spans(run: TracedRun) -> list[Span]:
    """Phases within the workload, marked in the figures. The workload itself fills them."""
    workload = run.workload
    if workload is None:
        return []
    inside = [
        s
        for s in run.spans
        if s.name != "workload" and s.end_ns > workload.start_ns and s.start_ns < workload.end_ns
    ]
    return inside[:40]


def marks_of(run: TracedRun, file_id: int) -> Marks:
    """The times and borders marked in the file's figures."""
    spans = [*drawn_spans(run), *run.gaps]
    moments = [edge for span in spans for edge in (span.start_ns, span.end_ns)]
    moments += run.flush_moments(file_id)
    borders = [
        (("read", "write").index(direction), int(border))
        for direction, phases in run.class_phases(file_id)
        for phase in phases
        for border in (phase["first"], phase["end"])
    ]
    return Marks(moments, borders)


def totals_of(run: TracedRun) -> list[Totals]:
    """Calls, bytes, times and ranges by file, in descending order of time."""
    totals = _native.TraceTotals()
    for batch in batches(run):
        totals.add(*batch.arrays)
    return sorted(json.loads(totals.files()), key=_importance, reverse=True)


def _importance(file: Totals) -> tuple[int, int]:
    return time_of(file), sum(file["drawn"])


def time_of(file: Totals) -> int:
    """Time of its reads, writes and flushes [ns]."""
    return int(sum(file["time_ns"]) + file["sync_ns"])


def worth_drawing(files: list[Totals], most: int = FILES) -> list[Totals]:
    """The files with nearly all of the time, or of the requests if no time was recorded."""
    can = [f for f in files if sum(f["drawn"]) > 0]
    enough = SHARE * sum(time_of(f) for f in can)
    chosen: list[Totals] = []
    reached = 0
    for file in can[:most]:
        if chosen and reached >= enough:
            break
        chosen.append(file)
        reached += time_of(file)
    return chosen


def gather(run: TracedRun) -> Gathered | None:
    """Read the events twice: totals, then figures of the selected files; None for a run without events.

    The command's start counts as 0, or the first drawn event. BadInput for unreadable events.
    """
    if not run.has("io_events"):
        return None
    files = totals_of(run)
    chosen = worth_drawing(files)
    begun = None if run.workload is None else run.workload.start_ns
    if not chosen:
        return Gathered(files, [], begun or 0)
    earliest = min(f["first_ns"] for f in chosen)
    origin = earliest if begun is None else min(begun, earliest)
    each = _small_enough(chosen)
    dense = 2 * (len(chosen) - len(each))
    requests = [
        {
            "file_id": f["file_id"],
            "drawn": sum(f["drawn"]),
            "origin_ns": origin,
            "first_ns": f["first_ns"] - origin,
            "last_ns": f["last_ns"] - origin,
            "low": f["low"],
            "high": f["high"],
            "each": f["file_id"] in each,
            "cells": min(CELLS_EACH, CELLS_ALL // max(dense, 1)),
            **_marks_request(marks_of(run, f["file_id"]), origin),
        }
        for f in chosen
    ]
    tiles = _native.TraceTiles(json.dumps(requests))
    for batch in batches(run):
        tiles.add(*batch.arrays)
    drawings = [
        Drawing(file, json.loads(head), sections)
        for file, (head, sections) in zip(chosen, tiles.packed(), strict=True)
    ]
    return Gathered(files, drawings, origin)


def _marks_request(marks: Marks, origin: int) -> dict[str, Any]:
    moments = sorted(max(0, moment - origin) for moment in marks.moments)
    return {"moments": moments, "borders": [list(b) for b in marks.borders]}


def _small_enough(chosen: list[Totals]) -> set[int]:
    """Files that keep every request: the small ones, up to a total."""
    complete: set[int] = set()
    room = POINTS_ALL
    for file in sorted(chosen, key=lambda f: sum(f["drawn"])):
        n = sum(file["drawn"])
        if n > min(POINTS_EACH, room):
            break
        room -= n
        complete.add(file["file_id"])
    return complete
