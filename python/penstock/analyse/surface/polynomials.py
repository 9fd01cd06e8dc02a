"""Trends over quantitative levels: orthogonal contrasts of the numeric values of three or more levels.

The linear contrast is the level's value minus the mean of the values; each further one is the next power,
orthogonalised to those before, scaled to a largest entry of 1. A coefficient of the linear contrast is a
change of the response per unit of the factor; the quadratic one is the curvature (Draper & Smith 1998, ch.
22).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from penstock.analyse.statistics.fit import Fit, estimate
from penstock.analyse.statistics.terms import Values
from penstock.design.kinds.base import numeric
from penstock.design.planned import Plan

NAMES = ("linear", "quadratic", "cubic")
#: minimum component of a contrast in a term, relative to its range
_NONE = 1e-9
COLUMNS = (
    "response", "factor", "contrast", "coefficient", "effect", "effect_ci_low", "effect_ci_high", "p_value",
    "df_error", "scale",
)  # fmt: skip


def contrasts(values: list[float]) -> Values:
    """Levels × contrasts (at most three) of these level values, from linear upward."""
    x = np.asarray(values, dtype=float)
    centred = x - x.mean()
    size = float(np.abs(centred).max())
    columns: list[Values] = []
    for power in range(1, min(len(values) - 1, len(NAMES)) + 1):
        column = (centred / size) ** power
        column = column - column.mean()
        for before in columns:
            column = column - before * (before @ column) / (before @ before)
        columns.append(centred if power == 1 else column / float(np.abs(column).max()))
    return np.column_stack(columns)


def trends(
    fit: Fit, plan: Plan, response: str, scale: str, confidence: float = 0.95
) -> pd.DataFrame:
    """The contrasts of each quantitative factor of three or more levels that has an estimate.

    `effect` is the change over the range of the contrast: for the linear one from the lowest level to the
    highest along the line.
    """
    rows: list[dict[str, Any]] = []
    by_name = {term.name: i for i, term in enumerate(fit.design.terms)}
    for j, factor in enumerate(plan.factors):
        values = numeric(factor)
        i = by_name.get(factor.name)
        if values is None or len(values) < 3 or i is None or fit.without[i]:
            continue
        levels_run = np.unique(fit.design.levels[:, j])
        if len(levels_run) != len(values):
            continue
        first = np.unique(fit.design.levels[:, j], return_index=True)[1]
        square = by_name.get(f"{factor.name}:{factor.name}")
        for at in (i,) if square is None or fit.without[square] else (i, square):
            q, covariance, df = estimate(fit, at)
            of_level = fit.design.terms[at].columns[
                first
            ]  # contribution of a coefficient at each level
            for name, contrast in zip(NAMES, contrasts(values).T, strict=False):
                weights = of_level.T @ contrast / float(contrast @ contrast)
                if float(np.abs(weights).max()) * float(np.ptp(contrast)) < _NONE:
                    continue  # the term lacks this contrast
                variance = float(weights @ covariance @ weights) if df > 0 else math.nan
                coefficient, width = float(weights @ q), float(np.ptp(contrast))
                bias = fit.bias(at, weights[None, :])
                below, above = (float(side[0]) for side in bias) if bias is not None else (0.0, 0.0)
                least = max(abs(coefficient) - (below if coefficient > 0 else above), 0.0)
                row = _row(response, factor.name, name, coefficient, variance, df, width, least)
                low, high = _ends(coefficient, variance, df, width, confidence)
                rows.append(
                    row
                    | {"scale": scale}
                    | {"effect_ci_low": low - below * width, "effect_ci_high": high + above * width}
                )
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _row(
    response: str,
    factor: str,
    name: str,
    coefficient: float,
    variance: float,
    df: float,
    width: float,
    least: float,
) -> dict[str, Any]:
    """`least`: the smallest size of the coefficient under corrections of degraded runs."""
    p = math.nan
    if df > 0 and variance > 0:
        p = float(2 * stats.t.sf(least / math.sqrt(variance), df))
    return {
        "response": response, "factor": factor, "contrast": name, "coefficient": coefficient,
        "effect": coefficient * width, "p_value": p, "df_error": df,
    }  # fmt: skip


def _ends(
    coefficient: float, variance: float, df: float, width: float, confidence: float
) -> tuple[float, float]:
    if not df > 0 or not variance >= 0:
        return math.nan, math.nan
    half = float(stats.t.ppf((1 + confidence) / 2, df)) * math.sqrt(variance)
    return (coefficient - half) * width, (coefficient + half) * width
