"""Tunnels, addresses, routes, and delay and loss in addition to real paths."""

from __future__ import annotations

import ipaddress
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.emulate.network.addresses import Allotment, subnets
from penstock.errors import BadInput
from penstock.parts.remote.cluster.impairments import added_delay_s, added_loss, plan_paths
from penstock.parts.remote.cluster.network_plan import plan_addresses, vxlan_ids
from penstock.parts.remote.cluster.physical import Inventory, PathRule, RealPath
from penstock.parts.remote.cluster.plan import plan_cluster
from penstock.spec.cluster import ClusterSpec, Delay, LinkSpec, NetworkSpec, NodeSpec
from tests.unit.cluster_hosts import cluster, host, inventory, rack


def nodes_on(count: int, *links: LinkSpec) -> tuple[NodeSpec, ...]:
    return tuple(NodeSpec(f"n-{i}", links=links or (LinkSpec(),)) for i in range(count))


def halves(spec: ClusterSpec) -> dict[str, str]:
    """Even nodes on h0, odd ones on h1."""
    return {n.name: f"h{i % 2}" for i, n in enumerate(spec.nodes)}


def test_addresses_are_those_of_one_host() -> None:
    """Requested ones first, then the next free ones in file order, unique in the subnet."""
    links = [LinkSpec(address="10.9.0.2")] + [LinkSpec()] * 5
    nodes = tuple(NodeSpec(f"n-{i}", links=(link,)) for i, link in enumerate(links))
    spec = cluster(*nodes, networks=(NetworkSpec("net", "10.9.0.0/24"),))
    plan = plan_addresses(spec, halves(spec), rack(2))
    addresses = [plan.addresses[n.name]["net"] for n in nodes]
    assert addresses == ["10.9.0.2", *(f"10.9.0.{i}" for i in (1, 3, 4, 5, 6))]
    assert next(iter(plan.names())) == ("10.9.0.2", ("n-0", "n-0.net"))


def test_a_network_on_several_hosts_is_one_segment() -> None:
    networks = (NetworkSpec("net"), NetworkSpec("own"))
    nodes = (
        *nodes_on(4),
        NodeSpec("o-0", links=(LinkSpec("own"),)),
    )
    spec = cluster(*nodes, networks=networks)
    hosts = (host("h0", 1, mtu=9000), host("h1", 2, mtu=1600), host("h2", 3, mtu=1500))
    net, own = plan_addresses(spec, halves(spec), hosts).networks
    assert net.endpoints == (("h0", "192.0.2.1"), ("h1", "192.0.2.2"))
    assert net.mtu == 1550
    assert net.vxlan_id is not None
    assert 4096 <= net.vxlan_id < 2**24
    assert (own.endpoints, own.vxlan_id, own.mtu) == ((("h0", "192.0.2.1"),), None, 1500)
    assert net.gateway is None


def test_segments_differ_and_do_not_depend_on_the_order() -> None:
    names = [f"w{i}" for i in range(300)]
    ids = vxlan_ids("lab", names)
    assert len(set(ids.values())) == 300
    assert vxlan_ids("lab", names[::-1]) == ids
    assert vxlan_ids("other", names) != ids


def test_networks_with_an_address_of_the_host_are_routed() -> None:
    """Each host has a router with an address in each network, also in one without own nodes."""
    networks = (NetworkSpec("a", host=True), NetworkSpec("b", host=True), NetworkSpec("c"))
    nodes = tuple(NodeSpec(f"{n}-0", links=(LinkSpec(n),)) for n in "abc")
    spec = cluster(*nodes, networks=networks)
    plan = plan_addresses(spec, {"a-0": "h0", "b-0": "h1", "c-0": "h2"}, rack(3))
    a, b, c = plan.networks
    assert [[host for host, _ in n.endpoints] for n in (a, b, c)] == [["h0", "h1"]] * 2 + [["h2"]]
    assert (a.routers, c.routers) == ((("h0", "10.88.0.253"), ("h1", "10.88.0.252")), ())
    assert [(r.host, r.network, r.target, r.gateway) for r in plan.routes] == [
        ("h0", "a", b.subnet, "10.88.0.253"),
        ("h1", "a", b.subnet, "10.88.0.252"),
        ("h0", "b", a.subnet, "10.88.1.253"),
        ("h1", "b", a.subnet, "10.88.1.252"),
    ]


def test_one_network_has_no_router() -> None:
    networks = (NetworkSpec("a", host=True), NetworkSpec("b", host=True))
    spec = cluster(NodeSpec("a-0", links=(LinkSpec("a"),)), networks=networks)
    plan = plan_addresses(spec, {"a-0": "h0"}, rack(1))
    assert plan.routes == ()


def test_an_address_of_a_router_is_not_that_of_a_node() -> None:
    networks = tuple(NetworkSpec(n, f"192.168.{n}.0/29", host=True) for n in "12")
    nodes = tuple(NodeSpec(f"n-{n}", links=(LinkSpec(n, f"192.168.{n}.5"),)) for n in "12")
    with pytest.raises(BadInput, match=r"node n-1: address 192\.168\.1\.5 is that of the router"):
        plan_addresses(cluster(*nodes, networks=networks), {"n-1": "h0", "n-2": "h0"}, rack(1))


def test_more_nodes_than_one_bridge_has_ports() -> None:
    spec = cluster(*nodes_on(1500))
    hosts = rack(2)
    plan = plan_addresses(spec, halves(spec), hosts)
    flat = [address for by_network in plan.addresses.values() for address in by_network.values()]
    assert len(set(flat)) == 1500
    subnet = plan.networks[0].subnet
    assert subnet.prefixlen == 21
    assert all(ipaddress.ip_address(a) in subnet for a in flat)
    with pytest.raises(BadInput, match="expected at most 1022, the ports of a Linux bridge"):
        subnets(spec.networks, {"net": 1500})


def test_a_subnet_with_the_address_of_a_host_is_refused() -> None:
    spec = cluster(*nodes_on(2), networks=(NetworkSpec("net", "192.0.2.0/24"),))
    with pytest.raises(BadInput, match=r"contains the address of host h0"):
        plan_addresses(spec, halves(spec), rack(2))
    free = cluster(*nodes_on(2))
    assert (
        not plan_addresses(free, halves(free), (host("h0", address="10.88.0.7"), host("h1", 2)))
        .networks[0]
        .subnet.overlaps(ipaddress.IPv4Network("10.88.0.7"))
    )


shares = st.floats(0, 0.9, allow_nan=False)


@given(shares, shares)
def test_losses_in_series_are_as_requested(requested: float, real: float) -> None:
    if 0 < requested < real - 1e-12:
        with pytest.raises(ValueError, match="below"):
            added_loss(requested, real)
        return
    added = added_loss(requested, real)
    if requested:
        assert 1 - (1 - real) * (1 - added) == pytest.approx(max(requested, real), abs=1e-9)
    else:
        assert added == 0


def test_delays_in_series_are_as_requested() -> None:
    assert added_delay_s(1e-3, 4e-5) == pytest.approx(9.6e-4)
    assert added_delay_s(0.0, 4e-5) == 0.0
    with pytest.raises(ValueError, match="below"):
        added_delay_s(3e-5, 4e-5)


def end_to_end(spec: ClusterSpec, a: NodeSpec, b: NodeSpec) -> float:
    """Requested delay from a to b by the definitions of `NetworkSpec` and `LinkSpec`."""
    (network,) = spec.networks
    both = {(y, x): s for (x, y), s in network.delays.items()} | network.delays
    pair = both.get((a.name, b.name), network.delay_s)
    return a.links[0].delay.mean_s + b.links[0].in_delay.mean_s + pair


@pytest.mark.parametrize("pairs", [0, 30])
def test_added_delays_are_the_least_of_all_pairs(pairs: int) -> None:
    chance = random.Random(pairs)
    nodes = tuple(
        NodeSpec(
            f"n-{i}",
            links=(
                LinkSpec(
                    delay=Delay(chance.choice([0.0, 1e-3, 2e-3])),
                    in_delay=Delay(chance.choice([0.0, 5e-4])),
                ),
            ),
        )
        for i in range(24)
    )
    delays: dict[tuple[str, str], float] = {}
    while len(delays) < pairs:
        a, b = chance.sample(range(24), 2)
        delays[f"n-{a}", f"n-{b}"] = chance.choice([3e-4, 7e-3])
    spec = cluster(*nodes, networks=(NetworkSpec(delay_s=2e-4, delays=delays),))
    host_of = {n.name: f"h{chance.randrange(4)}" for n in nodes}
    rules = (PathRule("*", "*", RealPath(1e-4)), PathRule("h0", "h3", RealPath(1.5e-4)))
    plans = plan_paths(nodes, spec.networks, host_of, Inventory(rack(4), rules).paths(rack(4)))
    assert len(plans) == 12
    for plan in plans:
        real_s = 1.5e-4 if (plan.source, plan.target) == ("h0", "h3") else 1e-4
        least = min(
            end_to_end(spec, a, b)
            for a in nodes
            for b in nodes
            if (host_of[a.name], host_of[b.name]) == (plan.source, plan.target)
        )
        assert plan.added_delay_s == pytest.approx(least - real_s, abs=1e-12)


@pytest.mark.parametrize(
    ("link", "network", "message"),
    [
        (
            LinkSpec(delay=Delay(2e-5)),
            NetworkSpec(),
            "network net: from nodes on h0 to nodes on h1: found a delay of 20.0 us; expected at least "
            "40.0 us, that of the path between these hosts",
        ),
        (
            LinkSpec(),
            NetworkSpec(delay_s=3e-5),
            "found a delay of 30.0 us; expected at least 40.0 us",
        ),
        (
            LinkSpec(),
            NetworkSpec(delays={("n-0", "n-1"): 1e-5}),
            "found a delay of 10.0 us; expected at least 40.0 us",
        ),
        (
            LinkSpec(loss=0.0005),
            NetworkSpec(),
            "found a loss of 0.0500 %; expected at least 0.1000 %, that of the path between these hosts",
        ),
    ],
)
def test_a_request_below_the_real_path_is_refused(
    link: LinkSpec, network: NetworkSpec, message: str
) -> None:
    spec = cluster(*nodes_on(2, link), networks=(network,))
    paths = inventory(rack(2), 4e-5, 0.001).paths(rack(2))
    with pytest.raises(BadInput) as refused:
        plan_paths(spec.nodes, spec.networks, halves(spec), paths)
    assert message in str(refused.value)
    together = dict.fromkeys(halves(spec), "h0")
    assert plan_paths(spec.nodes, spec.networks, together, paths) == []


def test_without_a_request_the_real_path_applies_and_is_noted() -> None:
    spec = cluster(*(NodeSpec(f"n-{i}", cpus=10) for i in range(2)))
    plan = plan_cluster(spec, inventory(rack(2), 4e-5, 0.001))
    assert [(p.added_delay_s, p.added_loss) for p in plan.paths] == [(None, None)] * 2
    notes = "\n".join(plan.notes)
    assert "no latency is requested between 2 pairs of hosts; that of their paths applies" in notes
    assert "up to 0.100 % of the packets between hosts are lost" in notes


def test_one_host_has_the_addresses_of_a_cluster_without_hosts() -> None:
    spec = cluster(*nodes_on(5))
    plan = plan_cluster(spec, Inventory(rack(1)))
    allotment = Allotment("net", subnets(spec.networks, {"net": 5})["net"])
    assert {n: a["net"] for n, a in plan.addresses.addresses.items()} == {
        n.name: allotment.give(n.name, None) for n in spec.nodes
    }
    assert (plan.paths, plan.addresses.networks[0].vxlan_id) == ((), None)
