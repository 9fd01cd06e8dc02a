"""One quantity against another: points at the same time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from matplotlib.lines import Line2D

from penstock.archive.series.series import Array, Recorded, Series, joined, takes
from penstock.errors import BadInput
from penstock.report import style
from penstock.report.figures import layers
from penstock.report.figures.chart import Chart

WHAT = "One quantity against another (--x SERIES), joined by time; any number of points."
AXES = ("time", "index", "value")


def draw(layout: layers.Layout, chart: Chart, recorded: Recorded) -> None:
    """A cloud of points for each series."""
    pairs, across = _pairs(chart, recorded)
    joined_pairs = [p for p in pairs if len(p[1])]
    if not joined_pairs:
        raise style.NotDrawn("no point has both values (--join last joins by the last value)")
    series = [replace(s, x=x, y=y) for s, x, y in joined_pairs]
    if len({s.unit for s in series}) > 1:
        raise style.NotDrawn("the series have several units; points have one (--series chooses)")
    (axes,) = layout.panels(1, 1.2)
    layers.y_axis(axes, series, zero=False)
    low, high = layers.span(series)
    bottom = min(float(np.nanmin(s.y)) for s in series)
    top = max(float(np.nanmax(s.y)) for s in series)
    if bottom >= 0 and bottom < 0.5 * top:
        bottom = 0.0
    for limits, (a, b) in ((axes.set_xlim, (low, high)), (axes.set_ylim, (bottom, top))):
        room = 0.02 * ((b - a) or 1.0)
        limits(a - room if a != 0 or bottom < 0 else -room, b + room)
    looks = layers.looks(len(series))
    names = list(layers.names_of(Recorded(series)))
    shown = sum(
        layers.cloud(axes, s.x, s.y, look, layout.text)
        for s, look in zip(series, looks, strict=True)
    )
    if across is not None:
        layers.unit_axis(
            axes.xaxis, across.unit, across.name.replace("_", " "), max(abs(low), abs(high))
        )
    else:
        layers.x_axis(axes, recorded, high)
    style.grid(axes)
    n = sum(len(s.x) for s in series)
    assert shown == n, "a point is outside of the axes"
    if n > layers.MOST_MARKS:
        axes.set_title(f"{n:,} points; darker: more of them in one place", fontweight="normal")
    if len(series) > layers.MOST_NAMED:
        layers.many(layout, [axes], names, [layers.size_of([s]) for s in series])
    elif len(series) > 1:
        dots = [Line2D([], [], ls="", marker=k.mark, color=k.colour, ms=4) for k in looks]
        layout.legend(dots, names)


def _pairs(
    chart: Chart, recorded: Recorded
) -> tuple[list[tuple[Series, Array, Array]], Series | None]:
    """(series, x, y) of each series, and the horizontal series, matched by run."""
    if not chart.x:
        finite = [(s, np.isfinite(s.x) & np.isfinite(s.y)) for s in recorded.series]
        return [(s, s.x[use], s.y[use]) for s, use in finite], None
    across = [s for s in recorded.series if takes(chart.x, s)]
    if not across:
        names = ", ".join(dict.fromkeys(s.name for s in recorded.series))
        raise BadInput(f"--x: found {chart.x}; expected one of the series {names}")
    pairs = []
    for s in recorded.series:
        if any(s is a for a in across):
            continue
        # of several, the one of the same run and node
        of_run = [a for a in across if a.run == s.run]
        own = [a for a in of_run if a.node == s.node] or (of_run if len(of_run) == 1 else [])
        if own:
            pairs.append((s, *joined(own[0], s, chart.join)))
    return pairs, across[0] if len(across) == 1 else replace(across[0], name=across[0].quantity)
