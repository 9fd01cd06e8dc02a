"""An order of means with its uncertainty: groups that differ, and bounds of ranks.

Each pair is compared by Welch's test (B. L. Welch, Biometrika 34, 1947; Satterthwaite's degrees of
freedom), all pairs together by Holm's adjustment (S. Holm, Scandinavian Journal of Statistics 6, 1979).
Pairs without a significant difference are ties, whatever the order of their means.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import stdtr

from penstock.analyse.statistics.multiple_tests import holm
from penstock.errors import BadInput

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Measured:
    """Mean, standard deviation (of a run, n - 1) and number of runs of one item."""

    name: str
    mean: float
    sd: float
    n: int

    @classmethod
    def of(cls, name: str, values: Sequence[float]) -> Measured:
        """From the values of its runs."""
        array = np.asarray(values, float)
        return cls(name, float(array.mean()), float(array.std(ddof=1)), len(array))


@dataclass(frozen=True)
class Pair:
    """A compared pair: `difference` of the means (first minus second), raw and adjusted p-value."""

    first: str
    second: str
    difference: float
    df: float
    p_value: float
    p_holm: float

    @property
    def apart(self) -> bool:
        """True if they differ significantly, all pairs tested together."""
        return self.p_holm < 1 - CONFIDENCE


@dataclass(frozen=True)
class Place:
    """A ranked item: its rank lies between `rank_low` and `rank_high`, 1 is the best."""

    measured: Measured
    rank_low: int
    rank_high: int


@dataclass(frozen=True)
class Order:
    """The places, the best mean first; the pairs; the groups of ties.

    Groups are maximal and may overlap: significance is not transitive.
    """

    places: list[Place]
    pairs: list[Pair]
    groups: list[list[str]]

    def pair(self, one: str, other: str) -> Pair:
        """The comparison of two, in either order."""
        return next(p for p in self.pairs if {p.first, p.second} == {one, other})

    def __str__(self) -> str:
        """`1-3: a = c = b; 4-5: d = e; 6: f`, ties joined by `=`."""
        shown = []
        for (low, high), tied in itertools.groupby(
            self.places, lambda p: (p.rank_low, p.rank_high)
        ):
            rank = f"{low}" if low == high else f"{low}-{high}"
            shown.append(f"{rank}: {' = '.join(p.measured.name for p in tied)}")
        return "; ".join(shown)


def welch(a: Measured, b: Measured) -> tuple[float, float]:
    """Degrees of freedom and two-sided p-value of the difference of two means with unequal variances."""
    errors = a.sd**2 / a.n, b.sd**2 / b.n
    total = sum(errors)
    if total == 0:
        return math.inf, 1.0 if a.mean == b.mean else 0.0
    df = total**2 / (errors[0] ** 2 / (a.n - 1) + errors[1] ** 2 / (b.n - 1))
    return df, float(2 * stdtr(df, -abs(a.mean - b.mean) / math.sqrt(total)))


def order(measured: Sequence[Measured], better: Literal["lower", "higher"] = "lower") -> Order:
    """The order of means. BadInput for fewer than two runs of any item, or for values that are not finite."""
    for m in measured:
        if m.n < 2 or not (math.isfinite(m.mean) and math.isfinite(m.sd) and m.sd >= 0):
            raise BadInput(
                f"{m.name}: found mean {m.mean:g}, deviation {m.sd:g} of {m.n} runs; expected numbers of "
                "two runs at least"
            )
    if len({m.name for m in measured}) != len(measured):
        raise BadInput("found a name twice; expected each to be ranked once")
    ranked = sorted(measured, key=lambda m: m.mean if better == "lower" else -m.mean)
    tests = [(a, b, *welch(a, b)) for a, b in itertools.combinations(ranked, 2)]
    pairs = [
        Pair(a.name, b.name, a.mean - b.mean, df, p, together)
        for (a, b, df, p), together in zip(tests, holm([t[3] for t in tests]), strict=True)
    ]
    apart = {frozenset((p.first, p.second)) for p in pairs if p.apart}
    places = []
    for number, m in enumerate(ranked):
        before = sum(frozenset((m.name, o.name)) in apart for o in ranked[:number])
        behind = sum(frozenset((m.name, o.name)) in apart for o in ranked[number + 1 :])
        places.append(Place(m, 1 + before, len(ranked) - behind))
    return Order(places, pairs, _groups([m.name for m in ranked], apart))


def _groups(names: list[str], apart: set[frozenset[str]]) -> list[list[str]]:
    """Maximal sets without a significant pair (maximal cliques; Bron and Kerbosch, 1973)."""
    ties = {n: {o for o in names if o != n and frozenset((n, o)) not in apart} for n in names}
    cliques: list[list[str]] = []

    def grow(inside: set[str], open_: set[str], closed: set[str]) -> None:
        if not open_ and not closed:
            cliques.append(sorted(inside, key=names.index))
        if open_ or closed:
            pivot = max(sorted(open_ | closed, key=names.index), key=lambda n: len(ties[n] & open_))
            for n in sorted(open_ - ties[pivot], key=names.index):
                grow(inside | {n}, open_ & ties[n], closed & ties[n])
                open_, closed = open_ - {n}, closed | {n}

    grow(set(), set(names), set())
    return sorted(cliques, key=lambda g: [names.index(n) for n in g])
