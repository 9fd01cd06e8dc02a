"""End of a network's VXLAN segment (RFC 7348) on this host.

The segment is a port of the network's bridge, or of the relay. Its packets leave by the host's own links, in
the namespace of this process. The tunnel and the host's link are isolated from each other: the address of the
host is the same on all hosts of the cluster, and each host reaches its own nodes only.
"""

from __future__ import annotations

import errno
import socket
import time

from pyroute2.netlink.rtnl.ndmsg import ndmsg

from penstock.emulate.network.fabric import Fabric
from penstock.host.network.netlink import (
    APPEND,
    CREATE,
    RTM_NEWNEIGH,
    Netlink,
    NetlinkError,
    Request,
    encoded,
    new_link,
    set_link,
)
from penstock.spec.cluster import TunnelSpec

_AF_BRIDGE = 7
_PERMANENT, _SELF = 0x80, 0x02
#: destination of frames to unknown addresses
_ANY = "00:00:00:00:00:00"
#: longest time in which the kernel removes a network namespace after its last use, with its links [s]
_REMOVED_WITHIN_S = 10.0


def open_tunnel(fabric: Fabric, spec: TunnelSpec, name: str, bridge: int) -> int:
    """Create the end of the segment as an isolated port of a bridge; returns its index."""
    index = fabric.next_index()
    with open(fabric.path, "rb") as namespace, Netlink() as host:
        attrs = [["IFLA_NET_NS_FD", namespace.fileno()], ["IFLA_MTU", spec.mtu]]
        data = [
            ["IFLA_VXLAN_ID", spec.segment],
            ["IFLA_VXLAN_LOCAL", spec.address],
            ["IFLA_VXLAN_PORT", spec.port],
            ["IFLA_VXLAN_LEARNING", 1],
        ]
        _create(host, new_link(name, "vxlan", index=index, attrs=attrs, data=data))
    fabric.netlink.tell(set_link(index, f"{name} up", up=True, attrs=[["IFLA_MASTER", bridge]]))
    isolate(fabric, index)
    for peer in spec.peers:
        fabric.netlink.tell(_destination(index, peer))
    return index


def _create(host: Netlink, request: Request) -> None:
    """Create the end of a segment, once the kernel has removed that of a cluster that was stopped before."""
    until = time.monotonic() + _REMOVED_WITHIN_S
    while True:
        try:
            return host.tell(request)
        except NetlinkError as error:
            if error.code != errno.EEXIST or time.monotonic() >= until:
                raise
        time.sleep(0.05)


def isolate(fabric: Fabric, index: int) -> None:
    """Isolate a port of a bridge from the other isolated ones."""
    slave = {"attrs": [["IFLA_BRPORT_ISOLATED", 1]]}
    info = {"attrs": [["IFLA_INFO_SLAVE_KIND", "bridge"], ["IFLA_INFO_SLAVE_DATA", slave]]}
    fabric.netlink.tell(set_link(index, "isolating a port", attrs=[["IFLA_LINKINFO", info]]))


def _destination(index: int, peer: str) -> Request:
    """Request that adds a host to the destinations of frames to unknown addresses."""
    message = ndmsg()
    message["family"], message["ifindex"] = _AF_BRIDGE, index
    message["state"], message["flags"] = _PERMANENT, _SELF
    message["attrs"] = [["NDA_LLADDR", _ANY], ["NDA_DST", peer]]
    assert socket.inet_aton(peer)
    return Request(RTM_NEWNEIGH, CREATE | APPEND, encoded(message), f"tunnel to {peer}")
