"""The simulator compared with an independent implementation of the same model in SimPy.

On random scenarios, both must have the same makespan, bytes, requests and number of services. They share no
code except the placement without shuffle.
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
    outcome = Simulator(workload).simulate(frames(network))
    assert outcome["makespan_s"] == pytest.approx(peer.makespan_s, rel=1e-7)
    assert outcome["events"] == peer.services
    assert outcome["requests"] == peer.requests
    assert outcome["bytes"]["network"] == peer.network_bytes
    assert 0 < Simulator(workload).simulate(network)["events"] <= outcome["events"]


@pytest.mark.parametrize("seed", SEEDS)
def test_trains_change_no_makespan_by_more_than_2_percent(seed: int) -> None:
    workload, network = scenario(seed)
    simulator = Simulator(workload)
    each, merged = simulator.simulate(frames(network)), simulator.simulate(network)
    assert merged["makespan_s"] == pytest.approx(each["makespan_s"], rel=0.02)
    assert merged["bytes"] == each["bytes"]


def test_the_scenarios_cover_every_option() -> None:
    """Coverage of the random scenarios: each policy occurs with more than one replica."""
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


@pytest.mark.parametrize("part", ["storage", "manager", "link"])
def test_a_wrong_parameter_of_the_peer_is_detected(part: str) -> None:
    """Planted: one parameter of all hosts is 0.1 % off."""
    detected = 0
    for seed in range(10):
        workload, network = scenario(seed)
        wrong = copy.deepcopy(network)
        for host in wrong["hosts"]:
            if part == "storage" and host["storage"]:
                host["storage"]["write"]["overhead"] *= 1.001
            elif part == "manager" and host["manager"]:
                host["manager"]["service"]["overhead"] *= 1.001
            elif part == "link":
                host["network"]["in_bps"] /= 1.001
        peer = simpy_model.simulate(workload, wrong).makespan_s
        makespan_s = Simulator(workload).simulate(frames(network))["makespan_s"]
        detected += abs(peer / makespan_s - 1) > 1e-7
    assert detected >= 8
