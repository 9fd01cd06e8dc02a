"""Appearance of figures: a colour-blind-safe palette with markers and line styles, sizes, number formats.

Colours are after Okabe and Ito, *Color Universal Design* (2008). No meaning depends on colour alone.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

INK = "#1b1f24"
MUTED = "#5b6571"
GRID = "#d9dee4"
PAPER = "#fefefe"
BLUE = "#0072b2"
ORANGE = "#d55e00"
GREEN = "#009e73"
PURPLE = "#b0609a"
SKY = "#56b4e9"
AMBER = "#c98500"

#: print colour → the page's CSS variable, which has a light and a dark value
CSS_COLOURS = {
    INK: "ink",
    MUTED: "muted",
    GRID: "grid",
    PAPER: "paper",
    BLUE: "blue",
    ORANGE: "orange",
    GREEN: "green",
    PURPLE: "purple",
    SKY: "sky",
    AMBER: "amber",
}

#: width of a page, on paper and on a wide screen
WIDE_INCHES = 7.6
NARROW_INCHES = 3.7


@dataclass(frozen=True)
class Series:
    """Colour, marker and line of one series: each of the three is distinctive."""

    colour: str
    mark: str
    line: Any


SERIES = [
    Series(BLUE, "o", "-"),
    Series(ORANGE, "X", (0, (5, 1.6))),
    Series(GREEN, "s", (0, (1.2, 1.2))),
    Series(PURPLE, "^", (0, (5, 1.5, 1, 1.5))),
    Series(AMBER, "D", (0, (3, 1, 1, 1, 1, 1))),
    Series(SKY, "v", (0, (8, 2))),
]


def distinct(count: int) -> list[Series]:
    """The looks of so many series; after the colours of `SERIES` these repeat with other marks and lines."""
    n = len(SERIES)
    others = [SERIES[(i + i // n) % n] for i in range(count)]
    return [Series(SERIES[i % n].colour, other.mark, other.line) for i, other in enumerate(others)]


RC: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "figure.facecolor": PAPER,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.5,
    "lines.markersize": 5,
    "pdf.fonttype": 42,
    "svg.hashsalt": "penstock",
    "path.simplify": False,
    # no text is a formula: names of others may have dollars
    "text.parse_math": False,
}


def look(**more: Any) -> Any:
    """A context in which matplotlib draws in this style; `more` are further settings, with `_` for `.`."""
    settings: Any = dict(RC)
    settings.update({k.replace("_", ".", 1): v for k, v in more.items()})
    return rc_context(settings)


class NotDrawn(Exception):  # noqa: N818 - it is an answer, not an error
    """The figure cannot be drawn from these tables; the message names what is missing."""


def figure(width: float, height: float) -> Figure:
    """An empty figure of that size in inches, with a layout that clips nothing."""
    return Figure(figsize=(width, height), layout="constrained")


def settled(fig: Figure) -> Figure:
    """The figure with its layout computed once, not at every rendering."""
    fig.get_layout_engine().execute(fig)  # type: ignore[union-attr]
    fig.set_layout_engine("none")
    return fig


def narrow(width: float) -> bool:
    """True if the figure is for a narrow screen."""
    return width < 5


def wants_log(values: Any) -> bool:
    """True if a range of positive values requires a logarithmic axis."""
    array = np.asarray(values, float)
    array = array[np.isfinite(array)]
    return bool(len(array) and array.min() > 0 and array.max() / array.min() > 15)


def plain_number(value: float, _position: int | None = None) -> str:
    """`0.1`, `12`, `1,500`: tick labels without powers of ten."""
    text = f"{value:,.6g}" if abs(value) < 1e6 else f"{value:.3g}"
    return text.replace("-", "−")


def log_axis(axis: Any) -> None:
    """Make an axis logarithmic with plain numbers at 1, (2, 5 if there is space) of each decade."""
    axis._set_axes_scale("log")
    low, high = axis.get_view_interval()
    decades = np.log10(high / low) if low > 0 else 3
    axis.set_major_locator(
        LogLocator(subs=(1.0, 2.0, 5.0) if decades < 1.7 else (1.0,), numticks=9)
    )
    axis.set_major_formatter(FuncFormatter(plain_number))
    axis.set_minor_formatter(NullFormatter())


def plain_axis(axis: Any, width: float) -> None:
    """Few ticks with plain numbers: `20,000`, as in tables."""
    axis.set_major_locator(MaxNLocator(4 if narrow(width) else 7, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(FuncFormatter(plain_number))


def grid(axes: Axes, which: str = "both") -> None:
    """Light grid lines along `x`, `y` or `both`."""
    axes.grid(True, axis=which, which="major")  # type: ignore[arg-type]


def row_names(
    axes: Axes, names: Sequence[str], above: float | None, size: float, **text: Any
) -> None:
    """Names of the rows 0, 1, … of a figure: outside its frame, or inside it, `above` points above the
    row, in `size`-point letters."""
    if above is None:
        axes.set_yticks(range(len(names)), list(names))
        return
    axes.set_yticks(range(len(names)), [""] * len(names))
    axes.tick_params(axis="y", length=0)
    for row, name in enumerate(names):
        axes.annotate(
            name,
            (0, row),
            xycoords=("axes fraction", "data"),
            xytext=(2, above),
            textcoords="offset points",
            fontsize=size,
            color=MUTED,
            **text,
        )


def names_beside(names: Sequence[str], width: float) -> tuple[list[str], float, float]:
    """Names of rows in lines that fit beside a figure of that width; their size [points], and the height of
    a row [inches]."""
    size, inches, least = (7.0, 1.45, 0.27) if narrow(width) else (8.5, 3.2, 0.25)
    lines = [wrapped(name, inches, size, bold=False) for name in names]
    most = max((line.count("\n") + 1 for line in lines), default=1)
    return lines, size, max(least, 0.1 + most * size * 1.25 / 72)


def tips(fig: Figure, artist: Any, texts: list[str]) -> None:
    """Attach a hover text to each mark of an artist, for the page."""
    by_id: dict[str, list[str]] = getattr(fig, "penstock_tips", {})
    gid = f"tip{len(by_id)}"
    artist.set_gid(gid)
    by_id[gid] = texts
    fig.penstock_tips = by_id  # type: ignore[attr-defined]
    marks: Counter[int] = getattr(fig, "penstock_marks", None) or Counter()
    marks[id(artist.axes)] += len(texts)
    fig.penstock_marks = marks  # type: ignore[attr-defined]


def most_marks(fig: Figure) -> int:
    """Number of marks with a hover text in the fullest panel of a figure."""
    marks: dict[int, int] = getattr(fig, "penstock_marks", {})
    return max(marks.values(), default=0)


def wrapped(text: str, inches: float, size: float, bold: bool = True) -> str:
    """A text in lines of at most that width, broken after commas first, in a font of `size` points."""
    letters = max(8, int(inches * 72 / (size * (0.7 if bold else 0.62))))
    lines: list[str] = []
    for part in text.split(", "):
        if lines and len(lines[-1]) + len(part) + 3 <= letters:
            lines[-1] += f", {part}"
            continue
        if lines:
            lines[-1] += ","
        lines += textwrap.wrap(part, letters) or [part]
    return "\n".join(lines)


def hide_spare(grid: Any, used: int) -> None:
    """Hide the panels of a grid after the first `used`."""
    for axes in grid.ravel()[used:]:
        axes.set_visible(False)
