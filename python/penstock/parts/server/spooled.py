"""Answers of any length: made a few at a time into files, and sent from there in small parts.

What a server holds in memory so depends neither on how many ask at once, nor on how fast they read.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import IO, TypeVar

from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

from penstock.errors import PenstockError
from penstock.parts.server.memory import give_back
from penstock.state import state_dir

#: answers that are made at a time; others wait for their turn
AT_ONCE = 1
#: what is sent at a time [bytes]
_PART_BYTES = 1 << 18
T = TypeVar("T")


@dataclass(frozen=True)
class Made:
    """An answer: its parts, which are read once, their media type, and headers."""

    parts: Iterable[bytes]
    media: str
    headers: Mapping[str, str]


class Turns:
    """Lets `AT_ONCE` of what needs much memory go on at a time; its memory is given back after it."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(AT_ONCE)

    async def take(self, act: Callable[[], T]) -> T:
        """What it gives, in a thread."""
        async with self._free:
            try:
                return await run_in_threadpool(act)
            finally:
                give_back()

    async def answer(self, make: Callable[[], Made]) -> StreamingResponse:
        """The answer, once all of it is made. PenstockError where the disk has no room for it."""

        def written() -> tuple[Made, IO[bytes], int]:
            made = make()
            try:
                file = tempfile.TemporaryFile(dir=state_dir())  # noqa: SIM115 - closed once it is sent
                try:
                    for part in made.parts:
                        file.write(part)
                    size = file.tell()
                    file.seek(0)
                except BaseException:
                    file.close()
                    raise
            except OSError as error:
                raise PenstockError(f"{state_dir()}: {error.strerror}; no answer") from error
            return made, file, size

        made, file, size = await self.take(written)
        headers = {**made.headers, "Content-Length": str(size)}
        return StreamingResponse(_parts(file), media_type=made.media, headers=headers)


async def _parts(file: IO[bytes]) -> AsyncIterator[bytes]:
    with file:
        while part := await run_in_threadpool(file.read, _PART_BYTES):
            yield part
