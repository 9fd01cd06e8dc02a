"""Choice of the points to measure: Algorithm 1 of Mytilinis 2015, sub-sampling, adaptive choice."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from penstock.parts.prediction.black_box.space import CATEGORIES, DIMENSIONS, Point, Space
from penstock.parts.prediction.black_box.surrogate import Surrogate, widest

Storage = TypeVar("Storage")
Model = TypeVar("Model")

#: share of the points in the first round of an adaptive choice, and in each further one
FIRST_SHARE, NEXT_SHARE = 0.4, 0.2
#: fewest points for estimating interval widths of others
LEAST_MEASURED = 8
#: smallest relative effect on throughput for which a value is retained
TOLERANCE = 0.15


def algorithm_1(
    storages: Iterable[Storage],
    points: Sequence[Point],
    profile: Callable[[Point, Storage], float],
    train: Callable[[Sequence[Point], Sequence[float]], Model],
) -> dict[Storage, Model]:
    """One model per storage, from the performance of every point of the subspace P (Mytilinis 2015)."""
    return {s: train(points, [profile(p, s) for p in points]) for s in storages}


def balanced(points: Sequence[Point], count: int, seed: int) -> list[Point]:
    """`count` of the points such that all values, and all pairs of values, occur about equally often.

    A shorter choice from the same seed is a prefix of a longer one.
    """
    order = np.random.default_rng(seed).permutation(len(points))
    codes = []
    for pair in itertools.combinations(DIMENSIONS, 2):
        pair_codes: dict[tuple[object, ...], int] = {}
        codes.append(
            np.array(
                [
                    pair_codes.setdefault(tuple(getattr(p, d) for d in pair), len(pair_codes))
                    for p in points
                ]
            )
        )
    seen = [np.zeros(int(c.max()) + 1) for c in codes]
    remaining = list(order)
    chosen: list[Point] = []
    while remaining and len(chosen) < count:
        crowded = sum(n[c[remaining]] for n, c in zip(seen, codes, strict=True))
        index = remaining.pop(int(np.argmin(crowded)))
        chosen.append(points[index])
        for n, c in zip(seen, codes, strict=True):
            n[c[index]] += 1
    return chosen


def thinned(
    values: Sequence[float], throughput: Sequence[float], tolerance: float = TOLERANCE
) -> list[float]:
    """Values of a dimension to retain: others hardly deviate from interpolation between their neighbours.

    Both ends are retained. Greedy: the value with the largest ratio to the line between its retained
    neighbours is added while it exceeds `tolerance` (Mytilinis 2015; the rule is ours).
    """
    at = np.log2(1 + np.asarray(values, dtype=float))
    log = np.log(np.asarray(throughput, dtype=float))
    chosen = sorted({0, len(values) - 1})
    while len(chosen) < len(values):
        off = np.abs(log - np.interp(at, at[chosen], log[chosen]))
        worst = int(np.argmax(off))
        if off[worst] <= np.log1p(tolerance):
            break
        chosen = sorted([*chosen, worst])
    return [values[i] for i in chosen]


def exploratory(space: Space) -> list[Point]:
    """Points of the preliminary tests: along each dimension of many values, with the first value of the
    others, once for every operation, kind of pattern and storage."""
    points: dict[Point, None] = {}
    patterns = list(dict.fromkeys([space.pattern[0], space.pattern[-1]]))
    for operation, pattern, storage in itertools.product(space.operation, patterns, space.storage):
        base = Point(
            operation,
            pattern,
            space.access[0],
            space.clients[0],
            space.request_bytes[0],
            space.data_bytes[0],
            space.nodes[0],
            storage,
        )
        for dimension in DIMENSIONS:
            if dimension not in CATEGORIES:
                for value in space.values(dimension):
                    points[Point(**{**vars(base), dimension: value})] = None
    return [p for p in points if p.request_bytes <= p.data_bytes]


def subspace(space: Space, measured: Mapping[Point, float], tolerance: float = TOLERANCE) -> Space:
    """The space without values that have no significant effect in the exploratory points."""
    significant: dict[str, set[float]] = {}
    for dimension in (d for d in DIMENSIONS if d not in CATEGORIES):
        lines: dict[tuple[object, ...], list[Point]] = {}
        for point in measured:
            rest = tuple(v for k, v in vars(point).items() if k != dimension)
            lines.setdefault(rest, []).append(point)
        for line in lines.values():
            line.sort(key=lambda p: float(getattr(p, dimension)))
            values = [getattr(p, dimension) for p in line]
            if len(values) > 1:
                values_along = thinned(values, [measured[p] for p in line], tolerance)
                significant.setdefault(dimension, set()).update(values_along)
    return space.with_values(
        **{d: [v for v in space.values(d) if v in chosen] for d, chosen in significant.items()}
    )


def next_round(
    space: Space,
    measured: Mapping[Point, float],
    candidates: Sequence[Point],
    total: int,
    seed: int,
) -> list[Point]:
    """Points of the next round of an adaptive choice of `total`; none if all are measured.

    The first round is balanced; each later one has a share of the total, at points of the greatest
    uncertainty.
    """
    remaining = [p for p in candidates if p not in measured]
    missing = min(total - len(measured), len(remaining))
    if missing <= 0:
        return []
    first = max(LEAST_MEASURED, round(FIRST_SHARE * total)) - len(measured)
    if first > 0:
        return balanced(remaining, min(first, missing), seed)
    count = min(max(1, round(NEXT_SHARE * total)), missing)
    surrogate = Surrogate(space, list(measured), list(measured.values()))
    return [remaining[i] for i in widest(surrogate.covariance(remaining), count)]
