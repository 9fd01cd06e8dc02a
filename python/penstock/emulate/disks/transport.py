"""Transports of an emulated disk's requests from the kernel to the disk server.

`device`: the server reads and writes `/dev/fuse`. `io_uring`: one queue per processor (Linux 6.14 and later),
which saves system calls. Source: Documentation/filesystems/fuse/fuse-io-uring.rst.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from penstock.errors import BadInput, PenstockError
from penstock.host.journal.journal import Entry, Journal
from penstock.host.journal.settings import restore_own

DEVICE, IO_URING = "device", "io_uring"
TRANSPORTS = (DEVICE, IO_URING)
#: environment variable with the transport of all disks of a command
VARIABLE = "PENSTOCK_TRANSPORT"
#: kernel parameter that offers io_uring to new mounts
SETTING = Path("/sys/module/fuse/parameters/enable_uring")
_NO_RINGS = Path("/proc/sys/kernel/io_uring_disabled")


def usable(name: str, where: str) -> str:
    """The transport of that name. Raises BadInput if it is unknown or cannot be used here."""
    _check(name, where)
    if name == IO_URING and (why := missing()):
        raise BadInput(f"{where}: found {name}, but {why}; expected {DEVICE}")
    return name


def _check(name: str, where: str) -> None:
    if name not in TRANSPORTS:
        raise BadInput(f"{where}: found {name!r}; expected {' or '.join(TRANSPORTS)}")


def required() -> str | None:
    """The transport that the environment requires. Raises BadInput for an unknown one."""
    name = os.environ.get(VARIABLE, "")
    if name:
        _check(name, f"${VARIABLE}")
    return name or None


def require(name: str) -> None:
    """Set the transport of all disks of this process and its children. Raises BadInput as `usable`."""
    os.environ[VARIABLE] = usable(name, "--transport")


def missing() -> str:
    """The reason why disks cannot use io_uring here; empty if they can."""
    try:
        enabled = SETTING.read_text().strip() == "Y"
    except OSError:
        return "this kernel has no FUSE over io_uring (Linux 6.14 and later)"
    if not enabled and not os.access(SETTING, os.W_OK):
        return f"{SETTING} is N, and only root may change it"
    with contextlib.suppress(OSError):
        if (disabled := _NO_RINGS.read_text().strip()) == "2" or (
            disabled == "1" and os.geteuid() != 0
        ):
            return f"io_uring is disabled ({_NO_RINGS} is {disabled})"
    return ""


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Lock the kernel's offer to mounts against other processes."""
    with SETTING.open() as setting:
        fcntl.flock(setting, fcntl.LOCK_EX)
        yield


def offer(journal: Journal, run: str | None = None) -> Entry | None:
    """Let the kernel offer io_uring to new mounts, within `locked`. A mount keeps its transport.

    Returns the entry by which `withdraw` restores the setting; None if the kernel offers it already.
    Raises PenstockError if the setting cannot be changed.
    """
    old = SETTING.read_text().strip()
    if old == "Y":
        return None
    entry = journal.plan("setting", SETTING, run=run, old=old, new="Y")
    try:
        SETTING.write_text("Y")
    except OSError as error:
        journal.undone(entry)
        raise PenstockError(f"{SETTING}: {error.strerror}") from error
    journal.done(entry)
    return entry


def withdraw(entry: Entry | None, journal: Journal) -> None:
    """Restore the setting that `offer` changed, within `locked`."""
    if entry is not None:
        restore_own(entry, journal)
