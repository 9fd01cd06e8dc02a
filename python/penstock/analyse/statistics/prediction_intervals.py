"""Prediction intervals of a single run: from simulated draws by order statistics, from measured pairs by
split-conformal calibration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

from penstock.errors import BadInput

#: the 2nd and the 38th of 39 draws enclose a further run with probability exactly 90 %
DRAWS = 39
LEVEL = 0.9

#: half-width, as a share of the prediction, above which a calibrated interval is too wide: the maximum error
#: allowed for any prediction (docs/adr/0048-when-a-calibration-is-too-wide.md)
TOO_WIDE = 0.2
#: half-width above which an interval cannot distinguish a configuration that takes twice as long
OF_NO_USE = 1 / 3

Width = Literal["ok", "caution", "outside"]


@dataclass(frozen=True)
class Calibrated:
    """Calibration of an interval by measured pairs: their number, the rank, and the half-width.

    `half_width` is a share of the prediction, None for too few pairs (unbounded); `low` and `high` are the
    simulated ends, which a new pair does not change.
    """

    pairs: int
    rank: int
    half_width: float | None
    low: float
    high: float

    @property
    def status(self) -> str:
        """`calibrated`, or `insufficient calibration`."""
        return "insufficient calibration" if self.half_width is None else "calibrated"

    def to_dict(self) -> dict[str, Any]:
        """As in `penstock/prediction/1`."""
        return {
            "pairs": self.pairs,
            "rank": self.rank,
            "half_width": self.half_width,
            "status": self.status,
            "simulated_low": self.low,
            "simulated_high": self.high if math.isfinite(self.high) else None,
        }


@dataclass(frozen=True)
class Interval:
    """Interval of a single run with probability `level`, in the unit of the values (seconds).

    `high` is infinite if too many of the draws never end (a store that fills up). `attained` is the
    coverage of the order statistics under the model, at least `level` with enough draws. `method`
    describes the computation, `sources` the varied inputs.
    """

    low: float
    high: float
    level: float
    attained: float
    draws: int
    method: str
    sources: tuple[str, ...] = ()
    calibration: Calibrated | None = None

    @property
    def width(self) -> float:
        """High minus low."""
        return self.high - self.low

    def ends(self) -> dict[str, float | None]:
        """`low` and `high`, None if unbounded."""
        low, high = (v if math.isfinite(v) else None for v in (self.low, self.high))
        return {"low": low, "high": high}

    def to_dict(self) -> dict[str, Any]:
        """As in `penstock/prediction/1`."""
        return {
            **self.ends(),
            "level": self.level,
            "method": self.method,
            "attained": self.attained,
            "draws": self.draws,
            "sources": list(self.sources),
            "calibration": None if self.calibration is None else self.calibration.to_dict(),
        }


def exact(share: float) -> Fraction:
    """The decimal as an exact fraction: 0.9 is 9/10. BadInput if it is not between 0 and 1."""
    if not 0 < share < 1:
        raise BadInput(f"found an interval level of {share:g}; expected one between 0 and 1")
    return Fraction(repr(float(share)))


def conformal_rank(n: int, level: float = LEVEL) -> int:
    """k = ceil((n+1) · level) in exact arithmetic; k > n means unbounded."""
    return math.ceil((n + 1) * exact(level))


def conformal_half_width(scores: Sequence[float], level: float = LEVEL) -> float | None:
    """The k-th smallest score, k as in `conformal_rank`; None (unbounded) if there are fewer."""
    rank = conformal_rank(len(scores), level)
    return sorted(scores)[rank - 1] if rank <= len(scores) else None


def least_pairs(level: float = LEVEL) -> int:
    """The smallest number of pairs for which `conformal_rank` exists: 9 for 90 %."""
    share = exact(level)
    return math.ceil(share / (1 - share))


def least_draws(level: float = LEVEL) -> int:
    """The smallest number of draws whose order statistics can reach the level: 19 for 90 %."""
    return math.ceil(2 / (1 - exact(level))) - 1


def order_statistics(
    draws: Sequence[float], level: float = LEVEL, sources: tuple[str, ...] = ()
) -> Interval:
    """The interval between two order statistics of independent draws of the predicted run.

    A further draw from the same distribution is equally likely to fall into each of the m+1 gaps between m
    draws, so it lies between the a-th smallest and the a-th largest with probability 1 − 2a/(m+1) (more
    with ties). a is the largest for which that is at least `level`; with too few draws a = 1, `attained`
    falls short of `level`, and `method` reports it. BadInput without draws.
    """
    m = len(draws)
    if m == 0:
        raise BadInput("found no simulated run to make an interval from; expected at least 1 seed")
    a = math.floor((1 - exact(level)) / 2 * (m + 1))
    ordered = sorted(draws)
    low, high = ordered[max(a, 1) - 1], ordered[m - max(a, 1)]
    attained = max(0.0, float(1 - Fraction(2 * max(a, 1), m + 1)))
    if low == high < math.inf and m >= least_draws(level):
        return Interval(low, high, level, 1.0, m, f"all {m} simulated runs are equal", sources)
    if a >= 1:
        method = (
            f"order statistics {a} and {m + 1 - a} of {m} simulated runs: a further run falls between "
            f"them with probability {attained:.3g}"
        )
    elif m == 1:
        method = "one simulated run: no interval (its ends are the run itself)"
    else:
        method = (
            f"smallest and largest of {m} simulated runs, which cover a further run with probability "
            f"{attained:.3g} only; {least_draws(level):,} runs are needed for {float(level):g}"
        )
    return Interval(low, high, level, attained, m, method, sources)


def width_verdict(half_width: float) -> Width:
    """Verdict for a calibrated half-width, a share of the prediction."""
    if half_width > OF_NO_USE:
        return "outside"
    return "caution" if half_width > TOO_WIDE else "ok"


def half_share(interval: Interval, predicted: float) -> float | None:
    """The larger half of a calibrated interval as a share of the prediction; None if it is not calibrated."""
    calibration = interval.calibration
    if calibration is None or calibration.half_width is None or not predicted > 0:
        return None
    return max(interval.high / predicted - 1, 1 - interval.low / predicted)


def width_message(half_width: float) -> str:
    """Message on a half-width that is too wide."""
    if half_width > OF_NO_USE:
        return (
            "of two configurations one may take twice as long as the other and not be "
            "distinguished from it"
        )
    return f"more than the {100 * TOO_WIDE:.0f} % that a prediction is to be off at most"


def conformal_scores(
    predicted: Sequence[float],
    measured: Sequence[float],
    lows: Sequence[float | None] = (),
    highs: Sequence[float | None] = (),
) -> tuple[list[float], bool]:
    """Distance of each measured value outside its interval, as a share of the prediction.

    With an interval for every pair: max(low − y, y − high) / predicted, negative inside (conformalised
    intervals, Romano, Patterson and Candès 2019); second result True. Otherwise |y − predicted| / predicted.
    """
    bounds = list(zip(lows, highs, strict=True))
    if len(bounds) == len(predicted) and all(a is not None and b is not None for a, b in bounds):
        scores = [
            max(float(a or 0.0) - y, y - float(b or 0.0)) / p
            for p, y, (a, b) in zip(predicted, measured, bounds, strict=True)
        ]
        return scores, True
    return [abs(y - p) / p for p, y in zip(predicted, measured, strict=True)], False


def calibrate(
    interval: Interval, predicted: float, scores: Sequence[float], around_interval: bool
) -> Interval:
    """The interval widened (or narrowed) by the conformal half-width of the scores.

    `around_interval` as from `conformal_scores`. With too few pairs the half-width is unbounded: the
    simulated interval remains, marked as not calibrated.
    """
    rank = conformal_rank(len(scores), interval.level)
    half = conformal_half_width(scores, interval.level)
    calibration = Calibrated(len(scores), rank, half, interval.low, interval.high)
    if half is None:
        method = f"{interval.method}; insufficient calibration ({len(scores)} measured pairs, rank {rank})"
        return replace(interval, method=method, calibration=calibration)
    if around_interval:
        low, high = interval.low - half * predicted, interval.high + half * predicted
        basis = f"{interval.method}, its ends moved by {half:+.3g} of the prediction"
    else:
        low, high = predicted * (1 - half), predicted * (1 + half)
        basis = f"prediction ± {half:.3g} of itself"
    low = max(0.0, low)
    if low > high:  # narrowed by more than its width
        low = high = (low + high) / 2
    method = f"{basis}: split-conformal, rank {rank} of {len(scores)} measured pairs"
    return replace(interval, low=low, high=high, method=method, calibration=calibration)
