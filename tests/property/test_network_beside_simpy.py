"""The simulator beside the same model written a second time, in SimPy, by its description alone.

On scenarios drawn at random both must give the same makespan, bytes, requests and number of services.
They share no code but the placement of no shuffle.
"""

from __future__ import annotations

import copy
from collections import Counter

import pytest

from bench.simulation import simpy_model
from bench.simulation.drawn import scenario
from bench.simulation.penstock_engine import Simulator, frames

SEEDS = range(60)


@pytest.mark.parametrize("seed", SEEDS)
def test_to_m_9_a_second_implementation_agrees(seed: int) -> None:
    workload, network = scenario(seed)
    peer = simpy_model.simulate(workload, network)
    ours = Simulator(workload).simulate(frames(network))
    assert ours["makespan_s"] == pytest.approx(peer.makespan_s, rel=1e-7)
    assert ours["events"] == peer.services
    assert ours["requests"] == peer.requests
    assert ours["bytes"]["network"] == peer.network_bytes
    assert 0 < Simulator(workload).simulate(network)["events"] <= ours["events"]


@pytest.mark.parametrize("seed", SEEDS)
def test_trains_change_no_makespan_by_more_than_2_percent(seed: int) -> None:
    workload, network = scenario(seed)
    simulator = Simulator(workload)
    each, merged = simulator.simulate(frames(network)), simulator.simulate(network)
    assert merged["makespan_s"] == pytest.approx(each["makespan_s"], rel=0.02)
    assert merged["bytes"] == each["bytes"]


def test_the_scenarios_cover_every_option() -> None:
    """Else the agreement says little: each policy occurs with more than one replica."""
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        workload, network = scenario(seed)
        store = network["store"]
        seen[workload["name"]] += 1
        seen[network["scheduler"]["kind"]] += 1
        if store["replicas"] > 1:
            seen[f"{store['replication']}, {store['forward']}"] += 1
        seen["window"] += store["window"] is not None
        seen["core"] += network["fabric"]["capacity_bps"] is not None
        seen["racks"] += network["fabric"]["rack_uplink_bps"] is not None
        seen["slots"] += any(h["client"] and h["client"]["slots"] > 1 for h in network["hosts"])
    assert len(seen) == 4 + 2 + 6 + 4
    assert min(seen.values()) >= 2


@pytest.mark.parametrize("what", ["storage", "manager", "link"])
def test_a_wrong_parameter_of_the_peer_would_be_found(what: str) -> None:
    """Planted: one parameter of one host 0.1 % off, somewhere on the way of every scenario."""
    found = 0
    for seed in range(10):
        workload, network = scenario(seed)
        wrong = copy.deepcopy(network)
        for host in wrong["hosts"]:
            if what == "storage" and host["storage"]:
                host["storage"]["write"]["overhead"] *= 1.001
            elif what == "manager" and host["manager"]:
                host["manager"]["service"]["overhead"] *= 1.001
            elif what == "link":
                host["network"]["in_bps"] /= 1.001
        peer = simpy_model.simulate(workload, wrong).makespan_s
        ours = Simulator(workload).simulate(frames(network))["makespan_s"]
        found += abs(peer / ours - 1) > 1e-7
    assert found >= 8
