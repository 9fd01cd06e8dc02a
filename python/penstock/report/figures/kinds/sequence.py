"""Values in the order of their requests: offsets in a file, one point for each request."""

from __future__ import annotations

import numpy as np

from penstock.archive.series.series import Recorded
from penstock.report import style
from penstock.report.figures import layers
from penstock.report.figures.chart import Chart

WHAT = "Values (offsets) by the number of the request; any number of points."
AXES = ("index",)
#: maximum number of files, the busiest first
MOST_PANELS = 4


def draw(layout: layers.Layout, chart: Chart, recorded: Recorded) -> None:
    """A panel of points for each series."""
    shown = recorded.series[:MOST_PANELS]
    panels = layout.panels(len(shown))
    end = max(float(s.x.max()) for s in shown)
    look = layers.looks(1)[0]
    for axes, series in zip(panels, shown, strict=True):
        if series.unit == "B":
            layers.byte_axis(axes, [series], series.quantity or "offset")
        else:
            layers.y_axis(axes, [series], zero=False)
            low, high = float(np.nanmin(series.y)), float(np.nanmax(series.y))
            room = 0.02 * ((high - low) or 1.0)
            axes.set_ylim(low - room, high + room)
        axes.set_xlim(-0.01 * end, 1.01 * end)
        use = np.isfinite(series.y)
        layers.cloud(axes, series.x[use], series.y[use], look, layout.text)
        title = f"{layers._short(series.name, 50)}: {int(use.sum()):,} values"
        axes.set_title(title, fontweight="normal")
        style.grid(axes)
    layers.x_axis(panels[-1], recorded, end)
    if len(recorded.series) > len(shown):
        panels[-1].set_xlabel(
            f"{panels[-1].get_xlabel()}; {len(recorded.series) - len(shown)} more series are not shown"
        )
