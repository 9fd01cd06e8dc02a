"""Calibration of an exploration's predictions by measured runs: their error, and overlapping candidates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.analyse.statistics.calibration import Pair
from penstock.analyse.statistics.prediction_intervals import (
    LEVEL,
    Width,
    conformal_half_width,
    conformal_rank,
    conformal_scores,
    least_pairs,
    width_verdict,
)
from penstock.parts.prediction import quantities
from penstock.parts.prediction.exploration.score import Yardstick
from penstock.parts.prediction.exploration.space.space import Candidate
from penstock.text import counted

#: points of an interval at which a loss is evaluated: a utility need not increase with time
_POINTS = 9
#: stop after this number of consecutive candidates without overlap, in order of loss
_GIVE_UP = 200


@dataclass(frozen=True)
class Calibration:
    """Calibration of an exploration by measured runs.

    `half_width` is relative to the predicted time, and to quantities proportional to it; None with fewer
    pairs than `rank`.
    """

    pairs: int
    rank: int
    half_width: float | None
    level: float

    @property
    def verdict(self) -> Width:
        """`ok`, `caution` or `outside`, by its width."""
        return "ok" if self.half_width is None else width_verdict(self.half_width)

    @property
    def status(self) -> str:
        """`none`, `insufficient calibration` or `calibrated`."""
        if not self.pairs:
            return "none"
        return "insufficient calibration" if self.half_width is None else "calibrated"

    @property
    def message(self) -> str:
        """`90 % of runs within ±4.2 % of the prediction, by 12 measured runs`; else the missing data."""
        if self.half_width is not None:
            half = quantities.digits(100 * self.half_width, 2)
            return (
                f"{quantities.percent(self.level)} of runs within ±{half} % of the prediction, by "
                f"{counted(self.pairs, 'measured run')}"
            )
        need = f"{least_pairs(self.level):,} needed for {quantities.percent(self.level)}"
        if not self.pairs:
            return f"no measured run calibrates these predictions ({need})"
        return f"insufficient calibration: {counted(self.pairs, 'measured run')}, {need}"

    def ends(self, makespan_s: float) -> tuple[float, float] | None:
        """Interval of one real run, seconds; None if it is unknown."""
        if self.half_width is None:
            return None
        return max(0.0, makespan_s * (1 - self.half_width)), makespan_s * (1 + self.half_width)

    def to_dict(self) -> dict[str, Any]:
        """As in `penstock/exploration/1`."""
        return {
            "pairs": self.pairs,
            "rank": self.rank,
            "half_width": self.half_width,
            "level": self.level,
            "status": self.status,
            "verdict": self.verdict,
        }


def calibration_of(pairs: Sequence[Pair], level: float = LEVEL) -> Calibration:
    """From pairs of predicted and measured makespans: |measured − predicted| / predicted, split-conformal.

    The pairs' simulated intervals are not used: a configuration of an exploration has few seeds.
    """
    scores, _ = conformal_scores([p.predicted for p in pairs], [p.measured for p in pairs])
    half = conformal_half_width(scores, level)
    return Calibration(len(scores), conformal_rank(len(scores), level), half, level)


@dataclass(frozen=True)
class Overlap:
    """Candidates whose calibrated interval overlaps that of the best, nearest first.

    `most_lost`: greatest possible loss of the best against one of them, a share of that one's loss
    (`relative`) or a difference.
    """

    candidates: tuple[Candidate, ...]
    most_lost: float
    relative: bool


def overlapping(
    calibration: Calibration,
    best: Candidate,
    candidates: Sequence[Candidate],
    by: Yardstick,
    number: Callable[[Candidate], int],
) -> Overlap:
    """Candidates that a real run may prove better than the best.

    Time, cost and energy of each have a common error factor within the calibrated interval; two intervals
    overlap if the least loss of one is at most the greatest loss of the best.
    """
    if calibration.half_width is None:
        return Overlap((), 0.0, by.relative)
    least = max(1 - calibration.half_width, 1e-9)
    factors = np.linspace(least, 1 + calibration.half_width, _POINTS)
    highest = max(by.scaled(best, factors))
    overlaps: list[Candidate] = []
    lost, apart = 0.0, 0
    for candidate in sorted(candidates, key=lambda c: (by.of(c), number(c))):
        if candidate == best:
            continue
        lowest = min(by.scaled(candidate, factors))
        if lowest > highest:
            apart += 1
            if apart >= _GIVE_UP:
                break
            continue
        apart = 0
        overlaps.append(candidate)
        scale = abs(lowest) if by.relative and lowest else 1.0
        lost = max(lost, (highest - lowest) / scale)
    return Overlap(tuple(overlaps), lost, by.relative)
