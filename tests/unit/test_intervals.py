"""Intervals of a single run: order statistics, split-conformal calibration and its store."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.stats import binomtest

from penstock.analyse.statistics.calibration import Pair, add_pairs, calibrated, read_pairs
from penstock.analyse.statistics.prediction_intervals import (
    conformal_half_width,
    conformal_rank,
    least_draws,
    order_statistics,
)
from penstock.errors import BadInput


def test_conformal_rank_and_half_width() -> None:
    assert conformal_rank(19, 0.9) == 18
    assert conformal_rank(8, 0.9) == 9
    assert conformal_half_width([float(i) for i in range(19)], 0.9) == 17.0
    assert conformal_half_width([0.1] * 8, 0.9) is None


def test_rank_is_exact_despite_rounding() -> None:
    """100 · 0.55 is 55. In floating point it is slightly more, and the rank would be 56."""
    for n in range(9, 100_000, 10):
        assert conformal_rank(n, 0.9) == (n + 1) // 10 * 9
    assert conformal_rank(99, 0.55) == 55
    assert math.ceil(100 * 0.55) == 56


def test_draws_needed() -> None:
    assert [least_draws(p) for p in (0.9, 0.8, 0.95, 0.99)] == [19, 9, 39, 199]


@pytest.mark.parametrize(("m", "a"), [(19, 1), (38, 1), (39, 2), (59, 3), (199, 10)])
def test_order_statistics_of_39_draws(m: int, a: int) -> None:
    interval = order_statistics([float(i) for i in range(1, m + 1)][::-1])
    assert (interval.low, interval.high) == (a, m + 1 - a)
    assert interval.attained == pytest.approx(1 - 2 * a / (m + 1))
    assert interval.attained >= 0.9


def test_method_reports_too_few_draws() -> None:
    interval = order_statistics([1.0, 3.0, 2.0, 5.0])
    assert (interval.low, interval.high) == (1, 5)
    assert interval.attained == pytest.approx(0.6)
    assert "19 runs are needed" in interval.method
    assert "no interval" in order_statistics([1.0]).method
    with pytest.raises(BadInput):
        order_statistics([])
    with pytest.raises(BadInput, match="between 0 and 1"):
        order_statistics([1.0] * 50, level=1.0)


def test_equal_draws_have_no_width() -> None:
    interval = order_statistics([2.5] * 39)
    assert (interval.width, interval.attained) == (0, 1)
    assert "equal" in interval.method


@pytest.mark.parametrize("half_spread", [False, True])
def test_coverage_of_a_further_run_is_exact(half_spread: bool) -> None:
    """Coverage on a skewed distribution. An interval of half the width must fail."""
    rng = np.random.default_rng(11)
    inside, trials = 0, 4000
    for _ in range(trials):
        draws = rng.lognormal(0, 0.6, 39)
        interval = order_statistics([float(d) for d in draws])
        low, high = interval.low, interval.high
        if half_spread:
            middle = (low + high) / 2
            low, high = (low + middle) / 2, (high + middle) / 2
        inside += low <= rng.lognormal(0, 0.6) <= high
    p = binomtest(inside, trials, 0.9).pvalue
    assert (p < 1e-6) if half_spread else (p > 0.001)


def pairs(n: int, factor: float = 1.0, width: float | None = 0.05, seed: int = 3) -> list[Pair]:
    """Pairs whose measured value is log-normal about `factor` times the prediction."""
    rng = np.random.default_rng(seed)
    sampled = []
    for i in range(n):
        p = float(rng.uniform(5, 500))
        y = p * factor * float(rng.lognormal(0, 0.1))
        ends = (None, None) if width is None else (p * (1 - width), p * (1 + width))
        sampled.append(Pair(f"w{i}", "cluster", p, y, *ends))
    return sampled


def test_too_few_pairs_leave_the_interval_unchanged() -> None:
    simulated = order_statistics([float(i) for i in range(100, 139)])
    interval = calibrated(simulated, 120, pairs(8))
    assert (interval.low, interval.high) == (simulated.low, simulated.high)
    assert interval.calibration is not None
    assert interval.calibration.half_width is None
    assert interval.calibration.status == "insufficient calibration"
    assert "insufficient calibration (8 measured pairs, rank 9)" in interval.method
    assert calibrated(simulated, 120, []) == simulated


def test_residuals_give_a_symmetric_interval() -> None:
    measured = pairs(19, width=None)
    simulated = order_statistics([float(i) for i in range(100, 139)])
    interval = calibrated(simulated, 120, measured)
    half = sorted(abs(p.residual) for p in measured)[17]
    assert interval.low == pytest.approx(120 * (1 - half))
    assert interval.high == pytest.approx(120 * (1 + half))
    assert "rank 18 of 19" in interval.method


@pytest.mark.parametrize("width", [None, 0.02, 0.4])
def test_calibrated_intervals_cover_90_percent(width: float | None) -> None:
    """Calibration corrects a model that is 8 % too fast and has too narrow or too wide intervals."""
    trials = inside = 0
    for seed in range(1500):
        *measured, last = pairs(40, 1.08, width, seed)
        p = last.predicted
        spread = (p * 0.97, p * 1.03) if width is None else (last.low or 0, last.high or 0)
        simulated = order_statistics([*spread] + [p] * 17)
        assert simulated.low == spread[0]
        interval = calibrated(simulated, p, measured)
        inside += interval.low <= last.measured <= interval.high
        trials += 1
    # k = 36 of 39: 90 % exactly
    assert binomtest(inside, trials, 0.9).pvalue > 0.001
    covered_uncalibrated = sum(
        abs(p.measured / p.predicted - 1) <= 0.03
        for p in (pairs(40, 1.08, None, s)[-1] for s in range(1500))
    )
    assert binomtest(covered_uncalibrated, trials, 0.9).pvalue < 1e-6, (
        "uncalibrated narrow intervals cover 90 %"
    )


def test_store_appends_pairs_and_is_replaced_atomically(tmp_path: Path) -> None:
    store = tmp_path / "deep" / "calibration.json"
    assert add_pairs(store, pairs(3)) == 3
    assert add_pairs(store, pairs(2, seed=9)) == 5
    stored = read_pairs(store)
    assert len(stored) == 5
    assert stored[0].predicted == pairs(1)[0].predicted
    assert stored[0].date
    assert [p.name for p in store.parent.iterdir()] == ["calibration.json"]
    table = pa.Table.from_pylist([vars(p) for p in stored])
    pq.write_table(table, tmp_path / "pairs.parquet")
    assert read_pairs(tmp_path / "pairs.parquet") == stored
    assert read_pairs(tmp_path / "none.json", missing_ok=True) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "found schema list"),
        ('{"schema": "penstock/calibration/9", "pairs": []}', "penstock/calibration/1"),
        ('{"schema": "penstock/calibration/1"}', "no list `pairs`"),
        ('{"schema": "penstock/calibration/1", "pairs": [3]}', "pair 1: found int"),
        ('{"schema": "penstock/calibration/1", "pairs": [{"predicted": 1}]}', "measured None"),
        (
            '{"schema": "penstock/calibration/1", "pairs": [{"predicted": NaN, "measured": 1}]}',
            "predicted nan",
        ),
        (
            '{"schema": "penstock/calibration/1", "pairs": [{"predicted": 1, "measured": 1, "x": 1}]}',
            "found x",
        ),
    ],
)
def test_bad_stores_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "pairs.json"
    path.write_text(text)
    with pytest.raises(BadInput, match=message):
        read_pairs(path)


def test_bad_pair_leaves_the_store_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "pairs.json"
    add_pairs(path, pairs(1))
    before = path.read_text()
    with pytest.raises(BadInput):
        add_pairs(path, [Pair("w", "p", 0.0, 1.0)])
    assert path.read_text() == before
    assert json.loads(before)["schema"] == "penstock/calibration/1"
