"""Server that announces itself, and HTTP/1.1 with a limit on connections."""

from __future__ import annotations

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

#: timeout of a connection without a complete request [s]
IDLE_TIMEOUT_S = 20.0
#: backlog of listen(2): connections that wait for acceptance
BACKLOG = 128


class AnnouncedServer(uvicorn.Server):
    """A server that calls `announce` as soon as it answers requests."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._announce()


def limited_protocol(most: int) -> type[H11Protocol]:
    """A uvicorn protocol class with at most `most` connections.

    At the limit, a new connection replaces the one that was idle longest. One with an incomplete request
    counts as idle. If all connections are being answered (event streams included), the new one is closed.
    """
    connections: OrderedDict[LimitedProtocol, None] = OrderedDict()

    class LimitedProtocol(H11Protocol):
        _idle_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            if len(connections) >= most:
                idle = next((c for c in connections if not c.answering), None)
                if idle is None:
                    super().connection_made(transport)
                    transport.abort()
                    return
                del connections[idle]
                idle.transport.abort()
            connections[self] = None
            super().connection_made(transport)
            self._restart_timer()

        def data_received(self, data: bytes) -> None:
            if self in connections:
                connections.move_to_end(self)
            self._restart_timer()
            super().data_received(data)

        def connection_lost(self, exc: Exception | None) -> None:
            connections.pop(self, None)
            if self._idle_timer is not None:
                self._idle_timer.cancel()
            super().connection_lost(exc)

        @property
        def answering(self) -> bool:
            """True while the response to a complete request is sent."""
            cycle = self.cycle
            return cycle is not None and not (cycle.response_complete or cycle.more_body)

        def _restart_timer(self) -> None:
            if self._idle_timer is not None:
                self._idle_timer.cancel()
            self._idle_timer = self.loop.call_later(IDLE_TIMEOUT_S, self._on_timeout)

        def _on_timeout(self) -> None:
            if not self.answering:
                self.transport.abort()

    return LimitedProtocol
