"""Series aligned at equal steps: nearest or last value, or an aggregate of bins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from penstock.archive.series.series import Array, Recorded, Series, at_times, median_step
from penstock.errors import BadInput

MOST_STEPS = 10_000_000
_BINS: dict[str, Callable[[Any], Any]] = {
    "mean": lambda g: g.mean(),
    "median": lambda g: g.median(),
    "min": lambda g: g.min(),
    "max": lambda g: g.max(),
    "sum": lambda g: g.sum(),
    "count": lambda g: g.count(),
}
#: methods: value of the nearest point within half a step, of the `last` point, or an aggregate of a bin
VALUES = ("nearest", "last", *_BINS)


def on_grid(recorded: Recorded, step: float | None, value: str = "nearest") -> Recorded:
    """All series at 0, step, 2 · step, …; a bin extends by half a step to each side.

    A time without a point has no value. `step` in the unit of the axis, None for the median step of the
    series. BadInput for an invalid step or method.
    """
    if value not in VALUES:
        raise BadInput(f"--value: found {value}; expected one of {', '.join(VALUES)}")
    step = median_step(recorded.series) if step is None else step
    if not (np.isfinite(step) and step > 0):
        raise BadInput(f"--step: found {step:g}; expected more than 0")
    ends = [s.x[k] for s in recorded.series if len(s.x) for k in (0, -1)]
    if not ends:
        return recorded
    low, high = round(min(ends) / step), round(max(ends) / step)
    if (high - low + 1) * len(recorded.series) > MOST_STEPS:
        raise BadInput(
            f"--step: found {step:g}, which makes {(high - low + 1) * len(recorded.series):,} points; "
            f"expected {MOST_STEPS:,} at most"
        )
    at = np.arange(low, high + 1) * step
    return replace(recorded, series=[_of(s, at, step, value, low) for s in recorded.series])


def _of(series: Series, at: Array, step: float, value: str, low: int) -> Series:
    if value in ("nearest", "last"):
        y = at_times(series, at, value, within=step / 2)
        inside = at <= (series.x[-1] + step / 2 if len(series.x) else -np.inf)
        return replace(series, x=at, y=np.where(inside, y, np.nan))
    use = np.isfinite(series.y)
    number = np.floor(series.x[use] / step + 0.5).astype(np.int64) - low
    binned = _BINS[value](pd.Series(series.y[use]).groupby(number))
    y = np.full(len(at), np.nan)
    inside = (binned.index >= 0) & (binned.index < len(at))
    y[binned.index[inside]] = binned.to_numpy(float)[inside]
    return replace(series, x=at, y=y, unit="" if value == "count" else series.unit)
