"""Responses by treatment with every replicate, and predictions compared with measurements."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from penstock.analyse.findings.study_findings import AGREEMENT_LIMIT
from penstock.analyse.outcome import Outcome, ResponseUnit
from penstock.analyse.treatments.costs import focal_factor
from penstock.analyse.treatments.means import ranking
from penstock.report import style
from penstock.report.figures.labels import response_axis
from penstock.report.style import NotDrawn
from penstock.text import fitting, quantity


def by_treatment(outcome: Outcome, response: ResponseUnit, width: float) -> Figure:
    """Every replicate of every treatment as a dot, the best treatment first as in the table of treatments;
    runs excluded from the analysis are hollow."""
    runs = outcome.runs
    if runs is None or response.name not in runs:
        raise NotDrawn(f"runs.parquet has no column {response.name}")
    shown = runs[np.isfinite(runs[response.name].astype(float))].copy()
    if shown.empty:
        raise NotDrawn(f"no run has a value of {response.name}")
    focal = focal_factor(outcome, response.name)
    order = _order(outcome, response, shown)
    labels = {t: outcome.phrase(outcome.levels(t)) for t in order}
    scale, unit = fitting(shown[response.name].astype(float), response.unit)
    shown["_shown"] = shown[response.name].astype(float) * scale
    names, size, row_inches = style.names_beside(list(labels.values()), width)
    fig = style.figure(width, 0.75 + row_inches * len(order))
    axes = fig.subplots()
    valid = shown["valid"].fillna(False).astype(bool) if "valid" in shown else shown["run_id"] != ""
    levels = outcome.factor(focal).levels if focal else [""]
    log = style.wants_log(shown[response.name])
    for series, level in zip(style.distinct(len(levels)), levels, strict=True):
        of_level = (shown[focal].astype(str) == level) if focal else valid | True
        for use, filled in ((of_level & valid, True), (of_level & ~valid, False)):
            rows = shown[use]
            if rows.empty:
                continue
            y = [order.index(str(t)) for t in rows["treatment_id"]]
            dots = axes.scatter(
                rows["_shown"],
                y,
                marker=series.mark,
                s=34,
                facecolors=series.colour if filled else "none",
                edgecolors=series.colour,
                linewidths=1,
                alpha=0.85,
                zorder=3,
            )
            style.tips(
                fig,
                dots,
                [
                    f"{r['run_id']}, {labels[str(r['treatment_id'])]}: "
                    f"{quantity(float(r[response.name]), response.unit)}"
                    + ("" if filled else f" (left out: {r.get('reason') or 'not valid'})")
                    for r in rows.to_dict("records")
                ],
            )
    axes.set_ylim(len(order) - 0.4, -0.6)
    if log:
        style.log_axis(axes.xaxis)
    else:
        axes.set_xlim(left=min(0, float(shown["_shown"].min())))
        style.plain_axis(axes.xaxis, width)
    axes.set_yticks(range(len(order)), names, fontsize=size)
    axes.set_xlabel(
        response_axis(outcome, replace(response, unit=unit)) + (", log scale" if log else "")
    )
    style.grid(axes, "both")
    if not valid.all():
        handle = Line2D([], [], marker="o", ls="", mfc="none", color=style.INK, label="left out")
        fig.legend(handles=[handle], loc="outside upper left")
    return fig


def _order(outcome: Outcome, response: ResponseUnit, runs: pd.DataFrame) -> list[str]:
    """Treatments in the order of the table of treatments; after them those without a valid run, in the
    order of the plan's levels."""
    ranked = [mean.treatment_id for mean in ranking(outcome, response).treatments]

    def key(treatment: str) -> tuple[int, ...]:
        levels = outcome.levels(treatment)
        return tuple(f.levels.index(levels[f.name]) for f in outcome.factors if f.name in levels)

    present = {str(t) for t in runs["treatment_id"]}
    return [t for t in ranked if t in present] + sorted(present - set(ranked), key=key)


def predictions(outcome: Outcome, response: ResponseUnit, width: float) -> Figure:
    """Predicted against measured per treatment with the ±15 % band; the basis treatment is marked."""
    table = outcome.predictions
    if table is None:
        raise NotDrawn("predictions.parquet is missing: run `penstock predict` on this study")
    rows = table[table["response"] == response.name]
    rows = rows[np.isfinite(rows["predicted"]) & np.isfinite(rows["measured_mean"])]
    if rows.empty:
        raise NotDrawn(f"predictions.parquet has no evaluated prediction of {response.name}")
    side = min(width, 5.2)
    fig = style.figure(side, side * 0.97)
    axes = fig.subplots()
    _agreement(axes, np.concatenate([rows["predicted"], rows["measured_mean"]]).astype(float))
    basis = (
        rows["treatment_id"] == rows["basis_treatment"]
        if "basis_treatment" in rows
        else pd.Series(False, index=rows.index)
    )
    within = (rows["ratio"].astype(float) - 1).abs() <= AGREEMENT_LIMIT
    for use, series, mark, name in (
        (within & ~basis, style.SERIES[0], "o", "predicted within 15 %"),
        (~within & ~basis, style.SERIES[1], "X", "predicted farther off"),
        (basis, style.SERIES[2], "*", "basis: its trace was used"),
    ):
        points = rows[use]
        if points.empty:
            continue
        if "ci_low" in points:
            axes.vlines(
                points["measured_mean"],
                points["ci_low"],
                points["ci_high"],
                color=series.colour,
                linewidth=1,
            )
        dots = axes.scatter(
            points["measured_mean"],
            points["predicted"],
            color=series.colour,
            marker=mark,
            s=90 if mark == "*" else 36,
            label=name,
            zorder=3,
        )
        style.tips(
            fig,
            dots,
            [
                f"{r['treatment_id']} ({outcome.phrase(outcome.levels(str(r['treatment_id'])))}): "
                f"predicted {quantity(r['predicted'], response.unit)}, "
                f"measured {quantity(r['measured_mean'], response.unit)}"
                for r in points.to_dict("records")
            ],
        )
    axes.set_xlabel(response_axis(outcome, response, "measured {}"))
    axes.set_ylabel(response_axis(outcome, response, "predicted {}", upright=True))
    style.grid(axes)
    axes.legend(loc="upper left", fontsize=7.5 if style.narrow(width) else 8.5)
    return fig


def _agreement(axes: Axes, values: NDArray[np.float64]) -> None:
    """The line of equal values with the ±15 % band, on equal axes for the values."""
    log = style.wants_log(values)
    low, high = (
        (values.min() * 0.6, values.max() * 1.7)
        if log
        else (min(0.0, values.min()), values.max() * 1.1)
    )
    line = np.geomspace(low, high, 50) if log else np.linspace(low, high, 50)
    axes.fill_between(
        line,
        line * (1 - AGREEMENT_LIMIT),
        line * (1 + AGREEMENT_LIMIT),
        color=style.GRID,
        alpha=0.8,
        linewidth=0,
        label="within 15 %",
    )
    axes.plot(line, line, color=style.MUTED, linewidth=0.8)
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    if log:
        style.log_axis(axes.xaxis)
        style.log_axis(axes.yaxis)
    axes.set_aspect("equal")
