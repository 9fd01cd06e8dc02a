"""Diagnostics of tested effects: half-normal plot, residuals against fitted values and run order."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.special import ndtri

from penstock.analyse.findings.assumptions import scale_of_effects
from penstock.analyse.outcome import Outcome, ResponseUnit
from penstock.analyse.statistics.scale import LINEAR, LOG
from penstock.report import style
from penstock.report.figures.effects import effect_axis, of_levels, terms_of
from penstock.report.figures.labels import response_axis
from penstock.report.style import NotDrawn
from penstock.text import term_text

#: maximum number of effects with a label
_MOST_NAMED = 8
#: minimum number of effects for a plot of their distribution
_LEAST = 4


def half_normal(outcome: Outcome, response: ResponseUnit, width: float) -> Figure:
    """Half-normal quantiles over sizes of effects: noise lies on a line through 0 (Daniel, Technometrics
    1, 1959). In units of the limit of significance: effects of several strata share one line, and 1 is the
    limit."""
    table = terms_of(outcome, response)
    if of_levels(outcome):
        raise NotDrawn("terms of factors of more than two levels have no single size")
    table = table[table["effect"].notna()]
    if len(table) < _LEAST:
        raise NotDrawn(f"{len(table)} effects are too few for their distribution")
    limit = table["limit"]
    in_limits = bool((limit > 0).all())
    size = table["effect"].abs() / limit if in_limits else table["effect"].abs()
    table = table.assign(_size=size).sort_values("_size")
    m = len(table)
    x = ndtri(0.5 + 0.5 * (np.arange(1, m + 1) - 0.5) / m)
    y = table["_size"].to_numpy(float)
    if not y.max() > 0:
        raise NotDrawn(f"all effects on {response.name} are 0")
    # one height per effect, so that labels do not overlap
    fig = style.figure(width, 2.2 + 0.13 * m)
    axes = fig.subplots()
    chance = ~table["sure"].to_numpy(bool)
    if chance.sum() >= 2 and y[chance].any():
        slope = float(x[chance] @ x[chance] / (x[chance] @ y[chance]))
        top = min(float(x[-1]), slope * float(y.max()))
        axes.plot([0, top / slope], [0, top], color=style.MUTED, linewidth=1)
    if in_limits:
        axes.axvline(1, color=style.INK, linestyle=(0, (4, 2)), linewidth=1, label="limit")
    main = ~table["term"].astype(str).str.contains(":").to_numpy(bool)
    for series, kind, label in (
        (style.SERIES[0], main, "main effect"),
        (style.SERIES[1], ~main, "interaction"),
    ):
        for sure in (True, False):
            members = kind & (table["sure"].to_numpy(bool) == sure)
            if not members.any():
                continue
            dots = axes.scatter(
                y[members],
                x[members],
                marker=series.mark,
                s=34,
                facecolors=series.colour if sure else "none",
                edgecolors=series.colour,
                label=f"{label}{'' if sure else ', not significant'}",
                zorder=3,
            )
            style.tips(fig, dots, [term_text(str(t)) for t in table["term"][members]])
    widest = float(y.max())
    for i in [i for i in range(m) if not chance[i]][-_MOST_NAMED:]:
        far = y[i] > 0.5 * widest
        axes.annotate(
            term_text(str(table["term"].iloc[i])),
            (y[i], x[i]),
            xytext=(-7 if far else 7, 0),
            textcoords="offset points",
            ha="right" if far else "left",
            va="center",
            fontsize=8,
            color=style.INK,
        )
    axes.set_xlim(left=0, right=1.06 * max(widest, 1.0 if in_limits else 0.0))
    axes.set_ylim(bottom=0, top=1.08 * float(x[-1]))
    axes.set_ylabel("half-normal quantile")
    small = style.narrow(width)
    what = "|effect| ÷ the least that is significant"
    if not in_limits:
        what = effect_axis(outcome, response, "|effect| on {}")
    axes.set_xlabel(what)
    style.grid(axes, "x")
    fig.legend(loc="outside upper left", ncols=2 if small else 4, handlelength=1.2)
    return fig


def residuals(outcome: Outcome, response: ResponseUnit, width: float) -> Figure:
    """Studentised residuals against fitted values and run order; flagged runs are labelled."""
    path = outcome.path / "residuals.parquet"
    if not path.exists():
        raise NotDrawn("residuals.parquet is missing: effects were not computed")
    table = pd.read_parquet(path)
    table = table[table["response"] == response.name]
    if len(table) and not table["residual"].any():
        raise NotDrawn(f"the model meets every run: all residuals of {response.name} are 0")
    table = table[np.isfinite(table["studentised"].astype(float))]
    if len(table) < _LEAST:
        raise NotDrawn(f"the model leaves no degrees of freedom for residuals of {response.name}")
    small = style.narrow(width)
    fig = style.figure(width, 5.0 if small else 2.9)
    panels = fig.subplots(2 if small else 1, 1 if small else 2, sharey=True, squeeze=False)
    scale = scale_of_effects(outcome, response)
    fitted_name = response_axis(outcome, response)
    if scale not in (LINEAR, LOG):
        fitted_name = f"{response.name} ({scale} scale)"
    flagged = (table["flag"] != "").to_numpy(bool)
    y = table["studentised"].to_numpy(float)
    tips = [f"{r.run_id}: {r.studentised:.2f}" for r in table.itertuples()]
    for axes, column, name in zip(
        panels.flat, ("fitted", "run_order"), (f"fitted {fitted_name}", "run order"), strict=True
    ):
        x = table[column].to_numpy(float)
        if column == "fitted" and scale == LOG:
            x = np.exp(x)
        axes.axhline(0, color=style.MUTED, linewidth=0.8)
        for level in (-2, 2):
            axes.axhline(level, color=style.GRID, linewidth=0.8, linestyle=(0, (4, 2)))
        dots = axes.scatter(x, y, s=20, color=style.BLUE, alpha=0.75, linewidths=0)
        style.tips(fig, dots, tips)
        if flagged.any():
            axes.scatter(x[flagged], y[flagged], s=70, facecolors="none", edgecolors=style.ORANGE)
            for at, value, run in zip(
                x[flagged], y[flagged], table["run_id"][flagged], strict=True
            ):
                axes.annotate(
                    str(run),
                    (at, value),
                    xytext=(6, 0),
                    textcoords="offset points",
                    fontsize=8,
                    va="center",
                )
        axes.set_xlabel(name)
        axes.margins(x=0.08)
        if column == "fitted" and scale == LOG and style.wants_log(x):
            style.log_axis(axes.xaxis)
        else:
            style.plain_axis(axes.xaxis, style.NARROW_INCHES)
        style.grid(axes, "y")
        if small or column == "fitted":
            axes.set_ylabel("residual (studentised)")
    return fig
