"""The Pareto set: configurations that no other one dominates (Costa 2014)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def pareto(values: Sequence[Sequence[float]] | NDArray[np.float64]) -> NDArray[np.bool_]:
    """Flags of rows of an (n, k) array, all columns to be minimised, that no other row dominates.

    A row dominates another if it is smaller in a column and larger in none. Equal rows do not dominate each
    other. Rows with a NaN or an infinity are never in the set and dominate nothing.
    """
    points = np.asarray(values, float)
    if points.ndim != 2:
        points = points.reshape(len(points), -1)
    member = np.zeros(len(points), bool)
    finite = np.flatnonzero(np.isfinite(points).all(axis=1))
    if not len(finite) or points.shape[1] == 0:
        return member
    # in lexicographic order only earlier rows can dominate a row
    order = finite[np.lexsort(points[finite].T[::-1])]
    front = np.empty((0, points.shape[1]))
    chosen: list[int] = []
    for i in order:
        row = points[i]
        below = (front <= row).all(axis=1) & (front < row).any(axis=1)
        if not below.any():
            chosen.append(int(i))
            front = np.vstack([front, row])
    member[chosen] = True
    return member


def near(
    values: NDArray[np.float64], front: NDArray[np.float64], margin: float
) -> NDArray[np.bool_]:
    """Flags of rows that no member of the front beats by more than `margin` (relative) in every column."""
    inside = np.asarray(np.isfinite(values).all(axis=1))
    for member in front:
        inside &= ~(member * (1 + margin) < values).all(axis=1)
    return inside


def knee(values: Sequence[Sequence[float]] | NDArray[np.float64]) -> int:
    """Row of an (n, k) array of positive numbers nearest to the ideal point.

    The ideal point has the best value of every column; the distance is Euclidean in the logarithms of the
    ratios to it, so that 10 % of one objective weighs as much as 10 % of another, in any units. Ties: the
    first row. [ours]
    """
    points = np.asarray(values, float)
    if not len(points) or not (np.isfinite(points).all() and (points > 0).all()):
        raise ValueError("the knee is defined for positive finite values")
    logs = np.log(points)
    return int(np.argmin(((logs - logs.min(axis=0)) ** 2).sum(axis=1)))
