"""Scores of candidates: the objective, or the distance to the ideal point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.parts.prediction.exploration.record import Record
from penstock.parts.prediction.exploration.space.expression import Objective
from penstock.parts.prediction.exploration.space.space import Candidate

Array = NDArray[np.float64]
#: means of a candidate by column
Mean = Callable[[Candidate], dict[str, float]]

#: quantities with the same error factor as a predicted time
METRICS = ("makespan_s", "cost", "energy_j")


class Yardstick(Protocol):
    """A loss of candidates, to be minimised."""

    #: True if differences are relative to the least loss, else absolute
    relative: bool

    def of(self, candidate: Candidate) -> float:
        """The loss of the candidate's means."""

    def scaled(self, candidate: Candidate, factors: Array) -> Array:
        """Losses of the means, with time, cost and energy multiplied by each factor."""

    def on_seeds(self, candidates: Sequence[Candidate], seeds: Sequence[int]) -> Array:
        """Losses (candidates, seeds) whose means and spread over the seeds are comparable in pairs."""

    def on_draws(self, candidates: Sequence[Candidate], draws: Sequence[int]) -> Array:
        """Losses (candidates, draws), for each draw separately."""


class ByObjective:
    """The objective itself; its mean over seeds is the expected value of a run."""

    relative = True

    def __init__(self, record: Record, mean: Mean, objective: Objective) -> None:
        self.record, self.mean, self.objective = record, mean, objective

    def of(self, candidate: Candidate) -> float:
        return self.objective.loss(self.mean(candidate) | self.record.magnitudes(candidate))

    def scaled(self, candidate: Candidate, factors: Array) -> Array:
        """See `Yardstick`."""
        mean, magnitudes = self.mean(candidate), self.record.magnitudes(candidate)
        losses = [
            self.objective.loss(mean | {m: mean[m] * factor for m in METRICS} | magnitudes)
            for factor in factors.tolist()
        ]
        return np.array(losses)

    def on_seeds(self, candidates: Sequence[Candidate], seeds: Sequence[int]) -> Array:
        self.record.evaluate(candidates, seeds)
        loss, values = self.objective.loss, self.record.values
        return np.array([[loss(values(c, s)) for s in seeds] for c in candidates])

    on_draws = on_seeds


class ByKnee:
    """Distance to the ideal: the best value of each metric on the front.

    Euclidean in the logarithms of the ratios to it. The ideal is computed on the same seeds (the same draw)
    as the candidates, from the front members that are best in a metric, so that common variation cancels. A
    distance is not linear, so its spread over seeds is that of jackknife pseudo-values: n d - (n - 1) d
    without the seed.
    """

    relative = False

    def __init__(
        self, record: Record, mean: Mean, metrics: Sequence[str], front: Sequence[Candidate]
    ) -> None:
        self.record, self.mean, self.metrics = record, mean, tuple(metrics)
        points = np.array([self._mean(c) for c in front])
        self._anchors = list(dict.fromkeys(front[int(i)] for i in points.argmin(axis=0)))
        self._ideal = points.min(axis=0)

    def of(self, candidate: Candidate) -> float:
        return float(_distance(self._mean(candidate), self._ideal))

    def scaled(self, candidate: Candidate, factors: Array) -> Array:
        """See `Yardstick`."""
        return _distance(self._mean(candidate)[None, :] * factors[:, None], self._ideal)

    def on_seeds(self, candidates: Sequence[Candidate], seeds: Sequence[int]) -> Array:
        values, anchors = self._values(candidates, seeds), self._values(self._anchors, seeds)
        distance = self._far(values.mean(axis=1), anchors.mean(axis=1))
        n = len(seeds)
        if n == 1:
            return distance[:, None]
        columns = []
        for s in range(n):
            rest = np.arange(n) != s
            without = self._far(values[:, rest].mean(axis=1), anchors[:, rest].mean(axis=1))
            with np.errstate(invalid="ignore"):  # for runs that do not end
                columns.append(n * distance - (n - 1) * without)
        return np.stack(columns, axis=1)

    def on_draws(self, candidates: Sequence[Candidate], draws: Sequence[int]) -> Array:
        values, anchors = self._values(candidates, draws), self._values(self._anchors, draws)
        columns = [self._far(values[:, d], anchors[:, d]) for d in range(len(draws))]
        return np.stack(columns, axis=1)

    def _far(self, points: Array, anchors: Array) -> Array:
        """Distances of points (n, metrics) to the best of them and of the anchors."""
        return _distance(points, np.minimum(points.min(axis=0), anchors.min(axis=0)))

    def _mean(self, candidate: Candidate) -> Array:
        mean = self.mean(candidate)
        return np.array([mean[m] for m in self.metrics])

    def _values(self, candidates: Sequence[Candidate], seeds: Sequence[int]) -> Array:
        """(candidates, seeds, metrics)."""
        self.record.evaluate(candidates, seeds)
        measures = [[self.record.measures[c][s] for s in seeds] for c in candidates]
        return np.array([[[getattr(m, k) for k in self.metrics] for m in row] for row in measures])


def _distance(points: Array, ideal: Array) -> Array:
    """Along the last axis; points better than the ideal have distance 0."""
    logs = np.maximum(np.log(points / ideal), 0.0)
    distances: Array = np.sqrt((logs**2).sum(axis=-1))
    return distances
