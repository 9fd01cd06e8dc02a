"""Limit of the connections of one port, and of the rest of refused requests."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import AsyncIterator

#: maximum number of connections; at the limit, a new one replaces the one that was idle longest
MOST_CONNECTIONS = 512
#: limits of what is discarded of a refused request: bytes and seconds
DISCARDED_BYTES, DISCARD_S = 32 << 20, 2.0


def most_connections() -> int:
    """Maximum number of connections of one port, by this process's limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(8, min(MOST_CONNECTIONS, soft // 4))


async def discard(sizes: AsyncIterator[int]) -> None:
    """Read the rest of a refused request by iterating over the sizes of its parts [bytes].

    If a connection is closed earlier, its response is lost: most clients read it after they have sent all.
    """
    discarded = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DISCARD_S):
            async for size in sizes:
                discarded += size
                if discarded >= DISCARDED_BYTES:
                    return
