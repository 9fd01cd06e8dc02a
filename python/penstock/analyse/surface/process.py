"""A Gaussian process over coded settings, for few runs of many factors.

Covariance s² exp(−Σ θ_j (x_j − x'_j)²/4) plus the noise variance of a run divided by the number of runs of
a mean. The maximum likelihood from 16 runs of eight factors concludes that most factors have no effect,
with too much confidence; θ, s² and noise therefore have log-normal priors (a factor of twenty either way)
and are posterior modes (Rasmussen & Williams, Gaussian Processes for Machine Learning 2006, chapter 5).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, optimize
from scipy.special import ndtr

Values = NDArray[np.floating[Any]]
Numbers = NDArray[np.integer[Any]]

#: mean and standard deviation of the logarithms: θ, s² (of standardised values), noise variance (likewise)
_THETA, _SCALE, _NOISE = (-2.0, 1.5), (1.0, 1.5), (-3.5, 1.5)
#: maximum number of settings for the estimation of parameters; predictions use all
_MOST_FITTED = 500


class Process:
    """The process given means `y` of `n` runs each at coded settings `x` (settings × columns)."""

    def __init__(self, x: Values, y: Values, n: Numbers) -> None:
        self._x = x
        self._middle = float(y.mean())
        self._size = float(y.std()) or 1.0
        values = (y - self._middle) / self._size
        part = np.unique(np.linspace(0, len(x) - 1, min(len(x), _MOST_FITTED)).astype(int))
        logarithms = _largest_posterior(x[part], values[part], n[part])
        width = x.shape[1]
        self._theta = np.exp(logarithms[:width])
        self._variance, self._noise = math.exp(logarithms[width]), math.exp(logarithms[width + 1])
        covariance = self._variance * _correlation(x, x, self._theta)
        covariance[np.diag_indices_from(covariance)] += self._noise / n + 1e-8
        self._lower = np.linalg.cholesky(covariance)
        self._weights = linalg.cho_solve((self._lower, True), values)

    @property
    def noise(self) -> float:
        """Standard deviation of one run."""
        return math.sqrt(self._noise) * self._size

    def __call__(self, at: Values) -> tuple[Values, Values]:
        """Mean and standard deviation of the response, without a run's noise, at coded settings."""
        across = self._variance * _correlation(at, self._x, self._theta)
        explained = linalg.solve_triangular(self._lower, across.T, lower=True)
        variance = np.maximum(self._variance - (explained**2).sum(axis=0), 1e-12)
        return across @ self._weights * self._size + self._middle, np.sqrt(variance) * self._size


def expected_improvement(mean: Values, sd: Values, best: float) -> Values:
    """E[max(0, Y − best)] of normal Y; `sd` may be 0."""
    safe = np.where(sd > 0, sd, 1.0)
    z = (mean - best) / safe
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    gain = np.where(sd > 0, (mean - best) * ndtr(z) + sd * density, np.maximum(mean - best, 0.0))
    return np.asarray(gain)


def worth_of_a_run(mean: Values, sd: Values, noise: float) -> Values:
    """Expected gain in the largest mean from one more run of each setting: the knowledge gradient of
    independent settings (Frazier, Powell & Dayanik, SIAM Journal on Control and Optimization 47, 2008).
    Larger is better; `sd` of the settings' true responses, `noise` that of a run."""
    if len(mean) < 2:
        return np.zeros(len(mean))
    moves = sd**2 / np.sqrt(sd**2 + noise**2)
    order = np.argsort(-mean, kind="stable")
    rival = np.full(len(mean), mean[order[0]])
    rival[order[0]] = mean[order[1]]
    return expected_improvement(-np.abs(mean - rival), moves, 0.0)


def _correlation(a: Values, b: Values, theta: Values) -> Values:
    scaled_a, scaled_b = a * np.sqrt(theta) / 2, b * np.sqrt(theta) / 2
    squares = (scaled_a**2).sum(1)[:, None] + (scaled_b**2).sum(1) - 2 * scaled_a @ scaled_b.T
    return np.asarray(np.exp(-np.maximum(squares, 0.0)))


def _largest_posterior(x: Values, y: Values, n: Numbers) -> Values:
    """Logarithms of θ, s² and noise at the posterior mode."""
    width = x.shape[1]
    middle = np.r_[np.full(width, _THETA[0]), _SCALE[0], _NOISE[0]]
    spread = np.r_[np.full(width, _THETA[1]), _SCALE[1], _NOISE[1]]
    squares = [(np.subtract.outer(column, column) ** 2) / 4 for column in x.T]

    def loss(at: Values) -> tuple[float, Values]:
        theta, variance, noise = np.exp(at[:width]), math.exp(at[width]), math.exp(at[width + 1])
        signal = variance * _correlation(x, x, theta)
        covariance = signal + np.diag(noise / n + 1e-8)
        lower = np.linalg.cholesky(covariance)
        weights = linalg.cho_solve((lower, True), y)
        inner = np.outer(weights, weights) - linalg.cho_solve((lower, True), np.eye(len(y)))
        of_signal = inner * signal
        off = (at - middle) / spread
        slope = off / spread
        for j, square in enumerate(squares):
            slope[j] += 0.5 * float((of_signal * square).sum()) * theta[j]
        slope[width] -= 0.5 * float(of_signal.sum())
        slope[width + 1] -= 0.5 * float((np.diag(inner) * noise / n).sum())
        value = 0.5 * float(y @ weights) + float(np.log(np.diag(lower)).sum())
        return value + 0.5 * float(off @ off), slope

    bounds = [(-9.0, 3.0)] * width + [(-4.0, 6.0), (-10.0, 1.0)]
    optimum = optimize.minimize(loss, middle, jac=True, method="L-BFGS-B", bounds=bounds)
    return np.asarray(optimum.x)
