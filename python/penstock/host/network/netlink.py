"""Route netlink (rtnetlink(7)) in any network namespace, from any thread.

pyroute2's classes encode and decode messages about links and addresses. Its sockets are not used: each has an
event loop bound to one thread and a separate process to enter a namespace, and hundreds are open here.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from penstock.errors import PenstockError
from penstock.host.network.netns import inside

RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK = 16, 17, 18
RTM_NEWADDR, RTM_GETADDR = 20, 22
RTM_NEWROUTE, RTM_GETROUTE = 24, 26
RTM_NEWNEIGH = 28
RTM_NEWQDISC, RTM_DELQDISC, RTM_GETQDISC = 36, 37, 38
ACK, ECHO, DUMP, REPLACE, EXCL, CREATE = 0x4, 0x8, 0x300, 0x100, 0x200, 0x400
APPEND = 0x800

_REQUEST = 0x1
_ERROR, _DONE = 2, 3
_ACK_TLVS = 0x200
_SOL_NETLINK, _CAP_ACK, _EXT_ACK = 270, 10, 11
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_UP = 1
#: linux/rtnetlink.h
RTN_UNICAST = 1
_RT_TABLE_MAIN, _RTPROT_STATIC = 254, 4
#: group of links created here
GROUP = 88
#: requests sent before answers are read; their acknowledgements fit into a socket's buffer
_BATCH = 64


class NetlinkError(PenstockError):
    """The kernel refused a request; `code` as in errno(3)."""

    def __init__(self, what: str, code: int, message: str = ""):
        super().__init__(f"{what}: {message or os.strerror(code)}")
        self.code = code


@dataclass(frozen=True)
class Request:
    """One message: type, flags in addition to 'request', body, and its purpose."""

    kind: int
    flags: int
    body: bytes
    what: str


def attribute(kind: int, content: bytes) -> bytes:
    """One attribute, padded to four bytes."""
    size = _ATTRIBUTE.size + len(content)
    return _ATTRIBUTE.pack(size, kind) + content + bytes(-size % 4)


def attributes(raw: bytes) -> dict[int, bytes]:
    """Attributes of a message or of another attribute."""
    by_kind, at = {}, 0
    while at + _ATTRIBUTE.size <= len(raw):
        size, kind = _ATTRIBUTE.unpack_from(raw, at)
        if size < _ATTRIBUTE.size:
            break
        by_kind[kind & 0x3FFF] = raw[at + _ATTRIBUTE.size : at + size]
        at += size + -size % 4
    return by_kind


class Netlink:
    """A socket in the namespace at `where` (a path, a process's pid, None: ours)."""

    def __init__(self, where: str | os.PathLike[str] | int | None = None):
        self._socket = inside(where, _opened)
        self._lock = threading.Lock()
        self._number = 0

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Netlink:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def tell(self, request: Request) -> None:
        """Send a change. Raises NetlinkError with the kernel's message."""
        error = self.tell_all([request])[0]
        if error is not None:
            raise error

    def tell_all(self, requests: Sequence[Request]) -> list[NetlinkError | None]:
        """Send changes in order; returns the kernel's errors, None for success."""
        with self._lock:
            errors: list[NetlinkError | None] = []
            for start in range(0, len(requests), _BATCH):
                errors += self._batch(requests[start : start + _BATCH])
            return errors

    def _batch(self, requests: Sequence[Request]) -> list[NetlinkError | None]:
        first = self._number + 1
        sent = b"".join(self._framed(r, r.flags | ACK) for r in requests)
        self._socket.send(sent)
        by_number: dict[int, NetlinkError | None] = {}
        while len(by_number) < len(requests):
            for kind, flags, number, body in self._answers():
                if kind == _ERROR and first <= number <= self._number:
                    what = requests[number - first].what
                    by_number[number] = _error(what, flags, body)
        return [by_number[n] for n in range(first, first + len(requests))]

    def request(self, request: Request) -> list[bytes]:
        """Request one object, or all of them with DUMP; returns the body of each answer.

        With ACK the answer may be empty.
        """
        with self._lock:
            self._socket.send(self._framed(request, request.flags))
            answers: list[bytes] = []
            while True:
                for kind, flags, number, body in self._answers():
                    if number != self._number:
                        continue
                    if kind == _ERROR:
                        error = _error(request.what, flags, body)
                        if error is not None:
                            raise error
                        return answers
                    if kind == _DONE:
                        return answers
                    answers.append(body)
                    if not request.flags & (DUMP | ACK):
                        return answers

    def _framed(self, request: Request, flags: int) -> bytes:
        self._number += 1
        size = _HEADER.size + len(request.body)
        head = _HEADER.pack(size, request.kind, flags | _REQUEST, self._number, 0)
        return head + request.body + bytes(-size % 4)

    def _answers(self) -> Iterator[tuple[int, int, int, bytes]]:
        raw = self._socket.recv(1 << 18)
        at = 0
        while at + _HEADER.size <= len(raw):
            size, kind, flags, number, _ = _HEADER.unpack_from(raw, at)
            yield kind, flags, number, raw[at + _HEADER.size : at + size]
            at += size + -size % 4

    # links and addresses

    def links(self) -> list[tuple[int, str]]:
        """Index and name of every link."""
        answers = self.request(Request(RTM_GETLINK, DUMP, _link_body(0), "listing links"))
        return [(index_of(body), _text(attributes(body[16:])[3])) for body in answers]

    def link_index(self, name: str) -> int:
        """Index of a link. Raises NetlinkError if there is none of that name."""
        body = _link_body(0, [["IFLA_IFNAME", name]])
        return index_of(self.request(Request(RTM_GETLINK, 0, body, f"link {name}"))[0])

    def counters(self, index: int) -> dict[str, int]:
        """Packets and bytes that a link has received and sent since its creation."""
        answer = self.request(Request(RTM_GETLINK, 0, _link_body(index), f"link {index}"))[0]
        values = struct.unpack_from("=8Q", attributes(answer[16:])[23])
        names = (
            "in_packets out_packets in_bytes out_bytes in_errors out_errors in_dropped out_dropped"
        )
        return dict(zip(names.split(), values, strict=True))

    def delete_link(self, index: int) -> None:
        """Delete a link; errors are ignored."""
        with contextlib.suppress(NetlinkError):
            self.tell(Request(RTM_DELLINK, 0, _link_body(index), f"deleting link {index}"))

    def delete_group(self, group: int) -> None:
        """Delete all links of a group at once; one by one, each would wait for an RCU grace period."""
        with contextlib.suppress(NetlinkError):
            body = _link_body(0, [["IFLA_GROUP", group]])
            self.tell(Request(RTM_DELLINK, 0, body, f"deleting links of group {group}"))


def new_link(
    name: str,
    kind: str,
    *,
    index: int = 0,
    up: bool = False,
    attrs: Sequence[Any] = (),
    data: Sequence[Any] = (),
) -> Request:
    """Request for a link of a kind ('bridge', 'veth', …), with pyroute2's attribute names; `index` 0: any."""
    info: list[Any] = [["IFLA_INFO_KIND", kind]]
    if data:
        info.append(["IFLA_INFO_DATA", {"attrs": list(data)}])
    named = [
        ["IFLA_IFNAME", name],
        ["IFLA_GROUP", GROUP],
        *attrs,
        ["IFLA_LINKINFO", {"attrs": info}],
    ]
    body = _link_body(index, named, up or None)
    return Request(RTM_NEWLINK, CREATE | EXCL, body, f"making {kind} {name}")


def set_link(
    index: int, what: str, *, up: bool | None = None, attrs: Sequence[Any] = ()
) -> Request:
    """Request that changes a link: `up` or down, and attributes."""
    return Request(RTM_NEWLINK, 0, _link_body(index, attrs, up), what)


def add_address(index: int, address: str, prefix: int) -> Request:
    """Request that adds an IPv4 address to a link."""
    message = ifaddrmsg()
    message["index"], message["family"], message["prefixlen"] = index, socket.AF_INET, prefix
    message["attrs"] = [["IFA_LOCAL", address], ["IFA_ADDRESS", address]]
    return Request(RTM_NEWADDR, CREATE | EXCL, encoded(message), f"address {address}/{prefix}")


def add_route(subnet: ipaddress.IPv4Network, gateway: str) -> Request:
    """Request that adds a route."""
    message = rtmsg()
    message["family"], message["dst_len"] = socket.AF_INET, subnet.prefixlen
    message["table"], message["proto"] = _RT_TABLE_MAIN, _RTPROT_STATIC
    message["type"] = RTN_UNICAST
    message["attrs"] = [["RTA_DST", str(subnet.network_address)], ["RTA_GATEWAY", gateway]]
    what = f"route to {subnet} by {gateway}"
    return Request(RTM_NEWROUTE, CREATE | EXCL, encoded(message), what)


def index_of(body: bytes) -> int:
    """Index in an answer about a link."""
    return int(struct.unpack_from("=i", body, 4)[0])


def _link_body(index: int, attrs: Sequence[Any] = (), up: bool | None = None) -> bytes:
    message = ifinfmsg()
    message["index"] = index
    if up is not None:
        message["flags"], message["change"] = _UP if up else 0, _UP
    message["attrs"] = list(attrs)
    return encoded(message)


def encoded(message: Any) -> bytes:
    """Body of a message of pyroute2's classes."""
    message.encode()
    return bytes(message.data[_HEADER.size : message["header"]["length"]])


def _text(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode(errors="replace")


def _opened() -> socket.socket:
    opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
    opened.bind((0, 0))
    opened.setsockopt(_SOL_NETLINK, _CAP_ACK, 1)
    opened.setsockopt(_SOL_NETLINK, _EXT_ACK, 1)
    opened.settimeout(10.0)
    return opened


def _error(what: str, flags: int, body: bytes) -> NetlinkError | None:
    code = -struct.unpack_from("=i", body)[0]
    if code == 0:
        return None
    message = ""
    if flags & _ACK_TLVS:
        message = _text(attributes(body[4 + _HEADER.size :]).get(1, b""))
    return NetlinkError(what, code, f"{message} ({os.strerror(code)})" if message else "")
