"""Processes of this host, named so that a reused pid is never taken for the one it was."""

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

#: environment variable by which a process of ours is recognised, with all that it starts
TOKEN_VARIABLE = "PENSTOCK_RUN_TOKEN"
#: how long processes are waited for into which programs are being loaded [s]
_LOADING_S = 2.0
#: how old a process may be for which now is the moment of its call [s]
_JUST_S = 10.0
#: include/linux/sched.h
_PF_EXITING, _PF_KTHREAD = 0x4, 0x200000


@cache
def boot_id() -> str:
    """The kernel's name of this boot; empty where it gives none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def start_ticks(pid: int) -> int | None:
    """When process `pid` started [clock ticks since boot], None if it is not there or is a zombie."""
    fields = _stat(pid)
    return None if fields is None else int(fields[19])


def _stat(pid: int) -> list[bytes] | None:
    """proc_pid_stat(5) from the third field on, None if the process is not there or is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if fields[0] in (b"Z", b"X", b"x") else fields


def called_ns() -> int | None:
    """When this process started [ns since 1970], to 10 ms; None if that is more than 10 s ago.

    A command takes a second to import its libraries; who calls it means the moment of the call.
    """
    ticks = start_ticks(os.getpid())
    if ticks is None:
        return None
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time_ns() - round(age_s * 1e9) if 0 <= age_s < _JUST_S else None


@dataclass(frozen=True)
class Identity:
    """A process that cannot be mistaken for another: boot, pid and start time [clock ticks]."""

    boot_id: str
    pid: int
    start: int

    @classmethod
    def of(cls, pid: int) -> Identity | None:
        """The identity of a running process, None if there is none of that pid."""
        start = start_ticks(pid)
        return None if start is None else cls(boot_id(), pid, start)

    @classmethod
    def own(cls) -> Identity:
        """The identity of this process."""
        identity = cls.of(os.getpid())
        assert identity is not None
        return identity

    @property
    def alive(self) -> bool:
        """True if that very process runs (a zombie does not)."""
        return self.boot_id == boot_id() and start_ticks(self.pid) == self.start


def with_token(token: str) -> list[int]:
    """Pids of the processes whose environment carries `token` (those that we may look into)."""
    variable = f"{TOKEN_VARIABLE}={token}".encode()
    until = time.monotonic() + _LOADING_S
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    return [p for p in pids if variable in _environment(p, until) and p != os.getpid()]


def _environment(pid: int, until: float) -> list[bytes]:
    """A process's environment, empty if we may not see it. One that a program is just being loaded into has
    none for a moment, which is waited out `until` then."""
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
    """Ends processes: SIGTERM, `grace_s` to leave, SIGKILL, two seconds to go. Gives those that stay.

    Each is held by a pidfd taken before its identity is checked, so a reused pid is never signalled.
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
    """Other processes (pid, name) with files of `directory`'s file system open or mapped, or at work in it.

    No file is looked at but those of /proc: another file system that does not answer holds nobody up. A name
    has escapes for what cannot be printed.
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
    # a name's own line feeds are escaped there; other ends of line are not
    rows = (line.split() for line in _text(process / "maps").split("\n") if line)
    return any(row[3] == mapped for row in rows)
