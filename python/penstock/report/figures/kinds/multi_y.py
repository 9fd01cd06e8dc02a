"""Series of several units in one panel, with a vertical axis for each unit."""

from __future__ import annotations

from penstock.archive.series.series import Recorded
from penstock.report import style
from penstock.report.figures import layers
from penstock.report.figures.chart import Chart

WHAT = "Two to four units in one panel, each with its own vertical axis."
AXES = ("time", "index", "value")
MOST_AXES = 4


def draw(layout: layers.Layout, chart: Chart, recorded: Recorded) -> None:
    """A line for each series, an axis for each unit; a node has the same colour on all of them."""
    groups = layers.lettered(recorded)
    if not 2 <= len(groups) <= MOST_AXES:
        raise style.NotDrawn(
            f"the series have {len(groups)} units; two to {MOST_AXES} can share a panel (--series chooses)"
        )
    (main,) = layout.panels(1, 1.15)
    looks = iter(layers.looks_by_node(recorded) or layers.looks(len(recorded.series)))
    raster = recorded.points > layers.MOST_VERTICES
    handles, names = [], []
    for number, (unit, series) in enumerate(groups.items()):
        axes = main if number == 0 else main.twinx()
        if number > 0:
            axes.spines["right"].set_visible(True)
            axes.spines["right"].set_position(
                ("axes", 1 + (number - 1) * (0.62 / layout.width * layout.text / 8))
            )
        looks_of_axis = []
        for s in series:
            look = next(looks)
            looks_of_axis.append(look)
            layers.line(axes, s, look, raster)
            handles.append(layers.handle(look))
            named = f"{s.quantity.replace('_', ' ')} {s.node}" if s.node and s.quantity else s.name
            shown = layers.multiple(unit, layers.largest_of(series))[1]
            names.append(f"{named} ({shown})" if unit and len(groups) > 1 else named)
        layers.y_axis(axes, series, label=layers.quantity_of(series) or series[0].name)
        if number > 0:
            axes.grid(False)
        # an axis with a single series has its colour
        if len(looks_of_axis) == 1:
            axes.yaxis.label.set_color(looks_of_axis[0].colour)
            axes.tick_params(axis="y", colors=looks_of_axis[0].colour)
            axes.spines["right" if number else "left"].set_color(looks_of_axis[0].colour)
    layers.over_time(layout, [main], recorded)
    layout.legend(handles, names)
