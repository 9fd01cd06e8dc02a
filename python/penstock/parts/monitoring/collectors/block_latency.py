"""Latency histograms of the requests to this host's block devices, recorded by BPF.

Settings: `interval_s` (1). Counters `block_latency_OP_requests` (of requests by their time on the device) and
`block_latency_OP_queued` (by their time in the queue) for each non-empty bucket, whose upper bound [s] is the
label `le`; `block_latency_OP_time` and `block_latency_OP_queue_time` are sums. Poll k is due at
t0 + k x interval; a missed poll is counted, not made up for.
"""

from __future__ import annotations

import asyncio
import importlib
import threading
import time
from collections.abc import Mapping
from typing import Any

from penstock.errors import PenstockError
from penstock.observe.sampler.latency import SOURCE
from penstock.parts.monitoring.collectors.collector import (
    Intake,
    Receipt,
    due,
    ended,
    interval_of,
    only,
)
from penstock.parts.monitoring.experiments.points import (
    Account,
    Closed,
    Sink,
    canonical_labels,
    points,
)

native: Any = importlib.import_module("penstock._native")

#: metric, labels
_Series = tuple[str, str]
#: metrics of the BPF programs themselves: name, unit, True for a counter
_OWN = (
    ("lost", "1", True),
    ("runs", "1", True),
    ("run_time", "ns", True),
    ("reading_time", "ns", False),
)
_NO_COUNTERS = {f"{SOURCE}_{metric}" for metric, _, grows in _OWN if not grows}


class BlockLatency:
    """Reads the histograms of all devices. `start` raises PenstockError if BPF is not available."""

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        only(name, settings, ("interval_s",))
        self.name = name
        self._interval_s = interval_of(name, settings, least_s=0.01)
        #: by series: polls due before its first point
        self._since: dict[_Series, int] = {}
        self._last_ns: int | None = None
        self._ended = False
        self._lock = threading.Lock()

    async def start(self, sink: Sink) -> None:
        try:
            self._kernel = await asyncio.to_thread(native.BlockLatency)
        except RuntimeError as error:
            raise PenstockError(f"{self.name}: {error}") from None
        self.intake = Intake(self.name, sink)
        self._task = asyncio.create_task(self._poll())

    async def stop(self) -> Receipt:
        polls = self.intake.due()
        await ended(self._task)
        await asyncio.to_thread(self._end)
        # without an interval, as nothing was lost before the first request of a bucket
        accounts = [
            Account(m, s, expected=polls - n, counter=m not in _NO_COUNTERS)
            for (m, s), n in self._since.items()
        ]
        await asyncio.to_thread(self.intake.ends, accounts)
        return self.intake.receipt

    async def _poll(self) -> None:
        receipt = self.intake.receipt
        async for _ in due(self._interval_s, self.intake):
            try:
                await asyncio.to_thread(self._store_unless_ended)
            except Closed as error:
                receipt.errors.append(str(error))
                return
            except PenstockError as error:
                receipt.failed(str(error))

    def _end(self) -> None:
        with self._lock:
            self._ended = True
            self._kernel.close()

    def _store_unless_ended(self) -> None:
        with self._lock:
            if not self._ended:
                self._store()

    def _store(self) -> None:
        utc_ns = time.time_ns()
        counters, own = self._kernel.read()
        rows: list[tuple[_Series, str, int, int]] = []
        new: list[_Series] = []

        def add(series: _Series, unit: str, value: int, grows: bool) -> None:
            if series not in self._since and series not in new:
                new.append(series)
                if grows and self._last_ns is not None:
                    rows.append((series, unit, self._last_ns, 0))
            rows.append((series, unit, utc_ns, value))

        for device, le, metric, unit, value in counters:
            labels = {"entity": device} | ({} if le is None else {"le": le})
            add((f"{SOURCE}_{metric}", canonical_labels(labels)), unit, value, True)
        for (metric, unit, grows), value in zip(_OWN, own, strict=True):
            add((f"{SOURCE}_{metric}", canonical_labels({"entity": "all"})), unit, value, grows)
        table = points(
            metric=[s[0] for s, _, _, _ in rows],
            labels=[s[1] for s, _, _, _ in rows],
            unit=[unit for _, unit, _, _ in rows],
            utc_ns=[at for _, _, at, _ in rows],
            integer=[value for _, _, _, value in rows],
        )
        self.intake.keep(table)
        completed = self.intake.receipt.counted["due"] - 1
        self._since |= dict.fromkeys(new, max(0, completed - (self._last_ns is not None)))
        self._last_ns = utc_ns
