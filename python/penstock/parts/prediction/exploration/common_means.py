"""Means over common seeds: the numbers of every table and figure of an exploration."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from penstock.parts.prediction.exploration.compare import INDIFFERENCE, equivalent, interval
from penstock.parts.prediction.exploration.record import Record
from penstock.parts.prediction.exploration.space.space import Candidate

#: simulations for tables and figures, if they need no more than the first comparison's seeds for each
_SIMULATIONS = 4000
#: columns that vary with the seed
_VARYING = ("makespan_s", "cost", "energy_j", "network_bytes")


class CommonMeans:
    """Means over the same seeds for all candidates that have them (common random numbers).

    These are the `seeds`, at first seed 1, which every candidate has. The mean of a candidate without the
    others is its value of seed 1, scaled by the mean ratio of the candidates that have them: an estimate for
    the background of figures. Tables and the front show only exact means. Evaluations that an earlier
    exploration left do not count until the candidate is settled: a resumed one decides as if it was not
    interrupted.
    """

    def __init__(self, record: Record) -> None:
        self.record = record
        self.seeds: tuple[int, ...] = (1,)
        self._factors: dict[str, float] = {}
        self._cache: dict[Candidate, dict[str, float]] = {}
        #: number of seeds that a candidate was settled on
        self._settled: dict[Candidate, int] = {}

    def settle(self, candidates: Iterable[Candidate], seeds: Sequence[int]) -> None:
        """Evaluate these candidates on the seeds, which replace the present ones."""
        shown = list(dict.fromkeys(candidates))
        self.record.evaluate(shown, seeds)
        self.seeds = tuple(seeds)
        self._cache.clear()
        for c in shown:
            self._settled[c] = max(len(seeds), self._settled.get(c, 1))
        pairs = [
            (self.record.mean(c, self.seeds), self.record.mean(c, self.seeds[:1])) for c in shown
        ]
        for name in _VARYING:
            ratios = np.array([mean[name] / first[name] for mean, first in pairs if first[name]])
            ratios = ratios[np.isfinite(ratios) & (ratios > 0)]
            self._factors[name] = float(np.exp(np.log(ratios).mean())) if len(ratios) else 1.0

    def exact(self, candidate: Candidate) -> bool:
        """True if the candidate has all seeds."""
        return self._settled.get(candidate, 1) >= len(self.seeds)

    def of(self, candidate: Candidate) -> dict[str, float]:
        """Means by column; an estimate without all seeds."""
        mean = self._cache.get(candidate)
        if mean is None:
            exact = self.exact(candidate)
            mean = self.record.mean(candidate, self.seeds) if exact else self.first(candidate)
            self._cache[candidate] = mean
        return mean

    def first(self, candidate: Candidate) -> dict[str, float]:
        """Values of seed 1, scaled to the means of the others."""
        mean = self.record.mean(candidate, self.seeds[:1])
        return {name: value * self._factors.get(name, 1.0) for name, value in mean.items()}

    def tied(self, a: Candidate, b: Candidate, metrics: Sequence[str], level: float) -> bool:
        """True if in all metrics the paired interval of the difference includes 0, or is within 1 %.

        One seed gives no interval: then values within 1 % tie.
        """
        if not (self.exact(a) and self.exact(b)):
            return False
        for metric in metrics:
            first, other = (
                np.array([self.record.values(c, s)[metric] for s in self.seeds]) for c in (a, b)
            )
            scale = abs(float(other.mean())) or 1.0
            if len(self.seeds) == 1:
                if abs(float(first[0] - other[0])) > INDIFFERENCE * scale:
                    return False
                continue
            with np.errstate(invalid="ignore"):  # of runs that do not end
                _, low, high = interval(first, other, scale, (1 - level) / 2)
            if not equivalent(low, high):
                return False
        return True


def seeds_of_tables(most: int, candidates: int, least: int) -> list[int]:
    """Seeds of tables and figures: `most`, fewer for many candidates, but not below `least`."""
    return list(range(1, min(most, max(least, _SIMULATIONS // max(1, candidates))) + 1))
