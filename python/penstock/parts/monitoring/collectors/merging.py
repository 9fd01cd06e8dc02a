"""Batching of the messages of many connections to one intake."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

from penstock.parts.monitoring.collectors.collector import Intake, Read

#: a message, its size [bytes], and the future of its result
_Waiting = tuple[tuple[Any, ...], int, asyncio.Future[Read]]
#: size of the messages of one batch: at 6 bytes a point, no more points than a batch may have
TOGETHER_BYTES = 8 << 20


class Together:
    """Writes messages of many connections, in one event loop, to one intake: those that arrive during a write
    share the next one, and its fsync."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._waiting: deque[_Waiting] = deque()
        self._at_work: asyncio.Task[None] | None = None

    async def read(self, protocol: str, message: bytes, *arguments: Any) -> Read:
        """As `Intake.read`."""
        done: asyncio.Future[Read] = asyncio.get_running_loop().create_future()
        self._waiting.append(((protocol, message, *arguments), len(message), done))
        if self._at_work is None or self._at_work.done():
            self._at_work = asyncio.create_task(self._work())
        return await done

    async def stop(self) -> None:
        """Wait until all messages are written."""
        if self._at_work is not None:
            await self._at_work

    async def _work(self) -> None:
        while self._waiting:
            taken: list[_Waiting] = []
            size = 0
            while self._waiting and (not taken or size + self._waiting[0][1] <= TOGETHER_BYTES):
                taken.append(self._waiting.popleft())
                size += taken[-1][1]
            results: Sequence[Read | BaseException]
            try:
                messages = [message for message, _, _ in taken]
                results = await asyncio.to_thread(self._intake.read_all, messages)
            except Exception as error:
                results = [error] * len(taken)
            for (_, _, future), result in zip(taken, results, strict=True):
                if future.done():  # the connection was closed
                    continue
                if isinstance(result, BaseException):
                    future.set_exception(result)
                else:
                    future.set_result(result)
