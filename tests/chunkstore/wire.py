"""Messages: a line of JSON, then bytes; and punctual waiting until a time of the clock."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from typing import Any

#: largest header; a peer that sends more is not part of the store
_MOST = 4096

Message = dict[str, Any]
#: environment variable with the token that the servers, which are processes of root, require of clients
TOKEN_VARIABLE = "CHUNKSTORE_TOKEN"


def send(link: socket.socket, message: Message) -> None:
    link.sendall(json.dumps(message).encode() + b"\n")


class Reader:
    """Read messages with the store's token, and the bytes after them, from a connection."""

    def __init__(self, link: socket.socket, token: str = "") -> None:
        self._file = link.makefile("rb")
        self._token = token

    def message(self) -> Message | None:
        """Read the next message; None if the peer has closed. Raises ConnectionError without the token."""
        line = self._file.readline(_MOST)
        if not line:
            return None
        try:
            parsed: Message = json.loads(line)
        except ValueError:
            raise ConnectionError("no message") from None
        if not isinstance(parsed, dict) or parsed.get("token", "") != self._token:
            raise ConnectionError("a message of a stranger")
        return parsed

    def exactly(self, size: int) -> bytes:
        """Read exactly `size` bytes. Raises ConnectionError if there are fewer."""
        data = self._file.read(size)
        if len(data) != size:
            raise ConnectionError(f"{len(data)} of {size} bytes")
        return data

    def close(self) -> None:
        self._file.close()


def until(moment: float) -> None:
    """Sleep until a time of time.monotonic()."""
    remaining_s = moment - time.monotonic()
    if remaining_s > 0:
        time.sleep(remaining_s)


def punctual() -> None:
    """Let the calling thread, and threads that it starts, wake up before other work of the host.

    They sleep nearly all the time. Without the permission, they wake up by the normal schedule.
    """
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
