"""Messages: a line of JSON, then bytes; and waiting until a moment of the clock, on time if it may be."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from typing import Any

#: largest header; a peer that sends more is none of ours
_MOST = 4096

Message = dict[str, Any]
#: where the servers, which are processes of root, find the word that only their own clients know
WORD = "CHUNKSTORE_WORD"


def send(link: socket.socket, message: Message) -> None:
    link.sendall(json.dumps(message).encode() + b"\n")


class Reader:
    """Reads messages, and the bytes behind them, from a connection; those with the store's own word alone."""

    def __init__(self, link: socket.socket, word: str = "") -> None:
        self._file = link.makefile("rb")
        self._word = word

    def message(self) -> Message | None:
        """The next message; None where the peer has closed. Raises ConnectionError for a stranger's."""
        line = self._file.readline(_MOST)
        if not line:
            return None
        try:
            found: Message = json.loads(line)
        except ValueError:
            raise ConnectionError("no message") from None
        if not isinstance(found, dict) or found.get("word", "") != self._word:
            raise ConnectionError("a message of a stranger")
        return found

    def exactly(self, size: int) -> bytes:
        """So many bytes. Raises ConnectionError where there are fewer."""
        data = self._file.read(size)
        if len(data) != size:
            raise ConnectionError(f"{len(data)} of {size} bytes")
        return data

    def close(self) -> None:
        self._file.close()


def until(moment: float) -> None:
    """Sleeps until a moment of time.monotonic()."""
    left = moment - time.monotonic()
    if left > 0:
        time.sleep(left)


def punctual() -> None:
    """Lets the calling thread, and threads that it starts, wake up before what else the host does.

    They sleep nearly all the time. Where that is not allowed they wake up when they do.
    """
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
