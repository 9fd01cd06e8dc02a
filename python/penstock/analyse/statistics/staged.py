"""Effects of a staged study.

Stages are blocks of the model. A contrast confounded with the difference between stages is reported without
an estimate, unless treatments of both sides were run within one stage. Runs chosen by earlier results, and
the confirmation of a choice, are left out: they are not a designed experiment.

If all designed rows together are a regular fraction or the full design, the estimates are the usual ones.
If they are not (half a foldover, an optimal addition), terms enter from main effects upward, those with an
active parent first, while the rows determine them; the aliases of each are the alias matrix (X'X)⁻¹X'Z of
Box & Wilson (Journal of the Royal Statistical Society B 13, 1951). If settings are shared, these terms are
tested by the strata of the order like any others (`strata.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from penstock.analyse.rounding import without_rounding
from penstock.analyse.statistics import strata
from penstock.analyse.statistics.bias import reach
from penstock.analyse.statistics.designed import designed_plan, designed_stages
from penstock.analyse.statistics.effect_table import (
    effects_of,
    judge_together,
    named_between_blocks,
    share_among,
    share_variation,
    table_of,
    widened,
)
from penstock.analyse.statistics.fit import Fit, by_terms, usable
from penstock.analyse.statistics.partial import with_aliases
from penstock.analyse.statistics.scale import LINEAR
from penstock.analyse.statistics.terms import Term, Values
from penstock.design.additions.stages import separated
from penstock.design.additions.two_levels import ORDER
from penstock.design.alias_matrix import Share
from penstock.design.generators import term_of, words_up_to
from penstock.design.matrix import column, regular
from penstock.design.planned import Plan
from penstock.errors import PenstockError

#: method of a term confounded with the stages
CONFOUNDED = "confounded with the stages"
#: method of terms selected so that the rows determine them
SELECTED = "least squares, selected terms"
_TINY = 1e-8


def staged_effects(
    fit: Fit, runs: pd.DataFrame, plan: Plan, response: str, confidence: float, scale: str = LINEAR
) -> pd.DataFrame:
    """The effects table of a plan with stages on a scale; `fit`: of its designed stages."""
    part = designed_plan(plan)
    if not plan.two_level:
        fit = _with_rivals(fit, plan, part)
        return with_aliases(effects_of(fit, response, confidence, scale), fit, part)
    matrix = np.unique(
        np.array([[r.coded[f.name] for f in plan.factors] for r in part.rows], dtype=np.int8),
        axis=0,
    )
    if not regular(matrix):
        data = usable(runs, plan, response)
        if fit.groups:
            return _in_strata(fit, data, part, response, confidence, scale)
        rows = _selected(data, part, fit.y, confidence, fit.bounds)
        return table_of(rows, response, len(data), scale)
    table = effects_of(fit, response, confidence, scale)
    named = {
        t
        for n, s in enumerate(plan.stages, start=2)
        if n in designed_stages(plan)
        for t in s["confounded"]
    }
    of_terms = ~table["term"].isin(["block", "residual"])
    without = of_terms & table["coefficient"].isna() & table["df"].eq(0)
    stage = without & table["term"].isin(named)
    table.loc[stage, "method"] = CONFOUNDED
    table.loc[stage, "aliases"] = table.loc[stage, "aliases"].str.replace(
        "not estimable", "the difference between stages", regex=False
    )
    if plan.between_blocks:
        return named_between_blocks(table, part, fit.y)
    return share_among(table, without == stage, fit.y)


def _with_rivals(fit: Fit, plan: Plan, part: Plan) -> Fit:
    """The fit with the interactions that stages separate and that the model lacks."""
    names = {t.name for t in fit.design.terms}
    levels = fit.design.levels.astype(np.int64)
    added = [Term(name, columns) for name, columns in separated(plan, levels, names)]
    return by_terms(fit, [*fit.design.terms, *added], part) if added else fit


def _in_strata(
    fit: Fit, data: pd.DataFrame, plan: Plan, response: str, confidence: float, scale: str
) -> pd.DataFrame:
    """The effects table of the terms that the rows determine, each tested by its own stratum."""
    if len(fit.groups) > 1:
        raise PenstockError(
            "the rows of all stages are no regular fraction, and settings are retained in two directions, so "
            "their errors cannot be estimated; a step such as foldover or replicates:1 can be analysed"
        )
    names = [f.name for f in plan.factors]
    x = _coded(data, plan)
    blocks = pd.get_dummies(data["replicate"]).to_numpy(dtype=float)
    selected, columns = _choose(x, blocks, fit.y)
    first = np.unique(fit.design.of_run, return_index=True)[1]
    terms = [
        Term(term_of(word, names), column[first][:, None])
        for word, column in zip(selected, columns.T, strict=True)
    ]
    chosen = by_terms(fit, terms, plan)
    (group,) = fit.groups.values()
    variances = chosen.mixed
    theta = variances.setting_variance / variances.run_variance if variances is not None else 0.0
    model = strata.whitened_by(theta, np.column_stack([blocks, columns]), group)
    inverse = np.linalg.inv(model.T @ model)
    mixed = _mixed(
        x, model, inverse, selected, blocks.shape[1], lambda c: strata.whitened_by(theta, c, group)
    )
    table = effects_of(chosen, response, confidence, scale)
    for i, term in enumerate(terms):
        table.loc[table["term"] == term.name, "aliases"] = _aliases(mixed.get(i, []), names)
    return table


def _coded(data: pd.DataFrame, plan: Plan) -> NDArray[np.int8]:
    """The factors of each run in −1 and +1."""
    names = [f.name for f in plan.factors]
    coded = {r.run_id: [r.coded[n] for n in names] for r in plan.rows}
    return np.array([coded[r] for r in data["run_id"]], dtype=np.int8)


def _aliases(mixed: list[tuple[int, float]], names: list[str]) -> str:
    shares = [
        Share(term_of(word, names), share, exact=abs(abs(share) - 1) < _TINY)
        for word, share in sorted(mixed, key=lambda m: -round(abs(m[1]), 9))
    ]
    return ", ".join(s.text for s in shares)


def _selected(
    data: pd.DataFrame,
    plan: Plan,
    y: Values,
    confidence: float,
    bounds: tuple[Values, Values] | None = None,
) -> list[dict[str, Any]]:
    """Least squares of the terms that the rows determine: rows of the effects table."""
    names = [f.name for f in plan.factors]
    x = _coded(data, plan)
    blocks = pd.get_dummies(data["replicate"]).to_numpy(dtype=float)
    selected, columns = _choose(x, blocks, y)
    model = np.column_stack([blocks, columns])
    inverse = np.linalg.inv(model.T @ model)
    solver = inverse @ model.T
    solution = solver @ y
    solution, residual = without_rounding(y, solution, y - model @ solution)
    df = len(y) - model.shape[1]
    error = float(residual @ residual) if df > 0 else 0.0
    variance = error / df if df > 0 else math.nan
    total = float(((y - y.mean()) ** 2).sum())
    mixed = _mixed(x, model, inverse, selected, blocks.shape[1])
    rows: list[dict[str, Any]] = []
    for i, word in enumerate(selected):
        at = blocks.shape[1] + i
        q, spread = float(solution[at]), float(inverse[at, at])
        ss = q * q / spread
        bias = None if bounds is None else reach(solver[at : at + 1], *bounds)
        row: dict[str, Any] = {
            "term": term_of(word, names),
            "coefficient": q,
            "effect": 2 * q,
            "df": 1,
            "sum_of_squares": ss,
            "mean_square": ss,
            "method": SELECTED,
            "aliases": _aliases(mixed.get(i, []), names),
        }
        if df > 0 and variance > 0:
            half = float(stats.t.ppf((1 + confidence) / 2, df)) * math.sqrt(variance * spread)
            below, above = (float(side[0]) for side in bias) if bias is not None else (0.0, 0.0)
            least = max(abs(q) - (below if q > 0 else above), 0.0) ** 2 / spread
            row |= {
                "f_value": ss / variance,
                "p_value": float(stats.f.sf(least / variance, 1, df)),
                "standard_error": math.sqrt(variance * spread),
                "ci_low": q - half,
                "ci_high": q + half,
                "effect_ci_low": 2 * (q - half),
                "effect_ci_high": 2 * (q + half),
            }
            row |= widened(row, bias)
        rows.append(row)
    judge_together(rows)
    base = y - blocks @ np.linalg.lstsq(blocks, y, rcond=None)[0]
    rows.append(
        {"term": "block", "df": blocks.shape[1] - 1, "sum_of_squares": total - float(base @ base)}
    )
    rows.append({"term": "residual", "df": df, "sum_of_squares": error, "mean_square": variance})
    share_variation(rows, y)
    return [row | {"df_error": df} for row in rows]


def _choose(x: NDArray[np.int8], blocks: Values, y: Values) -> tuple[list[int], Values]:
    """Words in the model and their columns: main effects, then longer ones, those with larger parents first.

    At least a third of the rows is reserved for the error, if the main effects leave that many.
    """
    factors = x.shape[1]
    basis = np.linalg.qr(blocks)[0]
    chosen: list[int] = []
    columns: list[Values] = []
    size = np.zeros(factors)
    distinct = len(np.unique(np.column_stack([x, blocks]), axis=0))
    for order in range(1, min(ORDER, factors) + 1):
        options = [w for w in words_up_to(factors, order) if w.bit_count() == order]
        if order > 1:
            options.sort(key=lambda w: -max(size[i] for i in range(factors) if w >> i & 1))
        for word in options:
            values = column(x, word).astype(float)
            rest = values - basis @ (basis.T @ values)
            rest = rest - basis @ (basis.T @ rest)
            length = float(np.linalg.norm(rest))
            if length < _TINY * math.sqrt(len(values)) or basis.shape[1] >= distinct:
                continue
            if len(y) == distinct and order > 1 and basis.shape[1] >= distinct * 2 / 3:
                continue
            basis = np.column_stack([basis, rest / length])
            chosen.append(word)
            columns.append(values)
            if order == 1:
                size[word.bit_length() - 1] = abs(float(rest @ y)) / length
    return chosen, np.column_stack(columns)


def _mixed(
    x: NDArray[np.int8],
    model: Values,
    inverse: Values,
    in_model: list[int],
    blocks: int,
    weighed: Callable[[Values], Values] = lambda columns: columns,
) -> dict[int, list[tuple[int, float]]]:
    """For each term in the model, the aliased words outside of it with their share; `weighed` applies to
    their columns the weighting of the model's."""
    others = [w for w in words_up_to(x.shape[1], ORDER) if w not in in_model]
    if not others:
        return {}
    outside = np.column_stack([column(x, w).astype(float) for w in others])
    shares = (inverse @ model.T @ weighed(outside))[blocks:]
    return {
        i: [(w, float(s)) for w, s in zip(others, row, strict=True) if abs(s) > 1e-6]
        for i, row in enumerate(shares)
    }
