"""The source that served the reads and writes of a run: the page cache, read-ahead, or a device.

From the tables `cache_use`, `io_events`, `files` and `device_requests` only (docs/formats.md), call by call:

- `device`: waited for a request to a device; a direct call with such a request
- `missed`: pages were added without a request to a block device, on a file system without one (network,
  FUSE): waited for the server of that file system
- `filled`: pages were added without a request although the file system is on a block device: holes of a
  sparse file, or requests that were not recorded
- `ahead`: all pages were cached, some by the read-ahead of an earlier read; did not wait
- `cached`: all pages were in memory; a write was accepted by the page cache
- `untold`: all others: calls that failed or transferred nothing, writes that return after the device has
  the bytes (O_SYNC), direct calls without a request, and calls that are not in `cache_use`
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_native: Any = importlib.import_module("penstock._native")

#: operations that flush written data to the device
FLUSHES = tuple(str(name) for _, name, way in _native.trace_operations() if way == "sync")

#: sources of calls
SOURCES = ("cached", "ahead", "device", "missed", "filled", "untold")
#: minimum share of a file's calls in `cache_use` for a statement on all of them
_ENOUGH = 0.9
#: maximum share of lost records below the calls for a statement that calls were hits
_MAY_BE_LOST = 0.01
#: without this event, pages added to the page cache are not recorded
_ADDED = "mm_filemap_add_to_page_cache"

#: maximum time of a call without a device, plus 1 ns for each copied byte (1 GB/s)
_QUICK_NS = 20_000

_DIRECT, _SYNC = 1, 4  # bits of `flags`
_PAGES = ("hit", "ahead", "missed")
NEEDED = {
    "cache_use": (
        "seq",
        "pages_hit",
        "pages_readahead",
        "pages_missed",
        "requests",
        "device_ns",
    ),
    "io_events": ("seq", "op", "direction", "file_id", "latency_ns", "flags"),
}

_CALLS = """
WITH calls AS (
    SELECT e.file_id, e.direction, e.latency_ns, c.*,
        CASE WHEN e.op LIKE 'fault%' THEN 'faults' ELSE 'calls' END AS basis,
        e.op NOT LIKE 'fault%' AND e.flags & {direct} <> 0 AS direct,
        e.op NOT LIKE 'fault%' AND e.direction = 'write' AND e.flags & {sync} <> 0 AS synced,
        {no_blocks} AS no_blocks
    FROM io_events e LEFT JOIN cache_use c USING (seq) {files}
    WHERE e.direction IN ('read', 'write') AND e.op NOT LIKE 'fault_around%' {only}
), sourced AS (
    SELECT *, CASE
        WHEN seq IS NULL THEN 'untold'
        WHEN direct THEN CASE WHEN requests > 0 THEN 'device' ELSE 'untold' END
        WHEN device_ns > 0 AND requests > 0 THEN 'device'
        WHEN pages_missed > 0 THEN CASE WHEN no_blocks THEN 'missed' ELSE 'filled' END
        WHEN synced THEN 'untold'
        WHEN pages_readahead > 0 THEN 'ahead'
        WHEN pages_hit > 0 THEN 'cached' ELSE 'untold' END AS source
    FROM calls
)
SELECT file_id, direction::VARCHAR AS direction, basis, {sums},
    coalesce(sum(device_ns), 0)::BIGINT AS device_ns, coalesce(sum(pages_hit), 0)::BIGINT AS hit,
    coalesce(sum(pages_readahead), 0)::BIGINT AS ahead, coalesce(sum(pages_missed), 0)::BIGINT AS missed
FROM sourced WHERE file_id IS NOT NULL GROUP BY file_id, direction, basis
"""


@dataclass(frozen=True)
class Served:
    """Calls and their time [ns] by source, for one file, direction and basis (calls or faults).

    `pages` are those in memory, read ahead and missed; `device_ns` is the part of the calls' time in which
    a request was queued or served.
    """

    file_id: int
    direction: str
    basis: str
    calls: dict[str, int]
    time_ns: dict[str, int]
    pages: dict[str, int]
    device_ns: int

    @property
    def total(self) -> int:
        return sum(self.calls.values())

    @property
    def total_ns(self) -> int:
        """The time of all calls."""
        return sum(self.time_ns.values())

    @property
    def sufficient(self) -> bool:
        """True if the tables have enough of the calls for a statement on all of them."""
        return self.total - self.calls["untold"] >= _ENOUGH * max(self.total, 1)

    @property
    def waiting(self) -> int:
        """Number of calls that waited for a device, or for the server of the file system."""
        return self.calls["device"] + self.calls["missed"]

    @property
    def waiting_ns(self) -> int:
        return self.time_ns["device"] + self.time_ns["missed"]

    @property
    def share(self) -> dict[str, float]:
        """Share of calls by source."""
        return {name: count / max(self.total, 1) for name, count in self.calls.items()}


def summed(rows: Sequence[Served]) -> Served | None:
    """The sum of several rows; None without rows."""
    if not rows:
        return None
    first = rows[0]

    def sums(of: Callable[[Served], dict[str, int]]) -> dict[str, int]:
        return {name: sum(of(row)[name] for row in rows) for name in of(first)}

    return Served(
        first.file_id,
        first.direction,
        first.basis,
        sums(lambda row: row.calls),
        sums(lambda row: row.time_ns),
        sums(lambda row: row.pages),
        sum(row.device_ns for row in rows),
    )


def quick_ns(mean_bytes: float) -> float:
    """Mean latency [ns] below which calls of this size are assumed not to have waited for a device."""
    return _QUICK_NS + mean_bytes


class AllServed(Mapping[tuple[int, str, str], Served]):
    """Calls of a run by source, for each file, direction and basis; each row is created on access."""

    def __init__(self, columns: Mapping[str, Any], layers: Mapping[str, Any]) -> None:
        keys = zip(
            *(columns[name].tolist() for name in ("file_id", "direction", "basis")), strict=True
        )
        self._places = {key: place for place, key in enumerate(keys)}
        self._columns = columns
        self._calls, self._times = (
            self._by_source(columns, name, layers) for name in ("calls", "time")
        )

    @staticmethod
    def _by_source(
        columns: Mapping[str, Any], what: str, layers: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Sums by the sources that may be stated, given the losses below the calls."""
        sums = {name: np.zeros(len(columns["file_id"]), np.int64) for name in SOURCES}
        for name in SOURCES:
            sums[_trusted(name, layers)] += columns[f"{what}_{name}"]
        return sums

    def __getitem__(self, key: tuple[int, str, str]) -> Served:
        place = self._places[key]
        calls, times = (
            {name: int(column[place]) for name, column in of.items()}
            for of in (self._calls, self._times)
        )
        pages = {name: int(self._columns[name][place]) for name in _PAGES}
        return Served(*key, calls, times, pages, int(self._columns["device_ns"][place]))

    def __iter__(self) -> Iterator[tuple[int, str, str]]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def all_served(
    arrays: Callable[[str], Mapping[str, Any]],
    columns: dict[str, set[str]],
    layers: Mapping[str, Any] | None,
    only: int | None = None,
) -> Mapping[tuple[int, str, str], Served]:
    """Calls by source for each file, direction and basis (or for the file `only`).

    `arrays` runs SQL on the tables and returns columns, `columns` are the columns of the existing tables,
    `layers` the statistics of the observer below the calls. Empty if the run has no `cache_use`.
    """
    if not all(set(names) <= columns.get(table, set()) for table, names in NEEDED.items()):
        return {}
    sums = [
        f"coalesce(sum({value}) FILTER (source = '{name}'), 0)::BIGINT AS {what}_{name}"
        for what, value in (("calls", "1"), ("time", "latency_ns"))
        for name in SOURCES
    ]
    statement = _CALLS.format(
        direct=_DIRECT,
        sync=_SYNC,
        no_blocks=_no_blocks(columns),
        files="LEFT JOIN files f ON f.file_id = e.file_id" if "files" in columns else "",
        only="" if only is None else f"AND e.file_id = {only}",
        sums=", ".join(sums),
    )
    by_key = arrays(statement)
    return AllServed(by_key, layers or {}) if len(by_key["file_id"]) else {}


def served_by(
    arrays: Callable[[str], Mapping[str, Any]],
    columns: dict[str, set[str]],
    layers: Mapping[str, Any] | None,
    only: int | None = None,
) -> list[Served]:
    """The rows of `all_served`, most time first."""
    rows = all_served(arrays, columns, layers, only).values()
    return sorted(rows, key=lambda row: -row.total_ns)


def _no_blocks(columns: dict[str, set[str]]) -> str:
    """SQL condition: a file's file system has no block device, according to the tables."""
    if not {"dev_major", "dev_minor"} <= columns.get("files", set()):
        return "false"
    virtual = "coalesce(f.dev_major, 1) = 0"
    if "file_id" not in columns.get("device_requests", set()):
        return virtual
    # btrfs has such a number as well, and block devices below
    return (
        f"({virtual} AND (f.dev_major, f.dev_minor) NOT IN (SELECT (g.dev_major, g.dev_minor) FROM files g "
        "JOIN device_requests r ON r.file_id = g.file_id WHERE g.dev_major IS NOT NULL "
        "AND g.dev_minor IS NOT NULL))"
    )


def _trusted(source: str, layers: Mapping[str, Any]) -> str:
    """The source that may be stated for a call, given the losses and gaps of the observer below the calls."""
    missing = layers.get("missing") or {}
    lost = layers.get("lost", 0) > _MAY_BE_LOST * max(layers.get("seen", 0), 1)
    if source in ("cached", "ahead") and (_ADDED in missing or lost or layers.get("incomplete")):
        return "untold"
    if source == "filled" and (lost or any(missing.values())):
        return "untold"
    return source
