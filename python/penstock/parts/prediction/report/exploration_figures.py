"""Figures of an exploration: time against cost with the Pareto front, and the two strongest decisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from penstock.parts.prediction.exploration.compare import INDIFFERENCE
from penstock.parts.prediction.exploration.describe import axis_word, describe, spaced
from penstock.parts.prediction.exploration.effects import best_over
from penstock.parts.prediction.exploration.run import Exploration
from penstock.parts.prediction.exploration.space.space import Candidate
from penstock.parts.prediction.report.exploration_text import CENTS, amount, metric_word, tied
from penstock.report import style
from penstock.report.style import NotDrawn

#: cells of the plane with one plotted configuration each, which limits the size of the file
_CELLS = (150, 100)
_LABELS = 7
#: ratio of values above which an axis is logarithmic: the knee is one of ratios
_LOGARITHMIC = 3.0


@dataclass(frozen=True)
class Unit:
    """A readable unit: its name and its size in base units."""

    name: str
    size: float


def fitting(exploration: Exploration, metric: str, values: Sequence[float]) -> Unit:
    """The largest unit in which the largest value is above 1 (time: seconds up to 2 h)."""
    largest = max(values, default=1.0)
    if metric == "makespan_s":
        return Unit("h", 3600.0) if largest > 7200 else Unit("s", 1.0)
    if metric == "energy_j":
        steps = [("GJ", 1e9), ("MJ", 1e6), ("kJ", 1e3), ("J", 1.0)]
    else:
        money = exploration.record.evaluator.currency
        if money in CENTS and 1e-4 <= largest < 1:
            return Unit("ct", 1e-2)
        steps = [(money, 1.0), (f"{money}/1000", 1e-3), (f"{money}/10⁶", 1e-6)]
    return Unit(*next(((n, size) for n, size in steps if largest >= size), steps[-1]))


def plane(exploration: Exploration) -> tuple[str, str]:
    """The two metrics of the scatter: time, and cost or energy."""
    others = [m for m in ("cost", "energy_j") if m in exploration.metrics]
    if not others:
        raise NotDrawn("the platform has neither prices nor powers, so only time is available")
    return "makespan_s", others[0]


def front_figure(exploration: Exploration, chosen: Candidate | None, width: float) -> Figure:
    """Every admissible configuration by time and cost, its Pareto front joined and labelled."""
    if len(exploration.admissible) < 2:
        raise NotDrawn("fewer than two configurations are admissible")
    across, up = plane(exploration)
    means = {c: exploration.means.of(c) for c in exploration.admissible}
    unit_x = fitting(exploration, across, [m[across] for m in means.values()])
    unit_y = fitting(exploration, up, [m[up] for m in means.values()])
    place = {c: (m[across] / unit_x.size, m[up] / unit_y.size) for c, m in means.items()}
    x, y = np.array([place[c] for c in exploration.admissible]).T
    small = style.narrow(width)
    fig = style.figure(width, 3.6 if small else 4.3)
    axes = fig.subplots()
    chosen_cells = _one_per_cell(x, y)
    front = set(exploration.front)
    rest = [i for i in chosen_cells if exploration.admissible[i] not in front]
    dots = axes.scatter(x[rest], y[rest], s=9, color=style.MUTED, alpha=0.55, linewidths=0)
    style.tips(
        fig,
        dots,
        [
            _tip(exploration, exploration.admissible[i], means[exploration.admissible[i]])
            for i in rest
        ],
    )
    members = sorted(exploration.front, key=lambda c: means[c][across])
    # with three objectives some members lie above the line in this plane
    line = [c for c in members if not any(_beats(means[o], means[c], across, up) for o in members)]
    axes.step(
        [place[c][0] for c in line],
        [place[c][1] for c in line],
        where="post",
        color=style.BLUE,
        linewidth=1.1,
        alpha=0.8,
    )
    marks = axes.scatter(
        [place[c][0] for c in members],
        [place[c][1] for c in members],
        s=30,
        color=style.BLUE,
        zorder=3,
        linewidths=0,
    )
    style.tips(fig, marks, [_tip(exploration, c, means[c]) for c in members])
    ties = [c for c in tied(exploration) if c != chosen]
    best = [chosen] if chosen is not None and chosen in means else []
    for candidates, marker, size, line_width in ((ties, "o", 70, 1.2), (best, "D", 95, 1.8)):
        rings = axes.scatter(
            [place[c][0] for c in candidates],
            [place[c][1] for c in candidates],
            s=size,
            marker=marker,
            facecolor="none",
            edgecolor=style.ORANGE,
            linewidths=line_width,
            zorder=4,
        )
        style.tips(fig, rings, [_tip(exploration, c, means[c]) for c in candidates])
    for values, axis, scale in ((x, axes.xaxis, axes.set_xscale), (y, axes.yaxis, axes.set_yscale)):
        if values.min() > 0 and values.max() / values.min() > _LOGARITHMIC:
            scale("log")
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=12))
            axis.set_major_formatter(FuncFormatter(style.plain_number))
            axis.set_minor_formatter(NullFormatter())
        else:
            axis.set_major_formatter(FuncFormatter(style.plain_number))
            axis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(f"time ({unit_x.name})")
    axes.set_ylabel(f"{metric_word(up)} ({unit_y.name})")
    style.grid(axes)
    axes.margins(0.06)
    # the region below and left of the front is empty: place its labels there
    corner = axes.transAxes.transform((-0.34 if small else -0.17, -0.07))
    axes.set_xlim(left=axes.transData.inverted().transform(corner)[0])
    axes.set_ylim(bottom=axes.transData.inverted().transform(corner)[1])
    _label(exploration, axes, line, place, chosen, 3 if small else _LABELS)
    return fig


def _one_per_cell(x: np.ndarray, y: np.ndarray) -> list[int]:
    """Indices of the points to plot: the first in each cell of a fine grid over the plane."""
    a, b = np.log(np.maximum(x, 1e-12)), np.log(np.maximum(y, 1e-12))
    keys = []
    for values, cells in ((a, _CELLS[0]), (b, _CELLS[1])):
        span = float(np.ptp(values)) or 1.0
        keys.append(np.minimum(((values - values.min()) / span * cells).astype(int), cells - 1))
    _, first = np.unique(keys[0] * _CELLS[1] + keys[1], return_index=True)
    return sorted(int(i) for i in first)


def _beats(a: dict[str, float], b: dict[str, float], across: str, up: str) -> bool:
    no_worse = a[across] <= b[across] and a[up] <= b[up]
    return no_worse and (a[across] < b[across] or a[up] < b[up])


def _label(
    exploration: Exploration,
    axes: object,
    line: Sequence[Candidate],
    place: dict[Candidate, tuple[float, float]],
    chosen: Candidate | None,
    most: int,
) -> None:
    """Short labels of some members of the front, ends and the chosen one first, without overlap."""
    order = [c for c in [chosen, *line[:1], *line[-1:]] if c is not None and c in place]
    order += (
        [line[i] for i in np.linspace(0, len(line) - 1, most).round().astype(int)] if line else []
    )
    placed: list[tuple[float, float]] = []
    figure = axes.figure  # type: ignore[attr-defined]
    figure.get_layout_engine().execute(figure)
    for candidate in dict.fromkeys(order):
        point = place[candidate]
        px, py = axes.transData.transform(point)  # type: ignore[attr-defined]
        if len(placed) >= most or any(abs(px - a) < 105 and abs(py - b) < 14 for a, b in placed):
            continue
        placed.append((px, py))
        axes.annotate(  # type: ignore[attr-defined]
            short(exploration, candidate),
            point,
            textcoords="offset points",
            xytext=(-6, -3),
            ha="right",
            va="top",
            fontsize=7.5,
            color=style.ORANGE if candidate == chosen else style.INK,
            zorder=5,
        )


def short(exploration: Exploration, candidate: Candidate) -> str:
    """The levels of the two strongest decisions that vary along the front: `14+5, 256 KiB`.

    A second decision that makes no difference is left out.
    """
    labels = exploration.space.labels(candidate)
    texts: list[str] = []
    for effect in exploration.effects[exploration.main_metric]:
        k = next(i for i, a in enumerate(exploration.space.axes) if a.name == effect.axis)
        if texts and effect.worst_loss <= INDIFFERENCE:
            continue
        if len({c[k] for c in exploration.front}) > 1:
            label = spaced(labels[effect.axis])
            texts.append(f"{label} hosts" if effect.axis.endswith(".count") else label)
    return ", ".join(texts[:2])


def _tip(exploration: Exploration, candidate: Candidate, mean: dict[str, float]) -> str:
    amounts = ", ".join(amount(exploration, m, mean[m]) for m in exploration.metrics)
    return f"{describe(exploration.space, candidate)}: {amounts}"


def heat_figure(exploration: Exploration, chosen: Candidate | None, width: float) -> Figure:
    """The best over all other axes, for each pair of levels of the two strongest decisions."""
    metric = exploration.main_metric
    by_effect = [e.axis for e in exploration.effects[metric] if len(e.levels) > 1]
    strongest = list(exploration.heat_axes) or by_effect[:2]
    if len(strongest) < 2:
        raise NotDrawn("there are not two decisions with two levels")
    names = [a.name for a in exploration.space.axes]
    # the one with more levels is horizontal
    column, row = sorted(
        (names.index(n) for n in strongest), key=lambda k: -len(exploration.space.axes[k].levels)
    )
    exact = [c for c in exploration.admissible if exploration.means.exact(c)]
    values = [exploration.means.of(c)[metric] for c in exact]
    unit = fitting(exploration, metric, values)
    values = [v / unit.size for v in values]
    table = best_over(exploration.space, exact, values, row, column)
    rows, columns = table.shape
    small = style.narrow(width)
    height = min(6.5, 1.35 + max(0.24, 0.34 - 0.004 * rows) * rows)
    fig = style.figure(width, max(1.9, height))
    axes = fig.subplots()
    finite = table[np.isfinite(table)]
    low, high = float(finite.min()), float(finite.max())
    norm = LogNorm(low, max(high, low * 1.0001))
    colours = LinearSegmentedColormap.from_list("heat", ["#0b4f8a", "#5aa7d6", "#e8eef4"])
    colours.set_bad("none")
    edges_x, edges_y = np.arange(columns + 1) - 0.5, np.arange(rows + 1) - 0.5
    mesh = axes.pcolormesh(
        edges_x, edges_y, np.ma.masked_invalid(table), cmap=colours, norm=norm, linewidth=0
    )
    fits = columns * (5.2 if high < 1000 else 6.5) < width * 11.5
    for i in range(rows):
        for j in range(columns):
            if fits and np.isfinite(table[i, j]):
                dark = norm(table[i, j]) < 0.45
                axes.text(
                    j,
                    i,
                    _cell(table[i, j]),
                    ha="center",
                    va="center",
                    fontsize=7,
                    color="#fdfdfd" if dark else "#1b1f23",
                )
    best = divmod(int(np.nanargmin(table)), columns)
    axes.plot(best[1], best[0], "o", ms=15, mfc="none", mec=style.ORANGE, mew=1.6)
    if chosen is not None and (chosen[row], chosen[column]) != best:
        axes.plot(chosen[column], chosen[row], "D", ms=12, mfc="none", mec=style.ORANGE, mew=1.6)
    for k, axis, limit in ((column, axes.xaxis, 9 if small else 18), (row, axes.yaxis, 20)):
        labels = [spaced(v) for v in exploration.space.axes[k].labels]
        step = max(1, -(-len(labels) // limit))
        axis.set_ticks(range(0, len(labels), step), labels[::step])
        axis.set_label_text(axis_word(exploration.space.axes[k]))
    if max(len(v) for v in exploration.space.axes[column].labels) > 3 and columns > (
        5 if small else 11
    ):
        axes.tick_params(axis="x", labelrotation=60)
    axes.set_ylim(rows - 0.5, -0.5)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    bar = fig.colorbar(mesh, ax=axes, pad=0.015, aspect=18, shrink=0.95)
    bar.set_label(f"best {metric_word(metric)} ({unit.name})")
    bar.outline.set_visible(False)
    ticks = [low, (low * high) ** 0.5, high] if high > 1.02 * low else [low]
    bar.set_ticks(ticks, labels=[_cell(t) for t in ticks])
    bar.ax.yaxis.set_minor_formatter(NullFormatter())
    bar.ax.tick_params(which="minor", length=0)
    return fig


def _cell(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


FIGURES: dict[str, Callable[[Exploration, Candidate | None, float], Figure]] = {
    "front": front_figure,
    "decisions": heat_figure,
}
