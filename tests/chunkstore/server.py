"""What both servers are: a listening socket, a thread for each connection, an end when stdin ends."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable

from tests.chunkstore.wire import WORD, Reader, punctual

Serve = Callable[[socket.socket, Reader], None]

BACKLOG = 128


def serve(
    one: Serve, done: Callable[[], None], *, backlog: int = BACKLOG, greet: Callable[[], None]
) -> None:
    """Prints the port, serves connections by `one` until stdin ends, then calls `done`.

    `greet` is what the accepting thread itself does for each connection before it takes the next.
    """
    punctual()
    listening = socket.create_server(("127.0.0.1", 0), backlog=backlog)
    print(listening.getsockname()[1], flush=True)

    def ended() -> None:
        sys.stdin.read()
        done()
        os._exit(0)  # threads that wait for their peers are not waited for

    threading.Thread(target=ended, daemon=True).start()
    while True:
        link, _ = listening.accept()
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        greet()
        threading.Thread(target=_connection, args=(one, link), daemon=True).start()


def _connection(one: Serve, link: socket.socket) -> None:
    reader = Reader(link, os.environ[WORD])
    with contextlib.suppress(ConnectionError, BrokenPipeError), link:
        one(link, reader)
    reader.close()
