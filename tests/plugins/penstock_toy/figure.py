"""A figure: the largest value of each series as a bar."""

from __future__ import annotations

from typing import Any

WHAT = "The largest value of each series as a bar."
AXES = ("time", "index")


def draw(layout: Any, chart: Any, recorded: Any) -> None:
    (axes,) = layout.panels(1)
    axes.bar([s.name for s in recorded.series], [s.y.max() for s in recorded.series])
    axes.set_ylabel(f"largest ({recorded.series[0].unit})")
