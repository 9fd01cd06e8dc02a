"""Conformal intervals: error bounds of a learned value, from residuals of held-out points.

*Split* is `penstock.analyse.statistics.prediction_intervals.conformal_half_width`: the k-th smallest
|residual| of points set aside; the next exchangeable point lies inside with a probability of at least
`level`.
*Cross-conformal* (CV+; jackknife+ where every fold is one point): uses all points. The guaranteed coverage is
1 − 2 (1 − level) (for K folds less by at most sqrt(2/n)), the typical one is `level` itself
(Barber, Candès, Ramdas, Tibshirani, Ann. Statist. 49, 2021, theorems 1 and 4).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.analyse.statistics.prediction_intervals import conformal_rank, exact
from penstock.text import percentage

Floats = NDArray[np.float64]

#: largest number of points for leave-one-out folds
JACKKNIFE_MOST = 40
FOLDS = 10


def folds(n: int, seed: int, count: int | None = None) -> NDArray[np.int64]:
    """Fold of each of n points, of nearly equal size, random by `seed`."""
    count = (n if n <= JACKKNIFE_MOST else FOLDS) if count is None else min(count, n)
    drawn = np.random.default_rng(seed).permutation(np.arange(n) % count)
    return drawn.astype(np.int64)


def grouped(points: Sequence[Hashable], seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Group of each point, and fold of each group: repetitions of a point are one group, in one fold."""
    number = {point: i for i, point in enumerate(dict.fromkeys(points))}
    return np.array([number[p] for p in points], dtype=np.int64), folds(len(number), seed)


@dataclass(frozen=True)
class CrossConformal:
    """CV+ over folds of different points: `fold[i]` is the fold of point i, `residual[i]` its |residual|
    without that fold."""

    fold: NDArray[np.int64]
    residual: Floats

    @property
    def method(self) -> str:
        return "jackknife+" if len(set(self.fold.tolist())) == len(self.fold) else "CV+"

    def guarantee(self, level: float) -> str:
        """The guarantee as text."""
        least = 1 - 2 * (1 - exact(level))
        less = "" if self.method == "jackknife+" else " less sqrt(2/n) at most"
        return (
            f"{self.method}, {len(self.fold)} points: at least {percentage(float(least))}{less} for points "
            f"like these, usually {percentage(level)}"
        )

    def interval(self, of_fold: Floats, level: float) -> tuple[Floats, Floats]:
        """Low and high at m places; `of_fold` (folds × m): predictions of the models fitted without each
        fold."""
        n = len(self.fold)
        k = conformal_rank(n, level)
        centre = of_fold[self.fold]
        if k > n:
            unbounded = np.full(of_fold.shape[1], math.inf)
            return -unbounded, unbounded
        low = np.sort(centre - self.residual[:, None], axis=0)[n - k]
        high = np.sort(centre + self.residual[:, None], axis=0)[k - 1]
        return np.minimum(low, high), np.maximum(low, high)

    def among(self, members: NDArray[np.bool_], level: float) -> CrossConformal:
        """The same for one class of points, with a guarantee within the class (Mondrian: Vovk 2013); for all
        points if the class is too small for an interval."""
        if conformal_rank(int(members.sum()), level) > members.sum():
            return self
        return CrossConformal(self.fold[members], self.residual[members])
