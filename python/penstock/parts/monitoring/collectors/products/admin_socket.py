"""Asking a daemon of Ceph by its admin socket.

A command goes out as JSON with a NUL after it; the answer is its length in four bytes, the highest first, and
so many bytes. The daemon then closes, and serves one after the other (src/common/admin_socket.cc).
"""

from __future__ import annotations

import asyncio
import json

from penstock.parts.monitoring.collectors.collector import FailedError

#: of one answer; `perf schema` of an OSD has some 100 KB, `perf dump` of 1,000 images some 3 MB
MOST_BYTES = 4 << 20


async def ask(path: str, command: str) -> bytes:
    """The answer to a command. FailedError or OSError where there is none; it may wait for ever."""
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        writer.write(json.dumps({"prefix": command, "format": "json"}).encode() + b"\0")
        await writer.drain()
        return await answer(reader)
    finally:
        writer.transport.abort()


async def answer(reader: asyncio.StreamReader) -> bytes:
    """What comes after the length. FailedError where less comes, or more than is taken."""
    try:
        size = int.from_bytes(await reader.readexactly(4), "big")
        if size > MOST_BYTES:
            raise FailedError(f"found an answer of {size} bytes; expected {MOST_BYTES} at most")
        return await reader.readexactly(size)
    except asyncio.IncompleteReadError as error:
        of = "the 4 of a length" if error.expected == 4 else str(error.expected)
        raise FailedError(f"found {len(error.partial)} bytes and the end; expected {of}") from None
