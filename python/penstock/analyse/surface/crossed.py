"""Least squares for runs that share settings in two directions, as the rows and columns of a strip-plot.

Variances come from the mean squares of the strata: the expected mean square of settings is the variance of
a run plus that of a setting times its number of runs. Coefficients are those of generalised least squares,
the degrees of freedom of each prediction are Satterthwaite's (Biometrics Bulletin 2, 1946).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from penstock.analyse.statistics.strata import RUN, Stratum, equal_sizes
from penstock.analyse.statistics.terms import Numbers, Values
from penstock.errors import PenstockError

#: maximum number of runs, for the full covariance matrix
_MOST_RUNS = 4000


@dataclass(frozen=True)
class Crossed:
    """Coefficients and covariance; for each stratum the derivative of the covariance by its mean square,
    that mean square, and its degrees of freedom; the variance of a single run."""

    coefficients: Values
    covariance: Values
    by_stratum: tuple[tuple[Values, float, float], ...]
    run_variance: float

    def df(self, row: Values) -> float:
        """Satterthwaite's degrees of freedom of a combination of coefficients."""
        spread = float(row @ self.covariance @ row)
        parts = [
            (float(row @ slope @ row) * square) ** 2 / df for slope, square, df in self.by_stratum
        ]
        return spread**2 / sum(parts) if sum(parts) > 0 else math.inf


def crossed(
    y: Values, x: Values, groups: Mapping[str, Numbers], errors: Mapping[str, Stratum]
) -> Crossed:
    """The fit of y = Xb + settings of each group + e, for crossed groups of equal size.

    PenstockError if the runs differ from the plan, do not vary, or leave a stratum no degrees of freedom.
    """
    names = list(groups)
    if not all(equal_sizes(group) for group in groups.values()):
        raise PenstockError(
            "no error estimate for a surface: runs of the strip-plot were lost, or run separately from "
            "those of their setting"
        )
    if any(name not in errors or errors[name].df < 1 for name in (*names, RUN)):
        raise PenstockError(
            "no error estimate for a surface: a stratum of the strip-plot has no degrees of freedom; "
            "more replicates would add some"
        )
    if len(y) > _MOST_RUNS:
        raise PenstockError(f"found {len(y)} runs in a strip-plot; expected at most {_MOST_RUNS}")
    size = {name: len(y) / (int(groups[name].max()) + 1) for name in names}
    run = errors[RUN].mean_square
    if not run > 0:
        raise PenstockError("no error estimate for a surface: the runs do not vary within settings")
    of = {n: max((errors[n].mean_square - run) / size[n], 0.0) for n in names}
    shared = {n: (groups[n][:, None] == groups[n][None, :]).astype(float) for n in names}
    weight = np.linalg.inv(run * np.eye(len(y)) + sum(of[n] * shared[n] for n in names))
    covariance = np.linalg.inv(x.T @ weight @ x)
    gain = weight @ x @ covariance
    by_run = gain.T @ gain
    by_setting = {n: gain.T @ shared[n] @ gain for n in names}
    positive = [n for n in names if of[n] > 0]
    slopes = [(by_setting[n] / size[n], n) for n in positive]
    slopes.append((by_run - sum((s for s, _ in slopes), np.zeros_like(by_run)), RUN))
    return Crossed(
        gain.T @ y,
        covariance,
        tuple((s, errors[n].mean_square, float(errors[n].df)) for s, n in slopes),
        run + sum(of.values()),
    )
