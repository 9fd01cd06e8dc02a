"""Network namespaces of ours: pinned at a path that bears our token, entered by a thread, taken away."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from penstock.errors import PenstockError
from penstock.host.journal import Entry, Journal, new_token
from penstock.host.mounts import mounts_at, unmount
from penstock.host.namespaces import in_a_thread
from penstock.state import runtime_dir

_CLONE_NEWNET = 0x40000000
_MS_BIND = 4096
_libc = ctypes.CDLL(None, use_errno=True)

T = TypeVar("T")


def _call(what: str, status: int) -> None:
    if status != 0:
        error = ctypes.get_errno()
        raise PenstockError(f"{what}: {os.strerror(error)}")


def inside(where: str | os.PathLike[str] | int | None, act: Callable[[], T]) -> T:
    """Runs `act` in the network namespace of a path, a process (its pid) or, with None, in ours.

    Sockets that it opens stay in that namespace. Raises PenstockError where it cannot be entered.
    """
    if where is None:
        return act()
    path = f"/proc/{where}/ns/net" if isinstance(where, int) else os.fspath(where)

    def entered() -> T:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise PenstockError(f"network namespace {path}: {error.strerror}") from error
        try:
            _call(f"entering the network namespace {path}", _libc.setns(fd, _CLONE_NEWNET))
        finally:
            os.close(fd)
        return act()

    return in_a_thread(entered)


def apart(act: Callable[[], T]) -> T:
    """Runs `act` in a network namespace of its own, which goes with the last socket opened there."""

    def entered() -> T:
        _call("unshare(CLONE_NEWNET)", _libc.unshare(_CLONE_NEWNET))
        return act()

    return in_a_thread(entered)


def pin_namespace(journal: Journal, run: str | None = None) -> Entry:
    """Makes a network namespace and pins it at a path of the runtime directory (the entry's target)."""
    token = new_token()
    path = runtime_dir() / f"netns-{token}"
    entry = journal.plan("netns", path, run=run, token=token)

    def make() -> None:
        path.touch()
        _call("unshare(CLONE_NEWNET)", _libc.unshare(_CLONE_NEWNET))
        source = f"/proc/self/task/{threading.get_native_id()}/ns/net"
        target = os.fsencode(path)
        _call(
            f"pinning a namespace at {path}",
            _libc.mount(source.encode(), target, b"none", _MS_BIND, None),
        )

    try:
        in_a_thread(make)
        journal.done(entry)
    except BaseException:
        take_namespace(entry)
        journal.undone(entry)
        raise
    return entry


def take_namespace(entry: Entry) -> bool:
    """Takes a pinned namespace away with every link in it and ours outside; False if nothing was there."""
    from penstock.host.netlink import GROUP, Netlink

    path = Path(entry.target)
    if entry.token not in path.name:
        return False
    found = False
    with contextlib.suppress(PenstockError), Netlink() as root:
        for index, name in root.links():
            if entry.token in name:
                found = True
                root.delete_link(index)
    while stack := mounts_at(path):
        if stack[-1].fstype != "nsfs":
            raise PenstockError(f"{stack[-1].source} was mounted over {path}")
        # links first: a copy of the mount in another mount namespace may keep this one alive
        with contextlib.suppress(PenstockError), Netlink(path) as there:
            there.delete_group(GROUP)
        unmount(path)
        found = True
    if path.exists():
        path.unlink()
        found = True
    return found
