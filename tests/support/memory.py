"""Lock pages of files in memory: a kernel with DAMON reclaims pages that are unused for some seconds."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Iterator
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def locked_in_memory(path: Path) -> Iterator[None]:
    """Read a file and lock its pages (mlock(2)); OSError if the kernel refuses."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        first = ctypes.c_char.from_buffer(mapped)
        if _libc.mlock(ctypes.byref(first), ctypes.c_size_t(len(mapped))):
            raise OSError(ctypes.get_errno(), f"mlock of {path}")
        del first
        yield
