"""Comparison of candidates on common seeds: its guarantees hold on known truth."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binomtest

from penstock.parts.prediction.exploration.compare import interval, looks, ratio_interval, select
from penstock.parts.prediction.exploration.evaluate import Measure
from penstock.parts.prediction.exploration.score import ByKnee
from penstock.parts.prediction.exploration.space.space import Candidate

Losses = Callable[[Sequence[Candidate], int], NDArray[np.float64]]


def sampled(
    means: Sequence[float], seed: int, *, common: float, own: float, most: int = 40
) -> tuple[list[Candidate], Losses]:
    """Candidates (0,), (1,), … with these true means, common noise and independent noise."""
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


def test_common_seeds_separate_overlapping_intervals() -> None:
    # 20 % common noise, 0.2 % independent noise, 3 % difference
    candidates, losses = sampled([100, 103], 3, common=0.2, own=0.002)
    selection = select(candidates, losses, most_seeds=5)
    assert selection.best.candidate == (0,)
    assert [c.verdict for c in selection.contenders] == ["best", "worse"]
    assert selection.decided
    values = losses(candidates, 5)
    # the interval of each alone is far wider than the difference
    standard_error = values[0].std(ddof=1) / np.sqrt(5)
    assert standard_error > 3
    low, high = selection.contenders[1].low, selection.contenders[1].high
    assert 0 < low < 0.03 < high < 0.06


def test_more_seeds_until_significance() -> None:
    candidates, losses = sampled([100, 104], 5, common=0.1, own=0.03)
    with_few_seeds = select(candidates, losses, most_seeds=5)
    assert [c.verdict for c in with_few_seeds.contenders] == ["best", "undecided"]
    with_many_seeds = select(candidates, losses, most_seeds=40)
    assert with_many_seeds.best.candidate == (0,)
    assert with_many_seeds.decided
    assert with_many_seeds.seeds > 5


def test_overlapping_candidates_are_undecided() -> None:
    candidates, losses = sampled([100, 100.5, 130], 7, common=0.1, own=0.05)
    selection = select(candidates, losses, most_seeds=20)
    verdicts = {c.candidate: c.verdict for c in selection.contenders}
    assert sorted([verdicts[(0,)], verdicts[(1,)]]) == ["best", "undecided"]
    assert verdicts[(2,)] == "worse"
    assert not selection.decided


def test_without_noise_the_difference_is_exact() -> None:
    candidates, losses = sampled([100, 100, 100.5, 102], 1, common=0, own=0)
    selection = select(candidates, losses, most_seeds=20)
    assert [c.verdict for c in selection.contenders] == ["best", "same", "same", "worse"]
    assert selection.contenders[3].low == selection.contenders[3].high == pytest.approx(0.02)
    assert selection.seeds == 5


def test_a_candidate_that_may_not_end_is_worse() -> None:
    candidates, losses = sampled([100, 101, 99], 1, common=0.01, own=0.0)

    def failing(some: Sequence[Candidate], n: int) -> NDArray[np.float64]:
        values = losses(some, n).copy()
        values[[c == (2,) for c in some], 3:] = np.inf
        return values

    selection = select(candidates, failing, most_seeds=10)
    assert selection.best.candidate == (0,)
    assert {c.candidate: c.verdict for c in selection.contenders}[(2,)] == "worse"


def test_one_seed_decides_nothing() -> None:
    candidates, losses = sampled([100, 200], 1, common=0.1, own=0.1)
    assert not select(candidates, losses, most_seeds=1).decided
    assert interval(np.array([3.0]), np.array([1.0]), 1.0, 0.05)[1:] == (-np.inf, np.inf)


def lost_best(chooser: Callable[[list[Candidate], Losses], set[Candidate]], runs: int = 300) -> int:
    """Number of runs in which the truly best of six was dropped."""
    lost = 0
    for seed in range(runs):
        candidates, losses = sampled(
            [100, 100.2, 100.4, 101, 101.5, 103], seed, common=0.05, own=0.01
        )
        lost += (0,) not in chooser(candidates, losses)
    return lost


def test_the_best_is_dropped_at_most_as_often_as_guaranteed() -> None:
    def not_worse(candidates: list[Candidate], losses: Losses) -> set[Candidate]:
        selection = select(candidates, losses, most_seeds=20, level=0.9)
        return {c.candidate for c in selection.contenders if c.verdict != "worse"}

    # guarantee: at most 10 %; rejected only if there are significantly more
    assert binomtest(lost_best(not_worse), 300, 0.1, alternative="greater").pvalue > 0.01


def test_planted_failure_of_taking_the_least_mean_is_detected() -> None:
    def naive(candidates: list[Candidate], losses: Losses) -> set[Candidate]:
        return {candidates[int(np.argmin(losses(candidates, 5).mean(axis=1)))]}

    assert binomtest(lost_best(naive), 300, 0.1, alternative="greater").pvalue < 1e-6


def coverage(paired: bool) -> int:
    """Number of 400 intervals (90 %) of a ratio that contain the true one."""
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


def test_ratio_interval_has_its_coverage() -> None:
    assert binomtest(coverage(paired=True), 400, 0.9).pvalue > 0.01


def test_ratio_interval_needs_the_same_seeds() -> None:
    """Planted failure: with shuffled seeds the interval of the ratio of the means is wrong."""

    def width(paired: bool) -> float:
        rng = np.random.default_rng(1)
        shared = np.exp(0.2 * rng.standard_normal(10))
        a, b = 110 * shared, 100 * shared * np.exp(0.01 * rng.standard_normal(10))
        _, low, high = ratio_interval(a, b if paired else rng.permutation(b), 0.9)
        return high - low

    assert width(paired=True) < width(paired=False) / 5


class Sampled:
    """Points (time, cost) with common and independent noise: a record of values only."""

    def __init__(self, truth: Sequence[tuple[float, float]], seed: int, own: float) -> None:
        rng = np.random.default_rng(seed)
        noise = 1 + 0.2 * rng.standard_normal(20) + own * rng.standard_normal((len(truth), 20))
        points = np.array(truth)[:, None, :] * noise[:, :, None]
        self.measures: dict[Candidate, dict[int, Measure]] = {
            (i,): {
                s: Measure(float(t), float(c), None, 1, 0, 0, 0, "")
                for s, (t, c) in enumerate(row, start=1)
            }
            for i, row in enumerate(points)
        }

    def evaluate(self, candidates: Sequence[Candidate], seeds: Sequence[int]) -> None:
        pass

    def mean(self, candidate: Candidate) -> dict[str, float]:
        """Means over all seeds."""
        rows = list(self.measures[candidate].values())
        return {
            "makespan_s": float(np.mean([m.makespan_s for m in rows])),
            "cost": float(np.mean([m.cost or 0.0 for m in rows])),
        }


def test_the_knee_is_compared_without_common_noise() -> None:
    # distances to (100, 10): 0.30 for the ends, 0.06 for the knee
    truth = [(100, 13.5), (104, 10.5), (135, 10)]
    record = Sampled(truth, 2, own=0.002)
    score = ByKnee(record, record.mean, ("makespan_s", "cost"), list(record.measures))  # type: ignore[arg-type]
    selection = select(
        list(record.measures),
        lambda some, n: score.on_seeds(some, range(1, n + 1)),
        most_seeds=5,
        relative=False,
    )
    assert selection.best.candidate == (1,)
    assert selection.best.mean == pytest.approx(np.hypot(np.log(1.04), np.log(1.05)), abs=0.01)
    assert [c.verdict for c in selection.contenders] == ["best", "worse", "worse"]


def noisy_best(seed: int) -> Sampled:
    """Two configurations: the first is better by 2.5 % in both metrics, with independent noise."""
    record = Sampled([(100, 10), (102.5, 10.25)], seed, own=0.0)
    rng = np.random.default_rng([seed, 5])
    for s in range(1, 21):
        factor = 1 + 0.05 * rng.standard_normal()
        m = record.measures[(0,)][s]
        record.measures[(0,)][s] = m._replace(
            makespan_s=m.makespan_s * factor, cost=(m.cost or 0.0) * factor
        )
    return record


def knees(losses: Callable[[ByKnee, list[int]], NDArray[np.float64]]) -> int:
    """Number of 40 records in which the better one has the smaller mean loss."""
    hits = 0
    for seed in range(40):
        record = noisy_best(seed)
        score = ByKnee(record, record.mean, ("makespan_s", "cost"), [(0,), (1,)])  # type: ignore[arg-type]
        mean = losses(score, list(range(1, 21))).mean(axis=1)
        hits += mean[0] < mean[1]
    return hits


def test_noise_does_not_move_the_best_from_the_ideal() -> None:
    assert knees(lambda score, seeds: score.on_seeds([(0,), (1,)], seeds)) >= 36


def test_planted_failure_of_distances_per_seed_is_detected() -> None:
    """Noise can only enlarge a distance to a fixed ideal."""

    def fixed(score: ByKnee, seeds: list[int]) -> NDArray[np.float64]:
        values = score._values([(0,), (1,)], seeds)
        distances: NDArray[np.float64] = np.sqrt((np.log(values / score._ideal) ** 2).sum(axis=-1))
        return distances

    assert knees(fixed) < 30
