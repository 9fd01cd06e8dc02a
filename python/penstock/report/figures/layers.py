"""Shared parts of figures: panels, looks of many series, phases, unit axes, rasters of points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from penstock.archive.series.series import Array, Phase, Recorded, Series
from penstock.report import style
from penstock.report.figures import marks

#: maximum number of series in a legend; more are coloured in their order, with a colour bar
MOST_NAMED = 12
#: number of series named in the colour bar
LARGEST = 10
#: maximum number of points of a cloud; more are drawn as a raster of their density
MOST_MARKS = 20_000
#: maximum number of points of lines; more are drawn as a raster
MOST_VERTICES = 200_000
#: edge of a dot of a raster [inches]
_DOT = 1 / 200

#: unit → its multiples in ascending order: divisor and name
_MULTIPLES: dict[str, tuple[tuple[float, str], ...]] = {
    "B": ((1, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB")),
    "B/s": ((1, "B/s"), (1e3, "kB/s"), (1e6, "MB/s"), (1e9, "GB/s")),
    "ns": ((1, "ns"), (1e3, "µs"), (1e6, "ms"), (1e9, "s")),
    "us": ((1, "µs"), (1e3, "ms"), (1e6, "s")),
    "ms": ((1, "ms"), (1e3, "s")),
    "W": ((1, "W"), (1e3, "kW")),
    "J": ((1, "J"), (1e3, "kJ"), (1e6, "MJ")),
    "Hz": ((1, "Hz"), (1e3, "kHz"), (1e6, "MHz"), (1e9, "GHz")),
}
_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Look:
    """Appearance of one series."""

    colour: Any
    line: Any
    mark: str
    width: float


class Layout:
    """An empty figure and its dimensions in inches (`width`, height of a `panel`) and points (`text`)."""

    def __init__(self, fig: Figure, width: float, panel: float, text: float) -> None:
        self.fig = fig
        self.width = width
        self.panel = panel
        self.text = text

    def panels(self, n: int, height: float = 1.0) -> list[Any]:
        """`n` axes in a column with a common horizontal axis, each `height` times a panel high."""
        shrink = 1.0 if n == 1 else 0.78
        self.fig.set_size_inches(self.width, self.panel * height * shrink * n + 0.3)
        return list(self.fig.subplots(n, 1, squeeze=False, sharex=True)[:, 0])

    def grow(self, inches: float) -> None:
        """Increase the height of the figure, for a legend of many rows."""
        self.fig.set_size_inches(self.width, self.fig.get_size_inches()[1] + inches)

    def legend(self, handles: Sequence[Any], names: Sequence[str]) -> None:
        """Draw the names of series above the panels, in as many columns as fit."""
        shown = [_short(n) for n in names]
        letter = self.text * 0.56 / 72
        columns = max(1, int(self.width / (max(map(len, shown)) * letter + self.text * 4.2 / 72)))
        rows = -(-len(shown) // min(columns, len(shown)))
        self.grow(rows * self.text * 1.5 / 72)
        self.fig.legend(handles, shown, loc="outside upper left", ncols=min(columns, len(shown)))


def _short(name: str, most: int = 44) -> str:
    return name if len(name) <= most else f"{name[: most // 2]}…{name[-(most // 2 - 1) :]}"


#: line styles of units in a figure with colours for nodes
_UNIT_LINES: tuple[Any, ...] = ("-", (0, (4, 1.4)), (0, (1.2, 1)), (0, (6, 1.4, 1.2, 1.4)))


def looks(n: int) -> list[Look]:
    """Appearance of `n` series: up to 12 by colour, line and marker; more in the order of a colour map.

    The map (cividis, without its palest end) is legible with and without colour vision.
    """
    import matplotlib as mpl

    width = float(mpl.rcParams["lines.linewidth"])
    if n <= MOST_NAMED:
        own = style.SERIES
        distinct = []
        for i in range(n):
            base, other = own[i % len(own)], own[(i + i // len(own)) % len(own)]
            distinct.append(Look(base.colour, other.line, other.mark, width))
        return distinct
    shades = colormaps["cividis"](np.linspace(0, 0.88, n))
    lines: list[Any] = ["-", (0, (5, 1.4)), (0, (1.4, 1)), (0, (5, 1.2, 1.2, 1.2))]
    return [Look(tuple(shades[i]), lines[i % 4], "", width * 0.6) for i in range(n)]


def looks_by_node(recorded: Recorded) -> list[Look]:
    """A colour for each node and a line for each unit, in the order of `lettered`.

    Empty unless there are several nodes, each with one series of each unit.
    """
    import matplotlib as mpl

    nodes = list(dict.fromkeys(s.node for s in recorded.series))
    pairs = [(s.unit, s.node) for of_unit in lettered(recorded).values() for s in of_unit]
    complete = len(set(pairs)) == len(pairs) == len(nodes) * len(recorded.units)
    if not complete or "" in nodes or not 1 < len(nodes) <= len(style.SERIES):
        return []
    if len(recorded.units) > len(_UNIT_LINES):
        return []
    width = float(mpl.rcParams["lines.linewidth"])
    return [
        Look(
            style.SERIES[nodes.index(node)].colour,
            _UNIT_LINES[recorded.units.index(unit)],
            style.SERIES[nodes.index(node)].mark,
            width,
        )
        for unit, node in pairs
    ]


def many(layout: Layout, axes: Sequence[Any], names: Sequence[str], sizes: Sequence[float]) -> None:
    """Draw a colour bar for more series than a legend has space for, with the names of the largest."""
    shades = colormaps["cividis"].resampled(256)
    from matplotlib.colors import ListedColormap

    cut = ListedColormap(shades(np.linspace(0, 0.88, 256)))
    bar = layout.fig.colorbar(
        ScalarMappable(Normalize(1, len(names)), cut), ax=list(axes), aspect=30, pad=0.01
    )
    bar.set_ticks([1, len(names)], labels=[_short(names[0], 16), _short(names[-1], 16)])
    bar.ax.tick_params(length=0, rotation=90)
    low, high = bar.ax.get_yticklabels()
    low.set_verticalalignment("bottom")
    high.set_verticalalignment("top")
    bar.set_label(f"{len(names)} series in order", labelpad=-layout.text * 0.4)
    bar.outline.set_visible(False)
    look_of = looks(len(names))
    largest = sorted(np.argsort(-np.nan_to_num(np.asarray(sizes, float)), kind="stable")[:LARGEST])
    handles = [handle(look_of[i], bool(look_of[i].mark)) for i in largest]
    layout.legend(handles, [names[i] for i in largest])


def size_of(series: Sequence[Series]) -> float:
    """Mean of the values of some series, for the selection of named ones; 0 without a value."""
    values = np.concatenate([s.y for s in series])
    values = values[np.isfinite(values)]
    return float(np.mean(values)) if len(values) else 0.0


def lettered(recorded: Recorded) -> dict[str, list[Series]]:
    """The series by unit; series of a unit share an axis."""
    return {unit: [s for s in recorded.series if s.unit == unit] for unit in recorded.units}


def quantity_of(series: Sequence[Series]) -> str:
    """Quantity of the series of an axis, or empty if there are several."""
    names = {s.quantity for s in series} - {""}
    return names.pop().replace("_", " ") if len(names) == 1 else ""


def names_of(recorded: Recorded) -> dict[str, list[Series]]:
    """Names for the legend: nodes if each has the same quantities, else the series."""
    by_node: dict[str, list[Series]] = {}
    for s in recorded.series:
        by_node.setdefault(s.node, []).append(s)
    sets = [sorted((s.quantity, s.unit, s.run) for s in of_node) for of_node in by_node.values()]
    alike = all(s == sets[0] for s in sets) and "" not in by_node
    one_each = all(
        len({(s.unit, s.run) for s in of_node}) == len(of_node) for of_node in by_node.values()
    )
    if alike and one_each:
        keyed: dict[str, list[Series]] = {
            _with_run(n, s): [] for n, of_node in by_node.items() for s in of_node
        }
        for n, of_node in by_node.items():
            for s in of_node:
                keyed[_with_run(n, s)].append(s)
        return keyed
    by_name: dict[str, list[Series]] = {}
    for s, name in zip(recorded.series, _plain_names(recorded.series), strict=True):
        by_name.setdefault(name, []).append(s)
    return by_name


def _with_run(name: str, series: Series) -> str:
    return " ".join(p for p in (series.group, series.run, name) if p)


def _plain_names(series: Sequence[Series]) -> list[str]:
    """The names without their common leading words."""
    names = [_with_run(s.name, s) for s in series]
    if len(set(names)) < 2:
        return names
    first, last = min(names), max(names)
    same = next(
        (i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first)
    )
    common = first[:same]
    cut = max(common.rfind(" "), common.rfind("{")) + 1
    return names if cut < 4 or common[cut - 1] == "{" else [n[cut:] for n in names]


def multiple(unit: str, largest: float) -> tuple[float, str]:
    """Divisor of values for display, and the resulting unit: the multiple that suits the largest value."""
    per, shown = 1.0, unit
    for factor, name in _MULTIPLES.get(unit, ()):
        if largest >= factor * (1 if factor == 1 else 2):
            per, shown = factor, name
    if unit not in _MULTIPLES and unit != "%" and largest >= 1e5:
        power = 3 * int(np.log10(largest) // 3)
        per = 10.0**power
        exponent = str(power).translate(_SUPERSCRIPTS)
        shown = f"10{exponent} {'' if unit in ('', '1') else unit}".strip()
    return per, shown


def unit_axis(axis: Any, unit: str, what: str, largest: float) -> float:
    """Label a vertical or horizontal axis with quantity and unit, in a multiple for the largest value.

    Returns the divisor of the values.
    """
    per, shown = multiple(unit, largest)
    axis.set_major_formatter(FuncFormatter(lambda v, _: style.plain_number(v / per)))
    shown = "" if shown == "1" else shown
    label = f"{what} ({shown})" if shown and what else what or shown or "value"
    axis.set_label_text(label)
    return per


def largest_of(series: Sequence[Series]) -> float:
    """The largest absolute value of some series."""
    most = [float(np.nanmax(np.abs(s.y))) for s in series if np.isfinite(s.y).any()]
    return max(most, default=0.0)


def y_axis(axes: Any, series: Sequence[Series], label: str = "", zero: bool = True) -> None:
    """Label the vertical axis of series of one unit; from 0 unless a value is negative."""
    what = label or quantity_of(series) or ("" if series[0].unit else "value")
    unit = series[0].unit
    unit_axis(axes.yaxis, unit, what or ("utilisation" if unit == "%" else ""), largest_of(series))
    lowest = min(float(np.nanmin(s.y)) for s in series if np.isfinite(s.y).any())
    if zero and lowest >= 0:
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    style.grid(axes, "y")


def x_axis(axes: Any, recorded: Recorded, end: float) -> None:
    """Label the horizontal axis: time in the unit that suits its length, or number, or value."""
    if recorded.axis == "time":
        per, name = (1, "s") if end <= 1200 else (60, "min") if end <= 3 * 3600 else (3600, "h")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: style.plain_number(v / per)))
        if per != 1:
            steps = np.array([1, 2, 5, 10, 15, 20, 30, 60, 120, 240, 480, 1440]) * 60
            step = next((s for s in steps if end / s <= 7), None)
            if step is not None:
                axes.set_xticks(np.arange(0, end + step / 2, step))
        since = f"begin of {recorded.origin}" if recorded.origin else "start"
        axes.set_xlabel(f"time since {since} ({name})")
    elif recorded.axis == "index":
        what = recorded.axis_name.replace("_", " ")
        axes.set_xlabel("number" if what in ("", "number") else f"{what} (number)")
        axes.xaxis.set_major_formatter(FuncFormatter(style.plain_number))
    else:
        unit_axis(axes.xaxis, recorded.axis_unit, recorded.axis_name.replace("_", " "), end)
    if recorded.axis != "time" or end <= 1200:
        axes.xaxis.set_major_locator(MaxNLocator(6))


def span(series: Sequence[Series]) -> tuple[float, float]:
    """Least and largest x of some series."""
    ends = [(float(s.x.min()), float(s.x.max())) for s in series if len(s.x)]
    return (min(e[0] for e in ends), max(e[1] for e in ends)) if ends else (0.0, 1.0)


def shaded(
    axes: Sequence[Any], phases: Sequence[Phase], low: float, high: float, text: float
) -> None:
    """Draw phases behind the series in two alternating shades, inner ones darker, names at the top.

    Phases that begin or end outside are cut; slivers and phases over the full axis are not drawn.
    """
    width = high - low
    shown = [
        p
        for p in phases
        if min(p.end_s, high) - max(p.start_s, low) > 0.004 * width
        and not (p.start_s <= low + 0.01 * width and p.end_s >= high - 0.01 * width)
    ]
    shown.sort(key=lambda p: (p.start_s, -p.end_s))
    depth = [
        sum(q is not p and q.start_s <= p.start_s and q.end_s >= p.end_s for q in shown)
        for p in shown
    ]
    deepest = max(depth, default=0)
    for number, (phase, level) in enumerate(zip(shown, depth, strict=True)):
        start, end = max(phase.start_s, low), min(phase.end_s, high)
        for ax in axes:
            shade = 0.5 if (number - level) % 2 == 0 or level else 0.22
            ax.axvspan(start, end, color=style.GRID, alpha=shade, lw=0, zorder=0)
            for edge in (start, end):
                if low < edge < high:
                    ax.axvline(edge, color=style.MUTED, lw=0.5, ls=(0, (2, 2)), zorder=0.5)
        letters = len(phase.name) * text * 0.62 / 72
        inches = (end - start) / width * axes[0].figure.get_size_inches()[0] * 0.8
        if letters <= inches:
            axes[0].annotate(
                phase.name,
                ((start + end) / 2, 1),
                (0, 1.5 + (deepest - level) * (text + 1)),
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontsize=text - 1,
                color=style.MUTED,
            )


def over_time(layout: Layout, axes: Sequence[Any], recorded: Recorded) -> None:
    """Draw the horizontal axis and phases of panels that show series over time or by number."""
    low, high = span(recorded.series)
    low = min(0.0, low) if recorded.axis == "time" and low > -0.02 * (high - low) else low
    room = 0.01 * ((high - low) or 1.0)
    for ax in axes:
        ax.set_xlim(low - room, high + room)
    x_axis(axes[-1], recorded, high - min(low, 0))
    if recorded.axis == "time":
        shaded(axes, recorded.phases, low, high, layout.text)


def cloud(axes: Any, x: Array, y: Array, look: Look, text: float) -> int:
    """Draw points; more than `MOST_MARKS` as a raster of their density, without omissions.

    The axes remain vectors, and must have their limits. Returns the number of points within them.
    """
    if len(x) <= MOST_MARKS:
        size = text * (0.45 if len(x) < 500 else 0.22 if len(x) < 4000 else 0.12)
        axes.plot(x, y, ls="", marker=look.mark or "o", ms=size, color=look.colour, mew=0)
        return len(x)
    fig = axes.figure
    box = fig.get_size_inches()
    columns, rows = int(box[0] * 0.86 / _DOT), int(box[1] * 0.8 / _DOT)
    x_low, x_high = axes.get_xlim()
    bottom, top = axes.get_ylim()
    counts, _, _ = np.histogram2d(
        _scaled(axes.xaxis, x),
        _scaled(axes.yaxis, y),
        bins=(columns, rows),
        range=(_scaled(axes.xaxis, [x_low, x_high]), _scaled(axes.yaxis, [bottom, top])),
    )
    inside = int(counts.sum())
    grown = counts.copy()  # a dot is two pixels wide and high, so that a single one is visible
    grown[1:] += counts[:-1]
    both = grown.copy()
    both[:, 1:] += grown[:, :-1]
    # 32 steps: finer ones are indistinguishable and compress badly
    steps = LogNorm(1, max(2.0, float(both.max())))(np.maximum(both, 1))
    level = np.where(both > 0, 1 + np.round(np.asarray(steps) * 30), 0).astype(int)
    palette = np.vstack([[1, 1, 1, 0], _tints(look.colour, 31)])
    image = (palette[level.T] * 255).astype(np.uint8)
    # a raster of a logarithmic axis is even in the logarithm: place it in axes coordinates
    log = "log" in (axes.get_xscale(), axes.get_yscale())
    axes.imshow(
        image,
        extent=(0, 1, 0, 1) if log else (x_low, x_high, bottom, top),
        transform=axes.transAxes if log else axes.transData,
        origin="lower",
        aspect="auto",
        interpolation="nearest",
        zorder=2,
    )
    axes.set_xlim(x_low, x_high)
    axes.set_ylim(bottom, top)
    return inside


def _scaled(axis: Any, values: Any) -> Array:
    array = np.asarray(values, float)
    return np.log10(array) if axis.get_scale() == "log" else array


def _tints(colour: Any, n: int) -> Array:
    """From a light tint of a colour, dark enough for a single dot, to almost black."""
    from matplotlib.colors import to_rgb

    base = np.asarray(to_rgb(colour))
    share = np.linspace(0, 1, n)[:, None]
    light, dark = 0.62 * base + 0.38, 0.35 * base
    tints = np.where(
        share < 0.5, light + (base - light) * share * 2, base + (dark - base) * (share * 2 - 1)
    )
    return np.column_stack([tints, np.ones(n)])


def line(axes: Any, series: Series, look: Look, raster: bool, few: bool = False) -> Any:
    """Draw one series as a line, with gaps; `few` points have markers as well."""
    (handle,) = axes.plot(
        series.x,
        series.y,
        color=look.colour,
        ls="-" if raster else look.line,
        lw=look.width,
        marker=look.mark if few else "",
        rasterized=raster,
        solid_joinstyle="round",
    )
    handle.set_gid(f"series-{_identifier(series)}")
    return handle


def _identifier(series: Series) -> str:
    text = "-".join(p for p in (series.group, series.run, series.name) if p)
    return "".join(c if c.isalnum() else "-" for c in text)


def handle(look: Look, few: bool = False) -> Line2D:
    """Legend entry of a look."""
    return Line2D(
        [], [], color=look.colour, ls=look.line, lw=look.width, marker=look.mark if few else ""
    )


def by_unit(
    layout: Layout, recorded: Recorded, drawn: Callable[[Any, Series, Look, bool, bool], Any]
) -> None:
    """A panel for each unit with its series, one look for each name, with a legend above or a colour bar."""
    names = names_of(recorded)
    look_of = dict(zip(names, looks(len(names)), strict=True))
    axes = layout.panels(len(recorded.units))
    raster = recorded.points > MOST_VERTICES
    few = recorded.points / max(1, len(recorded.series)) < 25 and len(names) <= MOST_NAMED
    for ax, (unit, series) in zip(axes, lettered(recorded).items(), strict=True):
        inside = {id(s) for s in series}
        for name, of_name in names.items():
            for s in of_name:
                if id(s) in inside and s.unit == unit:
                    drawn(ax, s, look_of[name], raster, few)
        y_axis(ax, series)
    over_time(layout, axes, recorded)
    if len(names) > MOST_NAMED:
        many(layout, axes, list(names), [size_of(of_name) for of_name in names.values()])
    elif len(names) > 1:
        layout.legend([handle(look_of[n], few) for n in names], list(names))
    elif recorded.series[0].name != quantity_of(recorded.series):
        axes[0].set_title(_short(next(iter(names)), 70), fontweight="normal")


def byte_axis(axes: Any, series: Sequence[Series], what: str) -> None:
    """Label a vertical axis of offsets with ticks at powers of two of bytes."""
    top = max(largest_of(series), 1.0)
    unit = marks.byte_axis(axes.yaxis, 0, top, 5)
    axes.set_ylim(-0.02 * top, 1.02 * top)
    axes.set_ylabel(f"{what} ({unit})")
    style.grid(axes, "y")
