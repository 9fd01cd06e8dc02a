"""Whether what was measured is what was predicted: a verdict for each row, by an interval, not by eye.

With G the mean over the prediction less 1, h the Student-t 95 % half-width over the prediction, and tol the
row's tolerance, in this order:

    G − h > tol                                    SLOW
    G + h < −tol                                   TOO_FAST   (the model is wrong, or what it was fed)
    h · predicted / mean > 5 %, or too few trials  NOISY
    variance over the predicted one > 4            UNSTABLE
    else                                           OK

Of a row of which more is better SLOW and TOO_FAST change places. Where what is expected was measured itself,
h is of the ratio of both means: Welch's interval, with the degrees of freedom of Satterthwaite.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import stdtrit

from penstock.errors import BadInput
from penstock.parts.conformity.expected import Expectation, Expected, Key
from penstock.text import duration, quantity

OK, SLOW, TOO_FAST, NOISY, UNSTABLE = "OK", "SLOW", "TOO_FAST", "NOISY", "UNSTABLE"
VERDICTS = (SLOW, TOO_FAST, NOISY, UNSTABLE, OK)
CONFIDENCE = 0.95
#: the widest half of an interval, as a share of the mean, that is no noise
WIDEST = 0.05
#: trials that a message asks for, at most
_MOST_TRIALS = 200
#: how many times the predicted variance is stable
MOST_VARIANCE = 4.0
#: measured rows that a message names
_NAMED = 8


@dataclass(frozen=True)
class Judged:
    """One row beside its trials, in the row's unit.

    `gap` is G, `half` is h, both shares of the prediction; `variance_ratio` is None where no variance was
    predicted. `note` says in words why it is not OK, empty if it is.
    """

    row: Expected
    verdict: str
    n: int
    mean: float
    sd: float
    gap: float
    half: float
    variance_ratio: float | None
    note: str = ""


def half_width(values: Sequence[float], confidence: float = CONFIDENCE) -> float:
    """Half of the Student-t interval of the mean of two values or more."""
    n = len(values)
    return (
        float(stdtrit(n - 1, (1 + confidence) / 2)) * float(np.std(values, ddof=1)) / math.sqrt(n)
    )


def _beside(base: Sequence[float], values: Sequence[float]) -> float:
    """Half of the interval of a mean whose expected value is the mean of other trials."""
    ratio = float(np.mean(values)) / float(np.mean(base))
    parts = [float(np.var(x, ddof=1)) * f / len(x) for x, f in ((values, 1.0), (base, ratio**2))]
    whole = sum(parts)
    if whole == 0:
        return 0.0
    freedom = whole**2 / sum(
        p**2 / (len(x) - 1) for p, x in zip(parts, (values, base), strict=True)
    )
    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * math.sqrt(whole)


def judge(
    row: Expected, values: Sequence[float], *, at_least: int = 2, at_most: int | None = None
) -> Judged:
    """The verdict on one row from the values of its trials, in its unit.

    With fewer than `at_least` trials nothing is OK; with fewer than `at_most` the note says how many more
    would narrow the interval. Raises BadInput for fewer than two trials.
    """
    n = len(values)
    if n < 2:
        raise BadInput(
            f"{row.words}: found {n} trial{'s' * (n != 1)}; expected {max(2, at_least)} or more"
        )
    mean, sd = float(np.mean(values)), float(np.std(values, ddof=1))
    half_of_mean = _beside(row.base, values) if row.base else half_width(values)
    gap, half = mean / row.predicted - 1, half_of_mean / row.predicted
    spread = None
    if row.variance is not None:
        spread = sd**2 / row.variance if row.variance > 0 else math.inf if sd > 0 else 0.0
    beyond, short = (SLOW, TOO_FAST) if not row.higher_is_better else (TOO_FAST, SLOW)
    found = Judged(row, OK, n, mean, sd, gap, half, spread)
    if gap - half > row.tolerance:
        return replace(found, verdict=beyond, note=_off(found, beyond))
    if gap + half < -row.tolerance:
        return replace(found, verdict=short, note=_off(found, short))
    if n < at_least:
        return replace(
            found, verdict=NOISY, note=f"{n} trials are too few; expected {at_least} or more"
        )
    # written as a product: a mean of nothing is noise, and no division
    if half_of_mean > WIDEST * abs(mean):
        return replace(found, verdict=NOISY, note=_wide(found, at_most))
    if spread is not None and spread > MOST_VARIANCE:
        return replace(
            found, verdict=UNSTABLE, note=f"its variance is {_times(spread)} the predicted one"
        )
    return found


def judge_all(
    expected: Expectation, measured: Mapping[Key, Sequence[float]], there: Sequence[Key] = ()
) -> list[Judged]:
    """A verdict for each row that was measured, in the order of the file.

    `there` is all that was measured. Raises BadInput for a row that was not, where each must have been, and
    where none was.
    """
    lacking = [row for row in expected.rows if row.key not in measured]
    if lacking and (expected.every_row or len(lacking) == len(expected.rows)):
        known = sorted(there or measured)
        named = ", ".join(f"{m or 'rows'} of {a}/{o}" for a, o, m in known[:_NAMED])
        more = f" and {len(known) - _NAMED} more" if len(known) > _NAMED else ""
        raise BadInput(
            f"{lacking[0].words}: expected by {expected.name}, and not measured; found "
            f"{named or 'nothing'}{more}"
        )
    return [
        judge(row, measured[row.key], at_least=expected.at_least, at_most=expected.at_most)
        for row in expected.rows
        if row.key in measured
    ]


def amount(value: float, unit: str) -> str:
    """A value for people: seconds as what they are (`9.3 ms`), others in their own unit."""
    return duration(1e9 * value) if unit == "s" and value > 0 else quantity(value, unit)


def _off(found: Judged, verdict: str) -> str:
    row = found.row
    said = f"{amount(found.mean, row.unit)} instead of {amount(row.predicted, row.unit)}"
    if verdict == TOO_FAST and not row.base:
        said += ": not possible by the model, so look at its seed, platform and workload"
    return said


def _wide(found: Judged, at_most: int | None) -> str:
    if found.mean == 0:
        return "its mean is 0"
    share = found.half * found.row.predicted / abs(found.mean)
    said = f"its mean is known to {100 * share:.1f} % only"
    needed = math.ceil(found.n * (share / WIDEST) ** 2)
    if at_most is None and needed > _MOST_TRIALS:
        rest = 100 * share * math.sqrt(found.n / _MOST_TRIALS)
        return (
            f"{said}; {_MOST_TRIALS} trials would still leave {rest:.2g} %: make each trial longer, or quiet "
            "the host"
        )
    if at_most is None:
        return f"{said}; about {needed} trials would do"
    if found.n >= at_most:
        return f"{said} after {found.n} trials"
    return f"{said}; make {min(needed, at_most) - found.n} trials more of at most {at_most}"


def _times(ratio: float) -> str:
    return f"{ratio:.3g} times" if math.isfinite(ratio) else "more than any multiple of"
