"""Telling candidates apart on common seeds: what is promised of it holds on known truth (PR-X-3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binomtest

from penstock.predict.explore.compare import interval, looks, ratio_interval, select
from penstock.predict.explore.space import Candidate

Losses = Callable[[Sequence[Candidate], int], NDArray[np.float64]]


def sampled(
    means: Sequence[float], seed: int, *, common: float, own: float, most: int = 40
) -> tuple[list[Candidate], Losses]:
    """Candidates (0,), (1,), … with these true means; noise common to all and of their own."""
    rng = np.random.default_rng(seed)
    shared = rng.standard_normal(most) * common
    values = np.array(means)[:, None] * (1 + shared + rng.standard_normal((len(means), most)) * own)
    candidates = [(i,) for i in range(len(means))]
    return candidates, lambda some, n: values[[c[0] for c in some], :n]


def test_looks() -> None:
    assert looks(1) == [1]
    assert looks(5) == [5]
    assert looks(20) == [5, 10, 20]
    assert looks(30) == [5, 10, 20, 30]


def test_common_seeds_tell_apart_what_single_intervals_do_not() -> None:
    # 20 % common noise, 0.2 % of its own, 3 % difference
    candidates, losses = sampled([100, 103], 3, common=0.2, own=0.002)
    found = select(candidates, losses, most_seeds=5)
    assert found.best.candidate == (0,)
    assert [c.verdict for c in found.contenders] == ["best", "worse"]
    assert found.decided
    values = losses(candidates, 5)
    # the interval of either alone is far wider than the difference
    alone = values[0].std(ddof=1) / np.sqrt(5)
    assert alone > 3
    low, high = found.contenders[1].low, found.contenders[1].high
    assert 0 < low < 0.03 < high < 0.06


def test_more_seeds_until_told_apart() -> None:
    candidates, losses = sampled([100, 104], 5, common=0.1, own=0.03)
    few = select(candidates, losses, most_seeds=5)
    assert [c.verdict for c in few.contenders] == ["best", "undecided"]
    many = select(candidates, losses, most_seeds=40)
    assert many.best.candidate == (0,)
    assert many.decided
    assert many.seeds > 5


def test_overlapping_ones_are_said_not_to_be_told_apart() -> None:
    candidates, losses = sampled([100, 100.5, 130], 7, common=0.1, own=0.05)
    found = select(candidates, losses, most_seeds=20)
    verdicts = {c.candidate: c.verdict for c in found.contenders}
    assert sorted([verdicts[(0,)], verdicts[(1,)]]) == ["best", "undecided"]
    assert verdicts[(2,)] == "worse"
    assert not found.decided


def test_without_noise_the_difference_is_exact() -> None:
    candidates, losses = sampled([100, 100, 100.5, 102], 1, common=0, own=0)
    found = select(candidates, losses, most_seeds=20)
    assert [c.verdict for c in found.contenders] == ["best", "same", "same", "worse"]
    assert found.contenders[3].low == found.contenders[3].high == pytest.approx(0.02)
    assert found.seeds == 5


def test_one_seed_decides_nothing() -> None:
    candidates, losses = sampled([100, 200], 1, common=0.1, own=0.1)
    assert not select(candidates, losses, most_seeds=1).decided
    assert interval(np.array([3.0]), np.array([1.0]), 1.0, 0.05)[1:] == (-np.inf, np.inf)


def lost_best(chooser: Callable[[list[Candidate], Losses], set[Candidate]], runs: int = 300) -> int:
    """How often the truly best of six is not among what is left."""
    lost = 0
    for seed in range(runs):
        candidates, losses = sampled(
            [100, 100.2, 100.4, 101, 101.5, 103], seed, common=0.05, own=0.01
        )
        lost += (0,) not in chooser(candidates, losses)
    return lost


def test_the_best_is_dropped_less_often_than_promised() -> None:
    def ours(candidates: list[Candidate], losses: Losses) -> set[Candidate]:
        found = select(candidates, losses, most_seeds=20, level=0.9)
        return {c.candidate for c in found.contenders if c.verdict != "worse"}

    # promised: at most 10 %; rejected only if there are significantly more
    assert binomtest(lost_best(ours), 300, 0.1, alternative="greater").pvalue > 0.01


def test_planted_failure_simply_taking_the_least_mean_is_found() -> None:
    def naive(candidates: list[Candidate], losses: Losses) -> set[Candidate]:
        return {candidates[int(np.argmin(losses(candidates, 5).mean(axis=1)))]}

    assert binomtest(lost_best(naive), 300, 0.1, alternative="greater").pvalue < 1e-6


def coverage(paired: bool) -> int:
    """How often the 90 % interval of a ratio holds the true one, of 400."""
    hits = 0
    for seed in range(400):
        rng = np.random.default_rng([seed, 1])
        shared = np.exp(0.2 * rng.standard_normal(10))
        a = 110 * shared * np.exp(0.02 * rng.standard_normal(10))
        b = 100 * shared * np.exp(0.02 * rng.standard_normal(10))
        if not paired:
            b = rng.permutation(b)
        _, low, high = ratio_interval(a, b, 0.9)
        hits += low <= 1.1 <= high
    return hits


def test_ratio_interval_covers_as_it_says() -> None:
    assert binomtest(coverage(paired=True), 400, 0.9).pvalue > 0.01


def test_ratio_interval_needs_the_same_seeds() -> None:
    """Planted failure: seeds mixed up; the interval of the ratio of the means is then wrong."""

    def width(paired: bool) -> float:
        rng = np.random.default_rng(1)
        shared = np.exp(0.2 * rng.standard_normal(10))
        a, b = 110 * shared, 100 * shared * np.exp(0.01 * rng.standard_normal(10))
        _, low, high = ratio_interval(a, b if paired else rng.permutation(b), 0.9)
        return high - low

    assert width(paired=True) < width(paired=False) / 5
