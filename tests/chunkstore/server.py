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
    handle: Serve,
    on_end: Callable[[], None],
    *,
    backlog: int = BACKLOG,
    on_accept: Callable[[], None],
) -> None:
    """Print the port, serve connections by `handle` until stdin ends, then call `on_end`.

    The accepting thread calls `on_accept` for each connection before it accepts the next.
    """
    punctual()
    listening = socket.create_server(("127.0.0.1", 0), backlog=backlog)
    print(listening.getsockname()[1], flush=True)

    def stop_at_end_of_input() -> None:
        sys.stdin.read()
        on_end()
        os._exit(0)  # without waiting for threads that wait for their peers

    threading.Thread(target=stop_at_end_of_input, daemon=True).start()
    while True:
        link, _ = listening.accept()
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        on_accept()
        threading.Thread(target=_connection, args=(handle, link), daemon=True).start()


def _connection(handle: Serve, link: socket.socket) -> None:
    reader = Reader(link, os.environ[TOKEN_VARIABLE])
    with contextlib.suppress(ConnectionError, BrokenPipeError), link:
        handle(link, reader)
    reader.close()
