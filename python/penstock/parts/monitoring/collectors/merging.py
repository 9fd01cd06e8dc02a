"""Messages of many connections into one intake."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

from penstock.parts.monitoring.collectors.collector import Intake, Read

#: a message, its bytes, and who waits for it
_Waiting = tuple[tuple[Any, ...], int, asyncio.Future[Read]]
#: bytes of messages that are kept together: at six a point, no more points than a batch may have
TOGETHER_BYTES = 8 << 20


class Together:
    """Messages of many connections into one intake, from one event loop: those that come during a write share
    the next, and its sync."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._waiting: deque[_Waiting] = deque()
        self._at_work: asyncio.Task[None] | None = None

    async def read(self, protocol: str, message: bytes, *words: Any) -> Read:
        """As `Intake.read`."""
        done: asyncio.Future[Read] = asyncio.get_running_loop().create_future()
        self._waiting.append(((protocol, message, *words), len(message), done))
        if self._at_work is None or self._at_work.done():
            self._at_work = asyncio.create_task(self._work())
        return await done

    async def stop(self) -> None:
        """Returns once nothing waits any more."""
        if self._at_work is not None:
            await self._at_work

    async def _work(self) -> None:
        while self._waiting:
            taken: list[_Waiting] = []
            size = 0
            while self._waiting and (not taken or size + self._waiting[0][1] <= TOGETHER_BYTES):
                taken.append(self._waiting.popleft())
                size += taken[-1][1]
            found: Sequence[Read | BaseException]
            try:
                messages = [message for message, _, _ in taken]
                found = await asyncio.to_thread(self._intake.read_all, messages)
            except Exception as error:
                found = [error] * len(taken)
            for (_, _, done), what in zip(taken, found, strict=True):
                if done.done():  # its connection is gone
                    continue
                if isinstance(what, BaseException):
                    done.set_exception(what)
                else:
                    done.set_result(what)
