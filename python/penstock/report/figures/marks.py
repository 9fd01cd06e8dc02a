"""Requests as marks: a dot per read, a cross per write, thinned with extremes retained; byte axes."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.collections import PathCollection
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Outline
from matplotlib.ticker import FuncFormatter, MultipleLocator

from penstock.report import style

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def keep_extremes(
    x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], most: int
) -> np.ndarray[Any, Any]:
    """Indices of about `most` points: lowest and highest y of each bin of x, and an even sample."""
    n = len(x)
    if n <= most:
        return np.arange(n)
    bins = max(1, most // 6)
    edges = np.linspace(0, n, bins + 1).astype(np.int64)
    starts, which = edges[:-1], np.repeat(np.arange(bins), np.diff(edges))
    order = np.lexsort((y, which))
    even = np.linspace(0, n - 1, most - 2 * bins).astype(np.int64)
    return np.unique(np.concatenate([order[starts], order[edges[1:] - 1], even]))


def dots(axes: Any, x: Any, y: Any, colour: str, size: float) -> None:
    """Round dots as one compound path, for small SVG."""
    vertices = np.repeat(np.column_stack([x, y]).astype(float), 2, axis=0)
    # some renderers omit a line of zero length
    vertices[1::2, 0] += 1e-4 * max(1e-9, float(np.ptp(x)) if len(x) > 1 else 1.0)
    codes = np.tile([Outline.MOVETO, Outline.LINETO], len(x))
    outline = Outline(vertices, codes)
    outline.should_simplify = False
    # not add_patch: it would search thousands of segments for limits that are set later
    axes.add_artist(
        PathPatch(outline, fill=False, edgecolor=colour, linewidth=size, capstyle="round")
    )


def crosses(axes: Any, x: Any, y: Any, colour: str, size: float = 14) -> PathCollection:
    """A cross per point, `size` in square points."""
    line = 1.0 if size > 10 else 0.45
    return axes.scatter(x, y, marker="x", s=size, color=colour, linewidths=line)  # type: ignore[no-any-return]


def requests(
    axes: Any,
    x: np.ndarray[Any, Any],
    y: np.ndarray[Any, Any],
    write: np.ndarray[Any, Any],
    most: int,
) -> int:
    """Draw reads and writes, about `most` of them, with the extremes; return the number drawn."""
    drawn = 0
    for use in (~write, write):
        if not use.any():
            continue
        share = most if use.all() else max(min(300, most // 2), int(most * use.mean()))
        shown = keep_extremes(x[use], y[use], share)
        drawn += len(shown)
        # smaller marks if crowded, so that order remains visible
        if use is write:
            crosses(
                axes, x[use][shown], y[use][shown], style.ORANGE, 14 if len(shown) < 3000 else 4
            )
        else:
            dots(axes, x[use][shown], y[use][shown], style.BLUE, 1.8 if len(shown) < 3000 else 1.1)
    return drawn


def flushes(axes: Any, x: Any) -> None:
    """Short marks on the horizontal axis."""
    axes.vlines(x, 0, 0.04, transform=axes.get_xaxis_transform(), color=style.INK, linewidth=0.6)


def legend(fig: Any, reads: bool, writes: bool, flushed: bool = False) -> None:
    """Legend of a dot, a cross and a mark on the axis."""
    handles = []
    if reads:
        handles.append(Line2D([], [], marker="o", ls="", color=style.BLUE, ms=4, label="read"))
    if writes:
        handles.append(Line2D([], [], marker="x", ls="", color=style.ORANGE, ms=5, label="write"))
    if flushed:
        handles.append(Line2D([], [], marker=2, ls="", color=style.INK, ms=6, label="flush"))
    if handles:
        fig.legend(handles=handles, loc="outside upper left", ncols=3)


def byte_unit(highest: float) -> tuple[float, str]:
    """Bytes in a suitable unit, and its name: 3 MiB as (1048576, 'MiB')."""
    power = 0
    while power < len(_UNITS) - 1 and highest >= 2 * 1024 ** (power + 1):
        power += 1
    return float(1024**power), _UNITS[power]


def byte_axis(axis: Any, low: float, high: float, ticks: int = 6) -> str:
    """Set ticks at powers of two of bytes, label them in one unit, and return its name."""
    unit, name = byte_unit(high)
    step = 2.0 ** np.ceil(np.log2(max(high - low, 1.0) / ticks))
    axis.set_major_locator(MultipleLocator(max(step, 1.0)))
    axis.set_major_formatter(FuncFormatter(lambda v, _: style.plain_number(v / unit)))
    return name
