"""Subnets and addresses of networks: specified, or allocated from 10.88.0.0/16."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence

from penstock.errors import BadInput
from penstock.spec.cluster import MOST_NODES, NetworkSpec

#: pool for networks without a specified subnet
POOL = ipaddress.IPv4Network("10.88.0.0/16")
#: smallest allocated network (prefix length)
_SMALLEST = 24

Subnet = ipaddress.IPv4Network


def subnet_of(text: str, network: str) -> Subnet:
    """Parse a specified subnet. Raises BadInput if it is invalid or too small for two nodes."""
    try:
        subnet = ipaddress.IPv4Network(text)
    except ValueError as error:
        raise BadInput(
            f"network {network}: found subnet {text!r} ({error}); expected one such as 10.88.1.0/24"
        ) from None
    if subnet.prefixlen > 29:
        raise BadInput(f"network {network}: found subnet {text}; expected a /29 or larger")
    return subnet


def subnets(
    networks: Sequence[NetworkSpec],
    nodes: Mapping[str, int],
    taken: Mapping[str, Subnet] | None = None,
    *,
    most_nodes: int = MOST_NODES,
) -> dict[str, Subnet]:
    """Subnet of every network; `nodes`: number of nodes on it; `taken`: subnets of the host, by name;
    `most_nodes`: largest number of nodes of one network, on one host or on several.

    Raises BadInput for an overlap (with both names), for too few addresses, and if 10.88/16 is exhausted.
    """
    names = [n.name for n in networks]
    twice = {n for n in names if names.count(n) > 1}
    if twice:
        raise BadInput(f"found two networks called {sorted(twice)[0]}; expected one of each name")
    used: dict[str, Subnet] = {}
    for spec in networks:
        if spec.subnet is None:
            continue
        subnet = subnet_of(spec.subnet, spec.name)
        against = {**used, **({} if not spec.host else taken or {})}
        other = next((k for k, v in against.items() if v.overlaps(subnet)), None)
        if other is not None:
            raise BadInput(
                f"network {spec.name}: subnet {subnet} overlaps {against[other]} of {other}; "
                "expected subnets apart"
            )
        used[spec.name] = subnet
    for spec in networks:
        count = nodes.get(spec.name, 0)
        if count > most_nodes:
            raise BadInput(
                f"network {spec.name}: found {count} nodes; expected at most {most_nodes}, "
                "the ports of a Linux bridge"
            )
        if spec.subnet is not None:
            if used[spec.name].num_addresses - 3 < count:
                raise BadInput(
                    f"network {spec.name}: subnet {used[spec.name]} has "
                    f"{used[spec.name].num_addresses - 3} addresses for {count} nodes"
                )
            continue
        used[spec.name] = _allotted(count, [*used.values(), *(taken or {}).values()], spec.name)
    return {name: used[name] for name in names}


def _allotted(count: int, used: Iterable[Subnet], network: str) -> Subnet:
    prefix = _SMALLEST
    while (1 << (32 - prefix)) - 3 < count:
        prefix -= 1
    others = list(used)
    for candidate in POOL.subnets(new_prefix=prefix):
        if not any(candidate.overlaps(o) for o in others):
            return candidate
    raise BadInput(
        f"network {network}: 10.88.0.0/16 has no free /{prefix}; expected a subnet given"
    )


class Allotment:
    """Addresses of one network; the last usable one is the host's."""

    def __init__(self, network: str, subnet: Subnet):
        self.network, self.subnet = network, subnet
        self.host = subnet[-2]
        self._by_address: dict[ipaddress.IPv4Address, str] = {self.host: "the host"}
        self._next = 1

    def give(self, node: str, requested: str | None) -> str:
        """Address of a node. Raises BadInput if the requested one is taken or no host address."""
        if requested is None:
            while self.subnet[self._next] in self._by_address:
                self._next += 1
                if self._next >= self.subnet.num_addresses - 1:
                    raise BadInput(f"network {self.network}: {self.subnet} has no address left")
            address = self.subnet[self._next]
        else:
            address = self._checked(node, requested)
        self._by_address[address] = node
        return str(address)

    def reserve(self, addresses: Mapping[str, str]) -> None:
        """Reserve addresses that nodes will request later."""
        for node, text in addresses.items():
            self._by_address[self._checked(node, text)] = node

    def take_back(self, address: str) -> None:
        """Release an address."""
        self._by_address.pop(ipaddress.IPv4Address(address), None)
        self._next = 1

    def _checked(self, node: str, text: str) -> ipaddress.IPv4Address:
        try:
            address = ipaddress.IPv4Address(text)
        except ValueError:
            raise BadInput(f"node {node}: found address {text!r}; expected IPv4") from None
        inside = address in self.subnet
        if not inside or address in (self.subnet[0], self.subnet[-1]):
            raise BadInput(
                f"node {node}: address {address} is not a host's in {self.subnet} "
                f"of network {self.network}"
            )
        other = self._by_address.get(address, node)
        if other != node:
            raise BadInput(f"node {node}: address {address} is that of {other}")
        return address
