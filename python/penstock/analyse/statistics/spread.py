"""Standard errors of treatment means: variation of runs, and the variance component of a block or a setting.

A run is its treatment's mean, plus random effects of its block and its settings, plus its own error. The
variances come from the residuals about the treatments' means (equations of quadratic forms and their
expectations; Searle, Casella & McCulloch, Variance Components, 1992, chapter 5), the degrees of freedom of
a standard error after Satterthwaite (Biometrics Bulletin 2, 1946). Treatments with three runs or more use
their own. Fewer runs show no inequality of variances reliably: at any hint of it, the interval of a
treatment that varies more becomes wider, that of others no narrower.

The usual variance of a coefficient supposes that all runs vary alike. If those that determine it vary more
than others, it is too small: by 28 % for the interaction of a central composite design, if one level of a
factor varies three times as much. In `Unequal` each level of one factor has its own variance, of the
residuals of its runs; the degrees of freedom of a coefficient are Satterthwaite's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

Values = NDArray[np.floating[Any]]
Numbers = NDArray[np.integer[Any]]

#: minimum number of runs of a treatment for its own variance, which then has 2 degrees of freedom
OWN = 3
#: level of the test for unequal variances of treatments with fewer runs
_UNEQUAL = 0.05
#: level of the test for unequal variances of a factor's levels, which may only widen intervals
HINT = 0.25
#: maximum number of runs for exact degrees of freedom: time grows with their cube
_EXACT = 1200


@dataclass(frozen=True)
class Error:
    """A standard error and its degrees of freedom: NaN and 0 if there is no estimate."""

    size: float
    df: float


NONE = Error(math.nan, 0.0)


@dataclass(frozen=True)
class Spread:
    """Variation of the runs of each treatment (from 0); `shared`: for each kind of grouping that may
    correlate runs, the number of each run's block or setting; `factors`: for each factor the number of each
    treatment's level."""

    treatment: Numbers
    values: Values
    shared: Sequence[Numbers] = ()
    factors: Sequence[Numbers] = ()

    @cached_property
    def counts(self) -> Numbers:
        """Number of runs of each treatment."""
        return np.bincount(self.treatment)

    @cached_property
    def free(self) -> int:
        """Degrees of freedom within treatments."""
        return len(self.values) - len(self.counts)

    @cached_property
    def residuals(self) -> Values:
        """Deviations of runs from the mean of their treatment."""
        return self.values - self._means[self.treatment]

    @cached_property
    def _means(self) -> Values:
        return np.bincount(self.treatment, self.values) / self.counts

    @cached_property
    def own(self) -> Values:
        """Variance of each treatment's runs; NaN for a single run."""
        squares = np.bincount(self.treatment, self.residuals**2)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self.counts > 1, squares / (self.counts - 1), math.nan)

    @cached_property
    def unequal(self) -> bool:
        """True if variances of treatments of equal size differ significantly (Bartlett's test): settings
        with few runs are then tested by these, too."""
        return differs(self.own, self.counts - 1) < _UNEQUAL

    @cached_property
    def alone(self) -> NDArray[np.bool_]:
        """Mask of treatments with all runs in different blocks and settings, which vary independently."""
        flags: NDArray[np.bool_] = np.ones(len(self.counts), dtype=bool)
        for group in self.shared:
            if int(group.max(initial=0)) == 0:
                continue
            pairs = np.unique(np.column_stack([self.treatment, group]), axis=0)
            flags &= np.bincount(pairs[:, 0], minlength=len(self.counts)) == self.counts
        return flags

    def of_treatment(self, treatment: int) -> Error:
        """The standard error of a treatment's mean: from its own runs if these are enough, else pooled over
        all treatments, or over its level or of its own runs if these vary more."""
        count = int(self.counts[treatment])
        own = float(self.own[treatment]), count - 1.0
        enough = count >= OWN or (count > 1 and self.unequal and bool(self.shared))
        if enough and own[0] > 0 and self.alone[treatment]:
            return _mean_of(count, *own)
        error = self.of(self._weights({treatment: 1.0}))
        if self.shared or not error.df:
            return error
        wider = [own] if count > 1 and self.unequal else []
        wider += [tuple(self._by_level[:, treatment])] if self._by_level is not None else []
        errors = [_mean_of(count, *one) for one in wider]
        return max([error, *errors], key=lambda one: one.size)

    @cached_property
    def _by_level(self) -> Values | None:
        """Variance (first row) and degrees of freedom of the level of each treatment, for the factor whose
        levels differ most in them; None without a hint of a difference."""
        free = np.maximum(self.counts - 1, 0)
        squares = np.bincount(self.treatment, self.residuals**2)
        least, variances = HINT, None
        for level in self.factors:
            df = np.bincount(level, free)
            with np.errstate(invalid="ignore", divide="ignore"):
                of_level = np.bincount(level, squares) / df
            p = differs(of_level, df) * len(self.factors)
            if p < least:
                finite = np.where(df > 0, of_level, 0.0)
                least, variances = p, np.stack([finite[level], df[level]])
        return variances

    def of_mean(self, weights: Mapping[int, float]) -> Error:
        """The standard error of a weighted sum of treatment means."""
        passes = self._by_pass(weights)
        if passes is not None and len(passes) >= OWN and np.ptp(passes) > 0:
            return Error(float(passes.std(ddof=1)) / math.sqrt(len(passes)), len(passes) - 1)
        places = list(weights)
        few = self.counts[places]
        if not self.shared and few.min() > 1 and (few.min() >= OWN or self.unequal):
            parts = np.array([w * w * self.own[t] / self.counts[t] for t, w in weights.items()])
            if parts.sum() > 0:
                df = parts.sum() ** 2 / float((parts**2 / (few - 1)).sum())
                return Error(math.sqrt(float(parts.sum())), float(df))
        return self.of(self._weights(weights))

    def _by_pass(self, weights: Mapping[int, float]) -> Values | None:
        """The sum in each block, if there is one kind of block and each has each of the treatments once."""
        if len(self.shared) != 1:
            return None
        (group,) = self.shared
        several = int(group.max(initial=0)) + 1
        weight = np.zeros(len(self.counts))
        for treatment, one in weights.items():
            weight[treatment] = one
        used = weight[self.treatment] != 0
        if int(used.sum()) != several * len(weights):
            return None
        pairs = np.column_stack([self.treatment, group])[used]
        if len(np.unique(pairs, axis=0)) != len(pairs):
            return None
        sums = np.bincount(group[used], (weight[self.treatment] * self.values)[used])
        return np.asarray(sums, dtype=np.float64)

    def _weights(self, treatments: Mapping[int, float]) -> Values:
        """The weight of each run in a weighted sum of treatment means."""
        weight = np.zeros(len(self.counts))
        for treatment, one in treatments.items():
            weight[treatment] = one / self.counts[treatment]
        return weight[self.treatment]

    def difference(self, a: int, b: int) -> Error:
        """The standard error of the difference of two treatment means, pooled over all treatments."""
        return self.of(self._weights({a: 1.0, b: -1.0}))

    def of(self, weights: Values) -> Error:
        """The standard error of a weighted sum of runs, pooled over all treatments."""
        if self.free < 1:
            return NONE
        groups, variances, back = self._components
        of_run = np.array([float(weights @ weights)])
        shares = np.array([*of_run, *(float((_sums(weights, g) ** 2).sum()) for g in groups)])
        variance = float(shares @ variances)
        if not variance > 0:
            return NONE if variance < 0 else Error(0.0, float(self.free))
        key = tuple(np.round(shares / shares[0], 9))
        df = self._degrees.get(key)
        if df is None:
            df = self._degrees[key] = self._satterthwaite(back.T @ shares)
        return Error(math.sqrt(variance), df)

    @cached_property
    def _degrees(self) -> dict[tuple[float, ...], float]:
        return {}

    @cached_property
    def _components(self) -> tuple[list[Numbers], Values, Values]:
        """The groupings with a variance component; the variance of a run and of each grouping; the matrix
        that maps quadratic forms of the residuals to them."""
        groups = [g for g in self.shared if int(g.max(initial=0)) > 0]
        while True:
            columns = [self._within(g) for g in groups]
            forms = [float(self.residuals @ self.residuals)]
            forms += [float((_sums(self.residuals, g) ** 2).sum()) for g in groups]
            expected = np.empty((len(forms), len(forms)))
            expected[0, 0] = self.free
            for i, one in enumerate(columns, start=1):
                expected[0, i] = expected[i, 0] = float((one**2).sum())
                for j, group in enumerate(groups, start=1):
                    expected[i, j] = float((_sums(one, group) ** 2).sum())
            # drop components that are inseparable from others, or not positive
            if np.linalg.cond(expected / np.abs(expected).max()) < 1e12:
                back = np.linalg.inv(expected)
                variances = back @ np.array(forms)
                if not groups or (variances[1:] > 0).all():
                    return groups, np.maximum(variances, 0.0), back
                groups.pop(int(np.argmin(variances[1:])))
            else:
                groups.pop()

    def _within(self, group: Numbers) -> Values:
        """Indicator columns of a grouping, centred within treatments."""
        columns = np.eye(int(group.max()) + 1)[group]
        means = _sums(columns, self.treatment) / self.counts[:, None]
        return columns - means[self.treatment]

    def _satterthwaite(self, factors: Values) -> float:
        """Degrees of freedom of the estimate with these weights of the quadratic forms of the residuals."""
        groups, variances, _ = self._components
        if not groups:
            return float(self.free)
        if len(self.values) > _EXACT:
            df = [self.free, *(int(g.max()) for g in groups)]
            return min(
                float(self.free),
                float(variances.sum()) ** 2
                / float(sum(v * v / d for v, d in zip(variances, df, strict=True))),
            )
        runs = len(self.values)
        centred = np.eye(runs) - (1 / self.counts[self.treatment])[:, None] * (
            self.treatment[:, None] == self.treatment
        )
        form = factors[0] * centred
        covariance = variances[0] * np.eye(runs)
        for factor, part, group in zip(factors[1:], variances[1:], groups, strict=True):
            columns = self._within(group)
            form += factor * (columns @ columns.T)
            # the variance of two or three blocks may be several times its estimate, which alone would give 95
            # % intervals a coverage of 90 %
            covariance += part * (1 + 6 / int(group.max()) ** 2) * (group[:, None] == group)
        product = form @ covariance
        spread = 2 * float((product * product.T).sum())
        return min(float(self.free), 2 * float(np.trace(product)) ** 2 / spread)


def _mean_of(count: int, variance: float, df: float) -> Error:
    """The standard error of the mean of so many runs."""
    return Error(math.sqrt(variance / count), float(df))


def _sums(values: Values, group: Numbers) -> Values:
    sums = np.zeros((int(group.max()) + 1, *values.shape[1:]))
    np.add.at(sums, group, values)
    return sums


def differs(variances: Values, df: Values | Numbers) -> float:
    """p-value of equal variances with these degrees of freedom (Bartlett, Proceedings of the Royal Society
    A 160, 1937); 1 if fewer than two are finite."""
    finite = (df > 0) & np.isfinite(variances)
    variances, df = variances[finite], df[finite]
    total = float(df.sum())
    pooled = float((df * variances).sum()) / total if total else 0.0
    if len(df) < 2 or pooled <= 0:
        return 1.0
    if (variances <= 1e-12 * pooled).any():  # rounded to equal values: the logarithm is meaningless
        return differs(variances[variances > 1e-12 * pooled], df[variances > 1e-12 * pooled])
    statistic = total * math.log(pooled) - float((df * np.log(variances)).sum())
    correction = 1 + (float((1 / df).sum()) - 1 / total) / (3 * (len(df) - 1))
    return float(special.chdtrc(len(df) - 1, statistic / correction))


@dataclass(frozen=True)
class Unequal:
    """The level of each run (from 0); variance and degrees of freedom of each level."""

    level: NDArray[np.integer[Any]]
    variances: Values
    df: Values

    def of(self, weights: Values) -> tuple[float, float]:
        """Variance and degrees of freedom of a coefficient with these weights of the runs."""
        parts = np.bincount(self.level, weights**2) * self.variances
        total = float(parts.sum())
        return total, total**2 / float((parts**2 / self.df).sum()) if total > 0 else 0.0


def unequal_spread(
    columns: Values, residuals: Values, factors: Sequence[NDArray[Any]]
) -> Unequal | None:
    """The factor whose levels differ most in the variance of the residuals of a fit with these columns; None
    without a hint of a difference. `factors`: for each factor the level of each run."""
    basis, _ = np.linalg.qr(columns)
    free = 1 - np.sum(basis**2, axis=1)
    least, unequal = HINT, None
    for factor in factors:
        level = np.unique(factor, return_inverse=True)[1]
        df = np.bincount(level, free).astype(float)
        if len(df) < 2 or not (df > 0.5).all():
            continue
        variances = np.bincount(level, residuals**2) / df
        p = differs(variances, df) * len(factors)
        if p < least:
            least, unequal = p, Unequal(level, variances, df)
    return unequal
