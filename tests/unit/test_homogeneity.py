"""Homogeneity of calibrated nodes: deviating nodes are named, and equal nodes are not."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from penstock.parts.stores.calibration.homogeneity import LEVEL, MATTERS, Homogeneity, judged


def simulated(
    nodes: int,
    rounds: int,
    seed: int,
    *,
    spread: float = 0.03,
    drift: float = 0.2,
    slow: Mapping[tuple[str, str], float] | None = None,
) -> Homogeneity:
    """Simulated times of nodes: random spread, a drift of the host per round, and slow nodes."""
    draw = random.Random(seed)
    times = {}
    for operation in ("disk, write", "disk, read", "link, out", "link, in"):
        drifts = [draw.gauss(0, drift) for _ in range(rounds)]
        times[operation] = {
            f"node-{n}": [
                0.0025
                * (slow or {}).get((f"node-{n}", operation), 1.0)
                * 2.718 ** (w + draw.gauss(0, spread))
                for w in drifts
            ]
            for n in range(nodes)
        }
    return judged(times)


@pytest.mark.parametrize(("nodes", "rounds"), [(2, 5), (4, 3), (8, 3)])
def test_false_alarms_respect_the_level(nodes: int, rounds: int) -> None:
    """With equal nodes the rate of false alarms is at most the level (exact binomial bound).

    The spread is so large that differences exceed MATTERS. Only the test prevents alarms.
    """
    trials = 300
    named = sum(
        any(u.times for u in simulated(nodes, rounds, seed, spread=0.2).unlike)
        for seed in range(trials)
    )
    assert named <= 9  # P(more of 300 | 1 %) < 0.002
    assert LEVEL == 0.01


def test_slow_disk_and_slow_link_are_named() -> None:
    slow = {
        ("node-2", "disk, write"): 3.0,
        ("node-2", "disk, read"): 3.0,
        ("node-3", "link, out"): 1.25,
    }
    result = simulated(5, 4, 1, slow=slow)
    assert {(u.node, u.what) for u in result.unlike} == set(slow)
    for unlike in result.unlike:
        assert unlike.low < slow[(unlike.node, unlike.what)] < unlike.high
    assert str(result.unlike[0]).startswith("node-2: disk, write takes ")


def test_slow_node_is_named_reliably() -> None:
    slow = {("node-1", "link, in"): 1.25}
    results = [simulated(4, 3, seed, slow=slow) for seed in range(40)]
    named = [{(u.node, u.what) for u in f.unlike} for f in results]
    assert sum(set(slow) <= n for n in named) >= 38
    assert sum(n > set(slow) for n in named) <= 3


def test_small_differences_are_not_named() -> None:
    """Calibrated means are exact to 5 %. Smaller significant differences are not named."""
    result = simulated(6, 12, 3, spread=0.001, slow={("node-0", "disk, read"): 1 + 0.8 * MATTERS})
    assert result.unlike == ()
    assert result.shows["disk, read"] < 0.01


def test_unsteady_host_is_a_caution() -> None:
    result = simulated(3, 3, 5, spread=0.5)
    assert any("would not have been seen in 3 rounds" in c for c in result.cautions)


def test_two_different_nodes_are_both_named() -> None:
    result = simulated(2, 6, 7, slow={("node-1", "disk, write"): 3.0})
    assert {u.node for u in result.unlike} == {"node-0", "node-1"}
    assert sorted(round(u.times) for u in result.unlike) == [0, 3]
