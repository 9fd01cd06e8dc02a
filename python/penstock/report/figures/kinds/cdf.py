"""Cumulative distribution of each series: share of its values at or below a value."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.ticker import FuncFormatter, MaxNLocator

from penstock.archive.series.series import Array, Recorded
from penstock.report import style
from penstock.report.figures import layers
from penstock.report.figures.chart import Chart

WHAT = "Share of the values of each series at or below a value."
AXES = ("time", "index", "value")


def draw(layout: layers.Layout, chart: Chart, recorded: Recorded) -> None:
    """A step line for each series."""
    groups = layers.lettered(recorded)
    if len(groups) > 1:
        raise style.NotDrawn(
            f"the series have several units ({', '.join(groups)}); a distribution has one (--series chooses)"
        )
    (axes,) = layout.panels(1)
    names = layers.names_of(recorded)
    every = []
    looks = dict(zip(names, layers.looks(len(names)), strict=True))
    raster = recorded.points > layers.MOST_VERTICES
    for name, series in names.items():
        value, share = steps(np.concatenate([s.y for s in series]))
        every.append(value)
        look = looks[name]
        (drawn,) = axes.plot(
            value,
            share,
            drawstyle="steps-post",
            color=look.colour,
            ls="-" if raster else look.line,
            lw=look.width,
            rasterized=raster,
        )
        drawn.set_gid(f"series-{name}")
    unit, what = recorded.series[0].unit, layers.quantity_of(recorded.series)
    values = np.concatenate(every)
    if style.wants_log(values):
        axes.set_xscale("log")
        axes.set_xlim(values.min() / 1.1, values.max() * 1.1)
        per = layers.unit_axis(
            axes.xaxis, unit, what or ("" if unit else "value"), float(np.median(values))
        )
        _log_ticks(axes.xaxis, per)
    else:
        layers.unit_axis(
            axes.xaxis, unit, what or ("" if unit else "value"), float(np.abs(values).max())
        )
        axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.set_ylabel("share of values")
    axes.set_ylim(0, 1.02)
    style.grid(axes)
    if len(names) > layers.MOST_NAMED:
        layers.many(layout, [axes], list(names), [layers.size_of(s) for s in names.values()])
    elif len(names) > 1:
        layout.legend([layers.handle(looks[n]) for n in names], list(names))


def _log_ticks(axis: Any, per: float) -> None:
    axis.set_minor_formatter(FuncFormatter(lambda *_: ""))
    axis.set_major_formatter(FuncFormatter(lambda v, _: style.plain_number(v / per)))


def steps(values: Array) -> tuple[Array, Array]:
    """Sorted values and F(x), the share of values ≤ x, from 0 on; missing values do not count."""
    own = np.sort(values[np.isfinite(values)])
    return np.concatenate([own[:1], own]), np.arange(len(own) + 1) / max(1, len(own))
