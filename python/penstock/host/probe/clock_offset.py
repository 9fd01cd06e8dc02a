"""Offset of a node's clock from ours."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from penstock.errors import BadInput

#: series of the offset of a sender's clock from the store's, and of its error bound
CLOCK, CLOCK_BOUND = "clock_offset_seconds", "clock_offset_bound_seconds"
#: number of exchanges, of which the one with the shortest round trip is used
LEAST_EXCHANGES = 8


@dataclass(frozen=True)
class Exchange:
    """One time request: our clock before and after, the remote clock between, and its bound [ns]."""

    sent_ns: int
    there_ns: int
    received_ns: int
    read_bound_ns: int = 0


@dataclass(frozen=True)
class Offset:
    """Offset of a clock from ours, with its error bound [ns]; number of exchanges.

    The bound holds for any asymmetry of the round trip.
    """

    offset_ns: int
    bound_ns: int
    exchanges: int

    def until(self, later: Offset) -> Offset:
        """Offset at any time from this measurement to a later one, if the drift has one direction."""
        low = min(self.offset_ns - self.bound_ns, later.offset_ns - later.bound_ns)
        high = max(self.offset_ns + self.bound_ns, later.offset_ns + later.bound_ns)
        middle = (low + high) // 2
        return Offset(middle, high - middle, self.exchanges + later.exchanges)

    def warns(self, interval_ns: int) -> bool:
        """True if it is more than half an interval of sampling."""
        return abs(self.offset_ns) + self.bound_ns > interval_ns / 2

    def drift(self, later: Offset) -> int:
        """Lower bound of the drift until `later` [ns]; 0 if the bounds permit none."""
        return max(0, abs(later.offset_ns - self.offset_ns) - self.bound_ns - later.bound_ns)


def offset_of(exchanges: Iterable[Exchange]) -> Offset:
    """Offset from the exchange with the shortest round trip (Cristian, Probabilistic clock synchronization,
    1989).

    BadInput for fewer than eight.
    """
    by_trip = sorted(exchanges, key=lambda e: e.received_ns - e.sent_ns)
    if len(by_trip) < LEAST_EXCHANGES:
        raise BadInput(f"found {len(by_trip)} exchanges; expected at least {LEAST_EXCHANGES}")
    best = by_trip[0]
    trip = best.received_ns - best.sent_ns
    if trip < 0:
        raise BadInput(
            f"found an answer {-trip} ns before its question; expected a clock that advances"
        )
    bound = (trip + 1) // 2 + best.read_bound_ns
    return Offset(best.there_ns - (best.sent_ns + trip // 2), bound, len(by_trip))


def measure(ask: Callable[[], int], exchanges: int = LEAST_EXCHANGES) -> Offset:
    """Request the remote time (UTC ns) repeatedly, measured by a local clock without steps."""
    begin = time.time_ns() - time.monotonic_ns()
    samples = []
    for _ in range(exchanges):
        sent = time.monotonic_ns() + begin
        there = ask()
        samples.append(Exchange(sent, there, time.monotonic_ns() + begin))
    return offset_of(samples)
