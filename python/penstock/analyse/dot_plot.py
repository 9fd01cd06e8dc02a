"""Dot plots of values with intervals for a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

#: columns of the plot area
_COLUMNS = 44
#: maximum columns of a name
_NAME = 34
#: ratio of values from which the axis is logarithmic
_LOG_FROM = 4.0


@dataclass(frozen=True)
class Dot:
    """A value with its interval (NaN without one), its name, and its text if that is not as on the axis."""

    name: str
    value: float
    low: float = math.nan
    high: float = math.nan
    text: str = ""


def dot_plot(
    title: str, dots: Sequence[Dot], shown: Callable[[float], str], least: float | None = None
) -> list[str]:
    """A line per value below an axis: `■` the value, `─` its interval.

    Positive values that differ fourfold or more have a logarithmic axis, others one from 0 or `least`.
    Values that are not finite are left out; fewer than two give no plot.
    """
    dots = [d for d in dots if math.isfinite(d.value)]
    if len(dots) < 2:
        return []
    ends = [v for d in dots for v in (d.value, d.low, d.high) if math.isfinite(v)]
    low, high = min(ends), max(ends)
    log = low > 0 and high >= _LOG_FROM * low
    if not log:
        low = min(low, 0.0 if least is None else least)
    if least is not None:
        low = min(low, least)
    scale: Callable[[float], float] = math.log if log else float
    first, last = scale(low), scale(high)
    if not last > first:
        return []

    def column(value: float) -> int:
        return round((scale(value) - first) / (last - first) * (_COLUMNS - 1))

    width = min(_NAME, max(len(d.name) for d in dots))
    ticks = _ticks(low, high, log)
    axis = [" "] * (_COLUMNS + 8)
    for tick in ticks:
        text, at = shown(tick), column(tick)
        if all(c == " " for c in axis[max(0, at - 1) : at + len(text) + 1]):
            axis[at : at + len(text)] = text
    lines = [title + ", log scale" * log, f"{'':<{width}}  {''.join(axis).rstrip()}"]
    for dot in dots:
        cells = [" "] * _COLUMNS
        if math.isfinite(dot.low) and math.isfinite(dot.high):
            for at in range(column(dot.low), column(dot.high) + 1):
                cells[at] = "─"
        cells[column(dot.value)] = "■"
        name = dot.name if len(dot.name) <= width else f"{dot.name[: width - 1]}…"
        lines.append(f"{name:<{width}}  {''.join(cells)}  {dot.text or shown(dot.value)}")
    return lines


def _ticks(low: float, high: float, log: bool) -> list[float]:
    """Round values between the ends of an axis: powers of ten (also 2 and 5 times these, if they are few),
    or up to five steps of 1, 2 or 5."""
    if log:
        powers = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
        for multiples in ((1,), (1, 2, 5)):
            ticks = [m * 10.0**p for p in powers for m in multiples]
            ticks = [t for t in ticks if low * (1 - 1e-9) <= t <= high]
            if len(ticks) > 2:
                return ticks
        return ticks or [low, high]
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough)
    first = math.ceil(low / step - 1e-9)
    return [step * i for i in range(first, math.floor(high / step + 1e-9) + 1)]
