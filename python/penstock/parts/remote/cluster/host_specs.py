"""The part of a planned cluster that each host starts: its nodes, and the ends of its tunnels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.errors import BadInput
from penstock.parts.remote.cluster.network_plan import VXLAN_PORT, NetworkPlan
from penstock.parts.remote.cluster.physical import RealPath
from penstock.parts.remote.cluster.plan import ClusterPlan
from penstock.spec.check_cluster import matching
from penstock.spec.cluster import (
    ClusterSpec,
    Event,
    LinkSpec,
    NetworkSpec,
    NodeSpec,
    RouterSpec,
    TunnelSpec,
)

Paths = Mapping[tuple[str, str], RealPath]
#: delays of pairs of nodes in both directions [s]
Pairs = Mapping[tuple[str, str], float]


def host_specs(plan: ClusterPlan, paths: Paths) -> dict[str, ClusterSpec]:
    """Specification of the nodes of each host, without events; `paths`: between the hosts."""
    host_of = plan.placement.by_node()
    nodes: dict[str, list[NodeSpec]] = defaultdict(list)
    for node in plan.spec.nodes:
        nodes[host_of[node.name]].append(_addressed(node, plan.addresses.addresses[node.name]))
    planned = {n.name: n for n in plan.addresses.networks}
    networks: dict[str, list[NetworkSpec]] = {host: [] for host in nodes}
    for network in plan.spec.networks:
        for host, part in _parts(network, planned[network.name], host_of, plan, paths).items():
            networks[host].append(part)
    return {
        host: replace(plan.spec, nodes=tuple(own), networks=tuple(networks[host]), events=())
        for host, own in nodes.items()
    }


def events_of(events: tuple[Event, ...], names: list[str]) -> list[Event]:
    """Events of these nodes, with their names in place of patterns."""
    chosen = []
    for event in events:
        nodes: set[str] = set()
        for pattern in event.nodes:
            try:
                nodes.update(matching([pattern], names))
            except BadInput:  # its nodes are on other hosts
                continue
        if nodes:
            chosen.append(replace(event, nodes=tuple(n for n in names if n in nodes)))
    return chosen


def _addressed(node: NodeSpec, addresses: Mapping[str, str]) -> NodeSpec:
    return replace(
        node, links=tuple(replace(link, address=addresses[link.network]) for link in node.links)
    )


def _parts(
    network: NetworkSpec,
    planned: NetworkPlan,
    host_of: Mapping[str, str],
    plan: ClusterPlan,
    paths: Paths,
) -> dict[str, NetworkSpec]:
    """The network on each host that has nodes in it."""
    local: dict[str, dict[tuple[str, str], float]] = defaultdict(dict)
    for (a, b), delay_s in network.delays.items():
        if host_of[a] == host_of[b]:
            local[host_of[a]][a, b] = delay_s
    ends = dict(planned.endpoints)
    routers = {host: RouterSpec(_router(host), address) for host, address in planned.routers}
    parts = {
        host: replace(
            network, subnet=str(planned.subnet), delays=local[host], router=routers.get(host)
        )
        for host in ends
    }
    if planned.vxlan_id is None:
        return parts
    addresses = [
        *(
            (node, by_network[network.name])
            for node, by_network in plan.addresses.addresses.items()
            if network.name in by_network
        ),
        *((_router(host), address) for host, address in planned.routers),
    ]
    host_of = {**host_of, **{_router(host): host for host in routers}}
    link = LinkSpec(network.name)
    routing = [NodeSpec(_router(host), links=(link,)) for host in routers]
    longest_s = max(paths[a, b].delay_s for a in ends for b in ends if a != b)
    pairs = {(b, a): delay_s for (a, b), delay_s in network.delays.items()} | network.delays
    groups = _groups(network, [*plan.spec.nodes, *routing], host_of, pairs, longest_s)
    delays = _delays(network, groups, pairs, paths)
    for host, part in parts.items():
        tunnel = TunnelSpec(
            planned.vxlan_id,
            ends[host],
            tuple(address for name, address in ends.items() if name != host),
            planned.mtu,
            tuple(row for row in addresses if host_of[row[0]] != host),
            tuple(group.nodes for group in groups) if delays[host] else (),
            delays[host],
            VXLAN_PORT,
        )
        engine = "relay" if delays[host] and network.engine == "auto" else network.engine
        parts[host] = replace(part, tunnel=tunnel, engine=engine)
    return parts


def _router(host: str) -> str:
    """Name of the router of a host; names of nodes begin with a letter or a digit."""
    return f"_router-{host}"


@dataclass(frozen=True)
class _Group:
    """Nodes of one host in a network for which the same is added to the paths to other hosts.

    `out_s`, `in_s`: delays of their links, at most the longest path: what is added does not depend on more.
    """

    host: str
    nodes: tuple[str, ...]
    out_s: float
    in_s: float


def _groups(
    network: NetworkSpec,
    nodes: Sequence[NodeSpec],
    host_of: Mapping[str, str],
    pairs: Pairs,
    longest_s: float,
) -> list[_Group]:
    """Groups of a network; `longest_s`: delay of its longest path."""
    own: dict[str, set[tuple[str, str, float]]] = defaultdict(set)
    for (a, b), delay_s in pairs.items():
        if host_of[a] != host_of[b]:
            own[a].add(("to", b, delay_s))
            own[b].add(("from", a, delay_s))
    alike: dict[tuple[str, float, float, frozenset[tuple[str, str, float]]], list[str]] = {}
    for node in nodes:
        for link in node.links:
            if link.network == network.name:
                out_s, in_s = (min(d.mean_s, longest_s) for d in (link.delay, link.in_delay))
                key = (host_of[node.name], out_s, in_s, frozenset(own[node.name]))
                alike.setdefault(key, []).append(node.name)
    return [
        _Group(host, tuple(names), out_s, in_s) for (host, out_s, in_s, _), names in alike.items()
    ]


def _delays(
    network: NetworkSpec, groups: Sequence[_Group], pairs: Pairs, paths: Paths
) -> dict[str, dict[tuple[int, int], float]]:
    """Delays that each host adds between its groups and those of others, by their numbers.

    The host of the sender shortens the delay of its link by that of the path; the host of the receiver adds
    the delay of the network, less the rest. Requests shorter than the path have been refused by the plan.
    """
    added: dict[str, dict[tuple[int, int], float]] = {group.host: {} for group in groups}
    for i, source in enumerate(groups):
        for j, target in enumerate(groups):
            if source.host == target.host:
                continue
            between_s = pairs.get((source.nodes[0], target.nodes[0]), network.delay_s)
            requested_s = source.out_s + target.in_s + between_s
            path_s = min(paths[source.host, target.host].delay_s, requested_s)
            sender_s = min(path_s, source.out_s)
            if sender_s:
                added[source.host][i, j] = -sender_s
            at_receiver_s = between_s - (path_s - sender_s)
            if at_receiver_s != network.delay_s:
                added[target.host][i, j] = at_receiver_s
    return added
