"""Figures of results in the form of the published ones, with the published values where the text has them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from penstock.report import style
from penstock.report.render import published

#: ratio above which the published figures call a rate too high
TOO_HIGH = 1.3


@dataclass(frozen=True)
class Point:
    """One case: published values, and measured or computed values by name."""

    label: str
    published: Sequence[float]
    measured: Mapping[str, Sequence[float]] = field(default_factory=dict)


def save(fig: Figure, file: Path) -> None:
    """Write a figure as SVG, with coordinates in hundredths of a point."""
    file.parent.mkdir(parents=True, exist_ok=True)
    text = published(fig, "svg").decode()
    file.write_text(re.sub(r"-?\d+\.\d{3,}", lambda n: f"{float(n[0]):.2f}", text))


def comparison_figure(
    panels: Mapping[str, Sequence[Point]], unit: str, *, log: bool = False
) -> Figure:
    """A panel for each title: published and measured values, case by case."""
    fig = style.figure(style.WIDE_INCHES, 3.2)
    grid = fig.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    names = list(
        dict.fromkeys(name for panel in panels.values() for p in panel for name in p.measured)
    )
    for number, (axes, (title, points)) in enumerate(zip(grid, panels.items(), strict=True)):
        for at, name in enumerate(["published", *names]):
            series, shift = style.SERIES[at], 0.22 * (at - len(names) / 2)
            xs, ys = _values(points, name, shift)
            look = {"ls": "", "ms": 5 if at == 0 else 4, "color": series.colour}
            axes.plot(xs, ys, series.mark, label=name, **look)
        axes.set_xticks(range(len(points)), [p.label for p in points], rotation=60, ha="right")
        axes.set_title(title)
        if log:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(FuncFormatter(style.plain_number))
        style.grid(axes, "y")
        if number == 0:
            axes.set_ylabel(unit)
    grid[-1].legend(loc="best", fontsize=8)
    return fig


def _of(point: Point, name: str) -> Sequence[float]:
    return point.published if name == "published" else point.measured.get(name, ())


def _values(points: Sequence[Point], name: str, shift: float) -> tuple[list[float], list[float]]:
    pairs = [(x + shift, value) for x, point in enumerate(points) for value in _of(point, name)]
    return [x for x, _ in pairs], [y for _, y in pairs]


@dataclass(frozen=True)
class Rate:
    """Delivered over defined rate of one cell; `bound`: the device is slower than the limit."""

    backend: str
    kind: str
    limit_bps: float
    ratio: float
    bound: bool = False


def rate_ratios(rates: Iterable[Rate]) -> Figure:
    """Measured over defined throughput [%] by limit, a panel per back end, with the line at 130 %."""
    finite = [r for r in rates if math.isfinite(r.ratio) and math.isfinite(r.limit_bps)]
    backends = sorted({r.backend for r in finite}) or ["no cell"]
    kinds = sorted({r.kind for r in finite})
    fig = style.figure(style.WIDE_INCHES, 3.2)
    for number, (axes, backend) in enumerate(
        zip(fig.subplots(1, len(backends), squeeze=False, sharey=True)[0], backends, strict=True)
    ):
        for kind in kinds:
            series = style.SERIES[kinds.index(kind) % len(style.SERIES)]
            for bound in (False, True):
                cells = [
                    r for r in finite if (r.backend, r.kind, r.bound) == (backend, kind, bound)
                ]
                x = [r.limit_bps / 1e6 for r in cells]
                y = [100 * r.ratio for r in cells]
                label = "" if bound else kind
                face = "none" if bound else series.colour
                look = {
                    "ls": "",
                    "ms": 4,
                    "markeredgecolor": series.colour,
                    "markerfacecolor": face,
                }
                axes.plot(x, y, series.mark, alpha=0.7, label=label, **look)
        axes.axhline(100, color=style.MUTED, lw=0.8)
        axes.axhline(100 * TOO_HIGH, color=style.INK, lw=0.9, ls="--")
        axes.set_title(backend)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(style.plain_number))
        axes.set_ylim(bottom=0)
        axes.set_xlabel("defined throughput (MB/s)")
        style.grid(axes)
        if number == 0:
            axes.set_ylabel("measured over defined throughput (%)")
            axes.legend(loc="lower left", fontsize=8)
    return fig


@dataclass(frozen=True)
class Cells:
    """A response of a study by three factors: a panel for each pair of `across`, a line for each of `lines`.

    `only`: levels of further factors. Levels of `along` are in the order of their values.
    """

    response: str
    unit: str
    along: Mapping[str, str]
    along_label: str
    factor: str
    across: tuple[str, str]
    lines: tuple[str, str]
    only: Mapping[str, str] = field(default_factory=dict)


def cell_means(table: pd.DataFrame, of: Cells) -> Figure:
    """Mean of the valid runs of each cell, with a dot per run."""
    valid = table[table["valid"].eq(True)]
    for name, level in of.only.items():
        valid = valid[valid[name].astype(str) == level]
    first, second = of.across
    panels = sorted({(str(a), str(b)) for a, b in zip(valid[first], valid[second], strict=True)})
    fig = style.figure(style.WIDE_INCHES, 4.4)
    columns = max(1, (len(panels) + 1) // 2)
    grid = fig.subplots(2, columns, squeeze=False, sharex=True).ravel()
    for axes, panel in zip(grid, panels or [("no", "run")], strict=False):
        runs = valid[
            (valid[first].astype(str) == panel[0]) & (valid[second].astype(str) == panel[1])
        ]
        _lines(axes, runs, of)
        axes.set_title(" ".join(panel))
        axes.set_xticks(range(len(of.along)), list(of.along.values()))
        axes.set_ylim(bottom=0)
        style.grid(axes)
    grid[0].set_ylabel(f"{of.response} ({of.unit})")
    if grid[0].get_legend_handles_labels()[0]:
        grid[0].legend(loc="best", fontsize=7.5)
    for axes in grid[-columns:]:
        axes.set_xlabel(of.along_label)
    return fig


def _lines(axes: Axes, runs: pd.DataFrame, of: Cells) -> None:
    names = zip(runs[of.lines[0]].astype(str), runs[of.lines[1]].astype(str), strict=True)
    places = {level: at for at, level in enumerate(of.along)}
    for number, name in enumerate(sorted(set(names))):
        series = style.SERIES[number % len(style.SERIES)]
        chosen = runs[
            (runs[of.lines[0]].astype(str) == name[0]) & (runs[of.lines[1]].astype(str) == name[1])
        ]
        x = chosen[of.factor].astype(str).map(places).to_numpy(float)
        y = chosen[of.response].to_numpy(float)
        axes.plot(x, y, series.mark, ms=3, alpha=0.6, color=series.colour)
        levels = np.unique(x[np.isfinite(x)])
        means = [float(y[x == level].mean()) for level in levels]
        axes.plot(levels, means, ls=series.line, color=series.colour, label=" ".join(name))


def effect_sizes(sizes: Mapping[str, Mapping[str, float]], marked: Sequence[str]) -> Figure:
    """Effects by term, largest first, a panel per response; `marked`: the largest of the published study."""
    orange = set(marked)
    fig = style.figure(style.WIDE_INCHES, 3.0)
    grid: Any = fig.subplots(1, max(1, len(sizes)), squeeze=False)[0]
    for axes, (response, terms) in zip(grid, sizes.items(), strict=False):
        largest = sorted(terms, key=lambda term: -abs(terms[term]))[:16]
        colours = [style.ORANGE if term in orange else style.BLUE for term in largest]
        axes.bar(range(len(largest)), [abs(terms[term]) for term in largest], color=colours)
        axes.set_xticks(range(len(largest)), largest, rotation=60, fontsize=7.5)
        axes.set_title(f"{response}; orange: the four largest published")
        axes.set_ylabel("effect (logarithm of the ratio)")
        style.grid(axes, "y")
    return fig
