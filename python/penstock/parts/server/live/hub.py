"""One look for all who watch: what changed is kept in a short ring of events, from which each is sent them.

A watcher that comes back with the number of the last event it had goes on from there while the ring still has
it, else begins with a snapshot. Who takes too long to read is cut off.
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
from penstock.parts.server.live.parts import Event, Parts
from penstock.parts.server.live.view import View

#: watchers at once
MOST_WATCHERS = 32
#: of them with tokens of users: the owner of the server finds a place
MOST_OF_USERS = 24
#: how often it is asked whether a user's token is still worth something
_ASK_S = 10.0
#: events, and their bytes, that are kept for who comes back or lags
_MOST_EVENTS = 600
_MOST_BYTES = 8 << 20
_TICK_S = 0.4
#: nothing to say for so long: a comment keeps the connection
_STILL_S = 10.0
#: the first look, which a snapshot waits for
_FIRST_S = 5.0
#: who reads nothing for so long has gone
SLOW_S = 15.0


@dataclass(frozen=True)
class _Event:
    number: int
    name: str
    value: Any
    text: bytes
    made: float


class Hub:
    """The looks, while anybody watches; all of it in one event loop."""

    def __init__(self, parts: Parts, tick_s: float = _TICK_S) -> None:
        self._parts = parts
        self._tick_s = tick_s
        self._epoch = secrets.token_hex(4)
        self._ring: deque[_Event] = deque()
        self._bytes = 0
        self._next = 1
        self._watchers = 0
        self._users = 0
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._resting: asyncio.Task[None] | None = None

    @property
    def full(self) -> bool:
        """Whether no more may watch."""
        return self._watchers >= MOST_WATCHERS

    @property
    def full_of_users(self) -> bool:
        """Whether no more with the token of a user may watch."""
        return self._users >= MOST_OF_USERS

    async def follow(
        self, last: str | None, interval_s: float, view: View | None = None
    ) -> AsyncIterator[bytes]:
        """Events from now on, or after the `last` one that was had; of `state` one every `interval_s`.

        With a `view` only what it shows, each when it has changed; it ends where its token is revoked.
        """
        ofuser = view is not None and view.sees is not None
        self._watchers += 1
        self._users += ofuser
        shown: Any = None
        asked = time.monotonic()
        try:
            await self._begin()
            at = self._resumed(last)
            stated = 0.0
            yield b"retry: 1500\n\n"
            if view is not None:
                yield _said("who", {"user": view.sees})
            while True:
                if view is not None and time.monotonic() - asked >= _ASK_S:
                    with contextlib.suppress(PenstockError):  # a catalogue that is away: as before
                        if not await run_in_threadpool(view.allowed):
                            return
                    asked = time.monotonic()
                if at is None or (self._ring and at < self._ring[0].number):
                    at = self._next
                    for name, value in await run_in_threadpool(self._parts.snapshot):
                        if view is not None:
                            value = view.of(name, value)
                            if value is None:
                                continue
                            shown = value
                        yield _text(f"{self._epoch}-{at - 1}", name, value)
                    stated = time.monotonic()
                    continue
                news = self._news
                pending = [e for e in self._ring if e.number >= at]
                at = self._next
                out = []
                for event in pending:
                    if view is not None:
                        value = view.of(event.name, event.value)
                        if value is not None and value != shown:
                            shown = value
                            out.append(_text(f"{self._epoch}-{event.number}", event.name, value))
                        continue
                    if event.name == "state":
                        if event.made - stated < 0.9 * interval_s:
                            continue
                        stated = event.made
                    out.append(event.text)
                if out:
                    yield b"".join(out)
                    continue
                try:
                    async with asyncio.timeout(_STILL_S):
                        await news.wait()
                except TimeoutError:
                    yield b": still here\n\n"
        finally:
            self._watchers -= 1
            self._users -= ofuser
            if not self._watchers:
                self._rest()

    def _resumed(self, last: str | None) -> int | None:
        """The number to go on with; None where a snapshot must come first."""
        epoch, _, number = (last or "").partition("-")
        if epoch != self._epoch or not number.isascii() or not number.isdigit() or len(number) > 15:
            return None
        at = int(number) + 1
        oldest = self._ring[0].number if self._ring else self._next
        return at if oldest <= at <= self._next else None

    async def _begin(self) -> None:
        self._parts.awake = True
        if not self._tasks:
            first = [asyncio.create_task(self._look(look)) for look in self._parts.looks]
            self._tasks = [asyncio.create_task(self._looks(look)) for look in self._parts.looks]
            # a snapshot without a first look would be empty; one that hangs is not waited for
            await asyncio.wait(first, timeout=_FIRST_S)

    def _rest(self) -> None:
        """Nobody watches. What is taken back is so in a task of its own: this one may have been cancelled."""
        self._parts.awake = False
        while self._tasks:
            self._tasks.pop().cancel()
        # what happens while nobody looks is in no event: who comes back begins with a snapshot
        self._ring.clear()
        self._bytes = 0
        self._next += 1
        self._resting = asyncio.create_task(self._taken_back())

    async def _taken_back(self) -> None:
        if not self._watchers:
            await run_in_threadpool(self._parts.rest)

    async def close(self) -> None:
        """The server ends, whoever watches."""
        self._parts.awake = False
        while self._tasks:
            self._tasks.pop().cancel()
        await run_in_threadpool(self._parts.rest)

    async def _looks(self, look: Callable[[], list[Event]]) -> None:
        while True:
            await asyncio.sleep(self._tick_s)
            with contextlib.suppress(Exception):  # the page goes on with what can be had
                await self._look(look)

    async def _look(self, look: Callable[[], list[Event]]) -> None:
        made = await run_in_threadpool(look)
        for name, value in made:
            text = _text(f"{self._epoch}-{self._next}", name, value)
            self._ring.append(_Event(self._next, name, value, text, time.monotonic()))
            self._next += 1
            self._bytes += len(text)
        while self._ring and (len(self._ring) > _MOST_EVENTS or self._bytes > _MOST_BYTES):
            self._bytes -= len(self._ring.popleft().text)
        if made:
            news, self._news = self._news, asyncio.Event()
            news.set()


def _text(number: str, name: str, value: Any) -> bytes:
    return f"id: {number}\n".encode() + _said(name, value)


def _said(name: str, value: Any) -> bytes:
    said = json.dumps(value, separators=(",", ":"), default=str)
    return f"event: {name}\ndata: {said}\n\n".encode()


class Watched(StreamingResponse):
    """A stream that ends where nobody reads it."""

    media_type = "text/event-stream"

    async def stream_response(self, send: Send) -> None:
        """As that of Starlette, each piece within `SLOW_S`."""

        async def patient(message: Message) -> None:
            async with asyncio.timeout(SLOW_S):
                await send(message)

        ended: Callable[[], Awaitable[None]] | None = getattr(self.body_iterator, "aclose", None)
        try:
            with contextlib.suppress(TimeoutError):
                await super().stream_response(patient)
        finally:
            if ended is not None:
                await ended()
