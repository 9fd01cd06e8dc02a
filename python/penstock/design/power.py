"""Power of a two-level design: what differences it can find."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import chdtri, nctdtr, ndtr, stdtrit  # scipy.stats takes half a second to import

from penstock.design.kinds.base import Model, Numbers
from penstock.design.model import matrix, terms
from penstock.spec.study import Factor

#: how near a detectable difference is found [standard deviations]
_NEAR = 1e-10


def power(
    delta: float,
    runs: int,
    replicates: int,
    level: float = 0.05,
    effective: float | None = None,
) -> float:
    """Probability to call a difference of level means `delta` (in standard deviations) significant.

    `runs` is the number of treatments N, `effective` how many of a two-level design tell as much
    (`effective_runs`); N itself without. Non-central t, λ = δ√(Nr)/2, N(r−1) degrees of freedom.
    """
    df = runs * (replicates - 1)
    if df < 1:
        raise ValueError("one replicate has no pure error: no power can be given")
    shift = delta * ((effective or runs) * replicates) ** 0.5 / 2
    limit = float(stdtrit(df, 1 - level / 2))
    found = float(1 - nctdtr(df, shift, limit) + nctdtr(df, shift, -limit))
    if math.isfinite(found):
        return found
    # SciPy's non-central t has no value far out: the same as a mean over the estimate of the spread
    spread = np.sqrt(chdtri(df, 1 - (np.arange(4096) + 0.5) / 4096) / df)
    beyond = ndtr(shift - limit * spread) + ndtr(-limit * spread - shift)
    return float(beyond.mean())


def beyond(df: float, goal: float = 0.8, level: float = 0.05) -> float:
    """How many standard errors an estimate's truth must be from 0 to be found with probability `goal`, where
    the standard error has `df` degrees of freedom."""
    limit = float(stdtrit(df, 1 - level / 2))
    low, high = 0.0, 1e4
    while high - low > _NEAR * high:
        middle = (low + high) / 2
        found = float(1 - nctdtr(df, middle, limit))
        # far out SciPy has no value: found for sure
        if math.isfinite(found) and found < goal:
            low = middle
        else:
            high = middle
    return high


def detectable(
    goal: float,
    runs: int,
    replicates: int,
    level: float = 0.05,
    effective: float | None = None,
) -> float:
    """Smallest difference of level means, in standard deviations, found with probability `goal`."""
    above = 0.1
    while power(above, runs, replicates, level, effective) < goal:
        above *= 1.5
    below = 0.0
    while above - below > _NEAR:
        middle = (below + above) / 2
        if power(middle, runs, replicates, level, effective) < goal:
            below = middle
        else:
            above = middle
    return above


def replicates_for(
    delta: float, runs: int, goal: float = 0.8, effective: float | None = None, most: int = 1000
) -> int | None:
    """The fewest replicates (2 or more) that find `delta` standard deviations with probability `goal`; None
    if `most` are too few."""
    if power(delta, runs, most, effective=effective) < goal:
        return None
    below, above = 1, most
    while above - below > 1:
        middle = (below + above) // 2
        if power(delta, runs, middle, effective=effective) < goal:
            below = middle
        else:
            above = middle
    return above


def effective_runs(factors: Sequence[Factor], model: Model, numbers: Numbers) -> float:
    """N of the two-level design that tells differences of level means as well as these rows tell their worst.

    By least squares of the model, one replicate: the variance of the difference of two levels is 4/N σ² in an
    orthogonal two-level design.
    """
    x = matrix(factors, model, numbers)
    covariance = np.linalg.pinv(x.T @ x)
    worst, at = 0.0, 1
    for j, factor in enumerate(factors):
        count = len(factor.levels)
        each = np.repeat(numbers[:1], count, axis=0)
        each[:, j] = np.arange(count)
        code = terms(factors, model, each)[j][1]
        where = slice(at, at + code.shape[1])
        for a, b in itertools.combinations(range(count), 2):
            step = code[a] - code[b]
            worst = max(worst, float(step @ covariance[where, where] @ step))
        at += code.shape[1]
    return 4 / worst


def half_width(runs: int, replicates: int, confidence: float = 0.95) -> float:
    """Half the interval of a coefficient q, in standard deviations."""
    df = runs * (replicates - 1)
    return float(stdtrit(df, (1 + confidence) / 2)) / math.sqrt(runs * replicates)


def cautious_sigma(s: float, pilot_runs: int) -> float:
    """Upper estimate of σ from a pilot of `pilot_runs` runs of one row."""
    df = pilot_runs - 1
    return s * math.sqrt(float(df / chdtri(df, 0.80)))


def power_of(
    runs: int, replicates: int, noise: float, fraction: int = 0, effective: float | None = None
) -> dict[str, Any]:
    """What the plan says of power: differences in σ and, with the assumed `noise`, in percent of the mean."""
    if runs * (replicates - 1) < 1:
        return {"degrees_of_freedom": 0, "assumed_noise": noise}
    small, large = (detectable(goal, runs, replicates, effective=effective) for goal in (0.8, 0.9))
    width = half_width(runs, replicates) * math.sqrt(runs / (effective or runs))
    found = {
        "degrees_of_freedom": runs * (replicates - 1),
        "assumed_noise": noise,
        "detectable_sigma_80": small,
        "detectable_sigma_90": large,
        "detectable_share_80": small * noise,
        "detectable_share_90": large * noise,
        "half_width_q_sigma": width,
    }
    if effective is not None:
        found["effective_runs"] = effective
    if fraction:
        found["width_against_full"] = width / half_width(runs << fraction, replicates)
    return found


def power_by_simulation(
    delta: float,
    factor: int,
    numbers: Numbers,
    whole_plots: Sequence[int],
    *,
    whole_plot_sigma: float,
    level: float = 0.05,
    studies: int = 4000,
    seed: int = 1,
) -> tuple[float, float, float]:
    """Power for a difference `delta` of the two levels of a factor where runs share whole plots.

    `numbers`: runs × factors of level numbers, all of two levels; `whole_plots`: the whole plot of each run,
    all of as many runs. Errors of runs have standard deviation 1, those of whole plots `whole_plot_sigma`;
    the main effects are fitted. A factor that is constant within whole plots is tested against whole plots
    (means of each), another within them. Result: power and its 95 % interval (Wilson). ValueError where a
    factor of whole plots has no degrees of freedom left. Montgomery,
    Design and Analysis of Experiments, 8th ed. 2013, section 14.4.
    """
    x = 2.0 * np.asarray(numbers, dtype=np.float64) - 1.0
    plots = np.unique(np.asarray(whole_plots), return_inverse=True)[1]
    member = np.eye(plots.max() + 1)[plots]
    sizes = member.sum(axis=0)
    if np.ptp(sizes):
        raise ValueError("whole plots of as many runs each")
    means = member.T @ x / sizes[:, None]
    of_plots = np.all(np.isclose(np.abs(means), 1), axis=0)
    random = np.random.default_rng(seed)
    runs, count = x.shape[0], len(sizes)
    noise = random.normal(size=(studies, runs))
    noise += whole_plot_sigma * random.normal(size=(studies, count)) @ member.T
    y = noise + delta / 2 * x[:, factor]
    if of_plots[factor]:
        columns = np.column_stack([np.ones(count), means[:, of_plots]])
        at = 1 + int(of_plots[:factor].sum())
        y = y @ member / sizes
    else:
        columns = np.column_stack([member, x[:, ~of_plots]])
        at = count + int((~of_plots)[:factor].sum())
    freedom = len(columns) - int(np.linalg.matrix_rank(columns))
    if freedom < 1:
        raise ValueError("one whole plot per level has no error of its own: no power can be given")
    covariance = np.linalg.pinv(columns.T @ columns)
    fitted = y @ columns @ covariance
    rest = y - fitted @ columns.T
    error = np.sqrt((rest**2).sum(axis=1) / freedom * covariance[at, at])
    found = int((np.abs(fitted[:, at]) > stdtrit(freedom, 1 - level / 2) * error).sum())
    share, z = found / studies, 1.959964
    middle = (share + z**2 / (2 * studies)) / (1 + z**2 / studies)
    half = (z / (1 + z**2 / studies)) * math.sqrt(
        share * (1 - share) / studies + z**2 / (4 * studies**2)
    )
    return share, middle - half, middle + half
