"""Comparison of candidates: paired differences over the same seeds, with more seeds until significant.

Candidates are predicted with common random numbers, so the difference of two on one seed varies less than
either does, and its interval is Student's t over the seeds. Candidates significantly worse than the best are
dropped; the rest get more seeds. With k candidates and l looks each comparison is made at 1 - (1 - level) /
(l (k - 1)), one-sided: the truly best candidate is then dropped with a probability of at most 1 - level
(Bonferroni; only the k - 1 comparisons with the true best can drop it). [ours]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from penstock.parts.prediction.exploration.space.space import Candidate

#: candidates whose interval lies within this share of the best are equivalent to it
INDIFFERENCE = 0.01

#: losses of candidates (rows) on the first n seeds (columns)
LossesOn = Callable[[Sequence[Candidate], int], NDArray[np.float64]]


@dataclass(frozen=True)
class Contender:
    """A candidate compared with the best: mean loss, relative difference with its interval.

    `verdict`: `best`; `worse` (significant); `same` (within the indifference); `undecided` (the interval
    contains 0 and exceeds the indifference).
    """

    candidate: Candidate
    mean: float
    difference: float
    low: float
    high: float
    seeds: int
    verdict: str

    @property
    def tie(self) -> bool:
        """True if it is not worse than the best: `same` or `undecided`."""
        return self.verdict in ("same", "undecided")


@dataclass(frozen=True)
class Selection:
    """The best of some candidates and their comparison with it, best first."""

    contenders: tuple[Contender, ...]
    level: float
    seeds: int

    @property
    def best(self) -> Contender:
        """The contender with the least mean loss."""
        return self.contenders[0]

    def of(self, verdict: str) -> list[Contender]:
        """Contenders of that verdict."""
        return [c for c in self.contenders if c.verdict == verdict]

    @property
    def decided(self) -> bool:
        """True if no contender remains that may be better than the best by more than the indifference."""
        return not self.of("undecided")


def looks(most_seeds: int) -> list[int]:
    """Numbers of seeds at which candidates are compared: 5, 10, 20, … up to `most_seeds`."""
    steps = [n for n in (5, 10, 20, 40, 80, 160, 320) if n < most_seeds]
    return [*steps, most_seeds]


def interval(
    a: NDArray[np.float64], b: NDArray[np.float64], scale: float, alpha: float
) -> tuple[float, float, float]:
    """Mean of (a - b) / scale over common seeds, and its interval, each side with error probability `alpha`.

    The interval of one seed is unbounded, unless the values are equal and not random.
    """
    differences = (a - b) / scale
    mean = float(differences.mean())
    n = len(differences)
    if n < 2:
        return mean, -np.inf, np.inf
    deviation = float(differences.std(ddof=1))
    # equal up to rounding: a predictor without randomness
    if deviation <= 1e-12 * max(1.0, abs(mean)):
        return mean, mean, mean
    half = float(stdtrit(n - 1, 1 - alpha)) * deviation / np.sqrt(n)
    return mean, mean - half, mean + half


def select(
    candidates: Sequence[Candidate],
    losses: LossesOn,
    *,
    most_seeds: int,
    level: float = 0.9,
    relative: bool = True,
    indifference: float = INDIFFERENCE,
) -> Selection:
    """The best of the candidates, with more seeds until significant or `most_seeds` are spent.

    Differences are relative to the best mean loss (`relative`), or absolute.
    """
    steps = looks(most_seeds)
    alpha = (1 - level) / (len(steps) * max(1, len(candidates) - 1))
    alive = list(candidates)
    out: dict[Candidate, Contender] = {}
    contenders: dict[Candidate, Contender] = {}
    for n in steps:
        values = losses(alive, n)
        means = np.where(np.isfinite(values).all(axis=1), values.mean(axis=1), np.inf)
        b = int(np.argmin(means))
        scale = abs(float(means[b])) if relative and means[b] and np.isfinite(means[b]) else 1.0
        contenders = {}
        for i, candidate in enumerate(alive):
            if i != b and not np.isfinite(values[i]).all():  # some of its runs do not end
                mean = low = high = np.inf
            else:
                mean, low, high = interval(values[i], values[b], scale, alpha)
            verdict = _verdict(i == b, low, high, indifference)
            contenders[candidate] = Contender(
                candidate, float(means[i]), mean, low, high, n, verdict
            )
        out |= {c: f for c, f in contenders.items() if f.verdict == "worse"}
        alive = [c for c in alive if c not in out]
        if all(f.verdict != "undecided" for f in contenders.values()):
            break
    ordered = sorted((out | contenders).values(), key=lambda f: (f.verdict != "best", f.mean))
    return Selection(tuple(ordered), level, max(f.seeds for f in ordered))


def equivalent(low: float, high: float, indifference: float = INDIFFERENCE) -> bool:
    """True if a difference with this interval is a tie: it includes 0, or is within the indifference."""
    return low <= 0 <= high or max(abs(low), abs(high)) <= indifference


def _verdict(is_best: bool, low: float, high: float, indifference: float) -> str:
    if is_best:
        return "best"
    if low > 0:
        return "same" if high <= indifference else "worse"
    return "same" if high <= indifference else "undecided"


def ratio_interval(
    a: NDArray[np.float64], b: NDArray[np.float64], level: float = 0.9
) -> tuple[float, float, float]:
    """Ratio of the means of a and b over common seeds, with its interval at `level` (two-sided).

    From the paired differences of logarithms; all values must be positive.
    """
    point = float(a.mean() / b.mean())
    centre, low, high = interval(np.log(a), np.log(b), 1.0, (1 - level) / 2)
    if not np.isfinite(low):
        return point, 0.0, np.inf
    return point, point * float(np.exp(low - centre)), point * float(np.exp(high - centre))
