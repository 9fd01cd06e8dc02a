"""Distribution of measured times: quantiles for the model, and a test for two modes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.text import percent

#: steps of a recorded distribution
_STEPS = 10
#: fewest times that are tested, and least share of them in the smaller of two modes
_FEWEST, _LEAST_SHARE = 12, 0.1
#: resamples of the test, and its level
_RESAMPLES, _LEVEL = 200, 0.01
_GRID = 256


def quantiles(values_s: Sequence[float]) -> list[list[float]]:
    """Pairs [probability, seconds] from the least to the greatest, as in `kind: empirical`."""
    at = np.linspace(0, 1, _STEPS + 1)
    times = np.quantile(values_s, at)
    return [[round(float(p), 6), round(float(t), 9)] for p, t in zip(at, times, strict=True)]


def empirical(values_s: Sequence[float], mean_s: float) -> Mapping[str, object]:
    """Distribution with that mean and the deviations of the values from theirs, at least 0."""
    at, times = np.array(quantiles(values_s)).T
    shifted = np.maximum(0.0, times - _mean(times) + mean_s)
    shifted *= mean_s / max(_mean(shifted), 1e-12)
    pairs = [[p, round(t, 9)] for p, t in zip(at.tolist(), shifted.tolist(), strict=True)]
    return {"kind": "empirical", "quantiles": pairs}


def _mean(times: np.ndarray) -> float:
    """Mean of a distribution that is linear between equidistant quantiles."""
    return float(np.mean(times[1:] + times[:-1])) / 2


@dataclass(frozen=True)
class Modes:
    """Two groups of times: the median of each [s], and the share of the second."""

    first_s: float
    second_s: float
    share: float

    def __str__(self) -> str:
        return (
            f"{percent(1 - self.share)} of the times around {1e3 * self.first_s:.3g} ms and "
            f"{percent(self.share)} around {1e3 * self.second_s:.3g} ms"
        )


def two_modes(values_s: Sequence[float]) -> Modes | None:
    """The two groups of a bimodal sample; None without evidence for them.

    Tests the number of modes of the logarithms by the critical bandwidth of a kernel density [Silverman
    1981]: the least bandwidth with a single mode, compared with that of resamples of the smooth density.
    """
    if len(values_s) < _FEWEST or min(values_s) <= 0:
        return None
    logs = np.sort(np.log(values_s))
    if logs[-1] - logs[0] < 1e-9:
        return None
    critical = _critical(logs)
    draws = np.random.default_rng(1)
    spread = float(np.std(logs))
    several = 0
    for _ in range(_RESAMPLES):
        drawn = draws.choice(logs, len(logs)) + critical * draws.standard_normal(len(logs))
        # resamples with the variance of the sample, as the kernel adds its own
        drawn = np.mean(drawn) + (drawn - np.mean(drawn)) / np.hypot(1, critical / spread)
        several += len(_peaks(drawn, critical)) > 1
    if several > _LEVEL * _RESAMPLES:
        return None
    grid, density = _density(logs, 0.98 * critical)
    peaks = _peaks(logs, 0.98 * critical)[:2]
    low, high = sorted(int(p) for p in peaks)
    least = grid[low + int(np.argmin(density[low : high + 1]))]
    first, second = logs[logs < least], logs[logs >= least]
    share = len(second) / len(logs)
    if not _LEAST_SHARE <= share <= 1 - _LEAST_SHARE:
        return None
    return Modes(float(np.exp(np.median(first))), float(np.exp(np.median(second))), share)


def _density(logs: np.ndarray, width: float) -> tuple[np.ndarray, np.ndarray]:
    grid = np.linspace(logs.min() - 3 * width, logs.max() + 3 * width, _GRID)
    distance = (grid[:, None] - logs[None, :]) / width
    return grid, np.exp(-(distance**2) / 2).sum(axis=1)


def _peaks(logs: np.ndarray, width: float) -> np.ndarray:
    """Places of the maxima of the density on its grid, the greatest first."""
    _, density = _density(logs, width)
    inner = density[1:-1]
    peaks = 1 + np.flatnonzero((inner > density[:-2]) & (inner >= density[2:]))
    return peaks[np.argsort(-density[peaks])]


def _critical(logs: np.ndarray) -> float:
    """Least bandwidth of a density with a single mode."""
    low, high = 1e-6, float(logs[-1] - logs[0])
    for _ in range(30):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if len(_peaks(logs, middle)) < 2 else (middle, high)
    return high
