"""Queueing disciplines of a link's end: tbf for bandwidth, netem above it for the rest.

tbf's options are packed here, netem's in `netem`: pyroute2 supports neither tables of distributions nor times
in nanoseconds (include/uapi/linux/pkt_sched.h).
"""

from __future__ import annotations

import struct
from dataclasses import replace

from penstock.emulate.network import netem
from penstock.emulate.network.traffic_shape import TrafficShape
from penstock.host.network.netlink import (
    ACK,
    CREATE,
    ECHO,
    REPLACE,
    RTM_DELQDISC,
    RTM_GETQDISC,
    RTM_NEWQDISC,
    Netlink,
    NetlinkError,
    Request,
    attribute,
    attributes,
)

ROOT = 0xFFFFFFFF
_TBF, _NETEM = 0x10000, 0x20000
_NETEM_CLASS = _NETEM | 1
#: maximum rate: 32 bits in tbf; a veth pair carries no more [bytes/s]
MOST_BPS = 4.0e9
#: size of an Ethernet frame of 1500 bytes with its header, as tbf counts it
FRAME_BYTES = 1514
#: burst that a link may send after a pause [s]: compensates for late timers, and keeps a window of a second
#: exact within half a percent
_CREDIT_S = 0.005
#: longest queue [s], at least the given size [bytes]; the rest is dropped. Below TCP's minimum retransmission
#: time-out of 0.2 s: with a longer queue a sender takes waiting packets for lost and retransmits them
_QUEUE_S = 0.1
_QUEUE_BYTES = 10 * FRAME_BYTES

_TICK_NS = 64
_ABSENT = (2, 22)
_RATE = struct.Struct("=BBHhHI")
_TBF_OPTIONS = struct.Struct("=12s12sIII")
_ETHERNET = 1


def burst_bytes(bps: float) -> int:
    """Burst at a rate of `bps` bytes per second [bytes]."""
    return max(2 * FRAME_BYTES, round(bps * _CREDIT_S))


def queue_bytes(bps: float) -> int:
    """Length of the queue of a link of `bps` bytes per second [bytes]."""
    return max(_QUEUE_BYTES, round(bps * _QUEUE_S)) + burst_bytes(bps)


def tbf_options(bps: float) -> bytes:
    """Token bucket of `bps` bytes per second, including Ethernet headers."""
    rate = max(1, round(bps))
    ticks = min(0xFFFFFFFF, round(burst_bytes(bps) * 1e9 / rate / _TICK_NS))
    spec = _RATE.pack(0, _ETHERNET, 0, 0, 0, rate)
    parameters = _TBF_OPTIONS.pack(spec, bytes(12), min(queue_bytes(bps), 0x7FFFFFFF), ticks, 0)
    return attribute(1, parameters) + attribute(6, struct.pack("=I", burst_bytes(bps)))


class End:
    """One end of a link: limits the bandwidth of its direction and, by netem, applies the other
    properties."""

    def __init__(self, netlink: Netlink, index: int, name: str) -> None:
        self._netlink = netlink
        self._index = index
        self._name = name
        self._has = TrafficShape()

    def make(self, shape: TrafficShape) -> None:
        """Set the end to `shape`; unchanged values are not written. Raises NetlinkError."""
        had, self._has = self._has, shape
        if shape == had:
            return
        requests = self._requests(had, shape)
        try:
            for error in self._netlink.tell_all(requests):
                if error is not None:
                    raise error
        except NetlinkError:
            self._has = had
            raise

    def _requests(self, had: TrafficShape, shape: TrafficShape) -> list[Request]:
        requests = []
        anew = had.impaired != shape.impaired or (
            # netem keeps a table of quantiles until another replaces it
            shape.impaired and had.delay.distribution != shape.delay.distribution
        )
        if anew and (had.impaired or had.bps is not None):
            requests.append(self._request(RTM_DELQDISC, 0, 0, ROOT, "clearing"))
        if shape.impaired and (anew or had.without_rate() != shape.without_rate()):
            body = attribute(1, b"netem\0") + attribute(2, netem.options(shape))
            requests.append(
                self._request(RTM_NEWQDISC, CREATE | REPLACE, _NETEM, ROOT, "netem", body)
            )
        parent = _NETEM_CLASS if shape.impaired else ROOT
        if shape.bps is not None and (anew or had.bps != shape.bps):
            body = attribute(1, b"tbf\0") + attribute(2, tbf_options(shape.bps))
            what = f"limiting to {shape.bps:g} B/s"
            requests.append(self._request(RTM_NEWQDISC, CREATE | REPLACE, _TBF, parent, what, body))
        elif shape.bps is None and had.bps is not None and not anew:
            requests.append(self._request(RTM_DELQDISC, 0, 0, parent, "removing a limit"))
        return requests

    def read(self) -> TrafficShape:
        """Shape that the kernel has."""
        shape = TrafficShape()
        root = self._get(ROOT)
        if root is not None and root[1] == b"netem\0":
            shape = netem.read(root[2], self._has.delay.distribution)
            root = self._get(_NETEM_CLASS)
        if root is not None and root[1] == b"tbf\0":
            spec = _TBF_OPTIONS.unpack_from(attributes(root[2])[1])[0]
            shape = replace(shape, bps=float(_RATE.unpack(spec)[5]))
        return shape

    def passed(self) -> int | None:
        """Bytes that passed tbf; None without one."""
        root = self._get(ROOT)
        if root is not None and root[1] == b"netem\0":
            root = self._get(_NETEM_CLASS)
        if root is None or root[1] != b"tbf\0":
            return None
        return int(struct.unpack_from("=Q", attributes(root[7])[1])[0])

    def holds(self, actual: TrafficShape) -> bool:
        """True if the shape read back is the one that was set here."""
        expected = self._has
        if (expected.bps is None) != (actual.bps is None):
            return False
        if (
            expected.bps is not None
            and actual.bps is not None
            and abs(actual.bps - expected.bps) > 1
        ):
            return False
        return netem.same(expected if expected.impaired else TrafficShape(), actual)

    def _get(self, parent: int) -> dict[int, bytes] | None:
        # the kernel answers as it announces changes: only to sockets that request echoes
        request = self._request(RTM_GETQDISC, ACK | ECHO, 0, parent, "reading")
        try:
            answers = self._netlink.request(request)
        except NetlinkError as error:
            if error.code in _ABSENT:
                return None
            raise
        return attributes(answers[0][20:]) if answers else None

    def _request(
        self, kind: int, flags: int, handle: int, parent: int, what: str, body: bytes = b""
    ) -> Request:
        head = struct.pack("=BxHiIII", 0, 0, self._index, handle, parent, 0)
        return Request(kind, flags, head + body, f"{self._name}: {what}")
