"""HTTP on so many connections and no more: those that say nothing make room for those that ask."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

#: how long a connection may be silent before it has asked for anything, or in the middle of it [s]
PATIENCE_S = 20.0
#: connections that are accepted at once, before the first of them can make room
BACKLOG = 128


def bounded(most: int) -> type[H11Protocol]:
    """A protocol of uvicorn with at most so many connections.

    One more takes the place of the one that was silent longest, a request in the middle of its head or body
    among them. Where all are being answered (streams of events, too), it is closed itself.
    """
    opened: OrderedDict[Bounded, None] = OrderedDict()

    class Bounded(H11Protocol):
        _patience: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            if len(opened) >= most:
                silent = next((one for one in opened if not one.answering), None)
                if silent is None:
                    super().connection_made(transport)
                    transport.abort()
                    return
                del opened[silent]
                silent.transport.abort()
            opened[self] = None
            super().connection_made(transport)
            self._wait()

        def data_received(self, data: bytes) -> None:
            if self in opened:
                opened.move_to_end(self)
            self._wait()
            super().data_received(data)

        def connection_lost(self, exc: Exception | None) -> None:
            opened.pop(self, None)
            if self._patience is not None:
                self._patience.cancel()
            super().connection_lost(exc)

        @property
        def answering(self) -> bool:
            """Whether it has asked for something, all of it, and the answer goes on."""
            cycle = self.cycle
            return cycle is not None and not (cycle.response_complete or cycle.more_body)

        def _wait(self) -> None:
            if self._patience is not None:
                self._patience.cancel()
            self._patience = self.loop.call_later(PATIENCE_S, self._silent)

        def _silent(self) -> None:
            if not self.answering:
                self.transport.abort()

    return Bounded
