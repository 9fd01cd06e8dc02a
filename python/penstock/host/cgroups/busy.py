"""Load of this host's processors, for programs that measure on it."""

from __future__ import annotations

import time
from pathlib import Path


def busy_ticks() -> tuple[int, int]:
    """Total and idle ticks of all processors (proc_stat(5)); stolen time counts as busy."""
    ticks = [int(x) for x in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(ticks), ticks[3] + ticks[4]


def busy_share(before: tuple[int, int], after: tuple[int, int]) -> float:
    """Share of processor time between two readings that was busy, 0 to 1."""
    total = after[0] - before[0]
    return 1 - (after[1] - before[1]) / total if total else 0.0


def current_share(over_s: float = 0.2) -> float:
    """Share of processor time that is busy during the next `over_s` seconds, 0 to 1."""
    before = busy_ticks()
    time.sleep(over_s)
    return busy_share(before, busy_ticks())
