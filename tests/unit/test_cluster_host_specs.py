"""Parts of a cluster for its hosts: addresses, tunnels, delays in addition to paths, events."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.emulate.cluster.wire import from_json, to_json
from penstock.parts.remote.cluster.host_specs import events_of, host_specs
from penstock.parts.remote.cluster.physical import RealPath
from penstock.parts.remote.cluster.plan import ClusterPlan, plan_cluster
from penstock.spec.check_cluster import check_cluster
from penstock.spec.cluster import (
    ClusterSpec,
    Delay,
    Event,
    LinkSpec,
    NetworkSpec,
    NodeSpec,
    TunnelSpec,
    When,
)
from tests.unit.cluster_hosts import cluster, inventory, rack

PATH_S = 40e-6


def planned(spec: ClusterSpec, delay_s: float = PATH_S) -> ClusterPlan:
    pins = {node.name: f"h{number % 2}" for number, node in enumerate(spec.nodes)}
    return plan_cluster(spec, inventory(rack(2), delay_s), pins)


def parts(plan: ClusterPlan, delay_s: float = PATH_S) -> dict[str, ClusterSpec]:
    path = RealPath(delay_s)
    return host_specs(plan, {("h0", "h1"): path, ("h1", "h0"): path})


def nodes(*links: LinkSpec) -> tuple[NodeSpec, ...]:
    return tuple(NodeSpec(f"n-{i}", links=(link,)) for i, link in enumerate(links))


def delay(tunnel: TunnelSpec | None, source: str, target: str, default_s: float) -> float:
    """Delay that a host adds between two nodes; `default_s` if it names none."""
    assert tunnel is not None
    number = {node: i for i, group in enumerate(tunnel.groups) for node in group}
    pair = number.get(source, -1), number.get(target, -1)
    return tunnel.delays.get(pair, default_s)


def test_each_host_starts_its_nodes_under_the_planned_addresses() -> None:
    plan = planned(cluster(*nodes(*[LinkSpec()] * 4)))
    by_host = parts(plan)
    assert {h: [n.name for n in s.nodes] for h, s in by_host.items()} == {
        "h0": ["n-0", "n-2"],
        "h1": ["n-1", "n-3"],
    }
    (network,) = by_host["h1"].networks
    tunnel = network.tunnel
    assert tunnel is not None
    assert network.subnet == "10.88.0.0/24"
    assert [n.links[0].address for n in by_host["h1"].nodes] == ["10.88.0.2", "10.88.0.4"]
    assert (tunnel.address, tunnel.peers, tunnel.mtu) == ("192.0.2.2", ("192.0.2.1",), 1450)
    assert tunnel.nodes == (("n-0", "10.88.0.1"), ("n-2", "10.88.0.3"))
    assert tunnel.segment == by_host["h0"].networks[0].tunnel.segment  # type: ignore[union-attr]
    for part in by_host.values():
        check_cluster(part)
        assert from_json(ClusterSpec, to_json(part)) == part


def test_a_network_on_one_host_has_no_tunnel() -> None:
    spec = cluster(
        NodeSpec("n-0"),
        NodeSpec("n-1", links=(LinkSpec("own"),)),
        networks=(NetworkSpec("net"), NetworkSpec("own")),
    )
    by_host = parts(planned(spec))
    assert [[n.name for n in part.networks] for part in by_host.values()] == [["net"], ["own"]]
    assert all(n.tunnel is None for part in by_host.values() for n in part.networks)


@given(
    st.lists(
        st.sampled_from([(0.0, 0.0), (PATH_S / 2, 0.0), (1e-4, 5e-5), (3e-3, 1e-3)]),
        min_size=6,
        max_size=6,
    ),
    st.sampled_from([0.0, 1e-3]),
    st.dictionaries(
        st.sampled_from([("n-0", "n-1"), ("n-1", "n-0"), ("n-1", "n-2"), ("n-3", "n-0")]),
        st.sampled_from([1e-3, 2e-3]),
    ),
)
def test_delays_are_those_requested_with_the_path_included(
    ends_s: list[tuple[float, float]], delay_s: float, pairs: dict[tuple[str, str], float]
) -> None:
    """Sender's link and host, path, receiver's host and link: as between nodes on one host."""
    assume(delay_s or (PATH_S / 2, 0.0) not in ends_s)  # shorter than the path
    links = [LinkSpec(delay=Delay(out_s), in_delay=Delay(in_s)) for out_s, in_s in ends_s]
    network = NetworkSpec(delay_s=delay_s, delays=pairs)
    spec = cluster(*nodes(*links), networks=(network,))
    by_host = parts(planned(spec))
    link_of = {n.name: n.links[0] for n in spec.nodes}
    host_of = {n.name: f"h{i % 2}" for i, n in enumerate(spec.nodes)}
    for a in link_of:
        for b in link_of:
            if host_of[a] == host_of[b]:
                continue
            between_s = pairs.get((a, b), pairs.get((b, a), delay_s))
            requested_s = link_of[a].delay.mean_s + link_of[b].in_delay.mean_s + between_s
            sender, receiver = (by_host[host_of[n]].networks[0].tunnel for n in (a, b))
            out_s = link_of[a].delay.mean_s + delay(sender, a, b, 0.0)
            in_s = link_of[b].in_delay.mean_s + delay(receiver, a, b, delay_s)
            assert out_s >= -1e-12
            assert in_s >= -1e-12
            expected_s = requested_s if requested_s else PATH_S
            assert out_s + PATH_S + in_s == pytest.approx(expected_s, abs=1e-12)


def test_nodes_with_equal_links_share_their_delays() -> None:
    """All delays longer than the path are equivalent: the added delay does not depend on them."""
    links = [
        LinkSpec(delay=Delay(1e-3 + i * 1e-6 if i // 2 % 2 else PATH_S / 2)) for i in range(40)
    ]
    network = NetworkSpec(delay_s=1e-3)
    by_host = parts(planned(cluster(*nodes(*links), networks=(network,))))
    for part in by_host.values():
        tunnel = part.networks[0].tunnel
        assert tunnel is not None
        assert sorted(map(len, tunnel.groups)) == [10, 10, 10, 10]
        assert len(tunnel.delays) <= 2 * 2 * 2
        check_cluster(part)
        assert from_json(ClusterSpec, to_json(part)) == part


def test_delays_of_pairs_on_one_host_stay_there() -> None:
    network = NetworkSpec(delays={("n-0", "n-2"): 1e-3, ("n-1", "n-3"): 2e-3})
    by_host = parts(planned(cluster(*nodes(*[LinkSpec()] * 4), networks=(network,))))
    assert by_host["h0"].networks[0].delays == {("n-0", "n-2"): 1e-3}
    assert by_host["h1"].networks[0].delays == {("n-1", "n-3"): 2e-3}


def test_routers_of_hosts_reach_the_nodes_of_others() -> None:
    """A node on h0 sends to one on h1 in another network: the router of h0 sends in that network."""
    networks = tuple(NetworkSpec(n, host=True, delay_s=1e-3) for n in "ab")
    spec = cluster(*nodes(LinkSpec("a"), LinkSpec("b")), networks=networks)
    by_host = parts(planned(spec))
    for number, (host, part) in enumerate(by_host.items()):
        routers = [n.router for n in part.networks]
        assert [(r.name, r.address) for r in routers if r] == [
            (f"_router-{host}", f"10.88.{network}.{253 - number}") for network in (0, 1)
        ]
        check_cluster(part)
        assert from_json(ClusterSpec, to_json(part)) == part
    tunnel = by_host["h1"].networks[1].tunnel
    assert tunnel is not None
    assert dict(tunnel.nodes) == {"_router-h0": "10.88.1.253"}
    assert delay(tunnel, "_router-h0", "n-1", 1e-3) == pytest.approx(1e-3 - PATH_S)


def test_events_go_to_the_hosts_of_their_nodes() -> None:
    event = Event(When(at_s=1.0), "cpu", {"cpus": 1}, ("n-*",))
    only = replace(event, nodes=("n-2",))
    assert events_of((event, only), ["n-1", "n-3"]) == [replace(event, nodes=("n-1", "n-3"))]
