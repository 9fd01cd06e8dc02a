"""Intervals of effects that do not assume equal spread: the wild bootstrap.

Each residual stays with its run and gets a random sign; the statistic is the estimate over its
heteroscedasticity-consistent standard error (HC3), so that the interval is a bootstrap-t. It is reported
in addition to the usual one and never replaces it. (Wu, Annals of Statistics 14, 1986; Davidson &
Flachaire, Journal of Econometrics 146, 2008.)
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from penstock.analyse.statistics.fit import Fit
from penstock.analyse.statistics.residuals import leverages
from penstock.analyse.statistics.terms import Values
from penstock.errors import PenstockError

#: number of bootstrap draws, and maximum product of runs, columns and draws
_DRAWS = 1999
_MOST = 4e9
_BLOCK = 200
COLUMNS = (
    "response", "term", "method", "coefficient", "ci_low", "ci_high", "p_value", "p_together", "n",
)  # fmt: skip
METHOD = "wild bootstrap"


def wild(fit: Fit, response: str, confidence: float = 0.95, seed: int = 1) -> pd.DataFrame:
    """The terms of one coefficient with their bootstrap-t intervals; columns in `COLUMNS`. `p_together` is
    adjusted for all of them: by the largest statistic of each draw, stepwise (Westfall & Young 1993).

    PenstockError if settings are shared over several runs, a run has leverage 1, or the draws would take
    too long.
    """
    if fit.groups or fit.used is None:
        raise PenstockError("settings stayed the same over several runs: runs are not independent")
    of_treatment = fit.design.columns(fit.design.terms)
    used = fit.used
    kinds = used[: of_treatment.shape[1]]
    x = np.hstack([of_treatment[:, kinds][fit.design.of_run], fit.block_columns])
    if len(x) * x.shape[1] * _DRAWS > _MOST:
        raise PenstockError("too many runs for the bootstrap")
    free = 1 - leverages(fit)
    if not (free > 1e-8).all():
        raise PenstockError("a run has no freedom: the model meets it exactly")
    places = np.cumsum(used) - 1
    single = [
        (i, int(places[fit.where[i].start]))
        for i, t in enumerate(fit.design.terms)
        if t.width == 1 and not fit.without[i]
    ]
    at = [place for _, place in single]
    solve = np.linalg.pinv(x)[at]  # coefficients of interest × runs
    q, _ = np.linalg.qr(x)
    estimate = fit.coefficients[used][at]
    error = _hc3(solve, fit.residuals, free)
    if not (error > 0).all():
        raise PenstockError("the runs do not vary")
    drawn = np.random.default_rng(seed)
    beyond = np.empty((_DRAWS, len(at)))
    scaled_residuals = fit.residuals / free  # residuals of HC3
    for start in range(0, _DRAWS, _BLOCK):
        count = min(_BLOCK, _DRAWS - start)
        noise = scaled_residuals * drawn.choice([-1.0, 1.0], size=(count, len(scaled_residuals)))
        moved = noise @ solve.T
        rest = noise - (noise @ q) @ q.T
        beyond[start : start + count] = moved / _hc3(solve, rest, free)
    sizes = np.abs(beyond)
    limit = np.quantile(sizes, confidence, axis=0)
    p = (1 + (sizes >= np.abs(estimate / error)).sum(axis=0)) / (_DRAWS + 1)
    together = _stepwise(sizes, np.abs(estimate / error))
    rows = [
        {
            "response": response,
            "term": fit.design.terms[i].name,
            "method": METHOD,
            "coefficient": float(estimate[k]),
            "ci_low": float(estimate[k] - limit[k] * error[k]),
            "ci_high": float(estimate[k] + limit[k] * error[k]),
            "p_value": float(p[k]),
            "p_together": float(together[k]),
            "n": len(x),
        }
        for k, (i, _) in enumerate(single)
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _stepwise(drawn: Values, seen: Values) -> Values:
    """Adjusted p-values of the statistics `seen`, from those of each draw (draws × terms)."""
    adjusted, largest = np.empty(len(seen)), 0.0
    order = np.argsort(-seen, kind="stable")
    for step, i in enumerate(order):
        beyond = drawn[:, order[step:]].max(axis=1) >= seen[i]
        largest = max(largest, float((1 + beyond.sum()) / (len(drawn) + 1)))
        adjusted[i] = largest
    return adjusted


def _hc3(solve: Values, residuals: Values, free: Values) -> Values:
    """Standard errors of coefficients; `residuals` of one fit, or of several, one row each."""
    return np.asarray(np.sqrt((residuals / free) ** 2 @ (solve**2).T))
