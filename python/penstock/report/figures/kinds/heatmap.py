"""A row for each node over time, with the value as a colour."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from matplotlib import colormaps

from penstock.archive.series.bucket_series import by_bucket
from penstock.archive.series.series import Array, Recorded, Series, median_step
from penstock.report import style
from penstock.report.figures import layers
from penstock.report.figures.chart import Chart

WHAT = "A row for each node, time across, the value as a colour."
AXES = ("time", "index")
MOST_BINS = 600
#: minimum height of a row with a label, in lines of text
_NAMED_ROWS = 1.15


def draw(layout: layers.Layout, chart: Chart, recorded: Recorded) -> None:
    """A row for each series."""
    if len(recorded.units) > 1:
        raise style.NotDrawn(
            f"the series have several units ({', '.join(recorded.units)}); "
            "colours have one (--series chooses)"
        )
    names = layers.names_of(replace(recorded, series=by_bucket(recorded.series)))
    rows = [of_name[0] for of_name in names.values()]
    room = layout.text * _NAMED_ROWS / 72
    inches = min(max(1.1, 0.55 * layout.panel, len(rows) * room), layout.panel * 1.9)
    (axes,) = layout.panels(1, inches / layout.panel)
    layout.grow(0.35)
    low, high = layers.span(rows)
    edges = _edges(rows, low, high)
    grid = np.vstack([binned(s, edges) for s in rows])
    shades = colormaps["cividis"].with_extremes(bad=style.GRID)
    bottom = 0.0 if float(np.nanmin(grid)) >= 0 else float(np.nanmin(grid))
    top = 100.0 if recorded.units == ["%"] and np.nanmax(grid) <= 100 else float(np.nanmax(grid))
    image = axes.imshow(
        np.ma.masked_invalid(grid),
        extent=(edges[0], edges[-1], len(rows) - 0.5, -0.5),
        aspect="auto",
        interpolation="nearest",
        cmap=shades,
        vmin=bottom,
        vmax=top or 1.0,
    )
    every = max(1, int(np.ceil(len(rows) * room / inches)))
    at = list(range(0, len(rows), every))
    axes.set_yticks(at, [layers._short(list(names)[i], 26) for i in at])
    axes.tick_params(axis="y", length=0)
    axes.set_ylabel("" if every == 1 else f"{len(rows)} series, every {every}th named")
    layers.x_axis(axes, recorded, high)
    for phase in recorded.phases:
        for edge in (phase.start_s, phase.end_s):
            if low < edge < high:
                axes.axvline(edge, color=style.PAPER, lw=0.8, ls=(0, (3, 2)))
    bar = layout.fig.colorbar(image, ax=axes, pad=0.01, aspect=18)
    bar.outline.set_visible(False)
    what = layers.quantity_of(rows) or ("utilisation" if recorded.units == ["%"] else "")
    layers.unit_axis(bar.ax.yaxis, recorded.units[0], what, float(np.nanmax(np.abs(grid))))
    if np.isnan(grid).any():
        axes.set_title("grey: no value", fontweight="normal")


def _edges(rows: list[Series], low: float, high: float) -> Array:
    """Edges of bins one median step wide, wider if there would be more than `MOST_BINS`."""
    step = median_step(rows)
    bins = int(np.clip(np.ceil((high - low) / step - 1e-9) + 1, 1, MOST_BINS))
    width = max(step, (high - low) / bins if bins == MOST_BINS else step)
    return np.asarray(low - width / 2 + width * np.arange(bins + 1), float)


def binned(series: Series, edges: Array) -> Array:
    """The mean of a series in each bin; NaN for an empty bin."""
    use = np.isfinite(series.y)
    which = np.searchsorted(edges, series.x[use], side="right") - 1
    inside = (which >= 0) & (which < len(edges) - 1)
    n = np.bincount(which[inside], minlength=len(edges) - 1)
    total = np.bincount(which[inside], series.y[use][inside], minlength=len(edges) - 1)
    return np.where(n > 0, total / np.maximum(n, 1), np.nan)
