"""Control sockets of daemons written in Python; `penstock-daemon` has the equivalent for Rust."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError

#: longest request [bytes]: enough for any platform, but bounded
LONGEST_REQUEST = 16 << 20
_PEER = struct.Struct("3i")


def listen(path: Path) -> socket.socket:
    """A listening socket at `path` to which only our own user can connect.

    Raises PenstockError if others could replace it.
    """
    above = path.parent.stat()
    if above.st_uid not in (0, os.geteuid()) or above.st_mode & 0o022:
        raise PenstockError(
            f"{path.parent}: found a directory of user {above.st_uid} with mode "
            f"{above.st_mode & 0o7777:o}; expected one of this user that no other user may write to"
        )
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    os.fchmod(listener.fileno(), 0o600)  # the path gets this mode by bind
    listener.bind(str(path))
    os.chmod(path, 0o600)
    listener.listen(64)
    return listener


def may_ask(connection: socket.socket) -> bool:
    """True if the peer is root or our own user (SO_PEERCRED, unix(7))."""
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    _, uid, _ = _PEER.unpack(peer)
    return uid in (0, os.geteuid())


def lines(connection: socket.socket) -> Iterator[bytes]:
    """Requests, one per line, until the peer disconnects or sends one that is too long."""
    with connection.makefile("rb") as stream:
        while (line := stream.readline(LONGEST_REQUEST + 1)).endswith(b"\n"):
            yield line


def usual_answer(command: Any, ending: threading.Event) -> dict[str, Any]:
    """Answer the commands common to all daemons, `ping` and `shutdown`; others with an error."""
    if command == "ping":
        return {"ok": True, "pid": os.getpid()}
    if command == "shutdown":
        ending.set()
        return {"ok": True}
    return {"ok": False, "error": "no such command", "bad_input": True}


def answering(
    listener: socket.socket, answer: Callable[[Mapping[str, Any]], Mapping[str, Any]]
) -> threading.Thread:
    """Answer requests at a socket, each connection in a separate thread, until the socket is closed.

    A request is an object with `cmd` and its arguments; `answer` returns `ok`, and `error` on failure.
    """

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                if not may_ask(connection):
                    connection.close()
                    continue
                threading.Thread(target=converse, args=(connection,), daemon=True).start()

    def converse(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            for line in lines(connection):
                connection.sendall(json.dumps(answer(_request(line))).encode() + b"\n")

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    return thread


def _request(line: bytes) -> Mapping[str, Any]:
    """The parsed request; empty if it is malformed."""
    try:
        request = json.loads(line.decode())
    except (ValueError, RecursionError):
        return {}
    return request if isinstance(request, dict) and isinstance(request.get("cmd"), str) else {}
