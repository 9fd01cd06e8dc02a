"""Owner of the other end of a TCP connection on this host, by the kernel's socket monitoring interface.

A lookup by addresses and ports takes constant time; /proc/net/tcp would be read in full each time. See
sock_diag(7).
"""

from __future__ import annotations

import errno
import os
import socket
import struct

from penstock.host.processes.servers import plain_address

#: an address and a port
End = tuple[str, int]

# linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1
_NLMSG_ERROR = 2
_ALL = 0xFFFFFFFF
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBBI")
_PORTS = struct.Struct("!HH")
#: interface, and the two halves of a cookie that matches any socket
_ANY = struct.pack("=III", 0, _ALL, _ALL)
_OWNER = struct.Struct("=II")
#: offset of the user id in the answer: header, 4 bytes of states, 48 of addresses, timer, two queues
_OWNER_AT = _HEADER.size + 4 + 48 + 12


def owner(near: End, far: End) -> int | None:
    """User id of the socket at `near` that is connected to `far`; None if there is none or it was closed.

    Raises OSError if the kernel does not support such requests.
    """
    ends = [plain_address(address) for address, _ in (near, far)]
    if ends[0].version != ends[1].version:
        return None
    family = socket.AF_INET if ends[0].version == 4 else socket.AF_INET6
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, _ALL) + _PORTS.pack(near[1], far[1])
    body += b"".join(end.packed.ljust(16, b"\0") for end in ends) + _ANY
    header = _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0)
    kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
    with socket.socket(socket.AF_NETLINK, kind, _NETLINK_SOCK_DIAG) as netlink:
        netlink.send(header + body)
        answer = netlink.recv(1 << 13)
    if _HEADER.unpack_from(answer)[1] == _NLMSG_ERROR:
        (number,) = struct.unpack_from("=i", answer, _HEADER.size)
        if -number == errno.ENOENT:
            return None
        raise OSError(-number, os.strerror(-number))
    uid, inode = _OWNER.unpack_from(answer, _OWNER_AT)
    return uid if inode else None


def owners(peer: End, own: End) -> set[int] | None:
    """User ids of the socket at the other end of our connection `own`: one, or none if it is not of this
    host or was closed. None if the kernel does not report it.

    A kernel without the interface answers as if there were no socket, so our own end is looked up, too.
    """
    try:
        uid = owner(peer, own)
        if uid is not None:
            return {uid}
        return set() if owner(own, peer) is not None else None
    except OSError:
        return None
