"""False effects, coverage and named aliases per kind of design: a short pass of the bench."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench.design_claims import (
    COVER,
    FALSE,
    NOISES,
    Hidden,
    Kind,
    coverage,
    ends,
    false_effects,
    hidden,
    kinds,
    planted,
    sequential,
    unnamed,
)

STUDIES = 8


@pytest.mark.parametrize("kind", kinds(), ids=[k.name for k in kinds()])
def test_a_kind_of_design_keeps_its_significance_level(kind: Kind) -> None:
    for noise in NOISES.values():
        assert ends(false_effects(kind, noise, STUDIES, seed=3), STUDIES)[0] <= FALSE
    if kind.covered:
        covered, total = coverage(kind, NOISES["normal"], STUDIES, seed=3)
        low, high = ends(covered, total)
        assert low <= COVER[1]
        assert high >= COVER[0]


@pytest.mark.parametrize("case", hidden(), ids=[c.name for c in hidden()])
def test_a_hidden_interaction_is_named(case: Hidden) -> None:
    missed, _ = unnamed(case, 3, seed=3)
    assert missed == 0


def test_looks_of_a_sequential_study_and_its_analysis_share_alpha() -> None:
    assert ends(sequential(10, seed=3), 10)[0] <= FALSE


@pytest.mark.long
def test_planted_failures_are_detected() -> None:
    assert all(planted(400, seed=3).values())
