"""Delay of switches after stays that did not pay.

A switch has a price that no estimate of a steady state contains: the first deduplicated version has no
predecessor with hashes, and a change is noticed late. If similarity changes every few writes, each stay is
right by its estimates and a loss in sum. The benefit of a short stay over the configuration before it is
therefore added up. After a loss, the next switch of that kind waits twice as many writes, at most as many as
lie between two probes; after a gain it does not wait.
"""

from __future__ import annotations

from penstock.parts.dedup.controller.settings import Settings
from penstock.parts.dedup.controller.stream import (
    BENEFIT,
    WAIT_OFF,
    WAIT_ON,
    Estimates,
    Stream,
)
from penstock.parts.dedup.controller.utility import Utility
from penstock.parts.dedup.record import WriteRecord


class Patience:
    """Benefits of stays, and the writes that a stream must stay in a state."""

    def __init__(self, settings: Settings, estimates: Estimates) -> None:
        self._estimates = estimates
        # a limit excludes a configuration; it is no loss in numbers
        self._utility = Utility(settings.utility.weights)
        self._least, self._most = settings.window, settings.reprobe_after
        self._enabled = settings.adaptive and estimates.off is not None

    def observe(self, stream: Stream, record: WriteRecord, index: int, observed: bool) -> None:
        """Add the benefit of a write in a steady state."""
        before, off = stream.before, self._estimates.off
        if not self._enabled or before < 0 or stream.count > self._most:
            return
        if index != off and before == off:
            stream.numbers[BENEFIT] += self._advantage(
                stream, index, record.similar_bytes / record.bytes
            )
        elif index == off and before != off and observed:
            z = self._estimates.similarity_of(stream, before)
            if z is not None:
                stream.numbers[BENEFIT] -= self._advantage(stream, before, z)

    def ready(self, stream: Stream) -> bool:
        """True if the stream may leave its state."""
        slot = WAIT_OFF if stream.incumbent == self._estimates.off else WAIT_ON
        return not self._enabled or stream.count >= stream.numbers[slot]

    def leave(self, stream: Stream, index: int) -> None:
        """Account for the end of a stay: the stream changes from its incumbent to `index`."""
        numbers, off, incumbent = stream.numbers, self._estimates.off, stream.incumbent
        before, stream.before = stream.before, incumbent
        if self._enabled and before == index and off in (index, incumbent):
            if incumbent == off:
                z = self._estimates.similarity_of(stream, index) or 0.0
                lost = self._advantage(stream, index, z) - self._advantage(stream, index, 0.0)
                numbers[BENEFIT] -= lost
            # the state in which the stream was to stay
            slot = WAIT_OFF if index == off else WAIT_ON
            if stream.count <= self._most and numbers[BENEFIT] < 0:
                numbers[slot] = min(self._most, max(self._least, 2 * numbers[slot]))
            else:
                numbers[slot] = 0.0
        numbers[BENEFIT] = 0.0

    def _advantage(self, stream: Stream, index: int, z: float) -> float:
        """Utility of a write with similarity `z` in the configuration `index` beyond that without."""
        costs = self._estimates.pair(stream, index, z)
        if costs is None:
            return 0.0
        off, on = self._utility.values(costs, None)
        return on - off
