"""Utility of a configuration: weighted metrics, and limits that a configuration must respect.

Each metric is divided by its largest value among all configurations (Costa 2014, equation 5.8, for any
number of configurations). A limit is a share of the metric without deduplication: time at most 120 %, space
below 70 %.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

#: time [s], stored bytes and energy [J] of one write
Costs = tuple[float, float, float]
METRICS = ("time", "space", "energy")


@dataclass(frozen=True)
class Limit:
    """A metric of at most `share` of that without deduplication; less than it if `strict`."""

    metric: str
    share: float
    strict: bool = False

    def met(self, costs: Costs, off: Costs) -> bool:
        """True if a configuration with `costs` respects the limit."""
        i = METRICS.index(self.metric)
        value, limit = costs[i], self.share * off[i]
        # the same value, computed in two ways, may differ in the last digit
        tie = math.isclose(value, limit, rel_tol=1e-12)
        return not tie and value < limit if self.strict else tie or value < limit


@dataclass(frozen=True)
class Utility:
    """Weights of time, space and energy, and limits; by default the shortest time."""

    weights: Costs = (-1.0, 0.0, 0.0)
    limits: tuple[Limit, ...] = ()

    @property
    def scale(self) -> float:
        """Difference between the utilities of the best and the worst conceivable configuration."""
        return sum(abs(weight) for weight in self.weights)

    def uses(self, metric: str) -> bool:
        """True if the metric matters."""
        weighted = self.weights[METRICS.index(metric)] != 0
        return weighted or any(limit.metric == metric for limit in self.limits)

    @functools.cached_property
    def _single(self) -> int | None:
        """The only metric that matters, if there is one and no limit."""
        weighted = [metric for metric, weight in enumerate(self.weights) if weight]
        alone = len(weighted) == 1 and not self.limits and self.weights[weighted[0]] < 0
        return weighted[0] if alone else None

    def best(self, costs: Sequence[Costs | None], off: int | None) -> int:
        """Index of the first configuration with the largest utility."""
        metric = self._single
        if metric is None:
            values = self.values(costs, off)
            return values.index(max(values))
        best, least = 0, math.inf
        for index, cost in enumerate(costs):
            if cost is not None and cost[metric] < least:
                best, least = index, cost[metric]
        return best

    def values(self, costs: Sequence[Costs | None], off: int | None) -> list[float]:
        """Utility of each configuration; minus infinity where unknown (None) or beyond a limit.

        `off` is the index of the configuration without deduplication, which no limit excludes: it is what
        remains if no other configuration respects them.
        """
        values = [-math.inf] * len(costs)
        present = [cost for cost in costs if cost is not None]
        if not present:
            return values
        divided = [
            (metric, weight / largest)
            for metric, weight in enumerate(self.weights)
            if weight and (largest := max([cost[metric] for cost in present])) > 0
        ]
        base = costs[off] if off is not None else None
        for index, cost in enumerate(costs):
            if cost is None:
                continue
            if self.limits and base is not None and index != off and not self._met(cost, base):
                continue
            value = 0.0
            for metric, factor in divided:
                value += factor * cost[metric]
            values[index] = value
        return values

    def _met(self, costs: Costs, off: Costs) -> bool:
        return all(limit.met(costs, off) for limit in self.limits)
