"""One interface of a node: both ends of its link, its specification, and the values read back."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from penstock.emulate.network.addresses import Subnet
from penstock.emulate.network.fabric import PLAIN_MTU, Fabric
from penstock.emulate.network.netem import same
from penstock.emulate.network.qdisc import End
from penstock.emulate.network.relay import Relay
from penstock.emulate.network.traffic_shape import Direction, TrafficShape, as_patch, shapes_of
from penstock.errors import PenstockError
from penstock.host.network.netlink import Netlink, add_address, add_route, set_link
from penstock.spec.cluster import LinkSpec


def interface_name(number: int) -> str:
    """Name of a node's interface by the number of its link, from 0."""
    return f"e{number}"


@dataclass(frozen=True)
class Interface:
    """Interface as seen by the node: name, address, prefix length and MAC address."""

    node: str
    network: str
    name: str
    address: str
    prefix: int
    mac: str


class Port:
    """A link that is up; `link` is the last requested specification."""

    def __init__(
        self,
        fabric: Fabric,
        interface: Interface,
        netns: str | os.PathLike[str],
        master: int | None,
        link: LinkSpec,
        mtu: int = PLAIN_MTU,
    ):
        self.interface = interface
        self.link = LinkSpec(link.network, link.address)
        self.relay: Relay | None = None
        self._fabric = fabric.netlink
        self.outer, self.inner = fabric.veth(
            f"n{fabric.next_index()}",
            netns,
            interface.name,
            mac=interface.mac,
            master=master,
            mtu=mtu,
        )
        try:
            self._node = Netlink(netns)
            requests = [
                set_link(1, "lo up", up=True),
                add_address(self.inner, interface.address, interface.prefix),
                set_link(self.inner, f"{interface.name} up", up=True),
            ]
            for error in self._node.tell_all(requests):
                if error is not None:
                    raise error
        except BaseException:
            self.remove()
            raise
        name = f"node {interface.node}, network {interface.network}"
        self._ends: dict[Direction, End] = {
            "out": End(self._node, self.inner, f"{name}, out"),
            "in": End(self._fabric, self.outer, f"{name}, in"),
        }

    def route(self, subnet: Subnet, gateway: str) -> None:
        """Add a route of the node."""
        self._node.tell(add_route(subnet, gateway))

    def join(self, relay: Relay, network: int) -> None:
        """Have the relay carry the link's frames and emulate everything but bandwidth.

        Current requests other than bandwidth move to the relay.
        """
        relay.add(network, self.outer)
        self.relay = relay
        shapes = shapes_of(self.link)
        for direction, end in self._ends.items():
            end.make(TrafficShape(bps=shapes[direction].bps))
        rest = {d: _settled(shape) for d, shape in shapes.items() if _rest(shape) != TrafficShape()}
        if rest:
            relay.make(self.outer, rest)

    def single_packets(self) -> None:
        """Make the node send packet by packet, so that a loss affects one packet, not 64 KiB."""
        what = f"{self.interface.name} without large segments"
        self._node.tell(set_link(self.inner, what, attrs=[["IFLA_GSO_MAX_SEGS", 1]]))

    def make(self, spec: LinkSpec) -> None:
        """Set the link to `spec`; unchanged values are not written.

        Bandwidth is limited at the sending ends: outgoing at the node's, incoming at ours. netem emulates the
        rest there; without netem the relay does.
        """
        had, shapes = shapes_of(self.link), shapes_of(spec)
        for direction, end in self._ends.items():
            shape = shapes[direction]
            end.make(TrafficShape(bps=shape.bps) if self.relay else _settled(shape))
        if self.relay is not None:
            changed = {d: _settled(w) for d, w in shapes.items() if _rest(w) != _rest(had[d])}
            if changed:
                self.relay.make(self.outer, changed)
        self.link = replace(spec, network=self.link.network, address=self.link.address)

    def read(self) -> dict[Direction, TrafficShape]:
        """Current values of the kernel and the relay."""
        shapes = {direction: end.read() for direction, end in self._ends.items()}
        if self.relay is not None:
            rest = self.relay.make(self.outer, {})
            shapes = {d: replace(rest[d], bps=shapes[d].bps) for d in shapes}
        return shapes

    def verify(self, shapes: dict[Direction, TrafficShape]) -> None:
        """Raise PenstockError if the values read back are not the requested ones."""
        requested = shapes_of(self.link)
        for direction, end in self._ends.items():
            shape = shapes[direction]
            right = end.holds(TrafficShape(bps=shape.bps) if self.relay else shape)
            if self.relay is not None:
                right = right and same(_rest(requested[direction]), shape)
            if not right:
                expected, there = (as_patch({direction: w}) for w in (requested[direction], shape))
                differ = [k for k in expected if expected[k] != there[k]]
                raise PenstockError(
                    f"node {self.interface.node}, network {self.interface.network}: "
                    + "; ".join(f"requested {k} {expected[k]}, found {there[k]}" for k in differ)
                )

    def counters(self) -> dict[str, int]:
        """Packets and bytes (frames with headers) since its creation, as the node sees them."""
        seen = self._fabric.counters(self.outer)
        return {
            f"{own}_{what}": seen[f"{other}_{what}"]
            for own, other in (("out", "in"), ("in", "out"))
            for what in ("packets", "bytes")
        }

    def passed(self) -> dict[Direction, int | None]:
        """Bytes that passed the limits, frames with headers; None without a limit.

        Interface counters count the headers of a large segment once, these once per frame.
        """
        return {direction: end.passed() for direction, end in self._ends.items()}

    def remove(self) -> None:
        """Remove the link."""
        if hasattr(self, "_node"):
            self._node.close()
        if self.relay is not None:
            self.relay.remove(self.outer)
        self._fabric.delete_link(self.outer)


def _settled(shape: TrafficShape) -> TrafficShape:
    """The shape without a delay that is no longer than the link's own."""
    return shape if shape.impaired else TrafficShape(bps=shape.bps)


def _rest(shape: TrafficShape) -> TrafficShape:
    return _settled(shape).without_rate()
