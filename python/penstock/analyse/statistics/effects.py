"""Effects and interactions of a designed experiment: estimates, intervals, allocation of variation.

Model: y = q0 + Σ q_w x_w + e with x_w the product of the coded (−1, +1) columns of the factors in w. The
coefficient is q, the effect 2q: mean at the second level minus mean at the first. If each replicate was a
complete shuffled pass, the pass is a block of the model and takes its degrees of freedom. If a setting was
shared by several runs, each term is tested by the error of its own stratum (`strata.py`), which depends on
the executed order. Balanced data give the textbook estimates (Jain 1991, chapters 17-19); otherwise each
term is adjusted for all others (type III; types I and II are reported as well). If a term has no estimate,
no term has a share of the variation, because shares would not add up.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from penstock.analyse.statistics.effect_table import effects_of, named_between_blocks
from penstock.analyse.statistics.fit import Fit, fitted
from penstock.analyse.statistics.partial import with_aliases
from penstock.analyse.statistics.scale import LINEAR
from penstock.analyse.statistics.significance import LEVEL
from penstock.analyse.statistics.staged import staged_effects
from penstock.analyse.statistics.terms import Values
from penstock.analyse.surface.orthogonal import orthogonal
from penstock.design.additions.alpha_spending import analysis_level
from penstock.design.contrasts import products
from penstock.design.planned import Plan


def effects(
    runs: pd.DataFrame,
    plan: Plan,
    response: str,
    confidence: float = 0.95,
    scale: str = LINEAR,
    fit: Fit | None = None,
) -> pd.DataFrame:
    """The effects table of one response, one row per term, then `block` (if blocks are in the model), the
    error of shared settings (`whole_plot`, `strip`) and `residual`; columns in `COLUMNS`.

    `runs`: one row per run with a column per factor (level names), `replicate` or `run_id`, `valid` (invalid
    runs are left out) and the response. Shares are percent of the total variation about the mean, or of the
    sum of all parts if lost runs make that larger. On another `scale` (`scale.py`) coefficients, effects and
    intervals are of the transformed response; on the logarithmic scale `ratio` is the second level over the
    first.
    Intervals and p-values include any correction of degraded runs within their bounds; `bias` is the maximum
    change of an effect by such a correction.
    Without pure error the intervals are Lenth's (see `method`; `confidence` then gives his margin ME).
    `fit`: an existing fit of the same data. PenstockError if a column is missing or fewer than two runs
    are valid.
    """
    fit = fitted(runs, plan, response, scale) if fit is None else fit
    return at_level(_judged(fit, runs, plan, response, confidence, scale), plan)


def at_level(table: pd.DataFrame, plan: Plan) -> pd.DataFrame:
    """The effects table at the plan's error level: in a sequential study, adjusted p-values also cover all
    looks, and are below 0.05 if the look at these runs may call an effect significant."""
    level = analysis_level(plan, LEVEL)
    if level < LEVEL:
        together = table["p_holm"] * (LEVEL / level) if level > 0 else table["p_holm"] * 0 + 1
        table = table.assign(p_holm=together.clip(upper=1.0), level=level)
    return table


def _judged(
    fit: Fit, runs: pd.DataFrame, plan: Plan, response: str, confidence: float, scale: str
) -> pd.DataFrame:
    """The effects table at the default level."""
    if plan.stages:
        return staged_effects(fit, runs, plan, response, confidence, scale)
    table = effects_of(fit, response, confidence, scale, _parts(fit, plan))
    table = with_aliases(table, fit, plan)
    if plan.between_blocks:
        table = named_between_blocks(table, plan, fit.y)
    return table


def _parts(fit: Fit, plan: Plan) -> dict[str, list[float]]:
    """Contrasts of one degree of freedom (linear, quadratic, … of the numeric values, and their products) of
    each term of a full design whose factors have two levels or are numeric.

    Each is scaled to the effect of a two-level term that explains as much. Empty if every stratum has its
    own error.
    """
    if plan.two_level or plan.model is not None or not fit.complete:
        return {}
    if all(error.df > 0 for error in fit.errors.values()):
        return {}
    if len(fit.design.levels) != math.prod(len(f.levels) for f in plan.factors):
        return {}
    codes = {f.name: orthogonal(f) for f in plan.factors}
    place = {f.name: fit.design.levels[:, j] for j, f in enumerate(plan.factors)}
    contrasts: dict[str, list[float]] = {}
    for term in fit.design.terms:
        product: Values = np.ones((len(fit.design.levels), 1))
        for name in term.name.split(":"):
            code = codes[name]
            if code is None:
                break
            product = products(product, code[place[name]])
        else:
            by_run = product[fit.design.of_run]
            by_run = by_run / np.linalg.norm(by_run, axis=0)
            contrasts[term.name] = (2 * by_run.T @ fit.y / math.sqrt(len(fit.y))).tolist()
    return contrasts
