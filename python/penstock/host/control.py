"""Control sockets of daemons that are written in Python; those in Rust have the same in `penstock-daemon`."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from penstock.errors import PenstockError

#: longest request [bytes]: any platform fits, a flood does not
LONGEST_REQUEST = 16 << 20
_PEER = struct.Struct("3i")


def listen(path: Path) -> socket.socket:
    """A listening socket at `path` to which only our own user can connect.

    Raises PenstockError where others could replace it.
    """
    above = path.parent.stat()
    if above.st_uid not in (0, os.geteuid()) or above.st_mode & 0o022:
        raise PenstockError(
            f"{path.parent}: found a directory of user {above.st_uid} with mode "
            f"{above.st_mode & 0o7777:o}; expected one of our own that nobody else may write to"
        )
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    os.fchmod(listener.fileno(), 0o600)  # which the name gets when it is bound
    listener.bind(str(path))
    os.chmod(path, 0o600)
    listener.listen(64)
    return listener


def may_ask(connection: socket.socket) -> bool:
    """Whether root or our own user is at the other end (SO_PEERCRED, unix(7))."""
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    _, uid, _ = _PEER.unpack(peer)
    return uid in (0, os.geteuid())


def lines(connection: socket.socket) -> Iterator[bytes]:
    """Requests, one per line, until the other end leaves or sends one that is too long."""
    with connection.makefile("rb") as stream:
        while (line := stream.readline(LONGEST_REQUEST + 1)).endswith(b"\n"):
            yield line
