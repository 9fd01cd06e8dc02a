"""Simultaneous readings of a host's clocks."""

from __future__ import annotations

import time

_TRIES = 5


def clock_row(point: str) -> dict[str, int | str]:
    """One row of the `clocks` table: monotonic, real and boot time [ns] of one instant.

    The three are read between two readings of the monotonic clock; of five tries the closest is used, and
    half its width bounds their distance. `offset_ns` is to the conductor, which runs here.
    """
    best: tuple[int, int, int, int] | None = None
    for _ in range(_TRIES):
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        real = time.clock_gettime_ns(time.CLOCK_REALTIME)
        boot = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        width = after - before
        if best is None or width < best[0]:
            best = (width, before + width // 2, real, boot)
    assert best is not None
    width, monotonic, real, boot = best
    return {
        "point": point,
        "monotonic_ns": monotonic,
        "realtime_ns": real,
        "boottime_ns": boot,
        "offset_ns": 0,
        "offset_bound_ns": (width + 1) // 2,
    }
