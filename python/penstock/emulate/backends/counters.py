"""Throughput of a throttled device, second by second, from the kernel's counters of a control group."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

#: length of a window [s]
WINDOW_S = 1.0
#: a limit is not in force if the delivered rate exceeds this multiple in N consecutive complete windows.
#: One such window may be a throttle that compensates for the window before; setting a limit again
#: releases the requests that wait for it.
NOT_APPLIED, IN_A_ROW = 1.3, 2


@dataclass(frozen=True)
class Counts:
    """Bytes and operations of a group on a device since its creation."""

    read_bytes: int = 0
    written_bytes: int = 0
    reads: int = 0
    writes: int = 0

    def __sub__(self, other: Counts) -> Counts:
        return Counts(**{k: v - getattr(other, k) for k, v in vars(self).items()})

    def as_dict(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class Counter:
    """Source of a recorder: counters, limits in force, a function that sets a limit again."""

    counts: Callable[[], Counts]
    limits: Callable[[], Mapping[str, int]]
    again: Callable[[str], None]


def as_table(rows: list[dict[str, Any]]) -> pa.Table:
    """Rows of a recorder as the table `throttle_counters`."""
    import pyarrow as pa

    from penstock.archive.schemas import TABLES

    return pa.Table.from_pylist(rows, schema=TABLES["throttle_counters"].arrow)


class Recorder:
    """Read the counters once a second on a thread, until `stop`."""

    def __init__(self, disk_id: str, counter: Counter, window_s: float = WINDOW_S) -> None:
        self._disk_id = disk_id
        self._counter = counter
        self._window_s = window_s
        self._rows: list[dict[str, Any]] = []
        self._again: list[str] = []
        self._above: dict[str, int] = {}
        self._ended = threading.Event()
        self._last = (time.monotonic_ns(), counter.counts())
        self._limits = dict(counter.limits())
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    def stop(self) -> tuple[list[dict[str, Any]], list[str]]:
        """Return the rows (the last window may be short) and the limits that had to be set again."""
        self._ended.set()
        self._thread.join()
        self._window()
        return self._rows, self._again

    def _run(self) -> None:
        due = time.monotonic() + self._window_s
        while not self._ended.wait(max(0.0, due - time.monotonic())):
            due += self._window_s
            try:
                self._window()
            except OSError:  # the group and its counters are gone
                return

    def _window(self) -> None:
        try:
            now, counts, limits = (
                time.monotonic_ns(),
                self._counter.counts(),
                dict(self._counter.limits()),
            )
        except OSError:
            return
        before_ns, before = self._last
        delivered, window_ns = counts - before, now - before_ns
        steady = {k: v for k, v in limits.items() if self._limits.get(k) == v}
        self._last, self._limits = (now, counts), limits
        if window_ns <= 0:
            return
        for direction, amount, ops in (
            ("read", delivered.read_bytes, delivered.reads),
            ("write", delivered.written_bytes, delivered.writes),
        ):
            bps, iops = limits.get(f"{direction}_bps"), limits.get(f"{direction}_iops")
            self._rows.append(
                {
                    "t_ns": now,
                    "window_ns": window_ns,
                    "disk_id": self._disk_id,
                    "direction": direction,
                    "bytes": amount,
                    "ops": ops,
                    "limit_bps": None if bps is None else float(bps),
                    "limit_iops": None if iops is None else float(iops),
                }
            )
            if window_ns >= 0.9e9 * self._window_s:
                for name, got in ((f"{direction}_bps", amount), (f"{direction}_iops", ops)):
                    self._check(name, got * 1e9 / window_ns, steady.get(name))

    def _check(self, name: str, rate: float, limit: int | None) -> None:
        above = limit is not None and rate > NOT_APPLIED * limit
        self._above[name] = self._above.get(name, 0) + 1 if above else 0
        if self._above[name] >= IN_A_ROW:
            self._above[name] = 0
            self._again.append(f"{name}: {rate:.0f} at a limit of {limit}, set again")
            self._counter.again(name)
