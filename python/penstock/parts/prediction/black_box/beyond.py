"""Points outside of the measured grid: the dimension, and the factor by which the interval widens.

Conformal intervals hold for points exchangeable with the measured ones; trees extrapolate with their edge
values. Outside, the throughput may therefore continue to change, up or down, by the largest change measured
along that dimension, per doubling, between measured neighbours of the same kind of access; for requests and
clients by a factor of two at least. [ours]
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from penstock.errors import BadInput
from penstock.parts.prediction.black_box.space import CATEGORIES, DIMENSIONS, Point, shown_bytes

#: change of log throughput per doubling that is possible regardless of measurements: a request of half the
#: bytes may take as long, twice the clients or nodes may share the same bandwidth
_LEAST = {
    "request_bytes": math.log(2),
    "clients": math.log(2),
    "data_bytes": 0.0,
    "nodes": math.log(2),
}
#: avoids overflow of a factor
_MOST_LOG = 100.0
_WORDS = {"request_bytes": "request", "data_bytes": "size"}


@dataclass(frozen=True)
class Beyond:
    """One dimension of a point outside of the measured values `low` to `high`.

    The throughput may deviate by `factor` more in both directions; infinite if only one value was measured,
    so that its trend is unknown.
    """

    dimension: str
    requested: int
    low: int
    high: int
    factor: float

    @property
    def message(self) -> str:
        """`clients 20 is outside of 0 to 4: interval of the throughput ÷ 2.1 and × 2.1 wider`."""
        shown = [self._shown(v) for v in (self.requested, self.low, self.high)]
        name = _WORDS.get(self.dimension, self.dimension)
        range_ = shown[1] if self.low == self.high else f"{shown[1]} to {shown[2]}"
        if math.isinf(self.factor):
            why = ", the only value measured" if self.low == self.high else ""
            return f"{name} {shown[0]} is outside of {range_}{why}: no interval"
        by = f"{self.factor:.3g}"
        return f"{name} {shown[0]} is outside of {range_}: interval widened by ÷ {by} and × {by}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values; `factor` is None if unbounded."""
        factor = self.factor if math.isfinite(self.factor) else None
        return {
            "dimension": self.dimension,
            "asked": self.requested,
            "low": self.low,
            "high": self.high,
            "factor": factor,
        }

    def _shown(self, value: int) -> str:
        return str(value) if self.dimension in ("clients", "nodes") else shown_bytes(value)


def refuse_unmeasured(points: Sequence[Point], requested: Point) -> None:
    """BadInput for a category without a measured point: it cannot be extrapolated."""
    for dimension in CATEGORIES:
        measured = sorted({str(getattr(p, dimension)) for p in points})
        value = getattr(requested, dimension)
        if value not in measured:
            raise BadInput(
                f"found the {dimension} {value}, which was not measured; expected {' or '.join(measured)}"
            )


def beyond(points: Sequence[Point], rates: Sequence[float], requested: Point) -> list[Beyond]:
    """Numeric dimensions in which a point is outside of the measured ones."""
    outside = []
    for dimension in DIMENSIONS:
        if dimension in CATEGORIES:
            continue
        values = [getattr(p, dimension) for p in points]
        low, high, value = min(values), max(values), getattr(requested, dimension)
        if low <= value <= high:
            continue
        edge = low if value < low else high
        away = abs(_place(dimension, value) - _place(dimension, edge))
        steps = away * max(_LEAST[dimension], _steepest(points, rates, dimension, requested))
        factor = math.exp(steps) if steps < _MOST_LOG else math.inf
        outside.append(Beyond(dimension, value, low, high, factor))
    return outside


def _place(dimension: str, value: int) -> float:
    """Position in doublings: of bytes, and of all clients including the measured one."""
    return math.log2(max(1, value + 1 if dimension == "clients" else value))


def _steepest(
    points: Sequence[Point], rates: Sequence[float], dimension: str, requested: Point
) -> float:
    """Largest change of log throughput per doubling; infinite if only one value was measured."""
    alike = [i for i, p in enumerate(points) if _kind(p) == _kind(requested)]
    members = (
        alike if len({getattr(points[i], dimension) for i in alike}) > 1 else range(len(points))
    )
    lines: dict[tuple[Any, ...], list[tuple[float, float]]] = defaultdict(list)
    for i in members:
        others = tuple(getattr(points[i], d) for d in DIMENSIONS if d != dimension)
        place = _place(dimension, getattr(points[i], dimension))
        lines[others].append((place, math.log(rates[i])))
    slopes = [
        abs(b[1] - a[1]) / (b[0] - a[0])
        for line in lines.values()
        for a, b in pairwise(sorted(line))
        if b[0] > a[0]
    ]
    if slopes:
        return max(slopes)
    # no two points differ in this dimension only: attribute the complete difference to it
    places = [place for line in lines.values() for place, _ in line]
    logs = [log for line in lines.values() for _, log in line]
    span = max(places) - min(places)
    return (max(logs) - min(logs)) / span if span > 0 else math.inf


def _kind(point: Point) -> tuple[str, bool, str, str]:
    return point.operation, point.pattern == "sequential", point.access, point.storage
