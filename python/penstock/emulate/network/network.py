"""Networks of a cluster: start, attach nodes, change live links, stop."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.emulate.failure import Failure
from penstock.emulate.network.addresses import Allotment, subnets
from penstock.emulate.network.fabric import PLAIN_MTU, Fabric, host_subnets
from penstock.emulate.network.patch import checked, each_way, impairs, patched
from penstock.emulate.network.port import Interface, Port, interface_name
from penstock.emulate.network.relay import Relay
from penstock.emulate.network.routing import router_namespace, routers_of
from penstock.emulate.network.support import check_delays, check_network, check_offered, engine_of
from penstock.emulate.network.traffic_shape import FLOOR_S, as_patch, shapes_of
from penstock.emulate.network.tunnel import isolate, open_tunnel
from penstock.errors import BadInput, PenstockError
from penstock.host.journal.journal import Entry, Journal
from penstock.host.journal.undo import put_back
from penstock.host.network.neighbour_table import needed, reserve
from penstock.host.network.netlink import Netlink, set_link
from penstock.host.network.pinned_netns import take_namespace
from penstock.spec.cluster import Event, LinkSpec, NetworkSpec, NodeSpec, TunnelSpec


@dataclass(frozen=True)
class LinkChange:
    """One change of a link: requested values, values read back; CLOCK_MONOTONIC [ns]."""

    node: str
    network: str
    requested: dict[str, Any]
    actual: dict[str, Any]
    planned_ns: int
    applied_ns: int
    verified_ns: int


class _Net:
    """A network that is up: its bridge, its addresses, and the carrier of its frames."""

    def __init__(self, spec: NetworkSpec, number: int, bridge: int, addresses: Allotment):
        self.spec = spec
        self.number = number
        self.bridge = bridge
        self.addresses = addresses
        #: host's link: inner end, outer end
        self.host: tuple[int, int] | None = None
        #: index of the end of its segment
        self.tunnel: int | None = None
        #: delays between a node and groups on other hosts: true from the node, number in the relay, delay [s]
        self.beyond: dict[str, list[tuple[bool, int, float]]] = {}
        self.relayed = False
        #: true if nodes send single packets instead of large segments
        self.single = False
        self.delays: dict[tuple[str, str], float] = {}
        #: nodes with a delay to or from a node
        self.peers: dict[str, set[str]] = defaultdict(set)
        self.set_delays(spec.delays)

    def set_delays(self, delays: Mapping[tuple[str, str], float]) -> None:
        """Set delays of pairs [s]; both ways unless both are given."""
        self.delays |= {(b, a): s for (a, b), s in delays.items()} | dict(delays)
        for a, b in delays:
            self.peers[a].add(b)
            self.peers[b].add(a)

    def delays_of(self, node: str) -> Iterator[tuple[tuple[str, str], float]]:
        """Pairs with this node and their delays."""
        for peer in self.peers.get(node, ()):
            for pair in ((node, peer), (peer, node)):
                yield pair, self.delays[pair]

    def needs_relay(self) -> bool:
        """True if a requested feature needs the relay."""
        beyond = self.spec.tunnel.delays.values() if self.spec.tunnel else ()
        longest = max([self.spec.delay_s, *self.delays.values(), *map(abs, beyond)])
        return self.spec.engine == "relay" or longest > FLOOR_S


class Network:
    """All networks of one cluster, in one network namespace."""

    def __init__(self, fabric: Fabric, journal: Journal, run: str | None):
        self._fabric = fabric
        self._journal = journal
        self._run = run
        self._networks: dict[str, _Net] = {}
        self._ports: dict[tuple[str, str], Port] = {}
        self._relay: Relay | None = None
        self._router: Entry | None = None
        #: name and address of the router by network
        self._routers: dict[str, tuple[str, str]] = {}
        self._neighbours: list[Entry] = []
        self._lock = threading.RLock()

    @classmethod
    def up(
        cls,
        specs: Sequence[NetworkSpec],
        journal: Journal,
        *,
        nodes: Sequence[NodeSpec] = (),
        events: Sequence[Event] = (),
        run: str | None = None,
    ) -> Network:
        """Start the networks. `nodes` are those that will be attached: they determine the sizes of subnets.

        A network with delays, initially or by one of `events`, is relayed from the start where this kernel
        has no netem; one without is handed to the relay at the first request (some 0.1 s).

        Everything is checked before the host is changed. Raises BadInput for overlapping subnets, addresses
        outside them or used twice, links to unknown networks, contradictory values, and, by name, features
        that this host lacks; PenstockError if the host refuses.
        """
        counts = Counter(link.network for node in nodes for link in node.links)
        unknown = set(counts) - {s.name for s in specs}
        if unknown:
            names = ", ".join(s.name for s in specs)
            raise BadInput(
                f"found a link to network {sorted(unknown)[0]!r}; expected one of {names}"
            )
        counts.update(s.name for s in specs if s.router is not None)
        chosen = subnets(specs, counts, host_subnets() if any(s.host for s in specs) else {})
        allotments = {s.name: Allotment(s.name, chosen[s.name]) for s in specs}
        by_name = {s.name: s for s in specs}
        routers = routers_of(specs, chosen)
        for network, router in routers.items():
            allotments[network].reserve(dict([router]))
        for spec in specs:
            elsewhere = [name for name, _ in spec.tunnel.nodes] if spec.tunnel else []
            check_network(spec, [*(n.name for n in nodes), *elsewhere])
        for node in nodes:
            for link in node.links:
                check_offered(by_name[link.network], checked(link))
                if link.address is not None:
                    allotments[link.network].reserve({node.name: link.address})
        later = {e.name for e in events if e.resource == "network" and e.name and impairs(e.patch)}
        up = cls(Fabric(journal, run), journal, run)
        try:
            far = [len(t.nodes) if (t := by_name[name].tunnel) else 0 for name in counts]
            up._neighbours = reserve(needed(counts.values(), far), journal, run)
            for number, spec in enumerate(specs):
                mtu = spec.tunnel.mtu if spec.tunnel else PLAIN_MTU
                bridge = up._fabric.bridge(f"br{number}", mtu)
                net = _Net(spec, number, bridge, allotments[spec.name])
                up._networks[spec.name] = net
                if spec.host:
                    net.host = up._fabric.host_link(
                        chosen[spec.name], net.addresses.host, net.bridge, mtu
                    )
                if spec.tunnel is not None:
                    net.tunnel = open_tunnel(up._fabric, spec.tunnel, f"vx{number}", bridge)
                    if net.host is not None:
                        isolate(up._fabric, net.host[0])
                impaired = any(
                    shape.impaired
                    for node in nodes
                    for link in node.links
                    if link.network == spec.name
                    for shape in shapes_of(link).values()
                )
                if net.needs_relay() or (
                    (impaired or spec.name in later) and engine_of(spec) == "relay"
                ):
                    up._have_relayed(net)
            if routers:
                up._start_router(routers)
            return up
        except BaseException:
            up.down()
            raise

    def _start_router(self, routers: dict[str, tuple[str, str]]) -> None:
        """Attach the router to its networks."""
        self._router = router_namespace(self._journal, self._run)
        for network, (name, address) in routers.items():
            self.attach(name, self._router.target, LinkSpec(network, address))
        self._routers = routers

    @property
    def entry(self) -> Entry:
        """Journal entry for everything in its namespace."""
        return self._fabric.entry

    @property
    def token(self) -> str:
        """Token in the names of all its objects on the host."""
        return self._fabric.token

    @property
    def interfaces(self) -> list[Interface]:
        """Interfaces of all attached nodes."""
        return [port.interface for port in self._ports.values()]

    def host_address(self, network: str) -> str | None:
        """The host's own address in a network; None if it has none."""
        net = self._network(network)
        return str(net.addresses.host) if net.spec.host else None

    def attach(
        self, node: str, netns: int | str | os.PathLike[str], link: LinkSpec | None = None
    ) -> Interface:
        """Create the node's interface in the network of `link`, with its limits.

        `netns`: a process inside (its pid), or the path of its network namespace. The interfaces are named
        e0, e1, … in the order of attachment.
        """
        link = checked(link or LinkSpec())
        path = f"/proc/{netns}/ns/net" if isinstance(netns, int) else os.fspath(netns)
        with self._lock:
            net = self._network(link.network)
            check_offered(net.spec, link)
            if (node, link.network) in self._ports:
                raise BadInput(
                    f"node {node} is on network {link.network} already; expected one link each"
                )
            address = net.addresses.give(node, link.address)
            try:
                return self._attach(node, path, net, link, address)
            except BaseException:
                net.addresses.take_back(address)
                raise

    def _attach(self, node: str, netns: str, net: _Net, link: LinkSpec, address: str) -> Interface:
        number = sum(1 for other, _ in self._ports if other == node)
        prefix = net.addresses.subnet.prefixlen
        interface = Interface(
            node, link.network, interface_name(number), address, prefix, mac_of(address)
        )
        self._ready_for(net, link)
        mtu = net.spec.tunnel.mtu if net.spec.tunnel else PLAIN_MTU
        bridge = None if net.relayed else net.bridge
        port = Port(self._fabric, interface, netns, bridge, link, mtu)
        try:
            if net.relayed and self._relay is not None:
                port.join(self._relay, net.number)
            if net.single:
                port.single_packets()
            port.make(link)
            port.verify(port.read())
            self._ports[(node, link.network)] = port
            self._tell_delays(net, node)
        except BaseException:
            self._ports.pop((node, link.network), None)
            port.remove()
            raise
        return interface

    def route(self, node: str) -> None:
        """Add the routes of an attached node to the networks that it is not in."""
        own = {name: port for (other, name), port in self._ports.items() if other == node}
        first = next((name for name in own if name in self._routers), None)
        if first is None:
            return
        for name in self._routers.keys() - own.keys():
            own[first].route(self._networks[name].addresses.subnet, self._routers[first][1])

    def detach(self, node: str) -> None:
        """Remove the node's interfaces, if any."""
        for key in [k for k in self._ports if k[0] == node]:
            with self._lock:
                port = self._ports.pop(key)
                port.remove()
                self._networks[key[1]].addresses.take_back(port.interface.address)

    def set_link(self, node: str, network: str | None, patch: Mapping[str, Any]) -> LinkChange:
        """Change a live link and read it back; values outside the patch stay.

        `network` may be None if the node has only one. Raises BadInput for unsupported keys, PenstockError if
        the kernel has other values afterwards.
        """
        return self.set_links([(node, network, patch)])[0]

    def set_links(
        self, changes: Iterable[tuple[str, str | None, Mapping[str, Any]]]
    ) -> list[LinkChange]:
        """Change many live links: all are checked before the first change, and all are changed before the
        first is read back."""
        planned_ns = time.monotonic_ns()
        done = []
        with self._lock:
            plan = []
            for node, network, patch in changes:
                port = self._port(node, network)
                spec = self._network(port.interface.network).spec
                ways = each_way(patch, spec)
                link = patched(port.link, ways)
                check_offered(spec, link)
                plan.append((port, ways, link))
            applied = []
            for port, _, link in plan:
                self._ready_for(self._network(port.interface.network), link)
                port.make(link)
                applied.append(time.monotonic_ns())
            for (port, patch, _), applied_ns in zip(plan, applied, strict=True):
                shapes = port.read()
                port.verify(shapes)
                actual = as_patch(shapes)
                done.append(
                    LinkChange(
                        port.interface.node,
                        port.interface.network,
                        patch,
                        {k: actual[k] for k in patch},
                        planned_ns,
                        applied_ns,
                        time.monotonic_ns(),
                    )
                )
        return done

    def set_delays(self, network: str, delays: Mapping[tuple[str, str], float]) -> None:
        """Change one-way delays of pairs of nodes [s]; both ways unless both are given."""
        with self._lock:
            net = self._network(network)
            there = {node for node, name in self._ports if name == network}
            check_delays(network, delays, there)
            net.set_delays(delays)
            if net.relayed or net.needs_relay():
                self._have_relayed(net)
                for node in {a for pair in delays for a in pair}:
                    self._tell_delays(net, node)

    def read_back(self, node: str, network: str | None = None) -> dict[str, Any]:
        """Current values of a link with the keys of a patch, read from kernel and relay."""
        return as_patch(self._port(node, network).read())

    def requested(self, node: str, network: str | None = None) -> dict[str, Any]:
        """Requested values of a link with the keys of a patch; the kernel is not read."""
        return as_patch(shapes_of(self._port(node, network).link))

    def counters(self, node: str, network: str | None = None) -> dict[str, int]:
        """`out_packets`, `out_bytes`, `in_packets`, `in_bytes` of a link since its creation."""
        return self._port(node, network).counters()

    def describe(self) -> list[dict[str, Any]]:
        """Current networks: subnet, host address, carrier, delays, relay."""
        stats = self.relay_stats()
        relay = stats and {k: stats[k] for k in ("late", "turn", "waiting", "overflow", "cpu_ns")}
        return [
            {
                "name": name,
                "subnet": str(net.addresses.subnet),
                "host_address": self.host_address(name),
                "engine": self.engine(name),
                "delay_s": net.spec.delay_s,
                "delays": [[a, b, s] for (a, b), s in net.delays.items()],
                "relay": relay if net.relayed else None,
            }
            for name, net in self._networks.items()
        ]

    def passed(self, node: str, network: str | None = None) -> dict[str, int | None]:
        """Bytes that passed a link's limits, `out` and `in`; None without a limit."""
        return {str(k): v for k, v in self._port(node, network).passed().items()}

    def engine(self, network: str) -> str:
        """Carrier of the network's frames: its `bridge`, or the `relay`."""
        return "relay" if self._network(network).relayed else "bridge"

    def relay_stats(self, reset: bool = False) -> dict[str, Any] | None:
        """Statistics of the relay: lateness, processor time, counters per port; None without one."""
        return None if self._relay is None else self._relay.stats(reset)

    def failures(self, lives: Callable[[str], bool] = lambda node: True) -> list[Failure]:
        """The relay, if it is dead or does not respond: its networks then carry no frames.

        Links that are gone or have other values than the requested ones, of nodes that `lives` is true of.
        """
        failures = []
        if self._relay is not None and (fault := self._relay.fault()):
            carried = [name for name, net in self._networks.items() if net.relayed]
            message = f"relay (process {self._relay.pid}) {fault}: no frame passes on {', '.join(carried)}"
            failures.append(Failure("relay", message, self._relay.pid))
        for key in list(self._ports):
            with self._lock:
                port = self._ports.get(key)
                # the values of other links are in the relay
                if port is None or (failures and port.relay is not None):
                    continue
                try:
                    port.counters()
                    port.verify(port.read())
                    continue
                except (PenstockError, OSError) as error:
                    where = f"node {key[0]}, network {key[1]}"
                    message = str(error) if where in str(error) else f"{where}: {error}"
            if lives(key[0]):
                failures.append(Failure("link", message))
        return failures

    def _ready_for(self, net: _Net, link: LinkSpec) -> None:
        """Switch the network to an engine that supports the link's features."""
        shapes = shapes_of(link).values()
        if any(shape.impaired for shape in shapes) and engine_of(net.spec) == "relay":
            self._have_relayed(net)
        if any(shape.shared for shape in shapes) and not net.single:
            net.single = True
            for port in self._of(net):
                port.single_packets()
            if net.host is not None:
                with Netlink() as root:
                    what = "the host's link without large segments"
                    root.tell(set_link(net.host[1], what, attrs=[["IFLA_GSO_MAX_SEGS", 1]]))

    def _have_relayed(self, net: _Net) -> None:
        """Move a network from its bridge to the relay; frames in flight are lost."""
        if net.relayed:
            return
        if self._relay is None:
            self._relay = Relay(self._fabric.path, self._journal, 0, self._run)
        ports = self._of(net)
        indexes = [port.outer for port in ports]
        outside = net.host[0] if net.host is not None else None
        others = [index for index in (outside, net.tunnel) if index is not None]
        indexes += others
        leaving = [set_link(i, "leaving the bridge", attrs=[["IFLA_MASTER", 0]]) for i in indexes]
        for error in self._fabric.netlink.tell_all(leaving):
            if error is not None:
                raise error
        for port in ports:
            port.join(self._relay, net.number)
        for index in others:
            self._relay.add(net.number, index, isolated=net.tunnel is not None)
        if net.spec.tunnel is not None:
            self._name_remote(self._relay, net, net.spec.tunnel)
        net.relayed = True
        self._tell_delays(net, None)

    def _name_remote(self, relay: Relay, net: _Net, tunnel: TunnelSpec) -> None:
        """Name the groups of nodes on other hosts to the relay, one number each."""
        addresses = dict(tunnel.nodes)
        numbers = {
            group: self._fabric.next_index()
            for group, nodes in enumerate(tunnel.groups)
            if nodes[0] in addresses
        }
        relay.remote(
            net.number,
            [
                (number, mac_of(addresses[node]))
                for group, number in numbers.items()
                for node in tunnel.groups[group]
            ],
        )
        net.beyond = {
            node: [] for group in tunnel.groups if group[0] not in addresses for node in group
        }
        for (source, target), delay_s in tunnel.delays.items():
            out = target in numbers
            far, near = (target, source) if out else (source, target)
            for node in tunnel.groups[near]:
                net.beyond[node].append((out, numbers[far], delay_s))

    def _tell_delays(self, net: _Net, node: str | None) -> None:
        """Send the relay the delays between attached nodes: of `node`, or all."""
        if not net.relayed or self._relay is None:
            return
        at = {port.interface.node: port.outer for port in self._of(net)}
        delays = net.delays.items() if node is None else net.delays_of(node)
        pairs = [(at[a], at[b], s) for (a, b), s in delays if a in at and b in at]
        for near in at if node is None else [node]:
            for out, far, s in net.beyond.get(near, ()):
                pairs.append((at[near], far, s) if out else (far, at[near], s))
        if net.tunnel is not None:  # the delay of the network is added where frames arrive
            pairs += [(at[a], net.tunnel, 0.0) for a in at if node in (None, a)]
        self._relay.delays(net.number, net.spec.delay_s, pairs)

    def _of(self, net: _Net) -> list[Port]:
        return [port for (_, name), port in self._ports.items() if name == net.spec.name]

    def down(self) -> None:
        """Stop everything; running nodes lose their interfaces. Idempotent."""
        with self._lock:
            self._ports.clear()
            if self._relay is not None:
                self._relay.stop()
                self._relay = None
            self._fabric.down()
            if self._router is not None:
                take_namespace(self._router)
                self._journal.undone(self._router)
                self._router = None
            for entry in self._neighbours:
                put_back(entry, self._journal)
            self._neighbours.clear()

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def _network(self, name: str) -> _Net:
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


def mac_of(address: str) -> str:
    """Locally administered MAC address, unique within the network: it contains the IPv4 address."""
    return "0a:58:" + ":".join(f"{int(part):02x}" for part in address.split("."))
