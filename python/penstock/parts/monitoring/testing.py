"""Checks of collectors and readers of metric servers: part of `penstock.testing`."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from penstock.errors import BadInput, PenstockError
from penstock.parts.monitoring.collectors.collector import Collector
from penstock.parts.monitoring.conformance import Ledger as Ledger
from penstock.parts.monitoring.conformance import Sent as Sent
from penstock.parts.monitoring.conformance import check_receiver as check_receiver
from penstock.parts.monitoring.experiments.points import (
    Accepted,
    Batch,
    Closed,
    checked,
    points,
    with_values,
)
from penstock.parts.monitoring.servers.reader import ServerReader


class MemorySink:
    """A sink in memory, with the checks of all sinks. The next `fails` writes fail as on a full disk; with
    `closed`, all fail."""

    def __init__(self) -> None:
        self.batches: dict[tuple[str, int], Batch] = {}
        self.fails = 0
        self.closed = False
        self._lock = threading.Lock()

    def write(self, batch: Batch) -> Accepted:
        batch = checked(batch)
        with self._lock:
            if self.closed:
                raise Closed("the experiment has ended")
            if self.fails:
                self.fails -= 1
                raise PenstockError("no space left on the disk")
            key = (batch.source, batch.number)
            if key in self.batches:
                return Accepted(0, True)
            self.batches[key] = batch
            return Accepted(batch.points.num_rows)

    def next_number(self, source: str) -> int:
        return 1 + max((n for s, n in self.batches if s == source), default=-1)

    def points(self, *sources: str) -> pa.Table:
        """Points with a value of these sources, or of all."""
        with self._lock:
            tables = [
                with_values(batch.points)
                for (source, _), batch in sorted(self.batches.items())
                if source in sources or not sources
            ]
        return pa.concat_tables([points(metric=[]), *tables]).unify_dictionaries().combine_chunks()

    def rows(self, *sources: str) -> list[dict[str, Any]]:
        """`points` as dictionaries without empty fields."""
        records = self.points(*sources).to_pylist()
        return [{k: v for k, v in row.items() if v not in (None, "")} for row in records]


def check_collector(make: Any, settings: Mapping[str, Any], least: int = 0) -> MemorySink:
    """Run a collector from start to stop, and a second one that continues its numbers; returns their sink.

    Each runs for at least a tenth of a second, and until it has written `least` batches.
    """
    sink = MemorySink()

    async def run_once() -> None:
        collector: Collector = make("it", settings)
        due, end = len(sink.batches) + least, time.monotonic() + 60
        await collector.start(sink)
        await asyncio.sleep(0.1)
        while len(sink.batches) < due and time.monotonic() < end:
            await asyncio.sleep(0.02)
        receipt = await collector.stop()
        assert receipt.source == "it", "the receipt is of another source"
        assert receipt.stored <= receipt.received, "more was stored than received"

    for _ in range(2):
        before = len(sink.batches)
        asyncio.run(run_once())
        numbers = sorted(n for s, n in sink.batches if s == "it")
        assert numbers == list(range(len(numbers))), "batches are not numbered consecutively"
        assert len(sink.batches) >= before
    try:
        make("it", {**settings, "no such setting": 1})
    except BadInput:
        return sink
    raise AssertionError("it accepts an unknown setting")


def check_metric_server(reader: ServerReader, query: str, start_ns: int, end_ns: int) -> pa.Table:
    """Check a reader on a server with points of the query at both ends of a window; returns the points."""
    reply = reader.read(query, start_ns, end_ns, 1_000_000_000)
    table = checked(Batch("it", 0, reply.points)).points
    times = table["utc_ns"].to_numpy()
    assert reply.requests >= 1, "it counts no request"
    assert (times.min(), times.max()) == (start_ns, end_ns), (
        "points at an end of the window are missing"
    )
    return table
