"""Server-sent events of the live state: one poll for all clients, and a ring buffer of recent events.

A client that reconnects with the id of its last event resumes there while the buffer has the next one;
otherwise it gets a snapshot. A client that reads too slowly is disconnected.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse
from starlette.types import Message, Send

from penstock.errors import PenstockError
from penstock.parts.server.live.parts import Event, LiveState
from penstock.parts.server.live.view import View

#: maximum number of open streams
MOST_STREAMS = 32
#: of them with tokens of users; the rest is reserved for the server's token
MOST_USER_STREAMS = 24
#: interval between checks that a user's token is still valid
_TOKEN_CHECK_S = 10.0
#: capacity of the ring buffer
_MOST_EVENTS = 600
_MOST_BYTES = 8 << 20
_POLL_S = 0.4
#: interval of comments that keep an idle connection open
_KEEPALIVE_S = 10.0
#: timeout of the first poll, which precedes a snapshot
_FIRST_POLL_S = 5.0
#: timeout of sending a chunk
SEND_TIMEOUT_S = 15.0


@dataclass(frozen=True)
class _Event:
    number: int
    name: str
    value: Any
    text: bytes
    created_s: float


class Hub:
    """Polls the live state while streams are open. All methods run in one event loop."""

    def __init__(self, live_state: LiveState, poll_s: float = _POLL_S) -> None:
        self._live_state = live_state
        self._poll_s = poll_s
        self._epoch = secrets.token_hex(4)
        self._ring: deque[_Event] = deque()
        self._bytes = 0
        self._next = 1
        self._streams = 0
        self._user_streams = 0
        self._published = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._suspending: asyncio.Task[None] | None = None

    @property
    def full(self) -> bool:
        """True if no further stream may be opened."""
        return self._streams >= MOST_STREAMS

    @property
    def full_for_users(self) -> bool:
        """True if no further stream with a user's token may be opened."""
        return self._user_streams >= MOST_USER_STREAMS

    async def follow(
        self, last: str | None, interval_s: float, view: View | None = None
    ) -> AsyncIterator[bytes]:
        """Stream events from now on, or after the event with id `last`; at most one `state` per `interval_s`.

        With a `view`, only the values that it shows, when they change. The stream ends with its token.
        """
        is_user = view is not None and view.reader is not None
        self._streams += 1
        self._user_streams += is_user
        last_value: Any = None
        checked_s = time.monotonic()
        try:
            await self._start()
            next_number = self._resume_at(last)
            state_s = 0.0
            yield b"retry: 1500\n\n"
            if view is not None:
                yield _format_event("who", {"user": view.reader})
            while True:
                if view is not None and time.monotonic() - checked_s >= _TOKEN_CHECK_S:
                    # if the catalogue is unavailable, the last result counts
                    with contextlib.suppress(PenstockError):
                        if not await run_in_threadpool(view.allowed):
                            return
                    checked_s = time.monotonic()
                if next_number is None or (self._ring and next_number < self._ring[0].number):
                    next_number = self._next
                    for name, value in await run_in_threadpool(self._live_state.snapshot):
                        if view is not None:
                            value = view.of(name, value)
                            if value is None:
                                continue
                            last_value = value
                        yield _format_numbered(f"{self._epoch}-{next_number - 1}", name, value)
                    state_s = time.monotonic()
                    continue
                published = self._published
                pending = [e for e in self._ring if e.number >= next_number]
                next_number = self._next
                chunks = []
                for event in pending:
                    if view is not None:
                        value = view.of(event.name, event.value)
                        if value is not None and value != last_value:
                            last_value = value
                            chunks.append(
                                _format_numbered(f"{self._epoch}-{event.number}", event.name, value)
                            )
                        continue
                    if event.name == "state":
                        if event.created_s - state_s < 0.9 * interval_s:
                            continue
                        state_s = event.created_s
                    chunks.append(event.text)
                if chunks:
                    yield b"".join(chunks)
                    continue
                try:
                    async with asyncio.timeout(_KEEPALIVE_S):
                        await published.wait()
                except TimeoutError:
                    yield b": still here\n\n"
        finally:
            self._streams -= 1
            self._user_streams -= is_user
            if not self._streams:
                self._stop()

    def _resume_at(self, last: str | None) -> int | None:
        """The number of the next event; None if a snapshot must come first."""
        epoch, _, digits = (last or "").partition("-")
        if epoch != self._epoch or not digits.isascii() or not digits.isdigit() or len(digits) > 15:
            return None
        number = int(digits) + 1
        oldest = self._ring[0].number if self._ring else self._next
        return number if oldest <= number <= self._next else None

    async def _start(self) -> None:
        self._live_state.active = True
        if not self._tasks:
            first = [asyncio.create_task(self._publish(poll)) for poll in self._live_state.polls]
            self._tasks = [
                asyncio.create_task(self._poll_periodically(poll))
                for poll in self._live_state.polls
            ]
            # a snapshot before the first poll would be empty; do not wait for a poll that hangs
            await asyncio.wait(first, timeout=_FIRST_POLL_S)

    def _stop(self) -> None:
        """Stop polling. Cleans up in a task of its own, since the current task may have been cancelled."""
        self._live_state.active = False
        while self._tasks:
            self._tasks.pop().cancel()
        # later changes have no event: a client that reconnects gets a snapshot
        self._ring.clear()
        self._bytes = 0
        self._next += 1
        self._suspending = asyncio.create_task(self._suspend())

    async def _suspend(self) -> None:
        if not self._streams:
            await run_in_threadpool(self._live_state.suspend)

    async def close(self) -> None:
        """Stop polling, even with open streams."""
        self._live_state.active = False
        while self._tasks:
            self._tasks.pop().cancel()
        await run_in_threadpool(self._live_state.suspend)

    async def _poll_periodically(self, poll: Callable[[], list[Event]]) -> None:
        while True:
            await asyncio.sleep(self._poll_s)
            with contextlib.suppress(Exception):  # other polls continue
                await self._publish(poll)

    async def _publish(self, poll: Callable[[], list[Event]]) -> None:
        events = await run_in_threadpool(poll)
        for name, value in events:
            text = _format_numbered(f"{self._epoch}-{self._next}", name, value)
            self._ring.append(_Event(self._next, name, value, text, time.monotonic()))
            self._next += 1
            self._bytes += len(text)
        while self._ring and (len(self._ring) > _MOST_EVENTS or self._bytes > _MOST_BYTES):
            self._bytes -= len(self._ring.popleft().text)
        if events:
            published, self._published = self._published, asyncio.Event()
            published.set()


def _format_numbered(event_id: str, name: str, value: Any) -> bytes:
    return f"id: {event_id}\n".encode() + _format_event(name, value)


def _format_event(name: str, value: Any) -> bytes:
    data = json.dumps(value, separators=(",", ":"), default=str)
    return f"event: {name}\ndata: {data}\n\n".encode()


class EventStreamResponse(StreamingResponse):
    """A stream of server-sent events that ends if the client stops reading."""

    media_type = "text/event-stream"

    async def stream_response(self, send: Send) -> None:
        """Send the stream, each chunk within `SEND_TIMEOUT_S`."""

        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await send(message)

        close_iterator: Callable[[], Awaitable[None]] | None = getattr(
            self.body_iterator, "aclose", None
        )
        try:
            with contextlib.suppress(TimeoutError):
                await super().stream_response(send_in_time)
        finally:
            if close_iterator is not None:
                await close_iterator()
