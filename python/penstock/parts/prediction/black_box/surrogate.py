"""Smooth interpolation of a storage between measured points: a Gaussian process over log throughput.

Its variance locates the greatest uncertainty (Rasmussen and Williams 2006, ch. 2), and its mean completes the
grid for the trees: a tree of few points is coarse because it cannot interpolate (figures in docs/learn.md).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from penstock.parts.prediction.black_box.features import spread
from penstock.parts.prediction.black_box.space import Point, Space

Floats = NDArray[np.float64]

#: limit of points for the fit of the surrogate (its cost is cubic); more are thinned
MOST_POINTS = 400


class Surrogate:
    """Fitted to points and their throughput [bytes/s] of one client."""

    def __init__(self, space: Space, points: Sequence[Point], throughput_bps: ArrayLike) -> None:
        self._space = space
        x = spread(space, points)
        self._middle, self._width = x.mean(axis=0), np.maximum(x.std(axis=0), 1e-9)
        log = np.log(np.asarray(throughput_bps, dtype=float))
        chosen = np.linspace(0, len(x) - 1, min(len(x), MOST_POINTS)).astype(int)
        kernel = ConstantKernel(4.0, (1e-2, 1e3)) * Matern(
            np.full(x.shape[1], 2.0), (0.2, 50.0), nu=2.5
        ) + WhiteKernel(1e-3, (1e-5, 1.0))
        self._process = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)
        with threadpool_limits(1), warnings.catch_warnings():
            # a length scale beyond its bound means that a dimension has no effect
            warnings.simplefilter("ignore", ConvergenceWarning)
            self._process.fit(self._scaled(x[chosen]), log[chosen])

    def _scaled(self, x: Floats) -> Floats:
        scaled: Floats = (x - self._middle) / self._width
        return scaled

    def throughput_bps(self, points: Sequence[Point]) -> Floats:
        """Bytes per second of one client at each point."""
        with threadpool_limits(1):
            logarithms: Floats = self._process.predict(self._scaled(spread(self._space, points)))
        return np.exp(logarithms)

    def covariance(self, points: Sequence[Point]) -> Floats:
        """Covariance of the logarithms of further measurements at the points, with noise on the diagonal."""
        with threadpool_limits(1):
            x = self._scaled(spread(self._space, points))
            _, covariance = self._process.predict(x, return_cov=True)
        return np.array(covariance, dtype=float)


def widest(covariance: Floats, count: int) -> list[int]:
    """`count` indices, each with the widest interval once the preceding ones are measured.

    A measurement narrows the other intervals regardless of its result, so a complete round is chosen at once
    without redundant points.
    """
    remaining = covariance.copy()
    chosen: list[int] = []
    for _ in range(min(count, len(remaining))):
        open_ = np.diag(remaining).copy()
        open_[chosen] = -np.inf
        at = int(np.argmax(open_))
        chosen.append(at)
        if remaining[at, at] > 0:
            remaining -= np.outer(remaining[:, at], remaining[at]) / remaining[at, at]
    return chosen


def completed(
    space: Space, points: Sequence[Point], throughput_bps: ArrayLike
) -> tuple[list[Point], Floats]:
    """Measured points, and the rest of the grid from the surrogate."""
    rates = np.asarray(throughput_bps, dtype=float)
    rest = [p for p in space.grid() if p not in set(points)]
    if not rest:
        return list(points), rates
    more = Surrogate(space, points, rates).throughput_bps(rest)
    return [*points, *rest], np.concatenate([rates, more])
