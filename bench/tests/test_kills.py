"""A kill -9 of each process of an experiment: no acknowledged point is lost, the gap is marked."""

from __future__ import annotations

import os

import pytest

from bench import kills


@pytest.mark.parametrize("victim", ["receiver", "scraper", "server"])
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_kill_loses_nothing_that_was_acknowledged(victim: str, seed: int) -> None:
    assert kills.killed(victim, seed) == []


@pytest.mark.host
@pytest.mark.timed
@pytest.mark.skipif(os.geteuid() != 0, reason="a monitored command has a control group")
def test_a_command_continues_without_its_sampler() -> None:
    assert kills.killed("sampler", 3) == []


def test_points_removed_from_the_store_are_detected(tmp_path) -> None:
    """Planted: the check must read the stored points, not trust the acknowledgements."""
    import random

    assert any(
        "is gone" in fault for fault in kills.receiver(random.Random(4), tmp_path, plant=True)
    )
