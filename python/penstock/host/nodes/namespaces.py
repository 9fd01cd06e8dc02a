"""System calls for namespaces and mounts that Python lacks (unshare(2), mount(2), pivot_root(2), …)."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import platform
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

CLONE_FS = 0x00000200
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
#: private namespaces of a virtual node
OF_A_NODE = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MS_SLAVE = 1 << 19
MNT_DETACH = 2

_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
#: pivot_root(2) has no wrapper in the C library
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41, "ppc64le": 203, "s390x": 217}
#: these have the same number on all architectures
_OPEN_TREE, _MOVE_MOUNT = 428, 429
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH = 4
_AT_FDCWD = -100
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def unshare(flags: int) -> None:
    """Move this process into new namespaces. Raises OSError."""
    _check(_libc.unshare(flags), "namespaces")


def mount(source: str, target: str, fstype: str = "", flags: int = 0, options: str = "") -> None:
    """mount(2). Raises OSError with the target."""
    arguments = [os.fsencode(word) or None for word in (source, target, fstype, options)]
    result = _libc.mount(
        arguments[0], arguments[1], arguments[2], ctypes.c_ulong(flags), arguments[3]
    )
    _check(result, f"mount of {fstype or source} at {target}")


def bind(source: str, target: str, flags: int = 0) -> None:
    """Bind-mount `source` at `target`, with separate flags. Raises OSError."""
    mount(source, target, flags=MS_BIND)
    if flags:
        mount("", target, flags=MS_BIND | MS_REMOUNT | flags)


def umount(target: str, *, detach: bool = False) -> None:
    """umount2(2). Raises OSError with the target."""
    _check(_libc.umount2(os.fsencode(target), MNT_DETACH if detach else 0), f"unmount of {target}")


def pivot_into(root: str) -> None:
    """Make `root` the root of this mount namespace and of its processes, and detach the old one."""
    number = _PIVOT_ROOT.get(platform.machine())
    if number is None:
        raise OSError(f"pivot_root: not known for {platform.machine()}")
    os.chdir(root)
    _check(_libc.syscall(ctypes.c_long(number), b".", b"."), f"new root {root}")
    umount(".", detach=True)
    os.chdir("/")


def bind_into(pid: int, binds: Sequence[tuple[str, str]]) -> None:
    """Move mounts of this namespace (first) to paths in the namespace of process `pid` (second), outer ones
    first.

    An existing mount at the first of these paths is removed, with all mounts in it. Raises OSError.
    """
    with contextlib.ExitStack() as stack:
        trees = []
        for source, target in binds:
            trees.append((_tree(source), target))
            stack.callback(os.close, trees[-1][0])
        there = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        stack.callback(os.close, there)

        def enter() -> None:  # with a separate working directory, as another namespace requires
            unshare(CLONE_FS)
            _check(_libc.setns(there, CLONE_NEWNS), f"mounts of process {pid}")
            with contextlib.suppress(FileNotFoundError):
                if os.path.ismount(binds[0][1]):
                    umount(binds[0][1], detach=True)
            for tree, target in trees:
                os.makedirs(target, exist_ok=True)
                _place(tree, target)

        in_a_thread(enter)


def in_a_thread(act: Callable[[], T]) -> T:
    """Run `act` in a short-lived thread, because a namespace belongs to a thread."""
    answer: list[T] = []
    trouble: list[BaseException] = []

    def run() -> None:
        try:
            answer.append(act())
        except BaseException as error:  # passed to the caller
            trouble.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if trouble:
        raise trouble[0]
    return answer[0]


def _tree(source: str) -> int:
    """A detached copy of the mount at `source` (open_tree(2), Linux 5.2)."""
    flags = ctypes.c_uint(_OPEN_TREE_CLONE | os.O_CLOEXEC)
    path = os.fsencode(source)
    fd = int(_libc.syscall(ctypes.c_long(_OPEN_TREE), ctypes.c_int(_AT_FDCWD), path, flags))
    _check(0 if fd >= 0 else fd, f"mount at {source}")
    return fd


def _place(tree: int, target: str) -> None:
    arguments = (ctypes.c_int(tree), b"", ctypes.c_int(_AT_FDCWD), os.fsencode(target))
    flags = ctypes.c_uint(_MOVE_MOUNT_F_EMPTY_PATH)
    _check(_libc.syscall(ctypes.c_long(_MOVE_MOUNT), *arguments, flags), f"mount at {target}")
    mount("", target, flags=MS_PRIVATE)


def set_hostname(name: str) -> None:
    """Set the host name of this UTS namespace."""
    raw = os.fsencode(name)
    _check(_libc.sethostname(raw, len(raw)), f"host name {name}")


def loopback_up() -> None:
    """Bring up `lo` of this network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as ask:
        request = struct.pack("16sh14x", b"lo", 0)
        (flags,) = struct.unpack_from("h", fcntl.ioctl(ask, _SIOCGIFFLAGS, request), 16)
        fcntl.ioctl(ask, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


def name_process(name: str) -> None:
    """Set the name of this process in ps(1); at most 15 bytes."""
    _libc.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def adopt_orphans() -> None:
    """Make orphans among this process's descendants its children."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "subreaper")
