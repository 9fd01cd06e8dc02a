"""Conformal intervals: exact ranks, and coverage on synthetic truth by an exact binomial test."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest

from penstock.analyse.statistics.prediction_intervals import conformal_half_width
from penstock.parts.prediction.black_box.intervals import CrossConformal, folds
from penstock.parts.prediction.black_box.model import learner

TRIALS = 720
LEVEL = 0.9


def truth(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Points of a storage: throughput falls with clients, rises with the request, and varies."""
    x = np.column_stack(
        [rng.integers(0, 2, n), rng.integers(0, 5, n), 4096 * 2.0 ** rng.integers(0, 9, n)]
    )
    log = 17 + 0.3 * np.log(x[:, 2] / 4096) - x[:, 0] * np.log1p(x[:, 1])
    return x, np.exp(log + rng.normal(0, 0.1 * (1 + x[:, 0]), n))


def split_covers(rng: np.random.Generator, planted: bool) -> bool:
    """True if a new point lies inside; of the 19 points set aside the 18th residual counts."""
    x, y = truth(rng, 40)
    model = learner("tree").fit(x[:20], y[:20])
    held_out = slice(0, 19) if planted else slice(20, 39)
    half = conformal_half_width(
        np.abs(np.log(model.predict(x[held_out]) / y[held_out])).tolist(), LEVEL
    )
    assert half is not None
    return bool(abs(np.log(model.predict(x[39:]) / y[39:]))[0] <= half)


def test_split_coverage_is_the_level() -> None:
    """n = 19: k = 18, so that exactly 18 of 20 are inside; the exact test must not reject 90 %."""
    rng = np.random.default_rng(20)
    hits = sum(split_covers(rng, planted=False) for _ in range(TRIALS))
    assert binomtest(hits, TRIALS, LEVEL).pvalue > 0.05


def test_planted_residuals_of_points_learnt_from_do_not_cover() -> None:
    rng = np.random.default_rng(21)
    hits = sum(split_covers(rng, planted=True) for _ in range(TRIALS))
    assert binomtest(hits, TRIALS, LEVEL, alternative="less").pvalue < 1e-6


def cross_covers(rng: np.random.Generator, planted: bool) -> bool:
    x, y = truth(rng, 51)
    log, fold = np.log(y), folds(50, int(rng.integers(1 << 30)))
    of_fold, residual = [], np.empty(50)
    for number in range(int(fold.max()) + 1):
        rows = np.arange(50) if planted else np.flatnonzero(fold != number)
        predicted = np.log(learner("tree").fit(x[rows], y[rows]).predict(x))
        residual[fold == number] = np.abs(predicted[:50] - log[:50])[fold == number]
        of_fold.append(predicted[50:])
    low, high = CrossConformal(fold, residual).interval(np.array(of_fold), LEVEL)
    return bool(low[0] <= log[50] <= high[0])


@pytest.mark.long
def test_cross_conformal_covers_at_least_its_level() -> None:
    """CV+ guarantees less (80 % less sqrt(2/n)), but reaches at least 90 %."""
    rng = np.random.default_rng(22)
    hits = sum(cross_covers(rng, planted=False) for _ in range(TRIALS))
    assert binomtest(hits, TRIALS, LEVEL, alternative="less").pvalue > 0.05
    assert hits / TRIALS < 0.97  # and not because intervals are too wide


@pytest.mark.long
def test_planted_folds_that_saw_their_points_do_not_cover() -> None:
    rng = np.random.default_rng(23)
    hits = sum(cross_covers(rng, planted=True) for _ in range(300))
    assert binomtest(hits, 300, LEVEL, alternative="less").pvalue < 1e-6


def test_jackknife_plus_by_hand() -> None:
    """Nine points, 80 %: ranks 2 and 8 of the lower and of the upper ends."""
    residual = np.array([0.1, 0.5, 0.2, 0.9, 0.3, 0.8, 0.4, 0.7, 0.6])
    centre = np.arange(9.0)[:, None]
    conformal = CrossConformal(np.arange(9), residual)
    low, high = conformal.interval(centre, 0.8)
    assert low[0] == pytest.approx(sorted(np.arange(9) - residual)[1])
    assert high[0] == pytest.approx(sorted(np.arange(9) + residual)[7])
    assert conformal.method == "jackknife+"
    assert "at least 80 %" in conformal.guarantee(0.9)
    low, high = conformal.interval(centre, 0.95)
    assert (low[0], high[0]) == (-np.inf, np.inf)


def test_a_class_has_the_interval_of_its_own_residuals() -> None:
    residual = np.concatenate([np.full(20, 0.1), np.full(20, 2.0), np.full(3, 9.0)])
    conformal = CrossConformal(np.arange(43), residual)
    easy = np.arange(43) < 20
    low, high = conformal.among(easy, 0.9).interval(np.zeros((43, 1)), 0.9)
    assert (low[0], high[0]) == pytest.approx((-0.1, 0.1))
    three_points = np.arange(43) >= 40
    assert conformal.among(three_points, 0.9) is conformal  # three points are no class


def test_folds_are_even_and_few_points_have_one_each() -> None:
    assert sorted(folds(40, 1)) == list(range(40))
    counts = np.bincount(folds(95, 1))
    assert len(counts) == 10
    assert set(counts) == {9, 10}
    assert CrossConformal(folds(95, 1), np.ones(95)).method == "CV+"
