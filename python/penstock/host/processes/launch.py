"""Commands in a control group: entered before the start, with time-outs, never left behind."""

from __future__ import annotations

import contextlib
import os
import pwd
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from penstock.errors import PenstockError
from penstock.host.cgroups.cgroup import RunCgroup
from penstock.host.journal.journal import new_token
from penstock.state import runtime_dir

#: grace period of a stopped command [s]
STOPPED_WITHIN_S = 3.0

#: last line of a command's log: maximum length, and number of bytes searched
LAST_LINE_LENGTH, _TAIL_BYTES = 200, 4096

#: $1: file for the failure, $2: number of groups; enters each, then executes the command
_ENTER = (
    't=$1; n=$2; shift 2; while [ "$n" -gt 0 ]; do '
    '{ echo $$ >"$1"; } 2>/dev/null || { echo "$1" >"$t"; exit 125; }; '
    'shift; n=$((n-1)); done; exec "$@"'
)


class Stop:
    """Request of another thread to end running commands; permanent, for all of them."""

    def __init__(self) -> None:
        self._reads, self._writes = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def ask(self) -> None:
        """End them: SIGTERM, and SIGKILL after a grace period."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._writes, b"!")

    def fileno(self) -> int:
        """Descriptor that is readable once a stop was requested; do not read from it."""
        return self._reads

    def close(self) -> None:
        """Release the descriptors, once nothing uses them."""
        os.close(self._reads)
        os.close(self._writes)


@dataclass(frozen=True)
class Finished:
    """End of a command: exit status, or the signal that ended it (then the status is 128 + signal).

    `stopped`: it was ended by a `Stop`.
    """

    exit_status: int
    signal: int | None
    timed_out: bool
    start_ns: int
    end_ns: int
    #: processor time of the command and of the processes that it waited for
    cpu_s: float
    pid: int
    stopped: bool = False

    @property
    def wall_s(self) -> float:
        """Seconds from start to end."""
        return (self.end_ns - self.start_ns) / 1e9


def launch(
    command: Sequence[str] | str,
    cgroup: RunCgroup | None = None,
    stdout: str | os.PathLike[str] | IO[bytes] | int | None = None,
    stderr: str | os.PathLike[str] | IO[bytes] | int | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    timeout_s: float | None = None,
    user: str | None = None,
    *,
    stdin: IO[bytes] | int | None = subprocess.DEVNULL,
    extra_env: Mapping[str, str] | None = None,
    stop: Stop | None = None,
    started: Callable[[int], object] | None = None,
) -> Finished:
    """Run a command (a list, or a line for /bin/sh) to its end inside a control group.

    It has its own session and enters the group before the command is executed; as `user` if given. After
    `timeout_s` the entire group is killed; a request of `stop` ends it. `stdout` and `stderr` are paths, open
    files or None (inherited); `env` replaces the environment, `extra_env` adds to it; `started` is called
    with the pid, which leads the session. A KeyboardInterrupt kills the group and propagates. Raises
    PenstockError if the command does not exist or the group cannot be entered.
    """
    argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
    environment = dict(os.environ if env is None else env) | dict(extra_env or {})
    if not argv:
        raise PenstockError("no command given")
    program = shutil.which(argv[0], path=environment.get("PATH", os.defpath))
    if program is None and not (cwd is not None and os.access(Path(cwd) / argv[0], os.X_OK)):
        raise PenstockError(f"{argv[0]}: no such program")
    enter = cgroup.enter_args() if cgroup is not None else []
    if cgroup is not None:
        environment.update(cgroup.environment())
    line = [*_as_user(user, environment), *argv]
    trouble = runtime_dir() / f"enter-{new_token()}"
    with contextlib.ExitStack() as stack:
        out, err = (_opened(sink, stack) for sink in (stdout, stderr))
        shim = ["/bin/sh", "-c", _ENTER, "penstock", str(trouble), str(len(enter)), *enter]
        try:
            start_ns = time.monotonic_ns()
            child = subprocess.Popen(
                [*shim, *line],
                stdin=stdin,
                stdout=out,
                stderr=err,
                env=environment,
                cwd=cwd,
                start_new_session=True,
            )
        except OSError as error:
            raise PenstockError(f"{argv[0]} cannot be started: {error}") from error
        if started is not None:
            started(child.pid)
        finished = _await(child, cgroup, start_ns, timeout_s, stop)
    if finished.exit_status == 125 and trouble.exists():
        refused = trouble.read_text().strip()
        trouble.unlink()
        raise PenstockError(f"the command could not enter {refused}")
    return finished


def _opened(
    sink: str | os.PathLike[str] | IO[bytes] | int | None, stack: contextlib.ExitStack
) -> IO[bytes] | int | None:
    if isinstance(sink, str | os.PathLike):
        return stack.enter_context(open(sink, "wb"))
    return sink


def _as_user(user: str | None, environment: dict[str, str]) -> list[str]:
    """Prefix of a command line to switch to `user`; sets HOME, USER and LOGNAME."""
    if user is None:
        return []
    try:
        account = pwd.getpwnam(user)
    except KeyError:
        raise PenstockError(f"no such user: {user}") from None
    if account.pw_uid == os.geteuid():
        return []
    if os.geteuid() != 0:
        raise PenstockError(f"only root can run a command as {user}")
    tool = shutil.which("setpriv")
    if tool is None:
        raise PenstockError("setpriv (Debian package util-linux) is needed to run as another user")
    environment.update(HOME=account.pw_dir, USER=user, LOGNAME=user)
    ids = [f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--init-groups"]
    return [tool, *ids, "--"]


def _await(
    child: subprocess.Popen[bytes],
    cgroup: RunCgroup | None,
    start_ns: int,
    timeout_s: float | None,
    stop: Stop | None,
) -> Finished:
    pidfd = os.pidfd_open(child.pid)
    timed_out = stopped = False
    try:
        try:
            if not _exits(pidfd, timeout_s, stop):
                stopped = stop is not None and _stop_requested(stop)
                timed_out = not stopped
                if stopped:
                    _terminate(child, cgroup, pidfd)
                _kill(child, cgroup)
        except BaseException:
            _kill(child, cgroup)
            raise
        finally:
            _, status, use = os.wait4(child.pid, 0)
            end_ns = time.monotonic_ns()
            child.returncode = os.waitstatus_to_exitcode(status)
    finally:
        os.close(pidfd)
    code = child.returncode
    return Finished(
        exit_status=code if code >= 0 else 128 - code,
        signal=-code if code < 0 else None,
        timed_out=timed_out,
        start_ns=start_ns,
        end_ns=end_ns,
        cpu_s=use.ru_utime + use.ru_stime,
        pid=child.pid,
        stopped=stopped,
    )


def _exits(pidfd: int, timeout_s: float | None, stop: Stop | None = None) -> bool:
    """True if it ended before its time-out and before a stop."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    if stop is not None:
        poller.register(stop.fileno(), select.POLLIN)
    until = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        wait_ms = None if until is None else max(0.0, (until - time.monotonic()) * 1000)
        if ready := poller.poll(wait_ms):
            return any(descriptor == pidfd for descriptor, _ in ready)
        if until is not None and time.monotonic() >= until:
            return False


def _stop_requested(stop: Stop) -> bool:
    return bool(select.select([stop.fileno()], [], [], 0)[0])


def _terminate(child: subprocess.Popen[bytes], cgroup: RunCgroup | None, pidfd: int) -> None:
    """Send SIGTERM once to each of its processes, and wait for a grace period."""
    pids = cgroup.pids() if cgroup is not None else ()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGTERM)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) != child.pid:
                os.kill(pid, signal.SIGTERM)
    _exits(pidfd, STOPPED_WITHIN_S)


def _kill(child: subprocess.Popen[bytes], cgroup: RunCgroup | None) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    if cgroup is not None:
        with contextlib.suppress(PenstockError):
            cgroup.kill()


def last_line_of(log: IO[bytes]) -> str:
    """Last line with text of a command's log, at most 200 characters."""
    log.seek(max(0, os.fstat(log.fileno()).st_size - _TAIL_BYTES))
    lines = log.read(_TAIL_BYTES).decode(errors="replace").splitlines()
    lines_with_text = [line.strip() for line in lines if line.strip()]
    return lines_with_text[-1][:LAST_LINE_LENGTH] if lines_with_text else ""


def last_line(log: Path) -> str:
    """Last line of a log by its path; empty if it does not exist."""
    try:
        with open(log, "rb") as file:
            return last_line_of(file)
    except OSError:
        return ""
