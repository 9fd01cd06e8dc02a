"""Agreement of the rankings of two studies: Kendall's tau with its interval, and the best of both."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from penstock.analyse.outcome import Outcome
from penstock.analyse.treatments.rankings import compare_rankings, kendall, ranking_lines
from penstock.campaign.analysis import analyse
from penstock.errors import BadInput
from tests.unit.recorded_study import record, study_text

FIVE = dict.fromkeys("abcde", "{levels: [-1, 1]}")
SIZE = {"a": 16, "b": 8, "c": -4, "d": 2, "e": 1}


def study(place: Path, design: str, noise: float = 0.1, seed: int = 1, **flipped: float) -> Outcome:
    place.mkdir()
    draws = np.random.default_rng(seed)
    size = {**SIZE, **flipped}
    out = record(
        place,
        study_text(FIVE, design),
        lambda r: {
            "y": 100 + sum(q * r.coded[n] for n, q in size.items()) + noise * draws.normal()
        },
    )
    analyse(out, report=False)
    return Outcome.read(out)


def test_a_fraction_and_the_full_design_have_the_same_ranking(tmp_path: Path) -> None:
    full = study(tmp_path / "full", "{kind: full, replicates: 2}")
    part = study(tmp_path / "part", "{kind: {fraction: 2}, replicates: 2}", seed=2)
    comparison = compare_rankings(full, part)
    by_kind = {agreement.ranked: agreement for agreement in comparison.agreements}
    assert (by_kind["treatments"].n, by_kind["main effects"].n) == (8, 5)
    assert by_kind["main effects"].tau == pytest.approx(1)
    assert by_kind["main effects"].best == (["a", "b", "c"], ["a", "b", "c"])
    assert by_kind["treatments"].tau == pytest.approx(1)
    assert by_kind["treatments"].overlap == 3
    assert by_kind["treatments"].by_chance == pytest.approx(9 / 8)
    assert comparison.runs == (64, 16)
    assert "24 treatments that only one of them ran are not compared" in comparison.notes[0]
    lines = list(ranking_lines(comparison))
    assert max(map(len, lines)) <= 100
    # 8 treatments: tanh(atanh(1 - 1/28) - 1.96 sqrt(0.437 / 4))
    assert "  Kendall's tau 1.00 (95 % interval 0.88 to 1.00)" in lines


def test_reversed_rankings_are_detected(tmp_path: Path) -> None:
    first = study(tmp_path / "one", "{kind: full, replicates: 2}")
    reversed_signs = study(
        tmp_path / "other", "{kind: full, replicates: 2}", a=-16, b=-8, c=4, d=-2, e=-1
    )
    agreements = {
        agreement.ranked: agreement
        for agreement in compare_rankings(first, reversed_signs, top=4).agreements
    }
    assert agreements["treatments"].tau == pytest.approx(-1)
    assert agreements["treatments"].overlap == 0
    assert agreements["main effects"].tau == pytest.approx(1)  # of sizes, not of signs


def test_the_interval_covers_the_truth() -> None:
    draws = np.random.default_rng(4)
    for n, rho in ((10, 0.0), (12, 0.6), (30, 0.8)):
        truth = 2 / math.pi * math.asin(rho)
        covered = 0
        for _ in range(1500):
            x = draws.normal(size=n)
            y = rho * x + math.sqrt(1 - rho**2) * draws.normal(size=n)
            _, low, high = kendall(x, y)
            covered += low <= truth <= high
        assert 0.925 < covered / 1500 < 0.985


def test_ties_and_small_samples() -> None:
    assert kendall(np.array([1.0, 2, 2, 3]), np.array([1.0, 2, 3, 4]))[0] == pytest.approx(
        stats.kendalltau([1, 2, 2, 3], [1, 2, 3, 4]).statistic
    )
    assert math.isnan(kendall(np.array([1.0, 2, 3, 4]), np.array([1.0, 2, 3, 4]))[1])
    assert math.isnan(kendall(np.ones(6), np.arange(6.0))[0])
    tau, low, high = kendall(np.arange(8.0), np.arange(8.0))
    assert (tau, high) == pytest.approx((1.0, 1.0))
    assert 0.5 < low < 1


def test_studies_without_common_factors_or_responses_are_refused(tmp_path: Path) -> None:
    first = study(tmp_path / "one", "{kind: full, replicates: 1}")
    place = tmp_path / "other"
    place.mkdir()
    text = study_text({"z": "{levels: [1, 2]}"}, "{kind: full, replicates: 2}")
    out = record(place, text, lambda _: {"y": 1.0})
    analyse(out, report=False)
    with pytest.raises(BadInput, match="same factors and levels"):
        compare_rankings(first, Outcome.read(out))
    renamed = study_text(FIVE, "{kind: full}", {"x": "{from: wall_s, unit: s, better: lower}"})
    third = tmp_path / "third"
    third.mkdir()
    out = record(third, renamed, lambda _: {"x": 1.0})
    analyse(out, report=False)
    with pytest.raises(BadInput, match="one that both have"):
        compare_rankings(first, Outcome.read(out))
