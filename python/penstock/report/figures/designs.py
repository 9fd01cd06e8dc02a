"""Figures of the design, main effects, contours of the surface, a cube of means, the ledger of runs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from penstock.analyse.outcome import Outcome, ResponseUnit
from penstock.analyse.surface.fitted_optimum import fitted_optimum, rounded, setting_text
from penstock.analyse.surface.optimum import plan_of, seeks_optimum, surface_of
from penstock.analyse.surface.surface import At, Merit, Surface, best_setting, numbers_of
from penstock.analyse.treatments.means import ranking
from penstock.errors import PenstockError
from penstock.report import style
from penstock.report.figures.effects import level_means, terms_of
from penstock.report.figures.labels import response_axis
from penstock.report.style import NotDrawn
from penstock.text import quantity, term_text

__all__ = ["contour", "cube", "design", "ledger", "main_effects"]

#: maximum numbers of treatments and factors in the figure of the design
_MOST_TREATMENTS = 48
_MOST_FACTORS = 16
_PALE = LinearSegmentedColormap.from_list("pale", ["#eef4f9", "#8fbfe0", "#1f6ea8"])
#: markers of the levels of a factor, low to high
_LEVELS = ("o", "s", "^", "D", "v", "P", "X", "*")


def design(outcome: Outcome, width: float) -> Figure:
    """Treatments as rows, factors as columns, with the level of each; next to them, the runs in execution
    order."""
    rows = outcome.plan.get("rows") or []
    treatments: dict[str, dict[str, str]] = {}
    for row in rows:
        treatments.setdefault(str(row["treatment_id"]), row["levels"])
    factors = outcome.factors
    if not treatments or not factors:
        raise NotDrawn("plan.json is missing")
    if len(treatments) > _MOST_TREATMENTS or len(factors) > _MOST_FACTORS:
        raise NotDrawn(
            f"{len(treatments)} treatments of {len(factors)} factors are more than a picture shows"
        )
    treatments = dict(sorted(treatments.items()))
    order = {t: len(treatments) - 1 - i for i, t in enumerate(treatments)}
    small = style.narrow(width)
    fig = style.figure(width, 1.35 + 0.16 * len(treatments))
    share = min(0.75, 0.12 + 0.075 * len(factors))
    level_axes, run_axes = fig.subplots(1, 2, sharey=True, width_ratios=[share, 1 - share])
    for x, factor in enumerate(factors):
        for place, level in enumerate(factor.levels):
            of_level = [
                order[t] for t, levels in treatments.items() if str(levels[factor.name]) == level
            ]
            series = style.SERIES[place % len(style.SERIES)]
            filled = place % 2 == 1 if len(factor.levels) == 2 else True
            dots = level_axes.scatter(
                [x] * len(of_level),
                of_level,
                marker=_LEVELS[place % len(_LEVELS)],
                s=26,
                facecolors=series.colour if filled else "none",
                edgecolors=series.colour,
                linewidths=1,
                zorder=3,
            )
            style.tips(fig, dots, [f"{factor.phrase(level)}" for _ in of_level])
    level_axes.set_xticks(
        range(len(factors)),
        [term_text(f.name) for f in factors],
        rotation=45 if len(factors) > 3 or small else 0,
        ha="right" if len(factors) > 3 or small else "center",
    )
    level_axes.set_xlim(-0.6, len(factors) - 0.4)
    every = max(1, len(treatments) // (16 if small else 32))
    shown = [t for i, t in enumerate(treatments) if i % every == 0]
    level_axes.set_yticks([order[t] for t in shown], shown, fontsize=7)
    level_axes.set_ylim(-0.7, len(treatments) - 0.3)
    style.grid(level_axes, "y")
    blocks = sorted({int(r.get("block", 1)) for r in rows})
    for block in blocks:
        of_block = [r for r in rows if int(r.get("block", 1)) == block]
        series = style.SERIES[blocks.index(block) % len(style.SERIES)]
        dots = run_axes.scatter(
            [int(r["run_order"]) for r in of_block],
            [order[str(r["treatment_id"])] for r in of_block],
            marker=series.mark,
            s=16,
            color=series.colour,
            zorder=3,
        )
        style.tips(fig, dots, [f"{r['run_id']}, block {block}" for r in of_block])
    run_axes.set_xlabel("place in the order of runs")
    run_axes.tick_params(axis="y", length=0)
    style.grid(run_axes, "y")
    if 1 < len(blocks) <= 6:
        handles = [
            Line2D([], [], color=s.colour, marker=s.mark, linestyle="", label=f"block {b}")
            for b, s in zip(blocks, itertools.cycle(style.SERIES), strict=False)
        ]
        fig.legend(handles=handles, loc="outside upper left", ncols=3 if small else 6)
    return fig


def main_effects(outcome: Outcome, response: ResponseUnit, width: float) -> Figure:
    """The mean at each level of each factor with its interval, on a common scale."""
    return level_means(outcome, response, width)


def _by_share(outcome: Outcome, response: ResponseUnit) -> list[str]:
    """The factors in descending order of variation explained by their main effects."""
    try:
        table = terms_of(outcome, response)
        by_share = [str(t) for t in table["term"] if ":" not in str(t)]
    except NotDrawn:
        by_share = []
    return by_share + [f.name for f in outcome.factors if f.name not in by_share]


def _best_of(outcome: Outcome, response: ResponseUnit) -> tuple[Surface, At]:
    """The surface of the factors with an effect and its rounded optimum; else those of all factors."""
    fitted = fitted_optimum(outcome, response)
    if fitted is not None:
        return fitted.surface, fitted.at
    surface = surface_of(outcome, response)
    sign = 1.0 if response.better == "higher" else -1.0
    return surface, best_setting(Merit([surface], lambda v: sign * v[0]))


def _star(axes: Axes, at: tuple[float, float], text: str) -> None:
    """The best of a surface with its label, which is drawn towards the middle."""
    axes.scatter(
        [at[0]], [at[1]], marker="*", s=150, color=style.ORANGE, edgecolors=style.PAPER, zorder=5,
        label="best of the surface", clip_on=False,
    )  # fmt: skip
    right, top = (
        v > sum(limits()) / 2 for v, limits in zip(at, (axes.get_xlim, axes.get_ylim), strict=True)
    )
    axes.annotate(
        text, at, (-10 if right else 10, -8 if top else 8), textcoords="offset points", zorder=6,
        fontsize=8.5, ha="right" if right else "left", va="top" if top else "bottom",
        bbox={"facecolor": style.PAPER, "edgecolor": "none", "alpha": 0.85, "pad": 1.5},
    )  # fmt: skip


def contour(outcome: Outcome, response: ResponseUnit, width: float) -> Figure:
    """Contours of the response over its two most important numbers, with the other factors at their best."""
    try:
        factors = {f.name: f for f in plan_of(outcome).factors}
        numeric = [n for n in _by_share(outcome, response) if numbers_of(factors[n]) is not None]
        curved = [n for n in numeric if len(factors[n].levels) > 2]
        if len(numeric) < 2 or not (curved or seeks_optimum(outcome)):
            raise NotDrawn(
                "contours take two factors of numbers, one of them of three levels or more"
            )
        surface, best = _best_of(outcome, response)
        numeric.sort(key=lambda name: name not in best)
    except PenstockError as error:
        raise NotDrawn(str(error)) from None
    across, up = sorted(numeric[:2], key=[f.name for f in outcome.factors].index)
    grids = []
    for name in (across, up):
        values = numbers_of(factors[name])
        assert values is not None
        grids.append(np.linspace(min(values), max(values), 41))
    star = {n: float(best.get(n, g[20])) for n, g in zip((across, up), grids, strict=True)}

    def value_at(x: float, y: float) -> float:
        at = best | {across: x, up: y}
        return surface.predict({f.name: at[f.name] for f in surface.factors}).value

    z = np.array([[value_at(x, y) for x in grids[0]] for y in grids[1]])
    small = style.narrow(width)
    fig = style.figure(width, 3.3 if small else 3.6)
    axes = fig.subplots()
    if not np.ptp(z) > 0:
        raise NotDrawn(f"{response.name} is the same everywhere")
    axes.contourf(*grids, z, levels=12, cmap=_PALE)
    lines = axes.contour(*grids, z, levels=8, colors=style.INK, linewidths=0.7)
    axes.clabel(lines, fmt=style.plain_number, fontsize=7.5)
    runs = outcome.measured
    counted = pd.DataFrame(
        {
            "x": runs[across].astype(str),
            "y": runs[up].astype(str),
        }
    ).value_counts()
    names = {
        n: dict(zip([v.name for v in factors[n].levels], numbers_of(factors[n]) or [], strict=True))
        for n in (across, up)
    }
    places = [(str(key[0]), str(key[1])) for key in counted.index]
    dots = axes.scatter(
        [names[across][x] for x, _ in places],
        [names[up][y] for _, y in places],
        s=26,
        color=style.INK,
        zorder=4,
        label="settings that were run",
        clip_on=False,
    )
    style.tips(
        fig,
        dots,
        [
            f"{across} {x}, {up} {y}: {n} runs"
            for (x, y), n in zip(places, counted.tolist(), strict=True)
        ],
    )
    shown = {f.name: rounded(f, best[f.name]) for f in surface.factors if f.name in (across, up)}
    value = quantity(value_at(star[across], star[up]), response.unit)
    _star(axes, (star[across], star[up]), f"{setting_text(outcome, shown)}:\n{value}")
    for name, setter in ((across, axes.set_xlabel), (up, axes.set_ylabel)):
        unit = outcome.factor(name).unit
        setter(f"{term_text(name)} ({unit})" if unit else term_text(name))
    others = {n: v for n, v in best.items() if n not in (across, up)}
    title = response_axis(outcome, response)
    if others:
        title += f" with {_setting(outcome, others)}"
    axes.set_title(style.wrapped(title, width - 0.8, 9.5))
    fig.legend(loc="outside lower left", ncols=1 if small else 2)
    return fig


def _setting(outcome: Outcome, at: At) -> str:
    parts = []
    for name, value in at.items():
        factor = outcome.factor(name)
        is_level = isinstance(value, str) and value in factor.levels
        parts.append(
            factor.phrase(str(value))
            if is_level
            else f"{name} = {quantity(float(value), factor.unit or '')}"
        )
    return ", ".join(parts)


def cube(outcome: Outcome, response: ResponseUnit, width: float) -> Figure:
    """Means at the corners of a cube of the three most important two-level factors, over all others."""
    two = [f.name for f in outcome.factors if len(f.levels) == 2]
    chosen = [n for n in _by_share(outcome, response) if n in two][:3]
    if len(chosen) < 3 or response.name not in outcome.measured:
        raise NotDrawn("a cube takes three factors of two levels")
    corners = list(itertools.product(*(outcome.factor(n).levels for n in chosen)))
    means_at = _at_corners(outcome, response, chosen, corners)
    small = style.narrow(width)
    fig = style.figure(width, 3.2 if small else 3.5)
    axes = fig.subplots()
    axes.set_aspect("equal")
    axes.axis("off")
    place = {c: _corner(c, outcome, chosen) for c in corners}
    for a, b in itertools.combinations(corners, 2):
        if sum(x != y for x, y in zip(a, b, strict=True)) == 1:
            (x1, y1), (x2, y2) = place[a], place[b]
            axes.plot([x1, x2], [y1, y2], color=style.GRID, linewidth=1.4, zorder=1)
    better = max if response.better == "higher" else min
    top = better(means_at.values())
    low, high = min(means_at.values()), max(means_at.values())
    for corner, (x, y) in place.items():
        value = means_at[corner]
        size = 60 + 240 * (value - low) / ((high - low) or 1)
        is_best = value == top
        dot = axes.scatter(
            [x], [y], s=size, zorder=3, color=style.ORANGE if is_best else style.BLUE,
            edgecolors=style.PAPER,
        )  # fmt: skip
        levels_text = outcome.phrase(dict(zip(chosen, corner, strict=True)))
        style.tips(fig, dot, [f"{levels_text}: {quantity(value, response.unit)}"])
        axes.annotate(
            quantity(value),
            (x, y),
            xytext=(9, 9),
            textcoords="offset points",
            fontsize=8.5,
            fontweight="bold" if is_best else "normal",
        )
    _edges(axes, outcome, chosen)
    axes.margins(x=0.28, y=0.16)
    axes.set_title(style.wrapped(f"mean {response_axis(outcome, response)}", width - 0.6, 9.5))
    handles = [
        Patch(color=style.ORANGE, label="best corner"),
        Patch(color=style.BLUE, label="mean, by size"),
    ]
    fig.legend(handles=handles, loc="outside lower left", ncols=2)
    return fig


def _at_corners(
    outcome: Outcome,
    response: ResponseUnit,
    chosen: Sequence[str],
    corners: Sequence[tuple[str, ...]],
) -> dict[tuple[str, ...], float]:
    """The mean of the treatments at each corner. NotDrawn if a corner lacks one of its treatments, because
    the corners would then be means over different levels of the other factors."""
    means = {str(t.treatment_id): t.mean for t in ranking(outcome, response).treatments}
    planned: dict[tuple[str, ...], set[str]] = {c: set() for c in corners}
    for row in outcome.plan.get("rows") or []:
        corner = tuple(str(row["levels"][n]) for n in chosen)
        planned[corner].add(str(row["treatment_id"]))
    if not all(at and at <= set(means) for at in planned.values()):
        raise NotDrawn("a corner of the cube has no valid run of a treatment")
    return {
        corner: float(np.mean([means[t] for t in sorted(at)])) for corner, at in planned.items()
    }


def _corner(corner: Sequence[str], outcome: Outcome, chosen: Sequence[str]) -> tuple[float, float]:
    a, b, c = (
        outcome.factor(n).levels.index(level) for n, level in zip(chosen, corner, strict=True)
    )
    return a + 0.45 * c, b + 0.32 * c


def _edges(axes: Axes, outcome: Outcome, chosen: Sequence[str]) -> None:
    """Names of factors and levels along three edges."""
    ends: tuple[Sequence[tuple[float, float]], ...] = (
        [(0, 0), (1, 0)], [(0, 0), (0, 1)], [(1, 0), (1.45, 0.32)],
    )  # fmt: skip
    texts = ((0, -14, "center", "top"), (-12, 0, "right", "center"), (14, -3, "left", "top"))
    for name, edge, (right, up, ha, va) in zip(chosen, ends, texts, strict=True):
        factor = outcome.factor(name)
        for level, place in zip(factor.levels, edge, strict=True):
            axes.annotate(
                factor.phrase(level), place, xytext=(right, up), textcoords="offset points",
                ha=ha, va=va, fontsize=8, color=style.MUTED,
            )  # fmt: skip


_PURPOSES = {
    "screen": 0, "augment": 1, "replicates": 1, "optimise": 2, "confirm": 3,
}  # fmt: skip


def ledger(outcome: Outcome, width: float) -> Figure:
    """Response of each run of a staged study, and the best so far."""
    path = outcome.path / "ledger.parquet"
    if not path.exists():
        raise NotDrawn("the study has no stages")
    table = pd.read_parquet(path)
    response = outcome.responses[0]
    fig = style.figure(width, 2.8)
    axes = fig.subplots()
    at = np.arange(1, len(table) + 1)
    for purpose, of_purpose in table.groupby("purpose", sort=False):
        series = style.SERIES[_PURPOSES.get(str(purpose), 4)]
        places = at[table.index.get_indexer(of_purpose.index)]
        dots = axes.scatter(
            places, of_purpose["value"], marker=series.mark, color=series.colour, s=24,
            label=str(purpose), zorder=3,
        )  # fmt: skip
        style.tips(
            fig,
            dots,
            [
                f"{r['run_id']}: {quantity(float(r['value']), response.unit)}; {r['why']}"
                for r in of_purpose.to_dict("records")
            ],
        )
    axes.step(
        at, table["best_so_far"], where="post", color=style.INK, linewidth=1.1, label="best so far"
    )
    axes.set_xlabel("runs, in order")
    axes.set_ylabel(response_axis(outcome, response, upright=True))
    if style.wants_log(table["value"]):
        style.log_axis(axes.yaxis)
    style.grid(axes, "y")
    fig.legend(loc="outside upper left", ncols=3 if style.narrow(width) else 6)
    return fig
