"""The part of a planned cluster that each host starts: its nodes, and the ends of its tunnels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from penstock.errors import BadInput
from penstock.parts.remote.cluster.network_plan import VXLAN_PORT, NetworkPlan
from penstock.parts.remote.cluster.physical import RealPath
from penstock.parts.remote.cluster.plan import ClusterPlan
from penstock.spec.check_cluster import matching
from penstock.spec.cluster import ClusterSpec, Event, NetworkSpec, NodeSpec, TunnelSpec


def host_specs(
    plan: ClusterPlan, paths: Mapping[tuple[str, str], RealPath]
) -> dict[str, ClusterSpec]:
    """Specification of the nodes of each host, without events; `paths`: between the hosts."""
    host_of = plan.placement.by_node()
    networks = {n.name: n for n in plan.addresses.networks}
    specs = {}
    for host in dict.fromkeys(host_of.values()):
        nodes = tuple(
            _addressed(node, plan.addresses.addresses[node.name])
            for node in plan.spec.nodes
            if host_of[node.name] == host
        )
        used = {link.network for node in nodes for link in node.links}
        specs[host] = replace(
            plan.spec,
            nodes=nodes,
            networks=tuple(
                _network(n, networks[n.name], host, host_of, plan, paths)
                for n in plan.spec.networks
                if n.name in used
            ),
            events=(),
        )
    return specs


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


def _network(
    network: NetworkSpec,
    planned: NetworkPlan,
    host: str,
    host_of: Mapping[str, str],
    plan: ClusterPlan,
    paths: Mapping[tuple[str, str], RealPath],
) -> NetworkSpec:
    local = {pair: s for pair, s in network.delays.items() if {host_of[n] for n in pair} == {host}}
    network = replace(network, subnet=str(planned.subnet))
    if planned.vxlan_id is None:
        return replace(network, delays=local)
    ends = dict(planned.endpoints)
    beyond = tuple(
        (node, addresses[network.name])
        for node, addresses in plan.addresses.addresses.items()
        if network.name in addresses and host_of[node] != host
    )
    delays = _delays(network, host, host_of, plan.spec.nodes, paths)
    tunnel = TunnelSpec(
        planned.vxlan_id,
        ends[host],
        tuple(address for name, address in ends.items() if name != host),
        planned.mtu,
        beyond,
        delays,
        VXLAN_PORT,
    )
    engine = "relay" if delays and network.engine == "auto" else network.engine
    return replace(network, delays=local, tunnel=tunnel, engine=engine)


def _delays(
    network: NetworkSpec,
    host: str,
    host_of: Mapping[str, str],
    nodes: Sequence[NodeSpec],
    paths: Mapping[tuple[str, str], RealPath],
) -> dict[tuple[str, str], float]:
    """Delays between nodes of this host and others, less those of the paths.

    The host of the sender shortens the delay of its link; the host of the receiver adds the delay of the
    network, less the rest. Requests shorter than the path have been refused by the plan.
    """
    links = {n.name: link for n in nodes for link in n.links if link.network == network.name}

    def parts(source: str, target: str) -> tuple[float, float]:
        """Delays that the hosts of the sender and of the receiver add to those of the links."""
        delays, back = network.delays, (target, source)
        between_s = delays.get((source, target), delays.get(back, network.delay_s))
        out_s = links[source].delay.mean_s
        requested_s = out_s + links[target].in_delay.mean_s + between_s
        path_s = min(paths[host_of[source], host_of[target]].delay_s, requested_s)
        sender_s = min(path_s, out_s)
        return -sender_s, between_s - (path_s - sender_s)

    added = {}
    for near in (n for n in links if host_of[n] == host):
        for far in (n for n in links if host_of[n] != host):
            if shortened_s := parts(near, far)[0]:
                added[near, far] = shortened_s
            at_receiver_s = parts(far, near)[1]
            if at_receiver_s != network.delay_s:
                added[far, near] = at_receiver_s
    return added
