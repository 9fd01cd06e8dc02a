"""Replicates aligned at their start: the median, a band of the runs, and outliers.

The band has the central 95 % of 20 runs or more, or all of fewer runs. It ends when fewer than 90 % of the
runs continue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from penstock.archive.series.series import Array, Recorded, Series, median_step
from penstock.report import style
from penstock.report.figures import layers
from penstock.report.figures.chart import Chart
from penstock.report.figures.kinds.heatmap import MOST_BINS, binned

WHAT = "Replicates aligned at their start: median, central 95 % (of fewer than 20, all), outlying runs named."
AXES = ("time", "index")
#: MADs from the median at which a run is an outlier (ten standard deviations of a normal distribution)
FAR = 14.826
FEWEST_TO_JUDGE = 5
#: minimum number of runs for quantiles: 2.5 % of them is half a run; the band of fewer has all
FEWEST_OF_QUANTILES = 20
#: difference of two means, relative to the largest, up to which it is a rounding error
_ROUNDING = 1e-9
#: minimum share of continuing runs in the band
_GOING_ON = 0.9


def draw(layout: layers.Layout, chart: Chart, recorded: Recorded) -> None:
    """A band for each series with replicates."""
    # runs aligned to a phase need no shift
    aligned = [s if chart.align else replace(s, x=s.x - s.x[0]) for s in recorded.series]
    groups: dict[tuple[str, str, str], list[Series]] = {}
    for s in aligned:
        groups.setdefault(s.key, []).append(s)
    several = {k: v for k, v in groups.items() if len(v) > 1}
    if not several:
        raise style.NotDrawn(
            "no series has replicates: name a study's results or a treatment (OUT, OUT:t01), "
            "or several exports of one experiment"
        )
    if len(several) > layers.MOST_NAMED:
        raise style.NotDrawn(
            f"{len(several)} series have replicates; at most 12 bands can be distinguished"
        )
    units = list(dict.fromkeys(k[2] for k in several))
    panels = dict(zip(units, layout.panels(len(units)), strict=True))
    looks = layers.looks(len(several))
    handles, names, outside, shown = [], [], [], []
    for look, ((group, name, unit), runs) in zip(looks, several.items(), strict=True):
        axes = panels[unit]
        at, low, middle, high = band(runs)
        shown.append(Series(name, at, middle, unit))
        shade = axes.fill_between(at, low, high, color=look.colour, alpha=0.2, lw=0)
        (median,) = axes.plot(at, middle, color=look.colour, ls=look.line, lw=look.width)
        handles.append((shade, median))
        names.append(f"{' '.join(p for p in (group, name) if p)} (n = {len(runs)})")
        for run in outliers(runs):
            axes.plot(run.x, run.y, color=look.colour, lw=look.width * 0.5, ls=(0, (1, 1)))
            last = int(np.flatnonzero(np.isfinite(run.y))[-1])
            axes.annotate(
                run.run,
                (run.x[last], run.y[last]),
                (2, 0),
                textcoords="offset points",
                fontsize=layout.text - 1.5,
                color=look.colour,
                va="center",
            )
            outside.append(run.run)
            shown.append(run)
    for unit, axes in panels.items():
        layers.y_axis(axes, [s for k, v in several.items() if k[2] == unit for s in v])
    layers.over_time(layout, list(panels.values()), replace(recorded, series=shown))
    fewest = min(map(len, several.values()))
    most = max(map(len, several.values()))
    central, every = "central 95 % of the runs", "smallest to largest of the runs"
    of_few = f"{central}, of fewer than {FEWEST_OF_QUANTILES} {every}"
    of_all = central if fewest >= FEWEST_OF_QUANTILES else of_few
    caption = f"line: median; band: {every if most < FEWEST_OF_QUANTILES else of_all}"
    if outside:
        caption += f"; outlying: {', '.join(sorted(set(outside)))}"
    next(iter(panels.values())).set_title(
        style.wrapped(caption, layout.width - 0.6, layout.text - 1, bold=False),
        fontweight="normal",
        fontsize=layout.text - 0.5,
    )
    layout.legend(handles, names)


def band(runs: Sequence[Series]) -> tuple[Array, Array, Array, Array]:
    """x, and for the runs at each x the 2.5 %, 50 % and 97.5 % quantiles (linear, type 7); for fewer than 20
    runs smallest, median and largest.

    Each run starts at its own 0, and is binned by the median step; a bin needs two runs. Limited to x at
    which 90 % of the runs have begun and continue.
    """
    runs = [s for s in runs if len(s.x)]
    step = median_step(runs)
    start = min(float(s.x[0]) for s in runs)
    end = max(float(s.x[-1]) for s in runs)
    bins = int(np.clip(round((end - start) / step) + 1, 1, MOST_BINS))
    width = max(step, (end - start) / max(1, bins - 1))
    # 0 is the centre of a bin
    first = round(start / width)
    edges: Array = np.asarray(width * (first + np.arange(bins + 1) - 0.5), float)
    grid = np.vstack([binned(s, edges) for s in runs])
    # a run continues from its first to its last value, across gaps
    there = np.isfinite(grid)
    on = np.logical_or.accumulate(there, 1) & np.logical_or.accumulate(there[:, ::-1], 1)[:, ::-1]
    enough = (there.sum(axis=0) > 1) & (on.sum(axis=0) >= _GOING_ON * len(runs))
    if not enough.any():  # the runs do not overlap in time
        enough = there.sum(axis=0) > 1
    tail = 0.025 if len(runs) >= FEWEST_OF_QUANTILES else 0.0
    low, middle, high = np.nanquantile(grid[:, enough], [tail, 0.5, 1 - tail], axis=0)
    return (width * (first + np.arange(bins)))[enough], low, middle, high


def outliers(runs: Sequence[Series]) -> list[Series]:
    """Runs whose mean lies more than 14.826 MADs from the median of the means; none for four or fewer."""
    means = np.array([float(np.nanmean(s.y)) for s in runs])
    off = np.abs(means - np.median(means))
    if len(runs) < FEWEST_TO_JUDGE:
        return []
    # if most runs are equal, their means differ by rounding
    least = max(FAR * float(np.median(off)), _ROUNDING * float(np.abs(means).max()))
    return [s for s, far in zip(runs, off > least, strict=True) if far]
