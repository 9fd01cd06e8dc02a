"""Opens of files on a mount that block until permitted (fanotify(7), FAN_OPEN_PERM).

The kernel permits pending opens when the process that blocks them ends in any way.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import struct
import threading
from collections.abc import Iterator

from penstock.errors import PenstockError

#: of linux/fanotify.h
_CLASS_CONTENT, _CLOEXEC = 0x4, 0x1
_MARK_ADD, _MARK_MOUNT = 0x1, 0x10
_OPEN_PERM = 0x0001_0000
_ALLOW = 0x1
_AT_FDCWD = -100
#: length, version, -, length of the head, mask, fd, pid
_EVENT = struct.Struct("=IBBHQii")
_ANSWER = struct.Struct("=iI")
_BUFFER = 64 * _EVENT.size
_libc = ctypes.CDLL(None, use_errno=True)


class PendingOpen:
    """One pending open: `fd` is the file, read only, without a further open; `pid` of the opening process."""

    def __init__(self, opens: PendingOpens, fd: int, pid: int) -> None:
        self.fd = fd
        self.pid = pid
        self._opens = opens
        self._once = threading.Lock()
        self._let = False

    def let(self) -> None:
        """Permit it; idempotent. `fd` stays open until `close`."""
        with self._once:
            if not self._let:
                self._let = True
                self._opens.allow(self.fd)

    def close(self) -> None:
        """Permit it and close the file."""
        self.let()
        os.close(self.fd)


class PendingOpens:
    """Opens of regular files on some mounts. Needs CAP_SYS_ADMIN on the host; PenstockError without."""

    def __init__(self) -> None:
        flags = os.O_RDONLY | os.O_LARGEFILE | os.O_CLOEXEC
        self._group = _libc.fanotify_init(_CLASS_CONTENT | _CLOEXEC, flags)
        if self._group < 0:
            why = os.strerror(ctypes.get_errno())
            raise PenstockError(f"opens of files cannot be intercepted (fanotify_init): {why}")
        self._open = threading.Lock()
        self._ended, self._end = os.pipe2(os.O_CLOEXEC)

    def watch(self, path: str) -> None:
        """Add the mount of `path`, which may be in another namespace (`/proc/PID/root/…`)."""
        done = _libc.fanotify_mark(
            self._group,
            ctypes.c_uint(_MARK_ADD | _MARK_MOUNT),
            ctypes.c_uint64(_OPEN_PERM),
            ctypes.c_int(_AT_FDCWD),
            os.fsencode(path),
        )
        if done != 0:
            why = os.strerror(ctypes.get_errno())
            raise PenstockError(f"{path}: its opens cannot be intercepted (fanotify_mark): {why}")

    def __iter__(self) -> Iterator[PendingOpen]:
        """Pending opens, until `close`. Each must be permitted."""
        while True:
            ready, _, _ = select.select([self._group, self._ended], [], [])
            if self._ended in ready:
                with self._open:  # no answer must use a descriptor number that was reused
                    os.close(self._group)
                    self._group = -1
                os.close(self._ended)
                return
            raw = os.read(self._group, _BUFFER)
            while raw:
                length, _, _, _, mask, fd, pid = _EVENT.unpack_from(raw)
                raw = raw[length:]
                if fd >= 0 and mask & _OPEN_PERM:
                    yield PendingOpen(self, fd, pid)

    def allow(self, fd: int) -> None:
        """Permit the open with `fd`; ignored if all were permitted."""
        with self._open, contextlib.suppress(OSError):
            if self._group >= 0:
                os.write(self._group, _ANSWER.pack(fd, _ALLOW))

    def close(self) -> None:
        """End the iteration; the kernel permits pending opens."""
        os.close(self._end)
