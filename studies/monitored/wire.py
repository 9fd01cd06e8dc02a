"""Number of packets of a port on an interface: counted by the kernel, by the filter of a packet socket."""

from __future__ import annotations

import ctypes
import socket
import struct

_ALL = 0x0003
_ATTACH_FILTER = 26
_SOL_PACKET, _STATISTICS = 263, 6
#: constants of filters (linux/filter.h): offset of ancillary values; type of an outgoing packet
_TYPE, _LEAVES = 0xFFFFF000 + 4, 4


def program(port: int | None) -> list[tuple[int, int, int, int]]:
    """A classic BPF program: IPv4 from or to a port of TCP or UDP (None: any), each packet once.

    Instructions are code, jump if true, jump if false, value. On loopback a packet is seen when it leaves and
    when it arrives; leaving ones are ignored.
    """
    if port is None:
        return [(0x28, 0, 0, _TYPE), (0x15, 1, 0, _LEAVES), (0x06, 0, 0, 64), (0x06, 0, 0, 0)]
    return [
        (0x28, 0, 0, _TYPE),  # the packet's type
        (0x15, 13, 0, _LEAVES),
        (0x28, 0, 0, 12),  # the frame's protocol
        (0x15, 0, 11, 0x0800),
        (0x30, 0, 0, 23),  # IPv4's protocol
        (0x15, 1, 0, 6),
        (0x15, 0, 8, 17),
        (0x28, 0, 0, 20),  # not the first fragment: no port
        (0x45, 6, 0, 0x1FFF),
        (0xB1, 0, 0, 14),  # x = length of IPv4's header
        (0x48, 0, 0, 14),  # source
        (0x15, 2, 0, port),
        (0x48, 0, 0, 16),  # destination
        (0x15, 0, 1, port),
        (0x06, 0, 0, 64),
        (0x06, 0, 0, 0),
    ]


class Packets:
    """Count packets since the creation, in the caller's network namespace; `count` may be repeated."""

    def __init__(self, interface: str, port: int | None) -> None:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        instructions = b"".join(struct.pack("=HBBI", *instruction) for instruction in program(port))
        buffer = ctypes.create_string_buffer(instructions, len(instructions))
        described = struct.pack("@HL", len(instructions) // 8, ctypes.addressof(buffer))
        self._socket.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, described)
        self._socket.bind((interface, _ALL))
        self._total = 0

    def count(self) -> int:
        """Packets so far."""
        statistics = self._socket.getsockopt(_SOL_PACKET, _STATISTICS, 8)
        # the kernel resets its counter at each call; it includes packets without space in the buffer
        self._total += struct.unpack("=II", statistics)[0]
        return self._total

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def __enter__(self) -> Packets:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
