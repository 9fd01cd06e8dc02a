"""Memory-mapped index of one file's requests in order; counts any view of a figure in milliseconds.

A column of a figure over request number or time is a range of this order. A view is counted from the requests
in its range (crates/tracefmt, window.rs), without a pyramid of resolutions.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from penstock.analyse.traces.traced_run import TracedRun
from penstock.report.trace.columns import AROUND, KIND_MASK, batches
from penstock.report.trace.gather import Totals

_native: Any = importlib.import_module("penstock._native")

#: views with at most this many requests return the requests instead of counts
MOST_POINTS = 20_000
_THREADS = min(4, os.cpu_count() or 1)

_COLUMNS = (("key", "<u8"), ("t", "<i8"), ("done", "<u4"), ("latency", "<u8"))


@dataclass(frozen=True)
class View:
    """A rectangle of a figure: `x0..x1` request numbers or ns after the origin, `y0..y1` bytes; its cells."""

    axis: str
    x0: float
    x1: float
    y0: float
    y1: float
    columns: int
    rows: int


class FileIndex:
    """The requests of one file, written once to `folder` and then memory-mapped."""

    def __init__(self, run: TracedRun, file: Totals, origin_ns: int, folder: Path):
        self.file = file
        self.total = sum(file["drawn"])
        self.origin_ns = origin_ns
        number = int(file["file_id"])
        paths = {name: folder / f"{number}.{name}" for name, _ in _COLUMNS}
        if not all(p.exists() for p in paths.values()):
            self._write(run, number, origin_ns, paths)
        self._maps = {
            name: np.memmap(paths[name], kind, "r") if self.total else np.zeros(0, kind)
            for name, kind in _COLUMNS
        }
        t = self._maps["t"]
        #: True if times are in ascending order; those of an imported trace may not be
        self.ordered = bool(self.total < 2 or np.all(t[1:] >= t[:-1]))

    @staticmethod
    def _write(run: TracedRun, number: int, origin_ns: int, paths: dict[str, Path]) -> None:
        partial_paths = {
            name: path.with_suffix(path.suffix + ".partial") for name, path in paths.items()
        }
        sinks = {name: path.open("wb") for name, path in partial_paths.items()}
        try:
            for batch in batches(run):
                selected = batch.drawn(number)
                offset, kind = batch.offset_bytes[selected], batch.kind[selected] & KIND_MASK
                kind = np.minimum(kind, AROUND).astype(np.uint8)
                sinks["key"].write(_native.tile_keys(np.ascontiguousarray(offset), kind))
                sinks["t"].write((batch.t_ns[selected] - origin_ns).astype("<i8").tobytes())
                done = np.minimum(batch.done_bytes[selected], 0xFFFFFFFF)
                sinks["done"].write(done.astype("<u4").tobytes())
                sinks["latency"].write(batch.latency_ns[selected].astype("<u8").tobytes())
        finally:
            for sink in sinks.values():
                sink.close()
        for name, partial in partial_paths.items():
            os.replace(partial, paths[name])

    def _borders(self, view: View, columns: int) -> np.ndarray[Any, Any]:
        """Positions at which columns begin, and the end of the last: `columns + 1` numbers."""
        edges = view.x0 + (view.x1 - view.x0) * np.arange(columns + 1) / columns
        if view.axis == "number":
            positions = np.ceil(edges)
        else:
            positions = np.searchsorted(self._maps["t"], np.ceil(edges).astype(np.int64))
        return np.clip(positions, 0, self.total).astype(np.uint64)

    def answer(self, view: View) -> tuple[dict[str, Any], bytes]:
        """A view: header, and all requests if there are at most `MOST_POINTS`, else counts per cell.

        Form `points` has these arrays in sequence: number (u4, relative to `first`), t (i8), offset with the
        channel in its two highest bits (u8), done (u4), latency (u8). Form `counts` has u4 per column, row,
        channel.
        """
        columns = max(1, min(view.columns, 2000))
        rows = max(1, min(view.rows, 1000))
        borders = self._borders(view, columns)
        first, last = int(borders[0]), int(borders[-1])
        low, high = max(0, int(view.y0)), max(1, int(np.ceil(view.y1)))
        if last - first <= MOST_POINTS * 20:
            points = self._points(first, last, low, high)
            if points is not None:
                return points
        content = _native.tile_window(
            self._maps["key"], borders, low, max(high, low + 1), rows, _THREADS
        )
        head = {"form": "counts", "columns": columns, "rows": rows, "low": low, "high": high}
        return head, content

    def _points(
        self, first: int, last: int, low: int, high: int
    ) -> tuple[dict[str, Any], bytes] | None:
        key = self._maps["key"][first:last]
        offset = (key & np.uint64((1 << 62) - 1)).astype(np.int64)
        selected = np.flatnonzero((offset >= low) & (offset <= high))
        if len(selected) > MOST_POINTS:
            return None
        parts = [
            selected.astype("<u4").tobytes(),
            self._maps["t"][first:last][selected].tobytes(),
            key[selected].tobytes(),
            self._maps["done"][first:last][selected].tobytes(),
            self._maps["latency"][first:last][selected].tobytes(),
        ]
        return {"form": "points", "n": len(selected), "first": first}, b"".join(parts)
