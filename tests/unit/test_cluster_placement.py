"""Placement of nodes on several hosts: capacity, pins, refusals, overcommitment, traffic."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import BadInput
from penstock.parts.remote.cluster.demand import RESOURCES, demand_of, payload_bps
from penstock.parts.remote.cluster.physical import PhysicalHost
from penstock.parts.remote.cluster.placement import Placement, place
from penstock.parts.remote.cluster.traffic import traffic_of
from penstock.profile.load import load_profile
from penstock.spec.cluster import (
    MOST_NODES,
    ClusterSpec,
    DiskSpec,
    Limits,
    LinkSpec,
    NetworkSpec,
    NodeSpec,
)
from tests.unit.cluster_hosts import GIB, cluster, host, node, rack

NETWORKS = ("net", "back")

links = st.builds(
    LinkSpec,
    network=st.just("net"),
    out_bps=st.sampled_from([None, 1e6, 2e8, 9e8]),
    in_bps=st.sampled_from([None, 1e6, 3e8]),
)
disks = st.builds(
    DiskSpec,
    name=st.just("d"),
    size_bytes=st.sampled_from([None, 10 * GIB, 300 * GIB]),
    limits=st.builds(
        Limits,
        read_bps=st.sampled_from([None, 5e7, 6e8]),
        write_iops=st.sampled_from([None, 500.0, 20_000.0]),
    ),
)
any_node = st.builds(
    NodeSpec,
    name=st.just(""),
    cpus=st.sampled_from([None, 0.5, 2.0, 9.0]),
    memory_bytes=st.sampled_from([None, GIB, 20 * GIB]),
    disks=st.lists(disks, max_size=1).map(tuple),
    links=links.map(lambda link: (link,)),
)


@st.composite
def problems(draw: st.DrawFn) -> tuple[ClusterSpec, dict[str, str], list[PhysicalHost]]:
    specs = draw(st.lists(any_node, min_size=1, max_size=24))
    nodes = [
        NodeSpec(**{**vars(spec), "name": f"{draw(st.sampled_from('ab'))}-{i}"})
        for i, spec in enumerate(specs)
    ]
    hosts = [
        host(
            f"{draw(st.sampled_from(['rack1', 'rack2']))}-{i}",
            i + 1,
            processors=draw(st.sampled_from([8, 16])),
        )
        for i in range(draw(st.integers(1, 5)))
    ]
    pins = {n.name: draw(st.sampled_from(["", "", "rack1-*", hosts[0].name])) for n in nodes}
    return cluster(*nodes), {name: pin for name, pin in pins.items() if pin}, hosts


def try_to_place(
    spec: ClusterSpec, pins: dict[str, str], hosts: list[PhysicalHost]
) -> Placement | str:
    try:
        return place(demand_of(spec, pins), hosts)
    except BadInput as error:
        return str(error)


def summed(spec: ClusterSpec, placement: Placement) -> np.ndarray:
    """Demands by host, summed from the specification without the matrices of the placement."""
    rows = {h.name: np.zeros(len(RESOURCES)) for h in placement.hosts}
    for node_spec in spec.nodes:
        sums = [node_spec.cpus or 0.0, node_spec.memory_bytes or 0]
        sums.append(sum(d.size_bytes or 0 for d in node_spec.disks))
        for limit in ("read_bps", "write_bps", "read_iops", "write_iops"):
            sums.append(sum(getattr(d.limits, limit) or 0.0 for d in node_spec.disks))
        rows[placement.by_node()[node_spec.name]] += np.array(sums)
    return np.array([rows[h.name] for h in placement.hosts])


@settings(max_examples=60)
@given(problems())
def test_every_node_is_placed_once_within_capacity_and_pins(
    problem: tuple[ClusterSpec, dict[str, str], list[PhysicalHost]],
) -> None:
    spec, pins, hosts = problem
    placement = try_to_place(spec, pins, hosts)
    if isinstance(placement, str):
        return
    by_node = placement.by_node()
    assert list(by_node) == [n.name for n in spec.nodes]
    assert sorted(n for i in range(len(hosts)) for n in placement.on(i)) == sorted(by_node)
    used = summed(spec, placement)
    assert used == pytest.approx(placement.used[:, : len(RESOURCES)])
    assert (used <= placement.supply[:, : len(RESOURCES)] * (1 + 1e-9)).all()
    by_name = {h.name: h for h in hosts}
    assert all(by_name[by_node[name]].matches(pin) for name, pin in pins.items())
    capacity = [payload_bps(h, tunnelled=len(hosts) > 1) for h in placement.hosts]
    assert (placement.traffic.out_bps <= np.array(capacity) * (1 + 1e-9)).all()
    assert not placement.over


@settings(max_examples=40)
@given(problems(), st.randoms(use_true_random=False))
def test_the_order_of_the_input_does_not_matter(
    problem: tuple[ClusterSpec, dict[str, str], list[PhysicalHost]], chance: random.Random
) -> None:
    spec, pins, hosts = problem
    first = try_to_place(spec, pins, hosts)
    nodes = list(spec.nodes)
    chance.shuffle(nodes)
    chance.shuffle(hosts)
    second = try_to_place(cluster(*nodes), pins, hosts)
    if isinstance(first, str):
        assert isinstance(second, str)
    else:
        assert isinstance(second, Placement)
        assert first.by_node() == second.by_node()


@settings(max_examples=40)
@given(problems())
def test_overcommitment_is_allowed_and_reported(
    problem: tuple[ClusterSpec, dict[str, str], list[PhysicalHost]],
) -> None:
    spec, pins, hosts = problem
    matched = {name: pin for name, pin in pins.items() if any(h.matches(pin) for h in hosts)}
    placement = place(demand_of(spec, matched), hosts, allow_overcommit=True)
    assert len(placement.by_node()) == len(spec.nodes)
    above = {
        (placement.hosts[i].name, j)
        for i, j in np.argwhere(placement.used > placement.supply * (1 + 1e-9))
    }
    names = [r.name for r in RESOURCES] + ["link out", "link in"]
    assert {(o.host, names.index(o.resource)) for o in placement.over} == above
    assert all(o.demand > o.supply for o in placement.over)
    if not isinstance(try_to_place(spec, matched, hosts), str):
        assert not placement.over


def test_exactly_full_hosts_are_filled() -> None:
    """Four hosts of 16 processors for 4 × (8 + 5 + 3); best fit puts 5 + 5 + 5 on one and fails."""
    nodes = [
        node(f"{kind}-{i}", cpus) for kind, cpus in (("a", 8), ("b", 5), ("c", 3)) for i in range(4)
    ]
    placement = place(demand_of(cluster(*nodes)), rack(4))
    assert placement.used[:, 0].tolist() == [16.0] * 4


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (
            [node(f"n-{i}", 1, 40) for i in range(3)],
            "memory: found 120.0 GiB for 3 nodes; expected at most 102.4 GiB on 2 hosts",
        ),
        (
            [node("n-0", 17)],
            "node n-0: found 17 of cpu; expected at most 16, the most that is free on a host",
        ),
        (
            [node(f"n-{i}", 9) for i in range(3)],
            "node n-2: found 9 of cpu; expected at most 7, the most that is free on a host",
        ),
        (
            [NodeSpec("n-0", disks=(DiskSpec("d", limits=Limits(read_iops=9e4)),))],
            "read requests: found 90,000 requests/s for 1 node; expected at most 80,000 requests/s",
        ),
        (
            [
                NodeSpec("n-0", cpus=9, links=(LinkSpec(out_bps=2e9),)),
                NodeSpec("n-1", cpus=9, links=(LinkSpec(),)),
            ],
            "host h0: link out: found 16.00 Gbit/s for its nodes; expected at most 9.67 Gbit/s",
        ),
        (
            [NodeSpec("n-0", cpuset=(16,))],
            "node n-0: cpuset: found processor 16; expected at most 15",
        ),
    ],
)
def test_a_refusal_names_resource_demand_and_supply(nodes: list[NodeSpec], message: str) -> None:
    demand = demand_of(cluster(*nodes))
    with pytest.raises(BadInput) as refused:
        place(demand, rack(2))
    assert message in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1
    if "cpuset" not in message:
        assert "--allow-overcommit" in str(refused.value)
        over = place(demand, rack(2), allow_overcommit=True).over
        assert len(over) == 1


def test_a_pin_without_a_match_names_the_hosts() -> None:
    demand = demand_of(cluster(node("n-0"), node("n-1")), {"n-0": "rack9-*", "n-1": "h*"})
    with pytest.raises(BadInput, match=r"^node n-0: host: found 'rack9-\*'; expected .* h0, h1$"):
        place(demand, rack(2), allow_overcommit=True)


def test_a_pin_may_be_an_address_and_limits_the_supply() -> None:
    demand = demand_of(cluster(node("n-0", 10), node("n-1", 10)), {"n-0": "192.0.2.2"})
    assert place(demand, rack(2)).by_node() == {"n-0": "h1", "n-1": "h0"}
    both = demand_of(cluster(node("n-0", 10), node("n-1", 10)), dict.fromkeys(("n-0", "n-1"), "h1"))
    with pytest.raises(
        BadInput, match="cpu: found 20 for 2 nodes; expected at most 16 on 1 host of h1"
    ):
        place(both, rack(2))


def test_traffic_inside_a_host_needs_no_link() -> None:
    """30 nodes of 1 Gbit/s exceed a link of 10 Gbit/s only if they are on different hosts."""
    nodes = [NodeSpec(f"n-{i}", links=(LinkSpec(out_bps=125e6, in_bps=125e6),)) for i in range(30)]
    alone = place(demand_of(cluster(*nodes)), rack(1))
    assert alone.traffic.out_bps.tolist() == [0.0]
    with pytest.raises(BadInput, match="link out"):
        place(demand_of(cluster(*nodes)), rack(2))


def test_traffic_is_bounded_by_both_ends() -> None:
    """3 × 10 B/s out of a host, opposite a node with 12 B/s in and 5 out: 12 leave, 5 enter."""
    nodes = [
        *(NodeSpec(f"a-{i}", links=(LinkSpec(out_bps=10, in_bps=10),)) for i in range(3)),
        NodeSpec("b-0", links=(LinkSpec(out_bps=5, in_bps=12),)),
    ]
    traffic = traffic_of(demand_of(cluster(*nodes)).links, np.array([0, 0, 0, 1]), 2)
    assert traffic.out_bps.tolist() == [12.0, 5.0]
    assert traffic.in_bps.tolist() == [5.0, 12.0]


def test_nodes_of_one_network_are_placed_together() -> None:
    """Four networks with four nodes each, interleaved in the file, on four hosts for four nodes."""
    networks = tuple(NetworkSpec(f"w{i}") for i in range(4))
    nodes = [
        node(f"n-{i}", 4, 1, LinkSpec(f"w{i % 4}", out_bps=1e8, in_bps=1e8)) for i in range(16)
    ]
    placement = place(demand_of(cluster(*nodes, networks=networks)), rack(4))
    assert len(placement.traffic.spanning) == 0
    assert placement.traffic.out_bps.sum() == 0


def test_nodes_without_demands_are_spread_by_processors() -> None:
    nodes = [NodeSpec(f"n-{i}") for i in range(60)]
    hosts = (
        host("big", 1, processors=32),
        host("small", 2, processors=8),
        host("s2", 3, processors=8),
    )
    assert Counter(place(demand_of(cluster(*nodes)), hosts).by_node().values()) == {
        "big": 40,
        "small": 10,
        "s2": 10,
    }


def test_a_bridge_has_a_limited_number_of_ports() -> None:
    nodes = [NodeSpec(f"n-{i}") for i in range(2 * MOST_NODES)]
    demand = demand_of(cluster(*nodes))
    with pytest.raises(BadInput, match=f"expected at most {MOST_NODES - 2} nodes of a network"):
        place(demand, rack(2), allow_overcommit=True)
    assert max(Counter(place(demand, rack(3)).by_node().values()).values()) < MOST_NODES


def test_disks_with_a_profile_count_with_its_rates() -> None:
    profile = load_profile("hdd-7200").to_dict()
    disk = DiskSpec("d", profile=profile, profile_name="hdd-7200")
    limited = DiskSpec("d", profile=profile, profile_name="hdd-7200", limits=Limits(read_bps=1e6))
    demand = demand_of(cluster(NodeSpec("a", disks=(disk,)), NodeSpec("b", disks=(limited,))))
    reads, writes = (3, 4)
    assert 5e7 < demand.amounts[0, reads] < 5e8
    assert demand.amounts[1, reads] == 1e6
    assert demand.amounts[0, writes] == demand.amounts[1, writes]
    assert 1e-3 < demand.service_s[0] < 0.1


def test_a_disk_faster_than_every_host_is_refused() -> None:
    disk = DiskSpec("d", profile=load_profile("hdd-7200").to_dict(), profile_name="hdd-7200")
    demand = demand_of(cluster(NodeSpec("a", disks=(disk,))))
    slow = rack(2, service_floor_s=0.5)
    with pytest.raises(BadInput, match="node a: found a disk with a service time of"):
        place(demand, slow)
    assert place(demand, slow, allow_overcommit=True).slow_disks == ("a",)
