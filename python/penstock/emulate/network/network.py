"""The networks of a cluster: put up, nodes attached, links changed while they carry, taken down."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.emulate.network.addresses import Allotment, Subnet, subnets
from penstock.emulate.network.fabric import Fabric, host_subnets
from penstock.emulate.network.patch import KEYS, checked, impaired, patched
from penstock.emulate.network.port import Interface, Port
from penstock.emulate.spec import LinkSpec, NetworkSpec, NodeSpec
from penstock.errors import BadInput
from penstock.host.journal import Journal


@dataclass(frozen=True)
class LinkChange:
    """One change of a link: what was asked, what was found afterwards; CLOCK_MONOTONIC [ns]."""

    node: str
    network: str
    asked: dict[str, Any]
    found: dict[str, Any]
    planned_ns: int
    applied_ns: int
    verified_ns: int


class _Bridged:
    """A network that is up: its bridge, its addresses."""

    def __init__(self, spec: NetworkSpec, subnet: Subnet, bridge: int):
        self.spec = spec
        self.subnet = subnet
        self.bridge = bridge
        self.addresses = Allotment(spec.name, subnet)


class Network:
    """All networks of one cluster, in one network namespace of ours."""

    def __init__(self, fabric: Fabric, networks: Mapping[str, _Bridged]):
        self._fabric = fabric
        self._networks = dict(networks)
        self._ports: dict[tuple[str, str], Port] = {}

    @classmethod
    def up(
        cls,
        specs: Sequence[NetworkSpec],
        journal: Journal,
        *,
        nodes: Sequence[NodeSpec] = (),
        run: str | None = None,
    ) -> Network:
        """Puts the networks up. `nodes` are those that will be attached: they decide how large subnets are.

        Everything is checked before the host is touched. Raises BadInput for overlapping subnets, addresses
        that are not in them or given twice, links to networks that are not there, and for values that make
        no sense; PenstockError where the host refuses.
        """
        counts = Counter(link.network for node in nodes for link in node.links)
        unknown = set(counts) - {s.name for s in specs}
        if unknown:
            names = ", ".join(s.name for s in specs)
            raise BadInput(
                f"found a link to network {sorted(unknown)[0]!r}; expected one of {names}"
            )
        chosen = subnets(specs, counts, host_subnets() if any(s.host for s in specs) else {})
        allotments = {s.name: Allotment(s.name, chosen[s.name]) for s in specs}
        for node in nodes:
            for link in node.links:
                checked(link)
                if link.address is not None:
                    allotments[link.network].reserve({node.name: link.address})
        fabric = Fabric(journal, run)
        try:
            networks = {}
            for number, spec in enumerate(specs):
                network = _Bridged(spec, chosen[spec.name], fabric.bridge(f"br{number}"))
                network.addresses = allotments[spec.name]
                if spec.host:
                    fabric.host_link(network.subnet, network.addresses.host, network.bridge)
                networks[spec.name] = network
            return cls(fabric, networks)
        except BaseException:
            fabric.down()
            raise

    @property
    def token(self) -> str:
        """What everything of it on the host bears in its name."""
        return self._fabric.token

    @property
    def interfaces(self) -> list[Interface]:
        """The interfaces of all nodes that are attached."""
        return [port.interface for port in self._ports.values()]

    def host_address(self, network: str) -> str | None:
        """The host's own address in a network, None where it has none."""
        known = self._network(network)
        return str(known.addresses.host) if known.spec.host else None

    def attach(
        self, node: str, netns: int | str | os.PathLike[str], link: LinkSpec | None = None
    ) -> Interface:
        """Gives the node an interface in the network of `link`, with its limits.

        `netns`: a process inside (its pid), or the path of its network namespace. The interface is called
        e0, e1, … in the order in which the node is attached.
        """
        link = _can(checked(link or LinkSpec()))
        network = self._network(link.network)
        if (node, link.network) in self._ports:
            raise BadInput(
                f"node {node} is on network {link.network} already; expected one link each"
            )
        path = f"/proc/{netns}/ns/net" if isinstance(netns, int) else os.fspath(netns)
        address = network.addresses.give(node, link.address)
        number = sum(1 for other, _ in self._ports if other == node)
        interface = Interface(
            node, link.network, f"e{number}", address, network.subnet.prefixlen, _mac(address)
        )
        try:
            port = Port(self._fabric, interface, path, network.bridge, link)
            try:
                port.set_rates(link)
                port.verify_rates()
            except BaseException:
                port.remove()
                raise
        except BaseException:
            network.addresses.take_back(address)
            raise
        self._ports[(node, link.network)] = port
        return interface

    def detach(self, node: str) -> None:
        """Takes the node's interfaces away; one that has none is fine."""
        for key in [k for k in self._ports if k[0] == node]:
            port = self._ports.pop(key)
            port.remove()
            self._networks[key[1]].addresses.take_back(port.interface.address)

    def set_link(self, node: str, network: str | None, patch: Mapping[str, Any]) -> LinkChange:
        """Changes a live link; what the patch does not name is not touched. Read back before it is said.

        `network` may be None where the node has only one. Raises BadInput for what a link has not,
        PenstockError where the kernel has something else afterwards.
        """
        return self.set_links([(node, network, patch)])[0]

    def set_links(
        self, changes: Iterable[tuple[str, str | None, Mapping[str, Any]]]
    ) -> list[LinkChange]:
        """Changes many live links: all are checked before the first is touched."""
        planned_ns = time.monotonic_ns()
        ports = [(self._port(node, network), dict(patch)) for node, network, patch in changes]
        wanted = [(port, patch, _can(patched(port.link, patch))) for port, patch in ports]
        done = []
        for port, patch, link in wanted:
            port.set_rates(link)
            applied_ns = time.monotonic_ns()
            found = self._read_back(port)
            port.verify_rates()
            done.append(
                LinkChange(
                    port.interface.node,
                    port.interface.network,
                    patch,
                    {k: found[k] for k in patch},
                    planned_ns,
                    applied_ns,
                    time.monotonic_ns(),
                )
            )
        return done

    def read_back(self, node: str, network: str | None = None) -> dict[str, Any]:
        """What a link has now, with the keys of a patch: asked of the kernel, not remembered."""
        return self._read_back(self._port(node, network))

    def counters(self, node: str, network: str | None = None) -> dict[str, int]:
        """`out_packets`, `out_bytes`, `in_packets`, `in_bytes` of a link since it was put up."""
        return self._port(node, network).counters()

    def down(self) -> None:
        """Takes everything down; what nodes still live lose their interfaces. Twice does nothing more."""
        self._ports.clear()
        self._fabric.down()

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def _network(self, name: str) -> _Bridged:
        if name not in self._networks:
            raise BadInput(f"found network {name!r}; expected one of {', '.join(self._networks)}")
        return self._networks[name]

    def _port(self, node: str, network: str | None) -> Port:
        of_node = {name: port for (other, name), port in self._ports.items() if other == node}
        if not of_node:
            raise BadInput(f"found node {node!r}; it is on no network")
        if network is None and len(of_node) > 1:
            raise BadInput(f"node {node} is on networks {', '.join(of_node)}; expected one named")
        if network is not None and network not in of_node:
            raise BadInput(f"node {node}: found network {network!r}; expected {', '.join(of_node)}")
        return of_node[network] if network is not None else next(iter(of_node.values()))

    def _read_back(self, port: Port) -> dict[str, Any]:
        return {**dict.fromkeys(KEYS), **port.read_rates()}


def _can(link: LinkSpec) -> LinkSpec:
    if impaired(link):
        raise BadInput("delay, loss and the like are not offered here; expected bandwidths only")
    return link


def _mac(address: str) -> str:
    """A locally administered MAC address that is unique within the network: it carries the IPv4 address."""
    return "0a:58:" + ":".join(f"{int(part):02x}" for part in address.split("."))
