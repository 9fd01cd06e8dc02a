"""One interface of a node: both ends of its link, what was asked of it, and what is found there."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from penstock.emulate.network import qdisc
from penstock.emulate.network.fabric import Fabric
from penstock.emulate.spec import LinkSpec
from penstock.errors import PenstockError
from penstock.host.netlink import Netlink, Request, add_address, set_link


@dataclass(frozen=True)
class Interface:
    """What a node sees: the interface's name in it, its address, prefix length and MAC address."""

    node: str
    network: str
    name: str
    address: str
    prefix: int
    mac: str


class Port:
    """A link that is up; `link` is what it was asked for last."""

    def __init__(
        self,
        fabric: Fabric,
        interface: Interface,
        netns: str | os.PathLike[str],
        master: int | None,
        link: LinkSpec,
    ):
        self.interface = interface
        self.link = replace(link, out_bps=None, in_bps=None)
        self._fabric = fabric.netlink
        self.inner, self.outer = fabric.veth(
            f"n{fabric.next_index()}", netns, interface.name, mac=interface.mac, master=master
        )[::-1]
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

    def ends(self) -> dict[str, tuple[Netlink, int]]:
        """Where bandwidth is limited: what leaves the node at its own end, what arrives at ours."""
        return {"out_bps": (self._node, self.inner), "in_bps": (self._fabric, self.outer)}

    def set_rates(self, wanted: LinkSpec) -> None:
        """Makes the bandwidths what `wanted` says; a direction that is so already is not touched."""
        for key, (netlink, index) in self.ends().items():
            had, bps = getattr(self.link, key), getattr(wanted, key)
            if bps == had:
                continue
            request: Request | None = qdisc.set_rate(index, bps, had is not None)
            if request is not None:
                netlink.tell(request)
            self.link = replace(self.link, **{key: bps})

    def read_rates(self) -> dict[str, float | None]:
        """The bandwidths that the kernel has [bytes/s]."""
        return {key: qdisc.read_rate(*end) for key, end in self.ends().items()}

    def verify_rates(self) -> dict[str, float | None]:
        """What the kernel has. Raises PenstockError where it is not what was asked for."""
        found = self.read_rates()
        for key, bps in found.items():
            asked = getattr(self.link, key)
            if (asked is None) != (bps is None) or (asked and abs(bps - asked) > 1):
                raise PenstockError(
                    f"{self.interface.node}, {self.interface.network}: {key} was asked to be {asked}, "
                    f"the kernel has {bps}"
                )
        return found

    def counters(self) -> dict[str, int]:
        """Packets and bytes (frames with their headers) since it was put up, as the node sees them."""
        seen = self._fabric.counters(self.outer)
        return {
            f"{mine}_{what}": seen[f"{other}_{what}"]
            for mine, other in (("out", "in"), ("in", "out"))
            for what in ("packets", "bytes")
        }

    def remove(self) -> None:
        """Takes the link away."""
        if hasattr(self, "_node"):
            self._node.close()
        self._fabric.delete_link(self.outer)
