"""Threads that enter a network namespace."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import TypeVar

from penstock.errors import PenstockError
from penstock.host.nodes.namespaces import in_a_thread

CLONE_NEWNET = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)

T = TypeVar("T")


def call(what: str, status: int) -> None:
    """Raises PenstockError for a status other than 0, with `what` and the reason."""
    if status != 0:
        error = ctypes.get_errno()
        raise PenstockError(f"{what}: {os.strerror(error)}")


def inside(where: str | os.PathLike[str] | int | None, act: Callable[[], T]) -> T:
    """Run `act` in the network namespace of a path, a process (its pid) or, with None, in ours.

    Its sockets stay in that namespace. Raises PenstockError if it cannot be entered.
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
            call(f"entering the network namespace {path}", LIBC.setns(fd, CLONE_NEWNET))
        finally:
            os.close(fd)
        return act()

    return in_a_thread(entered)


def apart(act: Callable[[], T]) -> T:
    """Run `act` in a new network namespace, which is removed with the last socket opened there."""

    def entered() -> T:
        call("unshare(CLONE_NEWNET)", LIBC.unshare(CLONE_NEWNET))
        return act()

    return in_a_thread(entered)
