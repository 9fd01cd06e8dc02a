"""Means of runs, and differences of means, with their intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scipy.stats import t as t_distribution


@dataclass(frozen=True)
class Spread:
    """A mean with an interval (95 %); without an interval for a single run."""

    mean: float
    low: float | None = None
    high: float | None = None

    def cells(self) -> tuple[str, str, str]:
        """As texts of a table."""
        mean, low, high = (
            "" if x is None else f"{x:.3f}".replace("-", "−")
            for x in (self.mean, self.low, self.high)
        )
        return mean, low, high

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


def mean_of(values: Sequence[float]) -> Spread:
    """Mean of runs, with Student's interval (95 %)."""
    mean, n = statistics.fmean(values), len(values)
    if n < 2:
        return Spread(mean)
    half = float(t_distribution.ppf(0.975, n - 1)) * statistics.stdev(values) / math.sqrt(n)
    return Spread(mean, mean - half, mean + half)


def difference_of(first: Sequence[float], second: Sequence[float]) -> Spread:
    """Difference of two means, with Welch's interval (95 %)."""
    mean = statistics.fmean(first) - statistics.fmean(second)
    if min(len(first), len(second)) < 2:
        return Spread(mean)
    shares = [statistics.variance(rows) / len(rows) for rows in (first, second)]
    if not any(shares):
        return Spread(mean, mean, mean)
    freedom = sum(shares) ** 2 / sum(
        s**2 / (len(rows) - 1) for s, rows in zip(shares, (first, second), strict=True)
    )
    half = float(t_distribution.ppf(0.975, freedom)) * math.sqrt(sum(shares))
    return Spread(mean, mean - half, mean + half)
