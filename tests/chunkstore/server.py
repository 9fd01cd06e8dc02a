"""Common part of both servers: a listening socket, a thread for each connection, an end when stdin ends."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable

from tests.chunkstore.wire import TOKEN_VARIABLE, Reader, punctual

Serve = Callable[[socket.socket, Reader], None]

BACKLOG = 128


def serve(
    handle: Serve, done: Callable[[], None], *, backlog: int = BACKLOG, greet: Callable[[], None]
) -> None:
    """Print the port, serve connections by `handle` until stdin ends, then call `done`.

    The accepting thread calls `greet` for each connection before it accepts the next.
    """
    punctual()
    listening = socket.create_server(("127.0.0.1", 0), backlog=backlog)
    print(listening.getsockname()[1], flush=True)

    def ended() -> None:
        sys.stdin.read()
        done()
        os._exit(0)  # without waiting for threads that wait for their peers

    threading.Thread(target=ended, daemon=True).start()
    while True:
        link, _ = listening.accept()
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        greet()
        threading.Thread(target=_connection, args=(handle, link), daemon=True).start()


def _connection(handle: Serve, link: socket.socket) -> None:
    reader = Reader(link, os.environ[TOKEN_VARIABLE])
    with contextlib.suppress(ConnectionError, BrokenPipeError), link:
        handle(link, reader)
    reader.close()
