"""Bounds of the rounding errors of means and fits, relative to the values."""

from __future__ import annotations

import math

import numpy as np

from penstock.analyse.statistics.bias import Values

#: largest rounding error of a mean, or of a difference of means, relative to the largest value
ROUNDING = 1e-12
#: largest rounding errors of a fit: relative to the range of the values, and to the largest value times the
#: square root of the number of runs
_OF_RANGE, _OF_LARGEST = 1e-12, 1e-15


def rounding_of(values: Values) -> float:
    """The largest rounding error of a mean of values, or of a difference of two such means."""
    return ROUNDING * float(np.abs(values).max(initial=0.0))


def without_rounding(y: Values, coefficients: Values, residuals: Values) -> tuple[Values, Values]:
    """Coefficients and residuals of a fit of `y`; if the fit is exact, with 0 in place of rounding errors.

    Those of equal runs would be tested against each other.
    """
    largest = float(np.abs(y).max(initial=0.0)) * math.sqrt(len(y))
    least = max(_OF_RANGE * float(np.ptp(y)), _OF_LARGEST * largest)
    if not float(np.abs(residuals).max(initial=0.0)) <= least:
        return coefficients, residuals
    return np.where(np.abs(coefficients) <= least, 0.0, coefficients), np.zeros_like(residuals)
