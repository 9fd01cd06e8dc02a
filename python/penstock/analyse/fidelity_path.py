"""The way of a request through the kernel, which is taken off its arrival: whether it stayed what it was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from penstock.analyse.fidelity_log import Log

#: largest change of the way during a run, as a share of the mean time in the disk
PATH_LIMIT = 0.05


def taken_off(log: Log) -> float:
    """Mean time that was taken off an arrival [ns]."""
    return float((log.arrived - log.began).mean())


def found_after(log: Log, stats: Mapping[str, Any]) -> float | None:
    """The same by the way as it was found after the run [ns]; None where it was not looked for."""
    after = stats.get("path_after")
    if not after:
        return None
    direction = np.where(log.op == 0, 0, 1)  # a flush goes the way of an empty write
    base, per_byte = (
        np.array([after[d][key] for d in ("read", "write")])[direction]
        for key in ("base_ns", "per_byte_ns")
    )
    return float((base + per_byte * np.where(log.op == 2, 0, log.size)).mean())


def moved(log: Log, stats: Mapping[str, Any], mean_ns: float) -> str:
    """In words, if the way changed by more than a request of `mean_ns` bears; empty if not."""
    before, after = taken_off(log), found_after(log, stats)
    if after is None or before == 0 or mean_ns <= 0:
        return ""
    share = abs(after - before) / mean_ns
    if share <= PATH_LIMIT:
        return ""
    return (
        f"the way through the kernel was {before / 1e3:.0f} us before the run and {after / 1e3:.0f} us after "
        f"it: {100 * share:.0f} % of the time in the disk (limit {100 * PATH_LIMIT:.0f} %)"
    )
