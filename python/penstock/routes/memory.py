"""Release of unused memory to the operating system by a long-running server."""

from __future__ import annotations

import contextlib
import ctypes

import pyarrow as pa

#: mallopt(3)
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_LARGE_BYTES, _ARENAS = 1 << 18, 2


def return_large_blocks() -> None:
    """Let the C library map each large block separately, so that free(3) returns it to the operating system.

    Otherwise every thread retains the memory of its largest response.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        libc.mallopt(_M_ARENA_MAX, _ARENAS)
        pa.set_memory_pool(pa.system_memory_pool())


def release_free_memory() -> None:
    """Return free memory to the operating system."""
    pa.default_memory_pool().release_unused()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
