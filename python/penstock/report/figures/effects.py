"""Figures of effects: bars with intervals, Pareto with its limit, interactions, full against half."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from penstock.analyse.findings.assumptions import scale_of_effects
from penstock.analyse.outcome import FactorLevels, Outcome, ResponseUnit
from penstock.analyse.sequential.fraction import half_against_full
from penstock.analyse.statistics.scale import LINEAR, LOG, SCALE_TEXTS
from penstock.analyse.statistics.significance import is_sure, limits
from penstock.analyse.treatments.costs import NO_COST, factor_cost, focal_factor
from penstock.analyse.treatments.means import ranking
from penstock.design.contrasts import effect_coding, products
from penstock.report import style
from penstock.report.figures.labels import response_axis
from penstock.report.style import NotDrawn
from penstock.text import quantities, quantity, ratio_text, square_of, term_text, times


def terms_of(outcome: Outcome, response: ResponseUnit) -> pd.DataFrame:
    """The response's terms in descending order of explained variation, with `sure` = significant (all tested
    together) and `limit`, the smallest significant size.

    NotDrawn without an effects table of the response.
    """
    if outcome.effects is None:
        raise NotDrawn("effects.parquet is missing: too few valid runs, or no analysis")
    table = outcome.effects[outcome.effects["response"] == response.name]
    table = table[outcome.is_effect(table["term"]) & table["variation_share"].notna()].copy()
    if table.empty:
        raise NotDrawn(
            f"effects on {response.name} cannot be compared: combinations have no valid run"
        )
    for column in ("effect_ci_low", "effect_ci_high"):
        if column not in table:
            table[column] = np.nan
        table[column] = table[column].astype(float)
    table["sure"], table["limit"] = is_sure(table), limits(table)
    return table.sort_values("variation_share", ascending=False, kind="stable")


def of_levels(outcome: Outcome) -> bool:
    """True if effects are shown by level means: a single factor, or one of more than two levels."""
    return len(outcome.factors) == 1 or any(len(f.levels) > 2 for f in outcome.factors)


def _tip(row: dict[Any, Any], unit: str) -> str:
    text = term_text(str(row["term"]))
    scale = row.get("scale") or LINEAR
    if math.isfinite(row["effect"]):
        text += f": {_on_scale(scale, unit, float(row['effect']))}"
    low, high = float(row["effect_ci_low"]), float(row["effect_ci_high"])
    if math.isfinite(low):
        text += f" (95 %: {_on_scale(scale, unit, low, high)})"
    share = row.get("variation_share")
    if isinstance(share, float) and math.isfinite(share):
        text += f", {share:.1f} % of the variation"
    return text + ("" if row["sure"] else ", not significant")


def _on_scale(scale: str, unit: str, *effects: float) -> str:
    """Effects on a scale as text: ratios, or differences in the unit of the response."""
    if scale == LOG:
        return " to ".join(map(ratio_text, effects))
    return quantities(effects, unit if scale == LINEAR else "")


def _colour(row: dict[Any, Any]) -> str:
    if square_of(str(row["term"])):
        return style.GREEN
    return style.ORANGE if ":" in str(row["term"]) else style.BLUE


def _height(rows: int) -> float:
    return 1.2 + 0.235 * rows


def _bar(fig: Figure, axes: Any, y: int, length: float, row: dict[Any, Any], unit: str) -> None:
    """The bar of a term; hollow if it is not significant."""
    colour = _colour(row)
    bar = axes.barh(
        y,
        length,
        height=0.62,
        color=colour if row["sure"] else "none",
        edgecolor=colour,
        linewidth=1,
    )
    style.tips(fig, bar[0], [_tip(row, unit)])


def _name_terms(axes: Any, rows: list[dict[Any, Any]], width: float) -> None:
    axes.set_yticks(range(len(rows)), [term_text(str(row["term"])) for row in rows])
    if style.narrow(width):
        axes.tick_params(axis="y", labelsize=7)


def effect_bars(outcome: Outcome, response: ResponseUnit, width: float) -> Figure:
    """Effect of every term, level to level, with its own 95 % interval; hollow if not significant, all tested
    together.

    For factors of more than two levels: the mean at each level with its interval.
    """
    if of_levels(outcome):
        return level_means(outcome, response, width)
    rows = terms_of(outcome, response).to_dict("records")
    fig = style.figure(width, _height(len(rows)))
    axes = fig.subplots()
    for y, row in enumerate(rows):
        _bar(fig, axes, y, row["effect"], row, response.unit)
        if math.isfinite(row["effect_ci_low"]):
            axes.plot(
                [row["effect_ci_low"], row["effect_ci_high"]],
                [y, y],
                color=style.INK,
                linewidth=1.2,
                marker="|",
                markersize=6,
            )
    axes.axvline(0, color=style.MUTED, linewidth=0.8)
    _name_terms(axes, rows, width)
    axes.invert_yaxis()
    gap = "\n" if style.narrow(width) else " "
    axes.set_xlabel(effect_axis(outcome, response, f"effect on {{}},{gap}level to level"))
    if scale_of_effects(outcome, response) == LOG:
        _as_ratios(axes.xaxis)
    style.grid(axes, "x")
    _term_legend(fig, rows, [])
    return fig


def effect_axis(outcome: Outcome, response: ResponseUnit, text: str) -> str:
    """Label of an axis of effects; names the scale if it is not that of the measurement."""
    scale = scale_of_effects(outcome, response)
    if scale == LINEAR:
        return response_axis(outcome, response, text)
    if scale == LOG:
        return text.format(f"{response.name} (ratio)")
    return text.format(f"{response.name} on the scale of {SCALE_TEXTS[scale]}")


def _as_ratios(axis: Axis) -> None:
    """Label the ticks of an axis of natural logarithms as ratios."""
    axis.set_major_locator(MaxNLocator(5))
    axis.set_major_formatter(FuncFormatter(lambda value, _: ratio_text(value)))


def level_means(outcome: Outcome, response: ResponseUnit, width: float) -> Figure:
    """One panel per factor: the mean at each level with its 95 % interval, on a common scale."""
    ranked = ranking(outcome, response)
    means = {f.name: ranked.level_means(f.name) for f in outcome.factors}
    means = {name: level_rows for name, level_rows in means.items() if len(level_rows) > 1}
    if not means:
        raise NotDrawn("there are no two levels with valid runs to compare")
    small = style.narrow(width)
    columns = min(len(means), 2 if small else 4)
    rows = math.ceil(len(means) / columns)
    fig = style.figure(width, 2.5 * rows)
    grid = fig.subplots(rows, columns, squeeze=False, sharey=True)
    log = style.wants_log([m.mean for level_rows in means.values() for m in level_rows])
    for index, (name, level_rows) in enumerate(means.items()):
        axes = grid[index // columns][index % columns]
        at = range(len(level_rows))
        axes.plot(at, [m.mean for m in level_rows], color=style.GRID, linewidth=1.2, zorder=1)
        axes.vlines(
            at,
            [m.low for m in level_rows],
            [m.high for m in level_rows],
            color=style.INK,
            linewidth=1.2,
        )
        dots = axes.scatter(at, [m.mean for m in level_rows], color=style.BLUE, s=36, zorder=3)
        style.tips(
            fig,
            dots,
            [
                f"{outcome.phrase(m.levels)}: {quantity(m.mean, response.unit)} "
                f"(95 %: {quantities([m.low, m.high], response.unit)}; {m.n} runs)"
                for m in level_rows
            ],
        )
        labels = [outcome.factor(name).label(m.levels[name]) for m in level_rows]
        long = len(labels) * max(map(len, labels)) > (20 if small else 68) / columns
        lines = _under(labels, width / columns)
        slanted = long and max(line.count("\n") for line in lines) > 3
        axes.set_xticks(
            at,
            labels if slanted else lines,
            rotation=30 if slanted else 0,
            ha="right" if slanted else "center",
        )
        axes.set_xlim(-0.5, len(level_rows) - 0.5)
        axes.set_title(style.wrapped(term_text(name), width / columns - 0.4, 9.5))
        if index % columns == 0:
            axes.set_ylabel(response_axis(outcome, response, upright=True))
        style.grid(axes, "y")
    style.hide_spare(grid, len(means))
    if log:
        style.log_axis(grid[0][0].yaxis)
    else:
        grid[0][0].yaxis.set_major_formatter(FuncFormatter(style.plain_number))
        if ranked.positive:
            grid[0][0].set_ylim(bottom=0)
    return fig


def _term_legend(fig: Figure, rows: list[dict[Any, Any]], more: list[Any]) -> None:
    names = {style.BLUE: "main effect", style.ORANGE: "interaction", style.GREEN: "curvature"}
    used = {_colour(row) for row in rows}
    handles = [Patch(color=colour, label=name) for colour, name in names.items() if colour in used]
    if not all(row["sure"] for row in rows):
        handles.append(Patch(facecolor="none", edgecolor=style.MUTED, label="not significant"))
    handles += more
    columns = 2 if style.narrow(float(fig.get_size_inches()[0])) else 4
    fig.legend(
        handles=handles, loc="outside upper left", ncols=columns, handlelength=1.3, handleheight=0.9
    )


def pareto(outcome: Outcome, response: ResponseUnit, width: float) -> Figure:
    """Size of every effect with the limit of significance, all tested together; one limit per effect if their
    errors differ.

    For factors of more than two levels: the share of the variation.
    """
    table = terms_of(outcome, response)
    rows = table.to_dict("records")
    by_share = of_levels(outcome)
    of_each = table["limit"].to_numpy(float)
    limit = float(of_each.max())
    fig = style.figure(width, _height(len(rows)))
    axes = fig.subplots()
    for y, row in enumerate(rows):
        share = row["variation_share"]
        length = share if by_share else abs(row["effect"])
        _bar(fig, axes, y, length, row, response.unit)
        axes.annotate(
            f"{share:.1f} %" if share >= 0.05 else "<0.1 %",
            (length, y),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=style.MUTED,
            bbox={"facecolor": style.PAPER, "edgecolor": "none", "pad": 0.8},
            zorder=4,
        )
    more: list[Any] = []
    if math.isfinite(limit) and not by_share:
        dashed: dict[str, Any] = {"color": style.INK, "linestyle": (0, (4, 2)), "linewidth": 1}
        if np.allclose(of_each, limit, rtol=1e-6):
            more = [axes.axvline(limit, **dashed)]
            scale = scale_of_effects(outcome, response)
            more[0].set_label(f"limit {_on_scale(scale, response.unit, limit)}")
        else:
            at = np.arange(len(rows))
            more = [axes.vlines(of_each, at - 0.45, at + 0.45, label="limit of each", **dashed)]
    _term_legend(fig, rows, more)
    _name_terms(axes, rows, width)
    axes.set_ylim(len(rows) - 0.3, -0.6)
    axes.margins(x=0.16)
    axes.set_xlim(left=0)
    if by_share:
        axes.set_xlabel(f"share of the variation of {response.name} (%)")
    else:
        axes.set_xlabel(effect_axis(outcome, response, "|effect| on {}"))
        if scale_of_effects(outcome, response) == LOG:
            _as_ratios(axes.xaxis)
    style.grid(axes, "x")
    return fig


def interactions(outcome: Outcome, response: ResponseUnit, width: float) -> Figure:
    """Significant interactions, largest first: fitted mean at each level of one factor, one line per level of
    the other. The axis is linear like the effects: lines that are not parallel are the interaction.
    """
    table = terms_of(outcome, response)
    pairs = table[
        table["term"].astype(str).str.count(":").eq(1) & table["term"].map(square_of).eq("")
    ]
    runs = outcome.measured
    if pairs.empty or response.name not in runs:
        raise NotDrawn("there is no two-factor interaction to show")
    pairs = pairs[pairs["sure"]]
    if pairs.empty:
        raise NotDrawn(f"no interaction of two factors in {response.name} is significant")
    # below a hundredth of the variation, lines look parallel
    worth = max(1, int((pairs["variation_share"] >= 1).sum()))
    chosen = list(pairs["term"].astype(str))[: min(worth, 3 if style.narrow(width) else 6)]
    columns = 1 if style.narrow(width) else min(3, len(chosen))
    rows = math.ceil(len(chosen) / columns)
    most = max(len(outcome.factor(n).levels) for term in chosen for n in term.split(":"))
    fig = style.figure(width, (2.3 + 0.17 * most) * rows)
    fig.get_layout_engine().set(h_pad=0.09)  # type: ignore[union-attr, call-arg]
    grid = fig.subplots(rows, columns, squeeze=False, sharey=True)
    values = runs.assign(_v=runs[response.name].astype(float))
    values = values[np.isfinite(values["_v"])]
    fitted = fitted_means(outcome.factors, values, list(pairs["term"].astype(str)))
    for index, term in enumerate(chosen):
        axes = grid[index // columns][index % columns]
        a, b = (outcome.factor(n) for n in term.split(":"))
        across, lines = (a, b) if _spread(values, b.name) >= _spread(values, a.name) else (b, a)
        for series, level in zip(style.distinct(len(lines.levels)), lines.levels, strict=True):
            cells = [{lines.name: level, across.name: v} for v in across.levels]
            shown = np.array([fitted[term][cell[a.name], cell[b.name]] for cell in cells])
            axes.plot(
                range(len(across.levels)),
                shown,
                color=series.colour,
                marker=series.mark,
                linestyle=series.line,
                label=lines.phrase(level),
            )
            dots = axes.scatter(
                range(len(across.levels)), shown, s=90, alpha=0.0, color=series.colour
            )
            style.tips(
                fig,
                dots,
                [
                    f"{lines.phrase(level)}, {across.phrase(v)}: {quantity(m, response.unit)}"
                    for v, m in zip(across.levels, shown, strict=True)
                ],
            )
        names = _under([across.phrase(v) for v in across.levels], width / columns)
        axes.set_xticks(range(len(names)), names)
        axes.set_xlim(-0.3, len(across.levels) - 0.7)
        share = float(pairs.loc[pairs["term"] == term, "variation_share"].iloc[0])
        axes.set_title(
            style.wrapped(f"{term_text(term)}, {share:.1f} %", width / columns - 0.4, 9.5),
            pad=8 + 13 * len(lines.levels),
        )
        axes.legend(
            loc="lower left", bbox_to_anchor=(0, 1), handlelength=2.4, borderaxespad=0.1, ncols=1
        )
        style.grid(axes, "y")
        if index % columns == 0:
            axes.set_ylabel(response_axis(outcome, response, upright=True))
    style.hide_spare(grid, len(chosen))
    grid[0][0].yaxis.set_major_formatter(FuncFormatter(style.plain_number))
    return fig


def fitted_means(
    factors: list[FactorLevels], runs: pd.DataFrame, terms: list[str]
) -> dict[str, dict[tuple[str, str], float]]:
    """For each interaction of two factors: the mean of `_v` at each pair of levels, by a least-squares fit of
    all main effects and these interactions.

    Balanced runs have the means of their cells; others are adjusted for the other factors. NaN where these
    runs do not determine the mean.
    """
    coded = {f.name: effect_coding(len(f.levels)) for f in factors}
    place = {f.name: [f.levels.index(v) for v in runs[f.name].astype(str)] for f in factors}
    pairs = [tuple(term.split(":")) for term in terms]

    def columns(at: Mapping[str, Any], count: int) -> np.ndarray[Any, Any]:
        main = {n: c[at[n]] if n in at else np.zeros((count, c.shape[1])) for n, c in coded.items()}
        crossed = [products(main[a], main[b]) for a, b in pairs]
        return np.hstack([np.ones((count, 1)), *main.values(), *crossed])

    design = columns(place, len(runs))
    inverse = np.linalg.pinv(design)
    solution, determined = inverse @ runs["_v"].to_numpy(float), inverse @ design

    def mean(at: Mapping[str, Any]) -> float:
        row = columns(at, 1)
        return float((row @ solution)[0]) if np.allclose(row @ determined, row) else math.nan

    levels = {f.name: f.levels for f in factors}
    return {
        term: {
            (v, w): mean({a: [i], b: [k]})
            for i, v in enumerate(levels[a])
            for k, w in enumerate(levels[b])
        }
        for term, (a, b) in zip(terms, pairs, strict=True)
    }


def _spread(values: pd.DataFrame, factor: str) -> float:
    means = values.groupby(factor, observed=True)["_v"].mean()
    return float(means.max() - means.min())


def costs(outcome: Outcome, response: ResponseUnit, width: float) -> Figure:
    """Cost of the level in question, as a ratio, under every combination of the other factors."""
    focal = focal_factor(outcome, response.name)
    cost = factor_cost(outcome, response, focal) if focal else None
    if cost is None:
        raise NotDrawn("a cost is a ratio of two levels of values above 0, and these are not")
    if len(cost.cells) < 2:
        raise NotDrawn("one combination is described in a sentence")
    cells = sorted(cost.cells, key=lambda cell: -cell.ratio)
    names, size, row_inches = style.names_beside([outcome.phrase(c.where) for c in cells], width)
    fig = style.figure(width, 0.85 + row_inches * len(cells))
    axes = fig.subplots()
    y = np.arange(len(cells))
    axes.axvspan(1 / NO_COST, NO_COST, color=style.GRID, alpha=0.9, linewidth=0)
    axes.axvline(1, color=style.MUTED, linewidth=0.8)
    axes.hlines(y, [c.low for c in cells], [c.high for c in cells], color=style.INK, linewidth=1.2)
    for series, use in (
        (style.SERIES[1], [c.ratio > NO_COST for c in cells]),
        (style.SERIES[0], [c.ratio <= NO_COST for c in cells]),
    ):
        points = [(i, c) for i, (c, u) in enumerate(zip(cells, use, strict=True)) if u]
        if not points:
            continue
        dots = axes.scatter(
            [c.ratio for _, c in points],
            [i for i, _ in points],
            color=series.colour,
            marker=series.mark,
            s=40,
            zorder=3,
        )
        style.tips(
            fig,
            dots,
            [
                f"{outcome.phrase(c.where)}: {times(c.ratio)} (95 %: {times(c.low)} to {times(c.high)})"
                for _, c in points
            ],
        )
    ratios = [c.ratio for c in cells]
    if style.wants_log(ratios) or max(ratios) > 4:
        style.log_axis(axes.xaxis)
    for i, cell in enumerate(cells):
        axes.annotate(
            times(cell.ratio),
            (max(cell.ratio, cell.high if math.isfinite(cell.high) else 0), i),
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
        )
    axes.set_yticks(range(len(cells)), names, fontsize=size)
    axes.set_ylim(len(cells) - 0.5, -0.6)
    low, high = axes.get_xlim()
    room = 0.14  # fraction of the axis, for the numbers next to the marks
    if axes.get_xscale() == "log":
        axes.set_xlim(right=high * (high / low) ** room)
    else:
        axes.set_xlim(right=high + room * (high - low))
    shown = outcome.factor(cost.factor).shown
    axes.set_xlabel(
        f"cost of {shown(cost.level)} relative to {shown(cost.other)}\n(ratio of {response.name}; 1 = none)"
    )
    style.grid(axes, "x")
    return fig


def fraction(outcome: Outcome, response: ResponseUnit, width: float) -> Figure:
    """Estimates of each effect from the full design and from the half fraction of its runs."""
    compared = half_against_full(outcome, response.name)
    if compared is None:
        raise NotDrawn(
            "it takes a full two-level design of three factors or more with a valid run of every treatment"
        )
    rows = compared["rows"]
    scale = compared["scale"]
    fig = style.figure(width, 0.95 + 0.3 * len(rows))
    axes = fig.subplots()
    for offset, key, name, series in (
        (-0.16, "full", f"full design, {compared['of']} runs", style.SERIES[0]),
        (0.16, "half", f"half fraction, {compared['runs']} runs", style.SERIES[1]),
    ):
        y = np.arange(len(rows)) + offset
        centre = np.array([r[key] for r in rows])
        axes.hlines(
            y,
            [r[f"{key}_low"] for r in rows],
            [r[f"{key}_high"] for r in rows],
            color=series.colour,
            linewidth=1.4,
        )
        dots = axes.scatter(centre, y, color=series.colour, marker=series.mark, s=28, label=name)
        style.tips(
            fig,
            dots,
            [
                f"{term_text(r['term'])}, {name}: {_on_scale(scale, response.unit, r[key])}"
                for r in rows
            ],
        )
    axes.axvline(0, color=style.MUTED, linewidth=0.8)
    axes.set_yticks(
        range(len(rows)),
        [term_text(r["term"]) + (" (!)" if r["wrong"] else "") for r in rows],
    )
    if style.narrow(width):
        axes.tick_params(axis="y", labelsize=7.5)
    axes.invert_yaxis()
    axes.set_xlabel(effect_axis(outcome, response, "effect on {}"))
    if scale == LOG:
        _as_ratios(axes.xaxis)
    style.grid(axes, "x")
    fig.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=1)
    return fig


def _under(labels: list[str], inches: float) -> list[str]:
    """Labels of adjacent ticks, in lines that fit a panel of that width."""
    return [style.wrapped(label, (inches - 0.6) / len(labels), 8, False) for label in labels]
