"""Client of the admin sockets of Ceph's daemons.

A command is JSON that ends with NUL. The answer is its length, 4 bytes in big-endian order, and the content.
The daemon then closes the connection; it serves one connection at a time (src/common/admin_socket.cc).
"""

from __future__ import annotations

import asyncio
import json

from penstock.parts.monitoring.collectors.collector import FailedError

#: maximum size of an answer; `perf schema` of an OSD has some 100 KB, `perf dump` of 1,000 images some 3 MB
MOST_BYTES = 4 << 20


async def ask(path: str, command: str) -> bytes:
    """Answer to a command. FailedError or OSError if there is none; without a timeout."""
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        writer.write(json.dumps({"prefix": command, "format": "json"}).encode() + b"\0")
        await writer.drain()
        return await answer(reader)
    finally:
        writer.transport.abort()


async def answer(reader: asyncio.StreamReader) -> bytes:
    """Content of an answer. FailedError if it is incomplete or too large."""
    try:
        size = int.from_bytes(await reader.readexactly(4), "big")
        if size > MOST_BYTES:
            raise FailedError(f"found an answer of {size} bytes; expected {MOST_BYTES} at most")
        return await reader.readexactly(size)
    except asyncio.IncompleteReadError as error:
        of = "the 4 of a length" if error.expected == 4 else str(error.expected)
        raise FailedError(f"found {len(error.partial)} bytes and the end; expected {of}") from None
