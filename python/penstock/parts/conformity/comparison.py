"""Compare measured with predicted values: a verdict for each row, from a confidence interval.

G is mean / predicted − 1, h the half-width of the Student-t 95 % interval of the mean / predicted, and tol
the tolerance of the row. The first condition that holds decides:

    G − h > tol                                    SLOW
    G + h < −tol                                   TOO_FAST   (the model or its input is wrong)
    h · predicted / mean > 5 %, or too few trials  NOISY
    variance / predicted variance > 4              UNSTABLE
    else                                           OK

If higher values are better, SLOW and TOO_FAST are swapped. If the expected value is itself a mean of trials,
h is the half-width of the interval of the ratio of both means (Welch's, with Satterthwaite's degrees of
freedom).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import stdtrit

from penstock.errors import BadInput
from penstock.parts.conformity.expected import Expectation, Expected, Key
from penstock.text import duration, first_of, listed, quantity

OK, SLOW, TOO_FAST, NOISY, UNSTABLE = "OK", "SLOW", "TOO_FAST", "NOISY", "UNSTABLE"
VERDICTS = (SLOW, TOO_FAST, NOISY, UNSTABLE, OK)
CONFIDENCE = 0.95
#: largest half-width of an interval that is not NOISY, as a share of the mean
MAX_HALF_WIDTH = 0.05
#: largest number of trials that a message recommends
_MAX_TRIALS = 200
#: largest ratio of the measured to the predicted variance that is not UNSTABLE
MAX_VARIANCE_RATIO = 4.0
#: largest number of measured rows that a message names
_NAMED = 8


@dataclass(frozen=True)
class RowResult:
    """The verdict on one expected row. `mean` and `sd` of its `n` trials are in the unit of the row.

    `gap` is G and `half` is h, as shares of the prediction. `variance_ratio` is None if no variance was
    predicted. `note` states the reason for a verdict other than OK, else it is empty.
    """

    expected: Expected
    verdict: str
    n: int
    mean: float
    sd: float
    gap: float
    half: float
    variance_ratio: float | None
    note: str = ""


def half_width(values: Sequence[float], confidence: float = CONFIDENCE) -> float:
    """Half-width of the Student-t interval of the mean of two or more values, in their unit."""
    n = len(values)
    return (
        float(stdtrit(n - 1, (1 + confidence) / 2)) * float(np.std(values, ddof=1)) / math.sqrt(n)
    )


def _half_width_of_ratio(base: Sequence[float], values: Sequence[float]) -> float:
    """Half-width of Welch's interval of a mean whose expected value is the mean of the trials `base`."""
    ratio = float(np.mean(values)) / float(np.mean(base))
    parts = [float(np.var(x, ddof=1)) * f / len(x) for x, f in ((values, 1.0), (base, ratio**2))]
    total = sum(parts)
    if total == 0:
        return 0.0
    freedom = total**2 / sum(
        p**2 / (len(x) - 1) for p, x in zip(parts, (values, base), strict=True)
    )
    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * math.sqrt(total)


def evaluate(
    row: Expected, values: Sequence[float], *, at_least: int = 2, at_most: int | None = None
) -> RowResult:
    """Compare the values of the trials with one expected row; `values` are in the unit of the row.

    With fewer than `at_least` trials the verdict is never OK. With fewer than `at_most` trials the note of a
    NOISY row states how many more are needed. Raises BadInput for fewer than two trials.
    """
    n = len(values)
    if n < 2:
        raise BadInput(
            f"{row.label}: found {n} trial{'s' * (n != 1)}; expected {max(2, at_least)} or more"
        )
    mean, sd = float(np.mean(values)), float(np.std(values, ddof=1))
    half_of_mean = _half_width_of_ratio(row.base, values) if row.base else half_width(values)
    gap, half = mean / row.predicted - 1, half_of_mean / row.predicted
    spread = None
    if row.variance is not None:
        spread = sd**2 / row.variance if row.variance > 0 else math.inf if sd > 0 else 0.0
    above, below = (SLOW, TOO_FAST) if not row.higher_is_better else (TOO_FAST, SLOW)
    result = RowResult(row, OK, n, mean, sd, gap, half, spread)
    if gap - half > row.tolerance:
        return replace(result, verdict=above, note=_deviation(result, above))
    if gap + half < -row.tolerance:
        return replace(result, verdict=below, note=_deviation(result, below))
    if n < at_least:
        return replace(
            result, verdict=NOISY, note=f"{n} trials are too few; expected {at_least} or more"
        )
    # a product instead of a quotient: a mean of 0 is NOISY and must not divide by 0
    if half_of_mean > MAX_HALF_WIDTH * abs(mean):
        return replace(result, verdict=NOISY, note=_noise(result, at_most))
    if spread is not None and spread > MAX_VARIANCE_RATIO:
        return replace(
            result, verdict=UNSTABLE, note=f"its variance is {_times(spread)} the predicted one"
        )
    return result


def evaluate_all(
    expected: Expectation, measured: Mapping[Key, Sequence[float]], available: Sequence[Key] = ()
) -> list[RowResult]:
    """Compare each measured row with its expected value, in the order of the file.

    `measured` has the values of the trials in the unit of the expected row. `available` are the keys of all
    measurements, for the message. Raises BadInput if `expected.every_row` is set and a row was not measured,
    and if no row was.
    """
    missing = [row for row in expected.rows if row.key not in measured]
    if missing and (expected.every_row or len(missing) == len(expected.rows)):
        keys = [f"{m or 'rows'} of {a}/{o}" for a, o, m in sorted(available or measured)]
        raise BadInput(
            f"{missing[0].label}: expected by {expected.name}, and not measured; found "
            f"{listed(first_of(keys, _NAMED)) or 'nothing'}"
        )
    return [
        evaluate(row, measured[row.key], at_least=expected.at_least, at_most=expected.at_most)
        for row in expected.rows
        if row.key in measured
    ]


def amount(value: float, unit: str) -> str:
    """Format a value: seconds with a prefix (`9.3 ms`), other units as they are."""
    return duration(1e9 * value) if unit == "s" and value > 0 else quantity(value, unit)


def _deviation(result: RowResult, verdict: str) -> str:
    row = result.expected
    message = f"{amount(result.mean, row.unit)} instead of {amount(row.predicted, row.unit)}"
    if verdict == TOO_FAST and not row.base:
        message += ": not possible by the model, so look at its seed, platform and workload"
    return message


def _noise(result: RowResult, at_most: int | None) -> str:
    if result.mean == 0:
        return "its mean is 0"
    share = result.half * result.expected.predicted / abs(result.mean)
    message = f"its mean is accurate to {100 * share:.1f} % only"
    needed = math.ceil(result.n * (share / MAX_HALF_WIDTH) ** 2)
    if at_most is None and needed > _MAX_TRIALS:
        rest = 100 * share * math.sqrt(result.n / _MAX_TRIALS)
        return (
            f"{message}; {_MAX_TRIALS} trials would still leave {rest:.2g} %: make each trial longer, or "
            "reduce other load on the host"
        )
    if at_most is None:
        return f"{message}; about {needed} trials would do"
    if result.n >= at_most:
        return f"{message} after {result.n} trials"
    return f"{message}; make {min(needed, at_most) - result.n} more trials, {at_most} at most"


def _times(ratio: float) -> str:
    return f"{ratio:.3g} times" if math.isfinite(ratio) else "more than any multiple of"
