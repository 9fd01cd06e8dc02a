"""Several comparisons at once: adjusted p-values, and the studentised range.

The studentised range is the largest difference of several means over an independent estimate of its error.

P(Q > q) = ∫ f(s) P(W > q s) ds, where f is the density of the estimated over the true standard deviation,
and W is the range of k standard normal variables,
P(W > w) = k ∫ φ(z) (Φ(z)^(k−1) − (Φ(z) − Φ(z − w))^(k−1)) dz (Copenhaver & Holland, Journal of Statistical
Computation and Simulation 30, 1988). Both integrals are sums by Gauss and Legendre, that over s in log s;
scipy's adaptive integrals give the same numbers at twenty times the cost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

Values = NDArray[np.floating[Any]]

#: nodes of each integral
_NODES = 96
#: bounds of z in standard deviations
_FAR = 8.5
#: probability of s beyond each bound
_BEYOND = 1e-13
#: range that is exceeded almost certainly
_CERTAIN = 1e-4
#: degrees of freedom above which s counts as 1
_MANY = 1e7


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values (Scandinavian Journal of Statistics 6, 1979)."""
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for step, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - step) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """p-values by the false discovery rate (Journal of the Royal Statistical Society B 57, 1995)."""
    adjusted = [0.0] * len(p_values)
    smallest, m = 1.0, len(p_values)
    for step, i in enumerate(sorted(range(m), key=lambda i: -p_values[i])):
        smallest = min(smallest, p_values[i] * m / (m - step))
        adjusted[i] = smallest
    return adjusted


def tail(q: float, means: int, df: float) -> float:
    """P(Q > q) for the range of `means` means, with `df` degrees of freedom of the error."""
    at, weight = _rule()
    certain = 0.0
    if df > _MANY:
        s, density = np.ones(1), np.ones(1)
    else:
        low, high = (math.sqrt(special.chdtri(df, p) / df) for p in (1 - _BEYOND, _BEYOND))
        # below and above these the range is certainly larger, and certainly not
        low, high = max(low, _CERTAIN / q), min(high, 2 * _FAR / q)
        certain = float(special.chdtr(df, df * low * low))
        middle, half = math.log(high * low) / 2, math.log(high / low) / 2
        log = half * at + middle
        s = np.exp(log)
        constant = math.log(2) + df / 2 * math.log(df / 2) - special.gammaln(df / 2)
        density = half * weight * np.exp(constant + df * (log - s * s / 2))
    z = _FAR * at
    normal = _FAR * weight * np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    below = special.ndtr(z)[:, None]
    inside = below - special.ndtr(z[:, None] - q * s)
    beyond = means * (normal @ (below ** (means - 1) - inside ** (means - 1)))
    return certain + float(density @ beyond)


def quantile(level: float, means: int, df: float) -> float:
    """The q with P(Q > q) = `level`."""

    def off(log: float) -> float:
        return math.log(tail(math.exp(log), means, df) / level)

    # between the quantiles of one pair and of all pairs after Bonferroni
    low, high = (
        math.log(math.sqrt(2) * float(special.stdtrit(df, 1 - level / pairs)))
        for pairs in (2, means * (means - 1))
    )
    return math.exp(float(optimize.brentq(off, low, high, xtol=1e-10)))


@lru_cache(maxsize=1)
def _rule() -> tuple[Values, Values]:
    """Nodes and weights between -1 and 1."""
    at, weight = np.polynomial.legendre.leggauss(_NODES)
    return at, weight
