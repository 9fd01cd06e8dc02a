"""Processes of this host, identified so that a reused pid is detected."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from penstock.errors import printable
from penstock.host.storage.mounts import parse_mountinfo

#: environment variable that identifies our processes and their descendants
TOKEN_VARIABLE = "PENSTOCK_RUN_TOKEN"
#: longest wait for processes in execve(2) [s]
_LOADING_S = 2.0
#: age of a process up to which its start counts as the time of the command [s]
_JUST_S = 10.0
#: include/linux/sched.h
_PF_EXITING, _PF_KTHREAD = 0x4, 0x200000


@cache
def boot_id() -> str:
    """Boot id of the kernel; empty if unavailable."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def start_ticks(pid: int) -> int | None:
    """Start time of process `pid` [clock ticks since boot], None if it does not exist or is a zombie."""
    fields = _stat(pid)
    return None if fields is None else int(fields[19])


def _stat(pid: int) -> list[bytes] | None:
    """proc_pid_stat(5) from the third field on, None if the process does not exist or is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if fields[0] in (b"Z", b"X", b"x") else fields


def called_ns() -> int | None:
    """Start time of this process [ns since 1970], to 10 ms; None if more than 10 s ago.

    A command takes a second to import its libraries; the user means the time of the call.
    """
    ticks = start_ticks(os.getpid())
    if ticks is None:
        return None
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time_ns() - round(age_s * 1e9) if 0 <= age_s < _JUST_S else None


@dataclass(frozen=True)
class Identity:
    """Unique identity of a process: boot, pid and start time [clock ticks]."""

    boot_id: str
    pid: int
    start: int

    @classmethod
    def of(cls, pid: int) -> Identity | None:
        """Identity of a running process, None if there is none of that pid."""
        start = start_ticks(pid)
        return None if start is None else cls(boot_id(), pid, start)

    @classmethod
    def own(cls) -> Identity:
        """Identity of this process."""
        identity = cls.of(os.getpid())
        assert identity is not None
        return identity

    @property
    def alive(self) -> bool:
        """True if that process runs (a zombie does not)."""
        return self.boot_id == boot_id() and start_ticks(self.pid) == self.start


def with_token(token: str) -> list[int]:
    """Pids of the processes whose environment has `token` (those that we may inspect)."""
    variable = f"{TOKEN_VARIABLE}={token}".encode()
    until = time.monotonic() + _LOADING_S
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    return [p for p in pids if variable in _environment(p, until) and p != os.getpid()]


def _environment(pid: int, until: float) -> list[bytes]:
    """Environment of a process, empty if inaccessible. A process in execve(2) has none for a moment; wait for
    it `until` then."""
    empty = 0
    while True:
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return []
        stat = None if environment else _stat(pid)
        if stat is None or int(stat[6]) & (_PF_EXITING | _PF_KTHREAD):
            return environment.split(b"\0")
        start, end = int(stat[47]), int(stat[48])
        empty = empty + 1 if start == end != 0 else 0
        if empty == 2 or time.monotonic() > until:
            return []
        time.sleep(0.0005)


def end(identities: list[Identity], grace_s: float = 2.0) -> list[Identity]:
    """End processes: SIGTERM, `grace_s`, SIGKILL, two seconds. Returns those that remain.

    A pidfd is opened before the identity is checked, so a reused pid is never signalled.
    """
    by_fd: dict[int, Identity] = {}
    for identity in identities:
        try:
            fd = os.pidfd_open(identity.pid)
        except OSError:
            continue
        if identity.alive:
            by_fd[fd] = identity
        else:
            os.close(fd)
    try:
        steps = ((signal.SIGTERM, grace_s), (signal.SIGKILL, 2.0))
        for which, wait_s in steps if grace_s > 0 else steps[1:]:
            for fd in by_fd:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(fd, which)
            _await_exit(by_fd, wait_s)
            if not by_fd:
                break
        return list(by_fd.values())
    finally:
        for fd in by_fd:
            os.close(fd)


def _await_exit(by_fd: dict[int, Identity], wait_s: float) -> None:
    """Remove from `by_fd` (and close) processes that exit within `wait_s`."""
    poller = select.poll()
    for fd in by_fd:
        poller.register(fd, select.POLLIN)
    until = time.monotonic() + wait_s
    while by_fd and (remaining_s := until - time.monotonic()) > 0:
        for fd, _ in poller.poll(remaining_s * 1000):
            poller.unregister(fd)
            del by_fd[fd]
            os.close(fd)


def users_of(directory: str | os.PathLike[str]) -> list[tuple[int, str]]:
    """Other processes (pid, name) that have files of `directory`'s file system open or mapped, or work in it.

    Only files of /proc are accessed, so that unresponsive file systems do not block. Unprintable characters
    of a name are escaped.
    """
    where = os.path.realpath(directory)
    number = os.stat(where).st_dev
    device = (os.major(number), os.minor(number))
    mount_ids: dict[str, frozenset[str]] = {}
    users = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            namespace = os.readlink(entry / "ns/mnt")
            if namespace not in mount_ids:
                seen = parse_mountinfo(_text(entry / "mountinfo"))
                mount_ids[namespace] = frozenset(
                    str(m.mount_id) for m in seen if m.device == device
                )
            if mount_ids[namespace] and _uses(entry, where, device, mount_ids[namespace]):
                users.append((int(entry.name), printable(_text(entry / "comm").rstrip("\n"))))
    return sorted(users)


def _text(path: Path) -> str:
    return path.read_bytes().decode("utf-8", "surrogateescape")


def _uses(process: Path, where: str, device: tuple[int, int], mounts: frozenset[str]) -> bool:
    for link in ("cwd", "root"):
        at = os.readlink(process / link)
        if at == where or at.startswith(f"{where}/"):
            return True
    for fd in (process / "fdinfo").iterdir():
        with contextlib.suppress(OSError):
            facts = dict(line.split(":", 1) for line in _text(fd).splitlines() if ":" in line)
            if facts.get("mnt_id", "").strip() in mounts:
                return True
    mapped = "{:02x}:{:02x}".format(*device)
    # line feeds in a name are escaped there; other line separators are not
    rows = (line.split() for line in _text(process / "maps").split("\n") if line)
    return any(row[3] == mapped for row in rows)
