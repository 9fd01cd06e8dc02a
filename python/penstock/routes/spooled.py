"""Responses of any length: written to a temporary file, then sent in chunks.

The server's memory thus depends neither on the number of concurrent requests nor on the speed of clients.
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
from penstock.routes.memory import release_free_memory
from penstock.state import state_dir

#: maximum number of responses that are created at the same time
CONCURRENT = 1
#: size of a chunk
_CHUNK_BYTES = 1 << 18
T = TypeVar("T")


@dataclass(frozen=True)
class SpooledResponse:
    """A response: its parts (iterated once), their media type, and headers."""

    parts: Iterable[bytes]
    media: str
    headers: Mapping[str, str]


class ConcurrencyLimit:
    """Run memory-intensive actions, at most `CONCURRENT` at a time, and release free memory after each."""

    def __init__(self) -> None:
        self._semaphore = asyncio.Semaphore(CONCURRENT)

    async def run(self, action: Callable[[], T]) -> T:
        """Run `action` in a thread; returns its result."""
        async with self._semaphore:
            try:
                return await run_in_threadpool(action)
            finally:
                release_free_memory()

    async def respond(self, create: Callable[[], SpooledResponse]) -> StreamingResponse:
        """Response, once it is complete. Raises PenstockError if the disk is full."""

        def write_file() -> tuple[SpooledResponse, IO[bytes], int]:
            response = create()
            try:
                file = tempfile.TemporaryFile(dir=state_dir())  # noqa: SIM115 - closed after sending
                try:
                    for part in response.parts:
                        file.write(part)
                    size = file.tell()
                    file.seek(0)
                except BaseException:
                    file.close()
                    raise
            except OSError as error:
                raise PenstockError(f"{state_dir()}: {error.strerror}; no answer") from error
            return response, file, size

        response, file, size = await self.run(write_file)
        headers = {**response.headers, "Content-Length": str(size)}
        return StreamingResponse(_chunks(file), media_type=response.media, headers=headers)


async def _chunks(file: IO[bytes]) -> AsyncIterator[bytes]:
    with file:
        while chunk := await run_in_threadpool(file.read, _CHUNK_BYTES):
            yield chunk
