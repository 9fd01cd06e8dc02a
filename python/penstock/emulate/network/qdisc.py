"""Queueing disciplines of a link's end: tbf for bandwidth, netem for the rest, written and read back.

The options are packed here because pyroute2 cannot express netem's tables of distributions nor its times in
nanoseconds (include/uapi/linux/pkt_sched.h).
"""

from __future__ import annotations

import struct

from penstock.host.netlink import (
    CREATE,
    DUMP,
    REPLACE,
    RTM_DELQDISC,
    RTM_GETQDISC,
    RTM_NEWQDISC,
    Netlink,
    Request,
    attribute,
    attributes,
)

ROOT = 0xFFFFFFFF
TBF_HANDLE = 0x10000
#: a tbf's rate has 32 bits here; a veth pair carries no more [bytes/s]
MOST_BPS = 4.0e9
#: an Ethernet frame of 1500 bytes with its header, as tbf counts it
FRAME_BYTES = 1514
#: how far a link may run ahead after a pause: late timers are made up for, and a window of a second is exact
#: within half a percent [s]
_CREDIT_S = 0.005
#: what would wait longer is dropped, but for so many bytes [s, bytes]. Below TCP's shortest time-out of
#: 0.2 s: with a longer queue a sender takes waiting packets for lost and sends them again
_QUEUE_S = 0.1
_QUEUE_BYTES = 10 * FRAME_BYTES

_TICK_NS = 64
_RATE = struct.Struct("=BBHhHI")
_TBF = struct.Struct("=12s12sIII")
_ETHERNET = 1


def burst_bytes(bps: float) -> int:
    """What may go at once at a rate of `bps` bytes per second."""
    return max(2 * FRAME_BYTES, round(bps * _CREDIT_S))


def queue_bytes(bps: float) -> int:
    """What may wait for a link of `bps` bytes per second."""
    return max(_QUEUE_BYTES, round(bps * _QUEUE_S)) + burst_bytes(bps)


def tbf_options(bps: float) -> bytes:
    """A token bucket of `bps` bytes per second, each frame counted with its Ethernet header."""
    rate = max(1, round(bps))
    ticks = min(0xFFFFFFFF, round(burst_bytes(bps) * 1e9 / rate / _TICK_NS))
    spec = _RATE.pack(0, _ETHERNET, 0, 0, 0, rate)
    parameters = _TBF.pack(spec, bytes(12), min(queue_bytes(bps), 0x7FFFFFFF), ticks, 0)
    return attribute(1, parameters) + attribute(6, struct.pack("=I", burst_bytes(bps)))


def _tbf_bps(options: bytes) -> float:
    spec = _TBF.unpack_from(attributes(options)[1])[0]
    return float(_RATE.unpack(spec)[5])


def read_rate(netlink: Netlink, index: int) -> float | None:
    """The bandwidth that the kernel limits a link's end to [bytes/s]."""
    for body in netlink.ask(_request(RTM_GETQDISC, DUMP, index, 0, 0, "reading limits")):
        options = attributes(body[20:])
        if struct.unpack_from("=i", body, 4)[0] == index and options[1] == b"tbf\0":
            return _tbf_bps(options[2])
    return None


def set_rate(index: int, bps: float | None, had: bool) -> Request | None:
    """Changes the bandwidth of a link's end; None: no limit. `had`: whether it has one now."""
    if bps is None:
        return _request(RTM_DELQDISC, 0, index, 0, ROOT, "removing a limit") if had else None
    body = attribute(1, b"tbf\0") + attribute(2, tbf_options(bps))
    what = f"limiting a link to {bps:g} B/s"
    return _request(RTM_NEWQDISC, CREATE | REPLACE, index, TBF_HANDLE, ROOT, what, body)


def _request(
    kind: int, flags: int, index: int, handle: int, parent: int, what: str, body: bytes = b""
) -> Request:
    head = struct.pack("=BxHiIII", 0, 0, index, handle, parent, 0)
    return Request(kind, flags, head + body, what)
