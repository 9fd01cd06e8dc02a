"""Disk and power of nodes: utilisation of a disk joined with power by time; slowdown of runs."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.stats import t as student

Floats = npt.NDArray[np.float64]


def busy_percent(counter_s: pd.Series, at: pd.Index, window_s: float = 1.0) -> Floats:
    """Share of the second before each time in which a disk was busy, from its counter of I/O seconds.

    Between two scrapes the counter is interpolated. NaN if the window exceeds its times.
    """
    times = counter_s.index.astype("int64").to_numpy() / 1e9
    requested = at.astype("int64").to_numpy() / 1e9
    grown = np.interp(requested, times, counter_s.to_numpy()) - np.interp(
        requested - window_s, times, counter_s.to_numpy()
    )
    inside = (requested - window_s >= times[0]) & (requested <= times[-1])
    return np.where(inside, 100 * grown / window_s, np.nan)


def added_lines(plain: str, monitored: str) -> list[str]:
    """Lines in which the second script differs from the first, with `+` or `-` before them."""
    compared = difflib.ndiff(plain.splitlines(), monitored.splitlines())
    return [line for line in compared if line[0] in "+-"]


def slowdown(on_s: Sequence[float], off_s: Sequence[float]) -> tuple[float, float, float]:
    """Slowdown of runs with monitoring in pairs [%], with its 95 % interval.

    The interval is that of the logarithms of the ratios, by Student's distribution; none below two pairs.
    """
    logs = np.log(np.asarray(on_s) / np.asarray(off_s))
    n, mean = len(logs), float(np.mean(logs))
    if n < 2:
        return 100 * math.expm1(mean), -math.inf, math.inf
    half = float(student.ppf(0.975, n - 1) * np.std(logs, ddof=1) / math.sqrt(n))
    value, low, high = (100 * math.expm1(x) for x in (mean, mean - half, mean + half))
    return value, low, high
