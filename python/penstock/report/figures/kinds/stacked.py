"""Stacked series of one unit: their sum and the share of each."""

from __future__ import annotations

import numpy as np

from penstock.archive.series.series import Array, Recorded, Series
from penstock.report import style
from penstock.report.figures import layers
from penstock.report.figures.chart import Chart

WHAT = "Series of one unit on top of each other."
AXES = ("time", "index", "value")
_HATCHES = ("", "////", "....", "\\\\\\\\", "xxxx", "----")


def draw(layout: layers.Layout, chart: Chart, recorded: Recorded) -> None:
    """An area for each series."""
    groups = layers.lettered(recorded)
    if len(groups) > 1:
        raise style.NotDrawn(
            f"the series have several units ({', '.join(groups)}); a stack has one (--series chooses)"
        )
    (axes,) = layout.panels(1)
    at, parts = stack(recorded)
    names = list(layers.names_of(recorded))
    names = names if len(names) == len(parts) else [s.name for s in recorded.series]
    if len(parts) > layers.MOST_NAMED:
        parts, names = _largest(parts, names)
    looks = layers.looks(len(parts))
    layers_of = axes.stackplot(
        at,
        parts,
        colors=[look.colour for look in looks],
        step="post" if len(at) < 60 else None,
        linewidth=0.4,
        edgecolor=style.PAPER,
        alpha=0.85,
    )
    for number, area in enumerate(layers_of):
        # another hatch when the colours repeat
        area.set_hatch(_HATCHES[(number + number // len(style.SERIES)) % len(_HATCHES)])
    total = Series("sum", at, np.sum(parts, axis=0), recorded.series[0].unit)
    what = layers.quantity_of(recorded.series)
    layers.y_axis(axes, [total], label=f"{what}, sum" if what else "sum")
    layers.over_time(layout, [axes], recorded)
    if len(parts) > 1:
        layout.legend(layers_of, names)


def _largest(parts: list[Array], names: list[str]) -> tuple[list[Array], list[str]]:
    """The ten largest of many areas, in their order, and the sum of the others above them."""
    order = np.argsort([-float(np.mean(p)) for p in parts], kind="stable")
    largest = sorted(order[: layers.LARGEST])
    others = np.sum([parts[i] for i in order[layers.LARGEST :]], axis=0)
    rest = f"{len(parts) - layers.LARGEST} others"
    return [*(parts[i] for i in largest), others], [*(names[i] for i in largest), rest]


def stack(recorded: Recorded) -> tuple[Array, list[Array]]:
    """Times at which any series has a value, and the last value of each series until then.

    A series is 0 before its first and after its last point, and at missing values.
    """
    at = np.unique(np.concatenate([s.x for s in recorded.series]))
    parts = []
    for s in recorded.series:
        which = np.searchsorted(s.x, at, side="right") - 1
        value = np.where(which >= 0, s.y[np.clip(which, 0, None)], 0.0)
        value[at > s.x[-1]] = 0.0
        parts.append(np.nan_to_num(value))
    return at, parts
