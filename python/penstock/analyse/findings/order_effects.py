"""Effects that a steady drift of the host over the runs would explain as well.

In an order that is not random, and by chance in a random one, the column of an effect or an interaction
may increase or decrease with the order of the runs. A drift then looks like that effect (Daniel &
Wilcoxon, Technometrics 8, 1966). With an error term the model is fitted again with a linear trend over the
run order: an effect that is then no longer significant, while the trend is, is doubtful. Without
replicates it is doubtful if the trend and fewer effects leave only noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd
from scipy import stats

from penstock.analyse.findings.finding import Finding
from penstock.analyse.outcome import Outcome
from penstock.analyse.statistics.few_runs import basis_of, contrasts_of, needed_beside, noise_of
from penstock.analyse.statistics.fit import Fit, fitted, usable
from penstock.analyse.statistics.multiple_tests import holm
from penstock.analyse.statistics.scale import effect_scale
from penstock.analyse.statistics.significance import LENTH, LEVEL, terms_of
from penstock.analyse.statistics.strata import places_in_time
from penstock.analyse.statistics.terms import Values
from penstock.design.planned import Plan, plan_from_json
from penstock.errors import BadInput, PenstockError
from penstock.text import first_of, listed, term_text

#: maximum number of terms named in a sentence
_MOST_NAMED = 3
_NEEDED = {"term", "response", "p_value", "method", "scale", "standard_error"}


def or_drift(outcome: Outcome) -> Iterator[Finding]:
    """Effects that may be drift, and a remedy. Guard: shared settings, or no significant effect."""
    if outcome.effects is None or not set(outcome.effects.columns) >= _NEEDED:
        return
    try:
        plan = plan_from_json(outcome.plan)
    except BadInput:
        return
    for response in outcome.responses:
        terms = terms_of(outcome, response.name)
        if terms is None:
            continue
        table = terms.table
        sure = [name for name, p in zip(terms.names, terms.p, strict=True) if p < LEVEL]
        if not sure:
            continue
        try:
            fit = fitted(outcome.measured, plan, response.name, effect_scale(table))
            order = _order(usable(outcome.measured, plan, response.name), plan)
        except PenstockError:
            continue
        doubted = drift_instead(fit, order, sure, table) if order is not None else []
        if not doubted:
            continue
        named = listed(first_of([term_text(t) for t in doubted], _MOST_NAMED))
        shuffled = plan.order != "standard"
        yield Finding(
            "effect-or-drift",
            "warning",
            f"The effect of {named} on {response.name} may be drift of the host: a line "
            "over the order of the runs explains these runs as well, and they cannot separate the two.",
            {"table": "effects", "response": response.name, "terms": doubted},
            "`penstock run STUDY -o OUT --augment replicates:1` makes the runs again in another order."
            if shuffled
            else "Leave `design.order` to `auto`: complete passes in random order keep drift out of effects.",
        )


def _order(data: pd.DataFrame, plan: Plan) -> Values | None:
    """The position of each run in the executed order."""
    if "run_id" not in data:
        return None
    place = {r.run_id: r.run_order for r in plan.rows}
    order = places_in_time(data, np.asarray(data["run_id"].map(place), dtype=np.float64))
    return order if np.isfinite(order).all() else None


def drift_instead(fit: Fit, order: Values, sure: list[str], table: pd.DataFrame) -> list[str]:
    """The significant terms of `sure` that a linear trend over the run order explains as well.

    `order`: of the runs of the fit; `table`: the effects of the response. Empty if settings are shared by
    runs.
    """
    if fit.groups or not np.ptp(order):
        return []
    base = basis_of(np.hstack([np.ones((len(fit.y), 1)), fit.block_columns]))
    line = (order - order.mean())[:, None] / np.ptp(order)
    line = line - base @ (base.T @ line)
    if float(np.linalg.norm(line)) < 1e-6:
        return []
    names, columns = contrasts_of(fit)
    if fit.df_error < 1:
        return _without_error(fit, base, line, names, columns, sure, table)
    return _with_error(fit, base, line, names, columns, sure)


def _without_error(
    fit: Fit,
    base: Values,
    line: Values,
    names: list[str],
    columns: Values,
    sure: list[str],
    table: pd.DataFrame,
) -> list[str]:
    rows = table[table["method"] == LENTH]
    errors = pd.to_numeric(rows["standard_error"], errors="coerce").dropna()
    if errors.empty:
        return []
    noise = noise_of(fit.y, float(errors.iloc[0]))
    needed = needed_beside(fit.y, base, line, columns, names, noise, len(errors) / 3, len(sure) - 1)
    return [] if needed is None else [t for t in sure if t not in needed]


def _with_error(
    fit: Fit, base: Values, line: Values, names: list[str], columns: Values, sure: list[str]
) -> list[str]:
    x = np.hstack([base, line, columns])
    df = len(fit.y) - x.shape[1]
    if df < 1 or int(np.linalg.matrix_rank(x)) < x.shape[1]:
        return []
    inverse = np.linalg.inv(x.T @ x)
    solution = inverse @ x.T @ fit.y
    rest = fit.y - x @ solution
    variance = float(rest @ rest) / df
    if variance <= 0:
        return []
    at = base.shape[1]
    p_line = _p(solution[at : at + 1], inverse[at : at + 1, at : at + 1] * variance, df)
    if not p_line < LEVEL:
        return []
    terms = list(dict.fromkeys(names))
    raw = []
    for term in terms:
        where = [at + 1 + i for i, name in enumerate(names) if name == term]
        raw.append(_p(solution[where], inverse[np.ix_(where, where)] * variance, df))
    beside = dict(zip(terms, holm(raw), strict=True))
    return [t for t in sure if not beside.get(t, math.nan) < LEVEL and t in beside]


def _p(q: Values, covariance: Values, df: int) -> float:
    ratio = float(q @ np.linalg.solve(covariance, q)) / len(q)
    return float(stats.f.sf(ratio, len(q), df))
