"""Share of a file tree that is in the page cache, and its eviction."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_CACHESTAT = 451  # all architectures, Linux 6.5
_PROT_READ, _MAP_SHARED = 1, 1

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
_MAP_FAILED = ctypes.c_void_p(-1).value


class _Range(ctypes.Structure):
    _fields_ = [("offset", ctypes.c_uint64), ("length", ctypes.c_uint64)]


class _Cachestat(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in ("cached", "dirty", "writeback", "evicted", "recently_evicted")
    ]


@dataclass(frozen=True)
class Residency:
    """Page-cache contents of a tree: files, total pages, cached pages."""

    files: int
    pages: int
    resident_pages: int

    @property
    def fraction(self) -> float:
        """Share of the pages that is in the page cache, 0..1 (0 for an empty tree)."""
        return self.resident_pages / self.pages if self.pages else 0.0

    @property
    def resident_bytes(self) -> int:
        """Bytes in the page cache, in complete pages."""
        return self.resident_pages * _PAGE_BYTES


def residency(path: str | os.PathLike[str]) -> Residency:
    """Page-cache residency of a file, or of all regular files under a directory (links not followed).

    By cachestat(2), before Linux 6.5 by mincore(2), which is correct only for files that we own.
    """
    files = pages = resident = 0
    for _, fd, size in _opened_files(Path(path)):
        files += 1
        pages += -(-size // _PAGE_BYTES)
        resident += resident_pages_of(fd, size)
    return Residency(files, pages, min(resident, pages))


def drop_file_cache(path: str | os.PathLike[str]) -> Residency:
    """Write back and evict every file of a tree from the page cache; returns the remaining pages."""
    for name, fd, _ in _opened_files(Path(path)):
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EROFS):
                raise OSError(error.errno, error.strerror, str(name)) from error
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    return residency(path)


def drop_caches() -> bool:
    """Write everything back and drop the host's clean page cache, dentries and inodes (root).

    False if not permitted. Slows the entire host for a while; no other effect.
    """
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
    except OSError:
        return False
    return True


def _opened_files(path: Path) -> Iterator[tuple[Path, int, int]]:
    for name in _regular_files(path):
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOATIME)
        except PermissionError:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            yield name, fd, os.fstat(fd).st_size
        finally:
            os.close(fd)


def _regular_files(path: Path) -> Iterator[Path]:
    if stat.S_ISREG(path.stat().st_mode):
        yield path
        return
    for top, _, names in os.walk(path):
        for name in names:
            path_below = Path(top, name)
            try:
                if stat.S_ISREG(path_below.lstat().st_mode):
                    yield path_below
            except FileNotFoundError:
                continue


def resident_pages_of(fd: int, size_bytes: int) -> int:
    """Pages of an open file that are in the page cache. Raises OSError if the kernel does not report it."""
    if size_bytes == 0:
        return 0
    counts = _Cachestat()
    complete = _Range(0, 0)
    if _libc.syscall(_CACHESTAT, fd, ctypes.byref(complete), ctypes.byref(counts), 0) == 0:
        return int(counts.cached)
    if ctypes.get_errno() not in (errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP):
        raise OSError(ctypes.get_errno(), "cachestat")
    return _mincore(fd, size_bytes)


def _mincore(fd: int, size_bytes: int) -> int:
    pages = -(-size_bytes // _PAGE_BYTES)
    address = _libc.mmap(None, size_bytes, _PROT_READ, _MAP_SHARED, fd, 0)
    if address == _MAP_FAILED:
        raise OSError(ctypes.get_errno(), "mmap")
    try:
        present = ctypes.create_string_buffer(pages)
        if _libc.mincore(address, size_bytes, present) != 0:
            raise OSError(ctypes.get_errno(), "mincore")
        flags = present.raw
        return pages - flags.count(0) if max(flags) <= 1 else sum(f & 1 for f in flags)
    finally:
        _libc.munmap(address, size_bytes)
