"""Variances of coefficients where the levels of a factor vary unequally.

The usual variance of a coefficient supposes that all runs vary alike. If those that determine it vary more
than others, it is too small: by 28 % for the interaction of a central composite design, if one level of a
factor varies three times as much. Here each level of one factor has its own variance, of the residuals of its
runs; the degrees of freedom of a coefficient are Satterthwaite's (Biometrics Bulletin 2, 1946).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.analyse.statistics.spread import HINT, differs

Values = NDArray[np.floating[Any]]


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
