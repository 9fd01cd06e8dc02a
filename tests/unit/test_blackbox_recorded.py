"""The adaptive choice on grids measured on real mounts (tests/golden/blackbox-grid).

Results are weaker than on simulated storages: half of the points reach the error of all on the hard
disk, and beat half at random on three disks of four; docs/learn.md has the figures.
"""

from __future__ import annotations

import pytest

from penstock.parts.prediction.black_box.plan import next_round
from penstock.parts.prediction.black_box.space import Point, Space
from tests.unit.blackbox_halves import halves, recorded


def test_the_recorded_grids_are_complete() -> None:
    grids = recorded()
    assert set(grids) == {"hdd-7200", "sata-ssd", "network-volume", "sd-card"}
    for space, truth in grids.values():
        assert set(truth) == set(space.grid())
        assert min(truth.values()) > 0


@pytest.mark.parametrize("disk", ["hdd-7200", "sata-ssd", "sd-card"])
def test_half_chosen_beats_half_at_random_on_measured_points(disk: str) -> None:
    space, truth = recorded()[disk]
    errors = halves("tree", space, truth, next_round)
    assert errors.chosen < 0.8 * errors.random


def test_half_of_the_points_reach_the_error_of_all_on_the_hard_disk() -> None:
    space, truth = recorded()["hdd-7200"]
    assert (errors := halves("tree", space, truth, next_round)).chosen <= errors.grid


def test_planted_choice_of_one_corner_misses_it() -> None:
    def corner(
        space: Space, measured: dict[Point, float], pool: list[Point], total: int, seed: int
    ) -> list[Point]:
        """Writes first, similar points next to each other."""
        return [] if measured else sorted(pool, key=lambda p: (p.operation, p.name))[-total:]

    space, truth = recorded()["hdd-7200"]
    assert (errors := halves("tree", space, truth, corner)).chosen > errors.grid
