"""A line for each series over time; a panel for each unit."""

from __future__ import annotations

from penstock.archive.series.series import Recorded
from penstock.report.figures import layers
from penstock.report.figures.chart import Chart

WHAT = "A line for each series, a panel for each unit; phases shaded."
AXES = ("time", "index", "value")


def draw(layout: layers.Layout, chart: Chart, recorded: Recorded) -> None:
    """A line for each series."""
    layers.by_unit(layout, recorded, layers.line)
