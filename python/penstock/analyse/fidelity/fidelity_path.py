"""Duration of a request's path through the kernel, which is subtracted from its arrival, and its change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.analyse.fidelity.fidelity_log import Log

#: maximum change of the path during a run, as a share of the mean time in the disk
PATH_LIMIT = 0.05


def taken_off(log: Log) -> float:
    """Mean time subtracted from an arrival [ns]."""
    return float((log.arrived - log.began).mean())


def after_run_ns(log: Log, stats: Mapping[str, Any]) -> float | None:
    """The same for the path measured after the run [ns]; None if it was not measured."""
    after = stats.get("path_after")
    if not after:
        return None
    direction = np.where(log.op == 0, 0, 1)  # a flush takes the path of an empty write
    base, per_byte = (
        np.array([after[d][key] for d in ("read", "write")])[direction]
        for key in ("base_ns", "per_byte_ns")
    )
    return float((base + per_byte * np.where(log.op == 2, 0, log.size)).mean())


def moved(log: Log, stats: Mapping[str, Any], mean_ns: float) -> str:
    """Message if the path changed by more than a request of `mean_ns` permits; empty if not."""
    before, after = taken_off(log), after_run_ns(log, stats)
    if after is None or before == 0 or mean_ns <= 0:
        return ""
    share = abs(after - before) / mean_ns
    if share <= PATH_LIMIT:
        return ""
    return (
        f"the path through the kernel took {before / 1e3:.0f} us before the run and {after / 1e3:.0f} us "
        f"after it: {100 * share:.0f} % of the time in the disk (limit {100 * PATH_LIMIT:.0f} %)"
    )


@dataclass(frozen=True)
class Vague:
    """A kernel path measured too imprecisely: direction, bounds [ns], and mean time of a small request in
    the disk [ns]."""

    direction: str
    low_ns: float
    high_ns: float
    mean_ns: float

    @property
    def share(self) -> float:
        """Uncertainty of a program's time in the disk, to either side, as a share."""
        return (self.high_ns - self.low_ns) / 2 / self.mean_ns

    @property
    def too_vague(self) -> float:
        """The uncertainty as a multiple of its limit."""
        return self.share / PATH_LIMIT

    @property
    def message(self) -> str:
        """A clause without its full stop."""
        return (
            f"the path of {self.direction}s through the kernel takes {self.low_ns / 1e3:.0f} to "
            f"{self.high_ns / 1e3:.0f} us, so the times of a program are uncertain by "
            f"± {100 * self.share:.0f} % of their mean, {self.mean_ns / 1e3:.0f} us "
            f"(limit {100 * PATH_LIMIT:.0f} %)"
        )


def vague(ways: Mapping[str, Any], mean_ns: Mapping[str, float]) -> list[Vague]:
    """The directions, "read" and "write", with a kernel path measured too imprecisely.

    `ways`: by direction, as measured by the disk server, with 96 % intervals; `mean_ns`: mean time in the
    disk by direction.
    """
    candidates = [
        Vague(direction, ways[direction]["low_ns"], ways[direction]["high_ns"], mean)
        for direction, mean in mean_ns.items()
        if mean > 0 and "low_ns" in ways.get(direction, {})
    ]
    return [way for way in candidates if way.share > PATH_LIMIT]
