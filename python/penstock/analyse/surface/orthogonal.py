"""Orthogonal contrasts of the levels of a factor, each of one degree of freedom."""

from __future__ import annotations

import numpy as np

from penstock.analyse.statistics.terms import Values
from penstock.analyse.surface.polynomials import contrasts
from penstock.design.kinds.base import numeric
from penstock.spec.study import Factor


def orthogonal(factor: Factor) -> Values | None:
    """Levels × (levels − 1): for two levels their difference; for numbers linear, quadratic and cubic
    contrasts of the values, then a complement; None for levels without numbers."""
    count = len(factor.levels)
    if count == 2:
        return np.array([[-1.0], [1.0]])
    values = numeric(factor)
    if values is None:
        return None
    named = contrasts(values)
    every = np.hstack([np.ones((count, 1)), named, np.eye(count)])
    # Gram-Schmidt: the first columns keep their directions
    basis = np.linalg.qr(every)[0]
    return np.asarray(basis[:, 1:count])
