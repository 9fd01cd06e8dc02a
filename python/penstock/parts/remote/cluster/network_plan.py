"""Tunnels, addresses and routes of a cluster on several hosts.

Each network that has nodes on several hosts is one VXLAN segment (RFC 7348) below the nodes' shaping, without
multicast: each host sends frames of unknown destination to the end points of the others. Addresses are those
that the cluster would have on one host.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock.emulate.network.addresses import POOL, Allotment, Subnet, subnet_of, subnets
from penstock.emulate.network.routing import router_address
from penstock.errors import BadInput
from penstock.parts.remote.cluster.physical import PhysicalHost
from penstock.parts.remote.cluster.verify import VXLAN_BYTES
from penstock.spec.cluster import MOST_NODES, ClusterSpec, NetworkSpec

#: UDP port of VXLAN, assigned by IANA
VXLAN_PORT = 4789
#: packet size of a network on one host
PLAIN_MTU = 1500
#: identifiers of VLANs, that operators often use as those of VXLAN segments as well
_FIRST_ID, _IDS = 4096, 1 << 24


@dataclass(frozen=True)
class NetworkPlan:
    """One network. `vxlan_id`: its segment, None on a single host; `endpoints`: its hosts and the addresses
    of their tunnels; `gateway`: address of each host in it, if any; `routers`: addresses of the routers to
    other networks, by host."""

    name: str
    subnet: Subnet
    mtu: int
    nodes: int
    endpoints: tuple[tuple[str, str], ...]
    vxlan_id: int | None = None
    gateway: str | None = None
    routers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Route:
    """Route of the nodes of a network on a host to another network of the cluster."""

    host: str
    network: str
    target: Subnet
    gateway: str


@dataclass(frozen=True)
class AddressPlan:
    """Networks, addresses of nodes by network, and routes between subnets."""

    networks: tuple[NetworkPlan, ...]
    addresses: Mapping[str, Mapping[str, str]]
    routes: tuple[Route, ...]

    def names(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Address and names of every node in each of its networks, as in /etc/hosts of nodes on one host."""
        for node, by_network in self.addresses.items():
            for number, (network, address) in enumerate(by_network.items()):
                qualified = f"{node}.{network}"
                yield address, (node, qualified) if number == 0 else (qualified,)


def plan_addresses(
    spec: ClusterSpec, host_of: Mapping[str, str], hosts: Sequence[PhysicalHost]
) -> AddressPlan:
    """Networks, addresses and routes of placed nodes. Raises BadInput as on one host, and if a subnet
    contains the address of a physical host."""
    on_hosts: dict[str, set[str]] = defaultdict(set)
    counts: Counter[str] = Counter()
    for node in spec.nodes:
        for link in node.links:
            on_hosts[link.network].add(host_of[node.name])
            counts[link.network] += 1
    routed = [n.name for n in spec.networks if n.host and counts[n.name]]
    if len(routed) < 2:
        routed = []
    routing = {host for name in routed for host in on_hosts[name]}
    on_hosts.update(dict.fromkeys(routed, routing))
    most = MOST_NODES if len(hosts) == 1 else (MOST_NODES - 1) * len(hosts)
    taken = _physical(hosts)
    _check_apart(spec.networks, taken)
    ports = counts + Counter(routed * len(routing))
    by_name = subnets(spec.networks, ports, taken, most_nodes=most)
    allotments = {name: Allotment(name, subnet) for name, subnet in by_name.items()}
    routers = {
        name: [
            (host.name, router_address(by_name[name], number))
            for number, host in enumerate(h for h in hosts if h.name in routing)
        ]
        for name in routed
    }
    for name, by_host in routers.items():
        allotments[name].reserve({f"the router of {h}": address for h, address in by_host})
    addresses = _addresses(spec, allotments)
    ids = vxlan_ids(spec.name, [n.name for n in spec.networks])
    plans = []
    for network in spec.networks:
        members = [h for h in hosts if h.name in on_hosts[network.name]]
        several = len(members) > 1
        mtu = min(h.mtu for h in members) - VXLAN_BYTES if several else PLAIN_MTU
        plans.append(
            NetworkPlan(
                network.name,
                by_name[network.name],
                mtu,
                counts[network.name],
                tuple((h.name, h.address) for h in members),
                ids[network.name] if several else None,
                str(allotments[network.name].host) if network.host else None,
                tuple(routers.get(network.name, ())),
            )
        )
    return AddressPlan(tuple(plans), addresses, tuple(_routes(plans)))


def vxlan_ids(cluster: str, networks: Sequence[str]) -> dict[str, int]:
    """Identifier of the segment of each network: the same for the same names, different within a cluster."""
    ids: dict[str, int] = {}
    for network in sorted(networks):
        digest = hashlib.sha256(f"penstock/{cluster}/{network}".encode()).digest()
        offset = int.from_bytes(digest[:8], "big") % (_IDS - _FIRST_ID)
        while _FIRST_ID + offset in ids.values():
            offset = (offset + 1) % (_IDS - _FIRST_ID)
        ids[network] = _FIRST_ID + offset
    return ids


def _addresses(spec: ClusterSpec, allotments: Mapping[str, Allotment]) -> dict[str, dict[str, str]]:
    """Requested addresses first, then the next free one of each node in file order."""
    requested: dict[str, dict[str, str]] = defaultdict(dict)
    for node in spec.nodes:
        for link in node.links:
            if link.address is not None:
                requested[link.network][node.name] = link.address.partition("/")[0]
    for network, by_node in requested.items():
        allotments[network].reserve(by_node)
    return {
        node.name: {
            link.network: allotments[link.network].give(
                node.name, requested[link.network].get(node.name)
            )
            for link in node.links
        }
        for node in spec.nodes
    }


def _physical(hosts: Sequence[PhysicalHost]) -> dict[str, Subnet]:
    """Addresses of physical hosts as subnets; names are not resolved."""
    taken = {}
    for host in hosts:
        try:
            taken[f"host {host.name}"] = ipaddress.IPv4Network(host.address)
        except ValueError:
            continue
    return taken


def _check_apart(networks: Sequence[NetworkSpec], taken: Mapping[str, Subnet]) -> None:
    for network in networks:
        if network.subnet is None:
            continue
        subnet = subnet_of(network.subnet, network.name)
        for name, address in taken.items():
            if address.overlaps(subnet):
                raise BadInput(
                    f"network {network.name}: found subnet {subnet}, which contains the address of {name}; "
                    f"expected another one, such as in {POOL}"
                )


def _routes(networks: Sequence[NetworkPlan]) -> Iterator[Route]:
    """Routes between the networks with routers; the others stay separate, as on one host.

    The router of each host forwards the packets of its own nodes.
    """
    routed = [n for n in networks if n.routers]
    for network in routed:
        for host, gateway in network.routers:
            for other in routed:
                if other is not network:
                    yield Route(host, network.name, other.subnet, gateway)
