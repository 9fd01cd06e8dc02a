"""Residuals of the fit: a row for each run, checks of what the intervals assume, and outliers.

Outliers are flagged, never removed: a run farther than ten standard deviations (14.826 times the median
absolute deviation) from the median of its treatment of five runs or more, or one whose externally studentised
residual passes Bonferroni's limit for all runs (Cook & Weisberg 1982). A study may say other limits
(`outliers`) before it runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from penstock.analyse.effects import Fit
from penstock.analyse.strata import RUN, means_of
from penstock.analyse.terms import Values
from penstock.spec.study import Outliers

#: what is flagged where a study says nothing else
USUAL = Outliers()
#: 10 standard deviations of a normal distribution, in median absolute deviations
FAR_IN_MADS = USUAL.mads
#: runs of a treatment from which its median says what is far
_ENOUGH = 5
#: level of each check
CHECK_LEVEL = 0.01
#: degrees of freedom from which residuals say something
LEAST_DF = 8
#: runs that the test of normality takes
_MOST_NORMAL = 5000


@dataclass(frozen=True)
class Check:
    """One assumption that was tested: what was compared, and the p-value of its test."""

    name: str
    what: str
    p: float

    @property
    def holds(self) -> bool:
        """Whether nothing speaks against it at the level of checks."""
        return not self.p < CHECK_LEVEL


def leverages(fit: Fit) -> Values:
    """The leverage of each run: the diagonal of X (X'X)⁻¹ X'."""
    assert fit.used is not None
    used = fit.used
    of_treatment = np.hstack(
        [np.ones((len(fit.design.levels), 1)), *(t.columns for t in fit.design.terms)]
    )
    keep = used[: of_treatment.shape[1]]
    covariance = fit.covariance[np.ix_(used, used)]
    first = int(keep.sum())
    kinds = np.einsum(
        "ij,ij->i", of_treatment[:, keep] @ covariance[:first, :first], of_treatment[:, keep]
    )
    found: Values = kinds[fit.design.of_run]
    blocks = fit.block_columns
    if blocks.shape[1]:
        cross = of_treatment[:, keep] @ covariance[:first, first:]
        found = found + 2 * np.einsum("ij,ij->i", cross[fit.design.of_run], blocks)
        found = found + np.einsum("ij,ij->i", blocks @ covariance[first:, first:], blocks)
    return np.asarray(np.clip(found, 0.0, 1.0))


def run_residuals(fit: Fit) -> tuple[Values, float]:
    """The residuals of runs (within the settings that they share), and their degrees of freedom."""
    found = fit.residuals
    for group in fit.groups.values():
        found = found - means_of(found, group)
    return found, float(fit.errors[RUN].df)


def studentised(fit: Fit) -> Values:
    """Externally studentised residual of each run; NaN where the fit leaves a run or the error no freedom."""
    residual, df = run_residuals(fit)
    if df < 2:
        return np.full(len(residual), np.nan)
    free = 1 - leverages(fit)
    total = float(residual @ residual)
    with np.errstate(divide="ignore", invalid="ignore"):
        without = (total - residual**2 / free) / (df - 1)
        found = residual / np.sqrt(np.where(without > 0, without, np.nan) * free)
    return np.asarray(np.where(free > 1e-9, found, np.nan))


def residual_table(
    fit: Fit, data: pd.DataFrame, response: str, scale: str, limits: Outliers = USUAL
) -> pd.DataFrame:
    """One row per run that was analysed: fitted, residual, studentised residual, why it is flagged."""
    t = studentised(fit)
    far = far_from_median(data, response, limits.mads)
    beyond = np.abs(t) > _limit(fit, limits.chance)
    # in a block of two both have one residual: the one that is far from its own treatment is meant
    for i in np.flatnonzero(far & beyond):
        beyond &= far | ~np.isclose(np.abs(t), abs(t[i]), rtol=1e-6)
    why = [
        "; ".join(
            filter(
                None,
                (
                    "far from the median of its treatment" if out else "",
                    f"studentised residual {value:.1f}" if out_of_line else "",
                ),
            )
        )
        for out, value, out_of_line in zip(far, t, beyond, strict=True)
    ]
    return pd.DataFrame(
        {
            "response": response,
            "run_id": data["run_id"].astype(str).to_numpy() if "run_id" in data else "",
            "treatment_id": data["treatment_id"].astype(str).to_numpy()
            if "treatment_id" in data
            else "",
            "run_order": pd.to_numeric(data["run_order"]).astype("int64").to_numpy()
            if "run_order" in data
            else np.arange(1, len(data) + 1),
            "scale": scale,
            "fitted": fit.fitted,
            "residual": fit.residuals,
            "studentised": t,
            "flag": why,
        }
    )


def far_from_median(
    data: pd.DataFrame, response: str, mads: float = FAR_IN_MADS
) -> NDArray[np.bool_]:
    """Which runs are so many median absolute deviations from the median of their treatment of five runs or
    more."""
    if "treatment_id" not in data:
        return np.zeros(len(data), dtype=bool)
    values = pd.to_numeric(data[response]).astype(float)
    groups = values.groupby(data["treatment_id"])
    off = (values - groups.transform("median")).abs()
    mad = off.groupby(data["treatment_id"]).transform("median")
    enough = groups.transform("size") >= _ENOUGH
    return np.asarray((enough & (mad > 0) & (off > mads * mad)).to_numpy(dtype=bool))


def _limit(fit: Fit, chance: float) -> float:
    df = fit.errors[RUN].df
    if df < LEAST_DF:
        return math.inf
    return float(stats.t.ppf(1 - chance / (2 * len(fit.y)), df - 1))


def checks(fit: Fit, data: pd.DataFrame, factors: list[str]) -> list[Check]:
    """The assumptions of the intervals, tested on the residuals; none where too few degrees of freedom are
    left or the runs do not vary."""
    residual, df = run_residuals(fit)
    size = float(np.abs(residual).max(initial=0.0))
    if df < LEAST_DF or size <= 1e-9 * float(np.abs(fit.y).max(initial=0.0)):
        return []
    found = list(_checks(fit, data, factors, residual))
    return [c for c in found if math.isfinite(c.p)]


def _checks(fit: Fit, data: pd.DataFrame, factors: list[str], residual: Values) -> Iterator[Check]:
    free = np.sqrt(np.maximum(1 - leverages(fit), 1e-9))
    even = residual / free
    if np.ptp(fit.fitted) > 0:
        p = _rank_correlation(fit.fitted, np.abs(even))
        yield Check("spread-fitted", "spread of residuals against fitted values", p)
    by_treatment = _levene(even, fit.design.of_run, 3)
    if math.isfinite(by_treatment):
        yield Check("equal-variances", "spread of residuals between treatments", by_treatment)
    for name in factors:
        if name in data:
            p = _levene(even, np.unique(data[name].astype(str), return_inverse=True)[1], 4)
            yield Check(f"spread-{name}", f"spread of residuals between levels of {name}", p)
    if "replicate" in data and fit.block_columns.shape[1]:
        p = _levene(even, np.unique(data["replicate"], return_inverse=True)[1], 4)
        yield Check("spread-block", "spread of residuals between blocks", p)
    if "run_order" in data:
        order = pd.to_numeric(data["run_order"]).to_numpy(float)
        yield Check("drift", "residuals against run order", _rank_correlation(order, residual))
        in_order = residual[np.argsort(order)]
        yield Check("neighbours", "residuals of neighbouring runs", _neighbours(in_order))
    if len(even) <= _MOST_NORMAL:
        yield Check("normal", "distribution of residuals against the normal", _normal(even))


def _rank_correlation(a: Values, b: Values) -> float:
    return float(stats.spearmanr(a, b).pvalue)


def _levene(residual: Values, group: NDArray[np.integer[Any]], least: int) -> float:
    """Brown & Forsythe's test of equal variances; NaN with a group of fewer than `least` runs."""
    parts = [residual[group == g] for g in range(int(group.max()) + 1)]
    if len(parts) < 2 or min(map(len, parts)) < least:
        return math.nan
    return float(stats.levene(*parts, center="median").pvalue)


def _neighbours(residual: Values) -> float:
    """Von Neumann's ratio of residuals in running order, by its normal approximation."""
    n = len(residual)
    ratio = float(np.sum(np.diff(residual) ** 2) / np.sum(residual**2))
    return float(2 * stats.norm.sf(abs(ratio - 2) / math.sqrt(4 * (n - 2) / (n**2 - 1))))


def _normal(residual: Values) -> float:
    return float(stats.shapiro(residual).pvalue)
