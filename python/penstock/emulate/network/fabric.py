"""Namespace of a cluster's bridges and of the outer ends of the nodes' links.

The host's namespace has only one link per network that the host must reach. Removing the namespace removes
everything in it, and the nodes' ends of the links.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from pathlib import Path

from penstock.emulate.network.addresses import Subnet
from penstock.errors import PenstockError
from penstock.host.journal.journal import Entry, Journal
from penstock.host.network.netlink import (
    DUMP,
    RTM_GETROUTE,
    RTN_UNICAST,
    Netlink,
    Request,
    add_address,
    attributes,
    new_link,
    set_link,
)
from penstock.host.network.netns import inside
from penstock.host.network.pinned_netns import pin_namespace, take_namespace

#: first index of links created here; lower ones are the kernel's
_FIRST_INDEX = 1000
#: packet size of a network on one host
PLAIN_MTU = 1500


class Fabric:
    """Pinned namespace of one cluster."""

    def __init__(self, journal: Journal, run: str | None = None):
        self._journal = journal
        self.entry: Entry = pin_namespace(journal, run)
        try:
            self.netlink = Netlink(self.path)
            inside(self.path, _quiet)
            self.netlink.tell(set_link(1, "lo up", up=True))
        except BaseException:
            self.down()
            raise
        self._next = _FIRST_INDEX
        self._outside = 0

    @property
    def path(self) -> Path:
        """Path at which the namespace is pinned."""
        return Path(self.entry.target)

    @property
    def token(self) -> str:
        """Token in the names of its path and of its links outside."""
        return self.entry.token

    def next_index(self) -> int:
        """A link index that is free in this namespace and, for the other end of a link, in a node's."""
        self._next += 1
        return self._next

    def bridge(self, name: str, mtu: int = PLAIN_MTU) -> int:
        """Create a bridge; returns its index."""
        index = self.next_index()
        self.netlink.tell(new_link(name, "bridge", index=index, up=True, attrs=[["IFLA_MTU", mtu]]))
        return index

    def veth(
        self,
        name: str,
        netns: str | os.PathLike[str],
        peer: str,
        *,
        mac: str | None,
        master: int | None,
        far_index: int | None = None,
        mtu: int = PLAIN_MTU,
    ) -> tuple[int, int]:
        """Create a pair whose other end, `peer`, is in another namespace; returns both indexes.

        `far_index` 0 leaves the index of the other end to the kernel, and returns 0.
        """
        here = self.next_index()
        there = self.next_index() if far_index is None else far_index
        try:
            fd = os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise PenstockError(f"network namespace {netns}: {error.strerror}") from error
        try:
            far = [["IFLA_IFNAME", peer], ["IFLA_NET_NS_FD", fd], ["IFLA_MTU", mtu]]
            if mac is not None:
                far.append(["IFLA_ADDRESS", mac])
            self.netlink.tell(
                new_link(
                    name,
                    "veth",
                    index=here,
                    up=True,
                    attrs=[["IFLA_MTU", mtu], *([["IFLA_MASTER", master]] if master else [])],
                    data=[["VETH_INFO_PEER", {"index": there, "attrs": far}]],
                )
            )
        finally:
            os.close(fd)
        return here, there

    def host_link(
        self, subnet: Subnet, address: ipaddress.IPv4Address, master: int, mtu: int = PLAIN_MTU
    ) -> tuple[int, int]:
        """Give the host an address on a network; returns the indexes of the inner and the outer end.

        The outer name is `p`, the token, and a number: 15 characters, the maximum of Linux.
        """
        outside = f"p{self.token}{self._outside:02x}"
        self._outside += 1
        name = f"host{self._outside}"
        here, _ = self.veth(
            name,
            "/proc/thread-self/ns/net",
            outside,
            mac=None,
            master=master,
            far_index=0,
            mtu=mtu,
        )
        with Netlink() as root:
            there = root.link_index(outside)
            root.tell(add_address(there, str(address), subnet.prefixlen))
            root.tell(set_link(there, f"{outside} up", up=True))
        return here, there

    def down(self) -> None:
        """Remove the namespace with everything in it; idempotent."""
        if hasattr(self, "netlink"):
            self.netlink.close()
        take_namespace(self.entry)
        self._journal.undone(self.entry)


def _quiet() -> None:
    """Disable IPv6 on bridges and ports, which would send packets to the nodes."""
    for which in ("all", "default"):
        switch = Path(f"/proc/sys/net/ipv6/conf/{which}/disable_ipv6")
        if switch.exists():
            switch.write_text("1")


def host_subnets() -> dict[str, Subnet]:
    """Subnets in the host's routes, without the default route."""
    with Netlink() as root:
        names = dict(root.links())
        body = struct.pack("=B11x", socket.AF_INET)
        by_name: dict[str, Subnet] = {}
        for answer in root.request(Request(RTM_GETROUTE, DUMP, body, "listing routes")):
            _, length, _, _, _, _, _, kind = struct.unpack_from("=8B", answer)
            parts = attributes(answer[12:])
            if kind != RTN_UNICAST or length == 0 or 1 not in parts:
                continue
            subnet = ipaddress.IPv4Network((parts[1], length), strict=False)
            link = struct.unpack("=i", parts[4])[0] if 4 in parts else 0
            by_name[f"the host's route {subnet} by {names.get(link, 'a gateway')}"] = subnet
        return by_name
