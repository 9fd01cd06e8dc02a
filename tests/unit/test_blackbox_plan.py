"""Choice of measured points: balance, sub-sampling, Algorithm 1, savings."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from penstock.parts.prediction.black_box.features import features, matrix
from penstock.parts.prediction.black_box.model import learner
from penstock.parts.prediction.black_box.plan import (
    algorithm_1,
    balanced,
    exploratory,
    next_round,
    subspace,
    thinned,
)
from penstock.parts.prediction.black_box.space import DEFAULT, MIB, Point, Space
from penstock.parts.prediction.black_box.surrogate import widest
from penstock.profile import load_profile
from tests.support.simulated_storage import simulated_bps
from tests.unit.blackbox_halves import Choice, Halves, halves

STORAGES = ["hdd-7200", "sata-ssd", "network-volume", "nvme"]
SPACE = DEFAULT.with_values(request_bytes=(4096, 16384, 65536, 262144, MIB))


def test_a_balanced_choice_has_all_values_equally_often() -> None:
    grid = DEFAULT.grid()
    chosen = balanced(grid, 48, seed=1)
    assert len(set(chosen)) == 48
    for dimension, values in DEFAULT.to_dict().items():
        counts = Counter(getattr(p, dimension) for p in chosen)
        assert max(counts.values()) - min(counts.values()) <= 2, dimension
        assert len(counts) == len(values)
    assert balanced(grid, 20, seed=1) == chosen[:20]
    assert balanced(grid, 48, seed=2) != chosen
    assert set(balanced(grid, 10_000, seed=1)) == set(grid)


def test_sub_sampling_keeps_variation() -> None:
    """Mytilinis 2015: omitting every second point must cause no significant variation."""
    assert thinned([1, 2, 4, 8, 16], [100, 101, 99, 100, 100]) == [1, 16]
    assert thinned([1, 2, 4, 8, 16], [100, 100, 40, 100, 100]) == [1, 2, 4, 8, 16]
    knee = thinned([0, 1, 3, 7, 15], [100, 100, 100, 20, 20], tolerance=0.1)
    assert {3, 7} <= set(knee)
    assert thinned([4, 8], [1, 9]) == [4, 8]


def test_values_without_effect_are_dropped() -> None:
    first = exploratory(DEFAULT)
    assert len(first) == len(set(first)) < len(DEFAULT.grid())

    def flat_but_for_clients(p: Point) -> float:
        return 1e8 / (1 + p.clients) ** 2

    reduced = subspace(DEFAULT, {p: flat_but_for_clients(p) for p in first})
    assert reduced.clients[0] == 0
    assert len(reduced.clients) >= 2
    assert (reduced.request_bytes, reduced.data_bytes) == ((4096, MIB), DEFAULT.data_bytes)
    assert reduced.operation == DEFAULT.operation


def test_algorithm_1_makes_one_model_per_storage() -> None:
    grid = DEFAULT.grid()[:30]
    profiles = {name: load_profile(name) for name in STORAGES[:2]}
    trained = algorithm_1(
        profiles,
        grid,
        lambda p, s: simulated_bps(profiles[s], p, requests=100),
        lambda points, rates: learner("tree").fit(matrix(features(DEFAULT), points), rates),
    )
    hdd, ssd = (m.predict(matrix(features(DEFAULT), grid)) for m in trained.values())
    assert np.median(ssd / hdd) > 3


def test_each_next_point_is_the_widest_given_the_others() -> None:
    # 0 and 1 are nearly equal: measuring one determines the other
    covariance = np.array([[1.0, 0.99, 0.0], [0.99, 1.0, 0.0], [0.0, 0.0, 0.5]])
    assert widest(covariance, 2) == [0, 2]
    assert widest(covariance, 9) == [0, 2, 1]


def errors_of(kind: str, name: str, choose: Choice) -> Halves:
    """`halves` on a simulated storage."""
    profile = load_profile(name)
    truth = {p: simulated_bps(profile, p, requests=400) for p in SPACE.grid()}
    return halves(kind, SPACE, truth, choose)


@pytest.mark.parametrize("name", STORAGES)
def test_half_of_the_points_reach_the_error_of_the_grid(name: str) -> None:
    errors = errors_of("tree", name, next_round)
    assert errors.chosen <= errors.grid
    assert errors.chosen < errors.random


def test_boosting_too_and_better_than_half_at_random() -> None:
    errors = errors_of("boosted", "hdd-7200", next_round)
    assert errors.chosen <= errors.grid
    assert errors.chosen < 0.8 * errors.random


def test_planted_choice_of_one_corner_misses_the_error() -> None:
    def narrow(
        space: Space, measured: dict[Point, float], pool: list[Point], total: int, seed: int
    ) -> list[Point]:
        """All of one corner: neighbours of measured points."""
        return (
            [] if measured else sorted(pool, key=lambda p: (p.pattern, p.clients, p.name))[:total]
        )

    errors = errors_of("boosted", "hdd-7200", narrow)
    assert errors.chosen > errors.grid
