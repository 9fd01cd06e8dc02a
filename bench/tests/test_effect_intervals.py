"""Intervals of effects contain the true value, and wrong analyses are detected: a short pass of the bench."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench.effect_intervals import (
    COVER,
    FALSE,
    Case,
    cases,
    ends,
    false_answers,
    identical,
    outside,
    planted,
)


@pytest.mark.parametrize("case", cases(), ids=[case.name for case in cases()])
def test_a_case_has_its_nominal_coverage(case: Case) -> None:
    missed, total = outside(case, 40, seed=3)
    assert total >= 30
    low, high = ends(total - missed, total)
    assert low <= COVER[1]
    assert high >= COVER[0]


@pytest.mark.parametrize("case", planted(), ids=[case.name for case in planted()])
def test_a_wrong_analysis_is_detected(case: Case) -> None:
    missed, total = outside(case, 120, seed=3)
    assert ends(missed, total)[0] > FALSE


def test_identical_treatments_give_no_difference() -> None:
    for _, plan, noise in identical():
        naming, single = false_answers(plan, noise, 40, seed=3)
        assert ends(naming, 40)[0] <= FALSE
        if len(plan.factors) > 3:
            assert ends(single, 40)[0] > FALSE
