"""Residuals of the fit: one row per run, checks of the assumptions of the intervals, and outliers.

Outliers are flagged, never removed: runs at least ten standard deviations (14.826 times the median
absolute deviation) from the median of their treatment of five runs or more, or with an externally
studentised residual beyond Bonferroni's limit for all runs (Cook & Weisberg 1982). A study may declare
other limits (`outliers`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from penstock.analyse.statistics.fit import Fit
from penstock.analyse.statistics.multiple_tests import holm
from penstock.analyse.statistics.strata import RUN, means_of, places_in_time
from penstock.analyse.statistics.terms import Values
from penstock.spec.study import Outliers

#: default limits
USUAL = Outliers()
#: 10 standard deviations of a normal distribution, in median absolute deviations
FAR_IN_MADS = USUAL.mads
#: minimum number of runs of a treatment for limits from its median
_ENOUGH = 5
#: minimum number of runs of a treatment for the test of successive residuals
_ENOUGH_IN_A_ROW = 3
#: familywise level of all checks
CHECK_LEVEL = 0.05
#: minimum residual degrees of freedom for checks
LEAST_DF = 8
#: maximum number of runs for the test of normality
_MOST_NORMAL = 5000
#: samples of normal noise as reference for a statistic; fewer for more runs than the last number
_DRAWS, _FEW_DRAWS, _MOST_DRAWN = 999, 99, 5000
#: number of noise values drawn at a time
_AT_ONCE = 500_000
_SEED = 20261126


@dataclass(frozen=True)
class Check:
    """A tested assumption: compared quantities, and p-value adjusted for all checks."""

    name: str
    what: str
    p: float

    @property
    def holds(self) -> bool:
        """True if the check passes."""
        return not self.p < CHECK_LEVEL


def leverages(fit: Fit) -> Values:
    """The leverage of each run: the diagonal of X (X'X)⁻¹ X'."""
    assert fit.used is not None
    used = fit.used
    of_treatment = fit.design.columns(fit.design.terms)
    keep = used[: of_treatment.shape[1]]
    covariance = fit.covariance[np.ix_(used, used)]
    first = int(keep.sum())
    kinds = np.einsum(
        "ij,ij->i", of_treatment[:, keep] @ covariance[:first, :first], of_treatment[:, keep]
    )
    leverage: Values = kinds[fit.design.of_run]
    blocks = fit.block_columns
    if blocks.shape[1]:
        cross = of_treatment[:, keep] @ covariance[:first, first:]
        leverage = leverage + 2 * np.einsum("ij,ij->i", cross[fit.design.of_run], blocks)
        leverage = leverage + np.einsum("ij,ij->i", blocks @ covariance[first:, first:], blocks)
    return np.asarray(np.clip(leverage, 0.0, 1.0))


def run_residuals(fit: Fit) -> tuple[Values, float]:
    """The residuals of runs (within the settings that they share), and their degrees of freedom."""
    residuals = fit.residuals
    for group in fit.groups.values():
        residuals = residuals - means_of(residuals, group)
    return residuals, float(fit.errors[RUN].df)


def studentised(fit: Fit) -> Values:
    """Externally studentised residual of each run; NaN for leverage 1, or without error degrees of
    freedom."""
    residual, df = run_residuals(fit)
    if df < 2:
        return np.full(len(residual), np.nan)
    free = 1 - leverages(fit)
    total = float(residual @ residual)
    with np.errstate(divide="ignore", invalid="ignore"):
        without = (total - residual**2 / free) / (df - 1)
        ratios = residual / np.sqrt(np.where(without > 0, without, np.nan) * free)
    return np.asarray(np.where(free > 1e-9, ratios, np.nan))


def residual_table(
    fit: Fit, data: pd.DataFrame, response: str, scale: str, limits: Outliers = USUAL
) -> pd.DataFrame:
    """One row per analysed run: fitted value, residual, studentised residual, reason for a flag."""
    t = studentised(fit)
    far = far_from_median(data, response, limits.mads)
    beyond = np.abs(t) > _limit(fit, limits.chance)
    # in a block of two both runs have the same residual: flag the one far from its own treatment
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
    """Mask of runs at least `mads` median absolute deviations from the median of their treatment of five
    or more runs; if most runs of a treatment are equal, the typical deviation of all treatments applies."""
    if "treatment_id" not in data:
        return np.zeros(len(data), dtype=bool)
    values = pd.to_numeric(data[response]).astype(float)
    groups = values.groupby(data["treatment_id"])
    off = (values - groups.transform("median")).abs()
    mad = off.groupby(data["treatment_id"]).transform("median")
    enough = groups.transform("size") >= _ENOUGH
    # coarsely rounded values: half of them equal the median
    usual = float(mad[enough & (mad > 0)].median()) if (enough & (mad > 0)).any() else math.nan
    mad = mad.where(mad > 0, usual)
    return np.asarray((enough & (off > mads * mad)).to_numpy(dtype=bool))


def _limit(fit: Fit, chance: float) -> float:
    df = fit.errors[RUN].df
    if df < LEAST_DF:
        return math.inf
    return float(stats.t.ppf(1 - chance / (2 * len(fit.y)), df - 1))


def checks(fit: Fit, data: pd.DataFrame, factors: list[str]) -> list[Check]:
    """Tests of the assumptions of the intervals on the residuals; none for few degrees of freedom or constant
    runs.

    The reference distribution of each statistic comes from residuals of the same fit to normal noise,
    because residuals are dependent (in passes of two treatments they are equal in pairs). Holm's
    adjustment covers all checks.
    """
    residual, df = run_residuals(fit)
    size = float(np.abs(residual).max(initial=0.0))
    if df < LEAST_DF or size <= 1e-9 * float(np.abs(fit.y).max(initial=0.0)):
        return []
    statistics = _statistics(fit, data, factors)
    free = np.sqrt(np.maximum(1 - leverages(fit), 1e-9))
    seen = [one.of(residual[None], free)[0] for one in statistics]
    drawn = _drawn(fit, [one.of for one in statistics], free)
    raw = [
        one.p(float(value), null) for one, value, null in zip(statistics, seen, drawn, strict=True)
    ]
    finite = [(one, p) for one, p in zip(statistics, raw, strict=True) if math.isfinite(p)]
    adjusted = holm([p for _, p in finite])
    return [Check(one.name, one.what, p) for (one, _), p in zip(finite, adjusted, strict=True)]


@dataclass(frozen=True)
class _Statistic:
    """Statistic of a check: `of` maps residuals (sets × runs) and the remaining share of each run's
    standard deviation to a number per set. A number far from the centre, or a large one, fails the check."""

    name: str
    what: str
    of: Callable[[Values, Values], Values]
    large: bool = False

    def p(self, seen: float, drawn: Values) -> float:
        """The p-value against normal noise: by rank, or by moments if draws are few."""
        drawn = drawn[np.isfinite(drawn)]
        if not math.isfinite(seen) or not len(drawn):
            return math.nan
        middle, spread = float(drawn.mean()), float(drawn.std())
        rounding = 1e-9 * max(1.0, abs(middle))
        if (
            spread <= rounding
        ):  # residuals equal by design, as in passes of two, carry no information
            return math.nan
        if len(drawn) < _DRAWS - 1:
            if self.large:  # a scaled chi-squared has these moments
                shape = (middle / spread) ** 2
                return float(stats.gamma.sf(seen, shape, scale=middle / shape))
            return float(2 * stats.norm.sf(abs(seen - middle) / spread))
        if self.large:
            beyond = drawn >= seen - rounding
        else:
            beyond = np.abs(drawn - middle) >= abs(seen - middle) - rounding
        return float((1 + beyond.sum()) / (len(drawn) + 1))


def _statistics(fit: Fit, data: pd.DataFrame, factors: list[str]) -> list[_Statistic]:
    statistics = []
    if np.ptp(fit.fitted) > 0:
        ranks = _ranks(fit.fitted[None])[0]
        statistics.append(
            _Statistic(
                "spread-fitted",
                "spread of residuals against fitted values",
                lambda rows, free: _correlation(_ranks(np.abs(rows / free)), ranks),
            )
        )
    groups = [("equal-variances", "between treatments", fit.design.of_run, 3)]
    groups += [
        (f"spread-{name}", f"between levels of {name}", _numbered(data[name].astype(str)), 4)
        for name in factors
        if name in data
    ]
    if fit.block is not None and fit.block_columns.shape[1]:
        groups.append(("spread-block", "between blocks", fit.block, 4))
    for name, of_what, group, least in groups:
        counts = np.bincount(group)
        if len(counts) > 1 and counts.min() >= least:
            statistics.append(
                _Statistic(
                    name,
                    f"spread of residuals {of_what}",
                    partial(_spreads, group=group),
                    large=True,
                )
            )
    if "run_order" in data:
        order = places_in_time(data, pd.to_numeric(data["run_order"]).to_numpy(float))
        place, in_order = _ranks(order[None])[0], np.argsort(order)
        statistics += [
            _Statistic(
                "drift",
                "residuals against run order",
                lambda rows, free: _correlation(_ranks(rows), place),
            ),
            _Statistic(
                "neighbours",
                "residuals of neighbouring runs",
                lambda rows, free: _neighbours(rows[:, in_order]),
            ),
        ]
        if fit.block is not None:
            # in passes of few treatments, a fluctuation of the host enters the other treatments with opposite
            # sign: it cancels between neighbouring runs
            by_treatment = np.lexsort((order, fit.design.of_run))
            same = np.diff(fit.design.of_run[by_treatment]) == 0
            if np.bincount(fit.design.of_run).max() >= _ENOUGH_IN_A_ROW:
                statistics.append(
                    _Statistic(
                        "successive",
                        "residuals of a treatment from one run of it to the next",
                        lambda rows, free: _successive(rows[:, by_treatment], same),
                    )
                )
    if len(fit.y) <= _MOST_NORMAL:
        n = len(fit.y)
        scores = stats.norm.ppf((np.arange(1, n + 1) - 0.375) / (n + 0.25))
        statistics.append(
            _Statistic(
                "normal",
                "distribution of residuals against the normal",
                lambda rows, free: 1 - _correlation(np.sort(rows / free, axis=1), scores),
                large=True,
            )
        )
    return statistics


def _drawn(
    fit: Fit, statistics: Sequence[Callable[[Values, Values], Values]], free: Values
) -> list[Values]:
    """Each statistic for residuals of the fit to normal noise, for every draw."""
    n = len(fit.y)
    draws = _DRAWS if n <= _MOST_DRAWN else _FEW_DRAWS
    basis = _basis(fit)
    draw = np.random.default_rng(_SEED)
    drawn: list[list[Values]] = [[] for _ in statistics]
    sets = max(_AT_ONCE // n, 1)
    for start in range(0, draws, sets):
        residuals = _residuals_of(fit, basis, draw.standard_normal((min(sets, draws - start), n)))
        for values, statistic in zip(drawn, statistics, strict=True):
            values.append(statistic(residuals, free))
    return [np.concatenate(values) for values in drawn]


def _basis(fit: Fit) -> Values | None:
    """An orthonormal basis of the model; None for many runs with one mean per treatment."""
    assert fit.used is not None
    of_treatment = fit.design.columns(fit.design.terms)
    keep = fit.used[: of_treatment.shape[1]]
    if len(fit.y) > _MOST_DRAWN and keep.sum() == len(of_treatment):
        return None
    columns = np.hstack([of_treatment[:, keep][fit.design.of_run], fit.block_columns])
    return np.asarray(np.linalg.qr(columns)[0])


def _residuals_of(fit: Fit, basis: Values | None, rows: Values) -> Values:
    """Residuals of values of runs (sets × runs)."""
    if basis is None:
        # one pass is exact for balanced blocks; a few converge closely with lost runs
        for _ in range(1 if fit.block is None else 4):
            rows = _within(rows, fit.design.of_run)
            rows = rows if fit.block is None else _within(rows, fit.block)
    else:
        rows = rows - (rows @ basis) @ basis.T
    for group in fit.groups.values():
        rows = _within(rows, group)
    return rows


def _sums(rows: Values, group: NDArray[np.integer[Any]]) -> Values:
    """The sum of each group in each set: sets × groups."""
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    return np.asarray(np.add.reduceat(rows[:, order], starts, axis=1))


def _within(rows: Values, group: NDArray[np.integer[Any]]) -> Values:
    """Deviations from the mean of the group."""
    return rows - (_sums(rows, group) / np.bincount(group))[:, group]


def _numbered(labels: Any) -> NDArray[np.integer[Any]]:
    return np.asarray(np.unique(labels, return_inverse=True)[1])


def _ranks(rows: Values) -> Values:
    """Mean ranks within each set."""
    order = np.argsort(rows, axis=1)
    ranks = np.empty(rows.shape)
    np.put_along_axis(ranks, order, np.arange(1.0, rows.shape[1] + 1)[None], axis=1)
    tied = (np.diff(np.take_along_axis(rows, order, axis=1), axis=1) == 0).any(axis=1)
    if tied.any():
        ranks[tied] = stats.rankdata(rows[tied], axis=1)
    return ranks


def _correlation(rows: Values, with_: Values) -> Values:
    """Pearson's correlation of each set with the same numbers; NaN for a constant set."""
    centred, other = rows - rows.mean(axis=1, keepdims=True), with_ - with_.mean()
    size = np.sqrt((centred**2).sum(axis=1) * (other @ other))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray((centred @ other) / size)


def _spreads(rows: Values, free: Values, group: NDArray[np.integer[Any]]) -> Values:
    return _levene(rows / free, group)


def _levene(rows: Values, group: NDArray[np.integer[Any]]) -> Values:
    """Brown-Forsythe statistic for equal variances, for each set."""
    counts = np.bincount(group)
    order = np.argsort(group, kind="stable")
    off = np.empty_like(rows)
    for size in np.unique(counts):
        # groups × runs
        members = order[counts[group[order]] == size].reshape(-1, size)
        # median by sorting: several times faster than numpy's for few runs
        ranked = np.sort(rows[:, members], axis=2)
        median = (ranked[:, :, (size - 1) // 2] + ranked[:, :, size // 2]) / 2
        off[:, members] = np.abs(rows[:, members] - median[:, :, None])
    means = _sums(off, group) / counts
    between = (counts * (means - off.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
    within = ((off - means[:, group]) ** 2).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(between / within * (len(group) - len(counts)) / (len(counts) - 1))


def _neighbours(rows: Values) -> Values:
    """Von Neumann's ratio of residuals in run order, for each set."""
    return np.asarray((np.diff(rows, axis=1) ** 2).sum(axis=1) / (rows**2).sum(axis=1))


def _successive(rows: Values, same: NDArray[np.bool_]) -> Values:
    """Products of successive residuals of a treatment, relative to their squares, for each set."""
    products = (rows[:, 1:] * rows[:, :-1])[:, same]
    return np.asarray(products.sum(axis=1) / (rows**2).sum(axis=1))
