"""Loop devices of ours, marked in their file name field, so that `undo` removes no other.

A device clears itself after its last use (LO_FLAGS_AUTOCLEAR), so that unmounting its file system suffices.
See loop(4).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import PenstockError
from penstock.host.journal.journal import Entry, Journal, new_token

_CONTROL = Path("/dev/loop-control")
_CTL_REMOVE, _CTL_GET_FREE = 0x4C81, 0x4C82
_CONFIGURE, _CLR_FD, _GET_STATUS64 = 0x4C0A, 0x4C01, 0x4C05
_AUTOCLEAR, _DIRECT_IO = 4, 16
#: struct loop_info64 (linux/loop.h): five u64, four u32, two names, a key, two u64
_INFO = struct.Struct("=5Q4I64s64s32s2Q")
#: struct loop_config: fd, block size, loop_info64, reserved
_CONFIG = struct.Struct("=2I232s64x")
_TRIES = 64


@dataclass
class LoopDevice:
    """A loop device for a file; `fd` keeps it until something else uses it."""

    path: Path
    number: tuple[int, int]
    token: str
    fd: int
    entry: Entry

    def release(self) -> None:
        """Close our descriptor: the device stays while something else, such as a mount, uses it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def mark(token: str) -> bytes:
    """Mark of a loop device of ours, in place of a file name."""
    return f"penstock:{token}".encode()


def attach(
    image: str | os.PathLike[str],
    journal: Journal,
    *,
    run: str | None = None,
) -> LoopDevice:
    """Attach a free loop device to a file, bypassing the host's page cache if the file system permits.

    Raises PenstockError if there is none or the kernel refuses.
    """
    token = new_token()
    target = os.path.realpath(image)
    backing = os.open(target, os.O_RDWR | os.O_CLOEXEC)
    try:
        entry = journal.plan("loop", target, run=run, token=token, old=sorted(_numbers()))
    except BaseException:
        os.close(backing)
        raise
    device = -1
    try:
        for _ in range(_TRIES):
            number = _free()
            path = Path(f"/dev/loop{number}")
            device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                _configure(device, backing, token)
            except OSError as error:
                os.close(device)
                device = -1
                if error.errno == 16:  # EBUSY: another process took it
                    continue
                raise
            rdev = os.fstat(device).st_rdev
            loop = LoopDevice(path, (os.major(rdev), os.minor(rdev)), token, device, entry)
            journal.done(entry, number=number)
            return loop
        raise PenstockError(f"no loop device stays free for {target}")
    except BaseException as error:
        if device >= 0:
            os.close(device)
        take(entry)
        journal.undone(entry)
        if isinstance(error, OSError):
            raise PenstockError(f"loop device for {target}: {error.strerror}") from error
        raise
    finally:
        os.close(backing)


def detach(device: LoopDevice, journal: Journal) -> None:
    """Clear the device (after its last use) and close its journal entry."""
    device.release()
    take(device.entry)
    journal.undone(device.entry)


def holders(image: str | os.PathLike[str]) -> list[str]:
    """Names of the loop devices that use a file now."""
    target = os.path.realpath(image)
    names = []
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            if path.read_text().rstrip("\n") == target:
                names.append(path.parent.parent.name)
    return sorted(names)


def take(entry: Entry) -> bool:
    """Clear the loop devices with an entry's token; False if there is none.

    Devices that the kernel created for us are removed if unused.
    """
    cleared = False
    for path in _of(entry.token):
        with _opened(path) as device, contextlib.suppress(OSError):
            fcntl.ioctl(device, _CLR_FD)
            cleared = True
    before = entry.old if isinstance(entry.old, list) else None
    number = entry.facts.get("number")
    if before is not None and isinstance(number, int) and number not in before:
        _remove(number)
    return cleared


def _configure(device: int, backing: int, token: str) -> None:
    """Bypass the host's page cache, with blocks of 512 B, or of 4096 B if the device has no smaller ones."""
    direct = _AUTOCLEAR | _DIRECT_IO
    for flags, block_bytes in ((direct, 512), (direct, 4096), (_AUTOCLEAR, 512)):
        info = _INFO.pack(0, 0, 0, 0, 0, 0, 0, 0, flags, mark(token), b"", b"", 0, 0)
        try:
            fcntl.ioctl(device, _CONFIGURE, bytearray(_CONFIG.pack(backing, block_bytes, info)))
            return
        except OSError as error:
            if error.errno != 22 or not flags & _DIRECT_IO:  # EINVAL: no direct I/O to this file
                raise


def _of(token: str) -> Iterator[Path]:
    for number in sorted(_numbers()):
        if not os.path.exists(f"/sys/block/loop{number}/loop/backing_file"):
            continue
        path = Path(f"/dev/loop{number}")
        with contextlib.suppress(OSError), _opened(path) as device:
            raw = bytearray(_INFO.size)
            fcntl.ioctl(device, _GET_STATUS64, raw)
            if _INFO.unpack(raw)[9].rstrip(b"\0") == mark(token):
                yield path


@contextlib.contextmanager
def _opened(path: Path, mode: int = os.O_RDONLY) -> Iterator[int]:
    fd = os.open(path, mode | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _numbers() -> set[int]:
    names = os.listdir("/sys/block") if os.path.isdir("/sys/block") else []
    return {int(n[4:]) for n in names if n.startswith("loop") and n[4:].isdigit()}


def _free() -> int:
    with _opened(_CONTROL, os.O_RDWR) as control:
        return fcntl.ioctl(control, _CTL_GET_FREE)


def _remove(number: int) -> None:
    with contextlib.suppress(OSError), _opened(_CONTROL, os.O_RDWR) as control:
        fcntl.ioctl(control, _CTL_REMOVE, number)
