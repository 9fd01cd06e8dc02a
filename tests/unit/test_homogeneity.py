"""Seeding: a node that is not like the others is named, and none is where all are alike."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from penstock.parts.stores.calibration.homogeneity import LEVEL, MATTERS, Homogeneity, judged


def drawn(
    nodes: int,
    rounds: int,
    seed: int,
    *,
    spread: float = 0.03,
    drift: float = 0.2,
    slow: Mapping[tuple[str, str], float] | None = None,
) -> Homogeneity:
    """Times of that many nodes: a value of their own, a drift of the host by round, what is planted."""
    draw = random.Random(seed)
    timed = {}
    for what in ("disk, write", "disk, read", "link, out", "link, in"):
        weather = [draw.gauss(0, drift) for _ in range(rounds)]
        timed[what] = {
            f"node-{n}": [
                0.0025
                * (slow or {}).get((f"node-{n}", what), 1.0)
                * 2.718 ** (w + draw.gauss(0, spread))
                for w in weather
            ]
            for n in range(nodes)
        }
    return judged(timed)


@pytest.mark.parametrize(("nodes", "rounds"), [(2, 5), (4, 3), (8, 3)])
def test_the_level_is_kept(nodes: int, rounds: int) -> None:
    """Of trials in which all are alike, no more name a node than the level allows (exact binomial bound).

    The spread is one at which what is named would be beyond MATTERS, so that this is the test's doing alone.
    """
    trials = 300
    named = sum(
        any(u.times for u in drawn(nodes, rounds, seed, spread=0.2).unlike)
        for seed in range(trials)
    )
    assert named <= 9  # P(more of 300 | 1 %) < 0.002
    assert LEVEL == 0.01


def test_a_slow_disk_and_a_slow_link_are_named() -> None:
    planted = {
        ("node-2", "disk, write"): 3.0,
        ("node-2", "disk, read"): 3.0,
        ("node-3", "link, out"): 1.25,
    }
    found = drawn(5, 4, 1, slow=planted)
    assert {(u.node, u.what) for u in found.unlike} == set(planted)
    for one in found.unlike:
        assert one.low < planted[(one.node, one.what)] < one.high
    assert str(found.unlike[0]).startswith("node-2: disk, write takes ")


def test_it_is_found_nearly_always_and_nobody_else_is_blamed() -> None:
    planted = {("node-1", "link, in"): 1.25}
    found = [drawn(4, 3, seed, slow=planted) for seed in range(40)]
    named = [{(u.node, u.what) for u in f.unlike} for f in found]
    assert sum(set(planted) <= n for n in named) >= 38
    assert sum(n > set(planted) for n in named) <= 3


def test_what_is_too_small_to_matter_is_not_named() -> None:
    """Seeded means are known within 5 %: a node that is off by less is within them, however sure that is."""
    found = drawn(6, 12, 3, spread=0.001, slow={("node-0", "disk, read"): 1 + 0.8 * MATTERS})
    assert found.unlike == ()
    assert found.shows["disk, read"] < 0.01


def test_where_the_host_is_too_unsteady_it_is_said() -> None:
    found = drawn(3, 3, 5, spread=0.5)
    assert any("would not have been seen in 3 rounds" in c for c in found.cautions)


def test_of_two_nodes_neither_is_right() -> None:
    found = drawn(2, 6, 7, slow={("node-1", "disk, write"): 3.0})
    assert {u.node for u in found.unlike} == {"node-0", "node-1"}
    assert sorted(round(u.times) for u in found.unlike) == [0, 3]
