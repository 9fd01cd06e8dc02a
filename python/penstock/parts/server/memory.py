"""What a long-running server gives back to the host once it has no use for it."""

from __future__ import annotations

import contextlib
import ctypes

import pyarrow as pa

#: mallopt(3)
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_LARGE_BYTES, _ARENAS = 1 << 18, 2


def return_large_blocks() -> None:
    """Makes the C library map each large block by itself, so that it goes back when it is freed.

    Otherwise each of many threads keeps what its largest answer needed.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        libc.mallopt(_M_ARENA_MAX, _ARENAS)
        pa.set_memory_pool(pa.system_memory_pool())


def give_back() -> None:
    """Gives back what is free."""
    pa.default_memory_pool().release_unused()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
