"""Ports for servers under test."""

from __future__ import annotations

import itertools
import os
import socket

#: below the ports that the kernel assigns to connections (32768 and above), so that no connection uses one
_FIRST, _EACH = 20_000, 800
_next = itertools.count(os.getpid())


def free_port() -> int:
    """A free TCP port of 127.0.0.1 from the range of this test process."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 15
    for _ in range(_EACH):
        port = _FIRST + _EACH * worker + next(_next) % _EACH
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError(f"no free port from {_FIRST + _EACH * worker} on")
