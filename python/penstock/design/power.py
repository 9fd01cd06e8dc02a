"""Power of a design: the differences it can detect with the degrees of freedom of its analysis."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import chdtri, nctdtr, ndtr, stdtrit  # scipy.stats takes half a second to import

from penstock.design.contrasts import Values
from penstock.design.kinds.base import Model, Numbers
from penstock.design.model import matrix, terms
from penstock.spec.study import Factor

#: level of the test of a single term
LEVEL = 0.05
#: relative tolerance of a detectable difference
_NEAR = 1e-10


def error_df(runs: int, replicates: int, *, passes: bool, coefficients: int | None = None) -> int:
    """Degrees of freedom of the error of `runs` treatments with `replicates` runs each.

    `passes`: complete passes are blocks of the model, each but the first costs one. `coefficients`: those
    of the model, including the mean; default: the number of treatments (full design or regular fraction).
    """
    blocks = replicates - 1 if passes else 0
    return max(0, runs * replicates - blocks - (coefficients or runs))


def pure_df(treatments: Sequence[Any], blocks: Sequence[Any]) -> int:
    """Degrees of freedom of repeated runs within blocks, from the treatment and the block of each run:
    runs minus the rank of treatments and blocks together."""
    of = np.unique(np.asarray(treatments), return_inverse=True)[1]
    block = np.unique(np.asarray(blocks), return_inverse=True)[1]
    kinds, several = int(of.max()) + 1, int(block.max()) + 1
    links = np.unique(np.column_stack([of, block]), axis=0)
    part = np.arange(kinds + several)  # connected components of the graph of treatments and blocks
    while True:
        low = np.minimum(part[links[:, 0]], part[kinds + links[:, 1]])
        after = part.copy()
        np.minimum.at(after, links[:, 0], low)
        np.minimum.at(after, kinds + links[:, 1], low)
        if (after == part).all():
            return len(of) - (kinds + several - len(np.unique(part)))
        part = after


def detection_probability(shift: float, df: int, level: float = LEVEL) -> float:
    """Probability that an estimate with `df` degrees of freedom is significant if the true value is
    `shift` standard errors from 0."""
    limit = float(stdtrit(df, 1 - level / 2))
    probability = float(1 - nctdtr(df, shift, limit) + nctdtr(df, shift, -limit))
    if math.isfinite(probability):
        return probability
    # SciPy's non-central t has no value far out: average over the distribution of the standard error instead
    spread = np.sqrt(chdtri(df, 1 - (np.arange(4096) + 0.5) / 4096) / df)
    beyond = ndtr(shift - limit * spread) + ndtr(-limit * spread - shift)
    return float(beyond.mean())


def smallest(df: int, goal: float = 0.8, level: float = LEVEL) -> float:
    """The smallest true value, in standard errors of `df` degrees of freedom, detected with probability
    `goal`."""
    below, above = 0.0, 2.0
    while detection_probability(above, df, level) < goal:
        above *= 2
    while above - below > _NEAR * above:
        middle = (below + above) / 2
        if detection_probability(middle, df, level) < goal:
            below = middle
        else:
            above = middle
    return above


def power(
    delta: float,
    runs: int,
    replicates: int,
    level: float = LEVEL,
    effective: float | None = None,
    df: int | None = None,
) -> float:
    """Probability that a difference of level means `delta` (in standard deviations) is significant.

    `runs` is the number of treatments N, `effective` the size of an equally precise two-level design
    (`effective_runs`; default N). Non-central t, λ = δ√(Nr)/2, with `df` degrees of freedom (`error_df`);
    default N(r−1), those of complete randomisation.
    """
    shift = delta * math.sqrt((effective or runs) * replicates) / 2
    return detection_probability(shift, _df(runs, replicates, df), level)


def _df(runs: int, replicates: int, df: int | None) -> int:
    freedom = runs * (replicates - 1) if df is None else df
    if freedom < 1:
        raise ValueError("no degrees of freedom for the error: no power can be given")
    return freedom


def beyond(df: float, goal: float = 0.8, level: float = LEVEL) -> float:
    """Distance of a true value from 0, in standard errors of `df` degrees of freedom, at which it is
    detected with probability `goal`."""
    limit = float(stdtrit(df, 1 - level / 2))
    low, high = 0.0, 1e4
    while high - low > _NEAR * high:
        middle = (low + high) / 2
        probability = float(1 - nctdtr(df, middle, limit))
        # SciPy has no value far out, where detection is certain
        if math.isfinite(probability) and probability < goal:
            low = middle
        else:
            high = middle
    return high


def detectable(
    goal: float,
    runs: int,
    replicates: int,
    level: float = LEVEL,
    effective: float | None = None,
    df: int | None = None,
) -> float:
    """Smallest difference of level means, in standard deviations, detected with probability `goal`; `df`
    and `effective` as in `power`."""
    errors = smallest(_df(runs, replicates, df), goal, level)
    return errors * 2 / math.sqrt((effective or runs) * replicates)


def replicates_for(
    delta: float,
    runs: int,
    goal: float = 0.8,
    effective: float | None = None,
    most: int = 1000,
    freedom: Callable[[int], int] | None = None,
) -> int | None:
    """The fewest replicates (2 or more) that detect `delta` standard deviations with probability `goal`;
    None if `most` are too few. `freedom`: degrees of freedom by number of replicates; default N(r−1)."""

    def detected(replicates: int) -> float:
        df = None if freedom is None else freedom(replicates)
        return power(delta, runs, replicates, effective=effective, df=df)

    if detected(most) < goal:
        return None
    below, above = 1, most
    while above - below > 1:
        middle = (below + above) // 2
        if detected(middle) < goal:
            below = middle
        else:
            above = middle
    return above


def effective_runs(factors: Sequence[Factor], model: Model, numbers: Numbers) -> float:
    """N of the two-level design that is as precise as these rows for their least precise factor."""
    return min(effective_by_factor(factors, model, numbers))


def effective_by_factor(factors: Sequence[Factor], model: Model, numbers: Numbers) -> list[float]:
    """For each factor, N of the two-level design that estimates its level means as precisely as these rows.

    By least squares of the model, one replicate: the variance of the difference of two levels is 4/N σ² in
    an orthogonal two-level design; for more levels the least precise pair counts.
    """
    return effective_by_columns(factors, model, numbers, matrix(factors, model, numbers))


def effective_by_columns(
    factors: Sequence[Factor], model: Model, numbers: Numbers, columns: Values
) -> list[float]:
    """`effective_by_factor` from columns that begin with the model's, one row for each run."""
    covariance = np.linalg.pinv(columns.T @ columns)
    effective: list[float] = []
    at = 1
    for j, factor in enumerate(factors):
        count = len(factor.levels)
        each = np.repeat(numbers[:1], count, axis=0)
        each[:, j] = np.arange(count)
        code = terms(factors, model, each)[j][1]
        where = slice(at, at + code.shape[1])
        steps = [code[a] - code[b] for a, b in itertools.combinations(range(count), 2)]
        effective.append(4 / max(float(step @ covariance[where, where] @ step) for step in steps))
        at += code.shape[1]
    return effective


def half_width(
    runs: int, replicates: int, confidence: float = 0.95, df: int | None = None
) -> float:
    """Half-width of the interval of a coefficient q, in standard deviations; `df` as in `power`."""
    freedom = runs * (replicates - 1) if df is None else df
    return float(stdtrit(freedom, (1 + confidence) / 2)) / math.sqrt(runs * replicates)


def cautious_sigma(s: float, pilot_runs: int) -> float:
    """Upper estimate of σ from a pilot of `pilot_runs` runs of one row."""
    df = pilot_runs - 1
    return s * math.sqrt(float(df / chdtri(df, 0.80)))


def power_of(
    runs: int,
    replicates: int,
    noise: float,
    fraction: int = 0,
    effective: float | None = None,
    df: int | None = None,
    full_df: int | None = None,
) -> dict[str, Any]:
    """Power of a plan: differences in σ and, with the assumed `noise`, in percent of the mean.

    `df`: degrees of freedom of the analysis (`error_df`), `full_df` those of the full design of a
    `fraction`; default N(r−1).
    """
    freedom = runs * (replicates - 1) if df is None else df
    if freedom < 1:
        return {"degrees_of_freedom": 0, "assumed_noise": noise}
    error = 2 / math.sqrt((effective or runs) * replicates)
    result = power_at(error, freedom, noise)
    if effective is not None:
        result["effective_runs"] = effective
    if fraction and (full_df is None or full_df > 0) and (full_df or replicates > 1):
        wide = half_width(runs << fraction, replicates, df=full_df)
        result["width_against_full"] = result["half_width_q_sigma"] / wide
        if replicates > 1 and runs > 1:
            wide_random = half_width(runs << fraction, replicates)
            result["width_against_full_random"] = half_width(runs, replicates) / wide_random
    return result


def power_at(error: float, df: int, noise: float) -> dict[str, Any]:
    """Power of a plan in which a difference of level means has the standard error `error` [standard
    deviations of a run] with `df` degrees of freedom."""
    small, large = (smallest(df, goal) * error for goal in (0.8, 0.9))
    return {
        "degrees_of_freedom": df,
        "assumed_noise": noise,
        "detectable_sigma_80": small,
        "detectable_sigma_90": large,
        "detectable_share_80": small * noise,
        "detectable_share_90": large * noise,
        "half_width_q_sigma": float(stdtrit(df, 0.975)) * error / 2,
    }


def power_together(power: Mapping[str, Any], tests: int, goal: float = 0.8) -> dict[str, Any]:
    """Power if all `tests` terms of the analysis are tested together (Holm).

    The smallest difference of level means, in standard deviations and in percent of the mean, detected
    with probability `goal` if it is the only effect; if others are significant, a smaller one suffices.
    """
    df = int(power.get("degrees_of_freedom") or 0)
    if df < 1 or tests < 1:
        return {}
    wider = smallest(df, goal, LEVEL / tests) / smallest(df, goal, LEVEL)
    return {
        "terms": tests,
        "detectable_sigma_80": power["detectable_sigma_80"] * wider,
        "detectable_share_80": power["detectable_share_80"] * wider,
    }


def power_by_simulation(
    delta: float,
    factor: int,
    numbers: Numbers,
    whole_plots: Sequence[int],
    *,
    whole_plot_sigma: float,
    level: float = LEVEL,
    studies: int = 4000,
    seed: int = 1,
) -> tuple[float, float, float]:
    """Simulated power for a difference `delta` of the two levels of a factor if runs share whole plots.

    `numbers`: runs × factors of level numbers, all of two levels; `whole_plots`: the whole plot of each
    run, all of equal size. Errors of runs have standard deviation 1, those of whole plots
    `whole_plot_sigma`; the main effects are fitted. A factor that is constant within whole plots is tested
    against whole plots (means of each), another within them. Result: power and its 95 % interval (Wilson).
    ValueError if a factor of whole plots has no degrees of freedom left. Montgomery, Design and Analysis
    of Experiments, 8th ed. 2013, section 14.4.
    """
    x = 2.0 * np.asarray(numbers, dtype=np.float64) - 1.0
    plots = np.unique(np.asarray(whole_plots), return_inverse=True)[1]
    member = np.eye(plots.max() + 1)[plots]
    sizes = member.sum(axis=0)
    if np.ptp(sizes):
        raise ValueError("expected whole plots with equal numbers of runs")
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
        raise ValueError(
            "found one whole plot per level; expected two or more, which give an estimate of their error"
        )
    covariance = np.linalg.pinv(columns.T @ columns)
    fitted = y @ columns @ covariance
    rest = y - fitted @ columns.T
    error = np.sqrt((rest**2).sum(axis=1) / freedom * covariance[at, at])
    detected = int((np.abs(fitted[:, at]) > stdtrit(freedom, 1 - level / 2) * error).sum())
    share, z = detected / studies, 1.959964
    middle = (share + z**2 / (2 * studies)) / (1 + z**2 / studies)
    half = (z / (1 + z**2 / studies)) * math.sqrt(
        share * (1 - share) / studies + z**2 / (4 * studies**2)
    )
    return share, middle - half, middle + half
