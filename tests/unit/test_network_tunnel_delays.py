"""Delays that a host sends to its relay for nodes on other hosts, with a simulated relay."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from types import SimpleNamespace

import pytest

from penstock.emulate.network.network import Network, _Net, mac_of
from penstock.parts.remote.cluster.host_specs import host_specs
from penstock.parts.remote.cluster.plan import plan_cluster
from penstock.spec.cluster import ClusterSpec, Delay, LinkSpec, NetworkSpec, NodeSpec
from tests.unit.cluster_hosts import cluster, inventory, rack

PATH_S = 40e-6
TUNNEL = 7


class Relay:
    """Simulated relay with the lookup of `Net::pair_ns` in crates/relay."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.pairs: dict[tuple[int, int], float] = {}
        self.default_s = 0.0

    def remote(self, _: int, nodes: Iterable[tuple[int, str]]) -> None:
        self.numbers |= {mac: number for number, mac in nodes}

    def delays(self, _: int, default_s: float, pairs: Iterable[tuple[int, int, float]]) -> None:
        self.default_s = default_s
        self.pairs |= {(a, b): s for a, b, s in pairs}

    def between_s(self, ports: tuple[int, int], addresses: tuple[str, str]) -> float:
        """Delay of a frame between two ports, from one address to another."""
        numbers = tuple(
            self.numbers.get(mac_of(address), port)
            for address, port in zip(addresses, ports, strict=True)
        )
        return self.pairs.get(numbers, self.pairs.get(ports, self.default_s))  # type: ignore[arg-type]


class Host:
    """Nodes of one host, with port numbers instead of links."""

    def __init__(self, spec: ClusterSpec) -> None:
        (network,) = spec.networks
        self.address = {node.name: str(node.links[0].address) for node in spec.nodes}
        self.port = {name: 100 + i for i, name in enumerate(self.address)}
        self.relay = Relay()
        net = _Net(network, 0, 0, None)  # type: ignore[arg-type]
        net.relayed, net.tunnel = True, TUNNEL
        self.network = Network.__new__(Network)
        numbers = iter(range(1000, 2000))
        self.network._fabric = SimpleNamespace(next_index=lambda: next(numbers))  # type: ignore[assignment]
        self.network._relay = self.relay  # type: ignore[assignment]
        self.network._ports = {}
        self.network._networks = {network.name: net}
        self.network._lock = threading.RLock()
        assert network.tunnel is not None
        self.network._name_remote(self.relay, net, network.tunnel)  # type: ignore[arg-type]
        for name, port in self.port.items():  # in the order of attachment
            interface = SimpleNamespace(node=name)
            self.network._ports[name, network.name] = SimpleNamespace(  # type: ignore[assignment]
                interface=interface, outer=port
            )
            self.network._tell_delays(net, name)


def hosts(spec: ClusterSpec) -> tuple[Mapping[str, Host], Mapping[str, str]]:
    pins = {node.name: f"h{number % 3}" for number, node in enumerate(spec.nodes)}
    existing = inventory(rack(3), PATH_S)
    parts = host_specs(plan_cluster(spec, existing, pins), existing.paths(existing.hosts))
    return {host: Host(part) for host, part in parts.items()}, pins


def test_delays_within_a_host_reach_the_relay() -> None:
    """Includes delays that are set later. A single value of a pair applies to both directions."""
    pairs = {("n-0", "n-3"): 2e-3, ("n-6", "n-3"): 3e-3, ("n-3", "n-6"): 4e-3}
    nodes = [NodeSpec(f"n-{i}") for i in range(9)]
    up, _ = hosts(cluster(*nodes, networks=(NetworkSpec(delays=pairs),)))
    host = up["h0"]
    both_ways = {("n-3", "n-0"): 2e-3, **pairs}

    def relayed() -> dict[tuple[str, str], float]:
        names = {port: name for name, port in host.port.items()}
        local = {(a, b): s for (a, b), s in host.relay.pairs.items() if a in names and b in names}
        return {(names[a], names[b]): s for (a, b), s in local.items()}

    assert relayed() == both_ways
    host.network.set_delays("net", {("n-0", "n-6"): 5e-3})
    assert relayed() == {**both_ways, ("n-0", "n-6"): 5e-3, ("n-6", "n-0"): 5e-3}


@pytest.mark.parametrize("delay_s", [0.0, 1e-3])
@pytest.mark.parametrize("pairs", [{}, {("n-0", "n-1"): 2e-3}])
def test_frames_take_the_requested_delay_from_end_to_end(
    delay_s: float, pairs: dict[tuple[str, str], float]
) -> None:
    ends_s = [0.0, 1e-4, 1e-4, 3e-3, 0.0, 0.0, 0.0, 1e-4, 3e-3]
    nodes = [NodeSpec(f"n-{i}", links=(LinkSpec(delay=Delay(s)),)) for i, s in enumerate(ends_s)]
    up, host_of = hosts(cluster(*nodes, networks=(NetworkSpec(delay_s=delay_s, delays=pairs),)))
    out_s = {node.name: node.links[0].delay.mean_s for node in nodes}
    for a, b in ((a, b) for a in out_s for b in out_s if host_of[a] != host_of[b]):
        sender, receiver = up[host_of[a]], up[host_of[b]]
        addresses = sender.address[a], receiver.address[b]
        leaving_s = out_s[a] + sender.relay.between_s((sender.port[a], TUNNEL), addresses)
        arriving_s = receiver.relay.between_s((TUNNEL, receiver.port[b]), addresses)
        between_s = pairs.get((a, b), pairs.get((b, a), delay_s))
        assert leaving_s >= -1e-12
        assert arriving_s >= -1e-12
        requested_s = out_s[a] + between_s
        assert leaving_s + PATH_S + arriving_s == pytest.approx(requested_s or PATH_S, abs=1e-12)


def test_nodes_with_equal_delays_share_a_number() -> None:
    up, host_of = hosts(
        cluster(*(NodeSpec(f"n-{i}", links=(LinkSpec(delay=Delay(1e-3)),)) for i in range(30)))
    )
    for host, simulated in up.items():
        assert len(simulated.relay.numbers) == sum(1 for other in host_of.values() if other != host)
        assert len(set(simulated.relay.numbers.values())) == 2
