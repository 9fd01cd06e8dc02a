"""Contrasts of the levels of a factor: orthogonal polynomials of numeric values, effect coding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.floating[Any]]


def polynomial(values: Sequence[float], degree: int = 2) -> Values:
    """Orthogonal polynomial contrasts of unequally spaced levels, by degree 1, 2, … `degree`.

    `values`: the distinct values of the l levels; result: l × min(`degree`, l − 1). The linear contrast is
    value − mean, in the values' own unit; each higher one is the power's remainder after all lower ones,
    so that columns sum to 0 and are orthogonal over levels that are run equally often (Gram and Schmidt;
    Draper and Smith, Applied Regression Analysis, 3rd ed. 1998, section 22.2). ValueError for duplicate or
    non-finite levels.
    """
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or len(np.unique(x)) != len(x) or not np.isfinite(x).all():
        raise ValueError("levels that are finite and differ")
    scale = float(np.ptp(x)) or 1.0
    unit = (x - x.mean()) / scale
    basis = [np.ones_like(unit)]
    for power in range(1, min(degree, len(x) - 1) + 1):
        rest = unit**power
        for _ in range(2):  # twice is enough (Kahan; Parlett 1980)
            for lower in basis:
                rest = rest - lower * (lower @ rest) / (lower @ lower)
        basis.append(rest)
    contrasts: Values = np.column_stack(basis[1:]) if len(basis) > 1 else np.empty((len(x), 0))
    if contrasts.shape[1]:
        contrasts[:, 0] *= scale
    return contrasts


def effect_coding(levels: int) -> Values:
    """Sum-to-zero contrasts of `levels` levels: one column per level but the last, which is −1 in all."""
    coded: Values = np.vstack([np.eye(levels - 1), -np.ones(levels - 1)])
    return coded


def products(one: Values, other: Values) -> Values:
    """Each column of one times each of the other, row by row: the columns of their interaction."""
    crossed: Values = np.einsum("ia,ib->iab", one, other).reshape(len(one), -1)
    return crossed


def curve(values: Sequence[float]) -> Values:
    """Linear and, for three or more levels, quadratic contrast, each scaled to a largest entry of 1."""
    contrasts = polynomial(values, 2)
    scaled: Values = contrasts / np.abs(contrasts).max(axis=0)
    return scaled
