"""Daemons (disk, tracer, sampler; nodes): start, requests, stop.

`native_daemon.py` is the entry point of native daemons. A daemon in Python has its own entry module, which
starts with `begun`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import BadInput, PenstockError, Refused
from penstock.host.journal.journal import Entry, Journal, new_token
from penstock.host.processes.native_daemon import begun
from penstock.host.processes.processes import TOKEN_VARIABLE, Identity
from penstock.state import closed, runtime_dir
from penstock.writing import write_atomic

KINDS = (
    "disk",
    "relay",
    "tracer",
    "layers",
    "sampler",
    "nodes",
    "tags",
    "collect",
    "record",
    "dedup",
)
_READY_WITHIN_S = 60.0


@dataclass(frozen=True)
class _Start:
    """Start of a daemon that is not ready: pipe on which it reports readiness, file of its settings."""

    pipe: int
    settings: Path
    outlives_owner: bool

    def close(self) -> None:
        os.close(self.pipe)
        with contextlib.suppress(OSError):
            self.settings.unlink()


class Daemon:
    """A running daemon: its pid, control socket and journal entry."""

    def __init__(
        self,
        kind: str,
        pid: int,
        socket_path: Path,
        log_path: Path | None = None,
        *,
        child: subprocess.Popen[bytes] | None = None,
        entry: Entry | None = None,
        journal: Journal | None = None,
        start: _Start | None = None,
    ):
        self.kind = kind
        self.pid = pid
        self.socket_path = socket_path
        self.log_path = log_path
        self._child = child
        self._entry = entry
        self._journal = journal
        self._start = start
        self._connection: socket.socket | None = None
        self._received = b""

    @property
    def alive(self) -> bool:
        """True if it is running."""
        if self._child is not None:
            return self._child.poll() is None
        return Identity.of(self.pid) is not None

    def await_ready(self) -> None:
        """Wait until a daemon of `start_daemon(…, wait=False)` is ready.

        Raises PenstockError with the end of its log if it does not become ready; then `stop` it.
        """
        if self._start is None:
            return
        _await_ready(self, self._start.pipe)
        if self._start.outlives_owner and self._journal is not None and self._entry is not None:
            self._journal.hand_over(self._entry, self.pid)
        self._start.close()
        self._start = None

    def call(self, cmd: str, timeout_s: float = 60.0, **arguments: Any) -> dict[str, Any]:
        """Send a request to the daemon; returns its answer, without the `ok`.

        Raises Refused with the daemon's message (BadInput if the daemon marks it so), PenstockError with the
        end of its log if it has died.
        """
        line = json.dumps({"cmd": cmd, **arguments}).encode() + b"\n"
        try:
            if self._connection is None:
                self._connection = _connected(self.socket_path, timeout_s)
            self._connection.settimeout(timeout_s)
            self._connection.sendall(line)
            answer = json.loads(self._answer())
        except (OSError, ValueError) as error:
            self.hang_up()
            raise PenstockError(
                f"penstock-{self.kind}, asked to {cmd}: {self._why(error)}"
            ) from error
        if not answer.pop("ok", False):
            reason = answer.get("error", "no reason given")
            if answer.get("bad_input"):
                raise BadInput(reason)
            raise Refused(f"penstock-{self.kind}, asked to {cmd}: {reason}")
        return dict(answer)

    def fault(self, wait_s: float = 2.0) -> str:
        """Reason why it does not serve: it has died, or does not answer within `wait_s`; '' if it serves.

        Uses a separate connection, so that it need not wait for a pending request.
        """
        asks = Daemon(self.kind, self.pid, self.socket_path)
        try:
            asks.call("ping", timeout_s=wait_s)
        except PenstockError:
            return "does not answer" if self.alive else "has died"
        finally:
            asks.hang_up()
        return ""

    def stop(self, grace_s: float = 10.0) -> None:
        """Request a shutdown, then force it; closes its journal entry."""
        if self._start is not None and self._child is not None:
            self._start.close()
            self._start = None
            self._child.kill()  # it answers no requests yet
            self._child.wait()
        if self.alive:
            with contextlib.suppress(PenstockError):
                self.call("shutdown", timeout_s=grace_s)
        self.hang_up()
        for which, wait_s in ((None, grace_s), (signal.SIGTERM, 2.0), (signal.SIGKILL, 5.0)):
            if which is not None and self.alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, which)
            if self.gone(wait_s):
                break
        else:
            raise PenstockError(f"penstock-{self.kind} ({self.pid}) does not end")
        with contextlib.suppress(OSError):
            self.socket_path.unlink()
        if (
            self._entry is not None
            and self.log_path is not None
            and self._entry.token in self.log_path.name
        ):
            self.log_path.unlink(missing_ok=True)
        if self._journal is not None and self._entry is not None:
            self._journal.undone(self._entry)
            self._entry = None

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def gone(self, wait_s: float) -> bool:
        """True if it has ended, or ends within `wait_s`."""
        until = time.monotonic() + wait_s
        pause_s = 0.001
        while self.alive:
            if time.monotonic() > until:
                return False
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.02)
        return True

    def _answer(self) -> bytes:
        assert self._connection is not None
        while b"\n" not in self._received:
            more = self._connection.recv(1 << 16)
            if not more:
                raise ConnectionError("it hung up")
            self._received += more
        line, _, self._received = self._received.partition(b"\n")
        return line

    def hang_up(self) -> None:
        """Close our connection; the next call opens a new one."""
        if self._connection is not None:
            self._connection.close()
        self._connection, self._received = None, b""

    def _why(self, error: Exception) -> str:
        if self.alive:
            return str(error)
        return f"it has died. {_log_tail(self.log_path)}"


def connect(kind: str, pid: int, socket_path: str | os.PathLike[str]) -> Daemon:
    """A daemon that another command started."""
    return Daemon(kind, pid, Path(socket_path))


def start_daemon(
    kind: str,
    config: dict[str, Any],
    journal: Journal,
    log_path: str | os.PathLike[str] | None = None,
    *,
    run: str | None = None,
    module: str = "penstock.host.processes.native_daemon",
    wait: bool = True,
) -> Daemon:
    """Start a daemon and return when it is ready; adds default `socket` and `owner_pid` to `config`.

    With `outlive_owner` true in `config` the daemon owns itself in the journal and stays when this process
    ends. Its output goes to `log_path` (default: in the runtime directory); `module` is its entry point.
    Raises PenstockError with the end of its log if it does not become ready. Without `wait`, return at once:
    call `Daemon.await_ready` before the first request.
    """
    if kind not in KINDS:
        raise ValueError(f"no such daemon: {kind}")
    token = new_token()
    base = runtime_dir()
    config = {"owner_pid": os.getpid(), "outlive_owner": False, **config}
    config.setdefault("socket", str(base / f"{kind}-{token}.sock"))
    log = Path(log_path) if log_path is not None else base / f"{kind}-{token}.log"
    settings = base / f"{kind}-{token}.json"
    socket_path = Path(config["socket"])
    if len(os.fsencode(socket_path)) > 107:
        raise PenstockError(f"{socket_path}: too long for a socket's path (107 bytes)")
    entry = journal.plan("process", f"penstock-{kind}", run=run, token=token)
    try:
        write_atomic(settings, json.dumps(config))
        log.touch(mode=0o600)
    except (OSError, PenstockError):
        settings.unlink(missing_ok=True)
        journal.undone(entry)
        raise
    reads, writes = os.pipe()
    argv = [
        sys.executable,
        "-m",
        module,
        kind,
        str(settings),
        "--ready-fd",
        str(writes),
    ]
    try:
        with open(log, "ab", opener=closed) as sink:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env={**os.environ, TOKEN_VARIABLE: token},
                cwd="/",
                start_new_session=True,
                pass_fds=(writes,),
            )
    finally:
        os.close(writes)
    start = _Start(reads, settings, bool(config["outlive_owner"]))
    daemon = Daemon(
        kind, child.pid, socket_path, log, child=child, entry=entry, journal=journal, start=start
    )
    try:
        identity = Identity.of(child.pid)
        if identity is not None:
            journal.done(entry, pid=identity.pid, start=identity.start)
        if wait:
            daemon.await_ready()
    except BaseException:
        daemon.stop()
        raise
    return daemon


def stop_entirely(daemon: Daemon, journal: Journal) -> None:
    """Stop a daemon that another command started, or clean up the files of a dead one.

    Closes the journal entries of its process; `undo` reverses its other changes.
    """
    entries = [e for e in journal.open_entries() if e.facts.get("pid") == daemon.pid]
    daemon.stop()
    for entry in entries:
        if entry.kind == "process":
            journal.undone(entry)
    token = daemon.socket_path.stem.rpartition("-")[2]
    for path in runtime_dir().glob(f"*{token}*"):
        path.unlink(missing_ok=True)


def leave_no_trace() -> None:
    """Close the journal entry of this daemon and remove its files, if no other process will."""
    token, journal, me = os.environ.get(TOKEN_VARIABLE, ""), Journal(), Identity.own()
    for entry in journal.open_entries():
        if entry.kind == "process" and entry.token == token and entry.owner == me:
            journal.undone(entry)
            for path in runtime_dir().glob(f"*{token}*"):
                path.unlink(missing_ok=True)


def _await_ready(daemon: Daemon, reads: int) -> None:
    """Wait until it reports readiness on the pipe, or its socket answers a ping."""
    until = time.monotonic() + _READY_WITHIN_S
    closed = False
    while time.monotonic() < until:
        if closed:
            time.sleep(0.01)
        elif select.select([reads], [], [], 0.02)[0]:
            if os.read(reads, 64):
                return
            closed = True
        if not daemon.alive:
            tail = _log_tail(daemon.log_path)
            raise PenstockError(f"penstock-{daemon.kind} did not start. {tail}")
        if daemon.socket_path.exists():
            with contextlib.suppress(PenstockError):
                daemon.call("ping", timeout_s=2.0)
                return
    raise PenstockError(f"penstock-{daemon.kind} was not ready in {_READY_WITHIN_S:.0f} s")


def _connected(path: Path, timeout_s: float) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(timeout_s)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        raise
    return connection


def _log_tail(path: Path | None, lines: int = 3) -> str:
    if path is None:
        return ""
    try:
        with open(path, errors="replace") as log:
            return "Its log ends: " + " | ".join(line.strip() for line in deque(log, lines))
    except OSError:
        return ""


def say_ready(ready_fd: int | None) -> None:
    """Report readiness to the parent, which may have stopped listening after it connected to the socket."""
    if ready_fd is None:
        return
    try:
        os.write(ready_fd, b"ready\n")
    except BrokenPipeError:
        pass
    finally:
        os.close(ready_fd)


def run_daemon(argv: list[str], serve: Callable[[dict[str, Any]], None]) -> int:
    """Entry point of a daemon whose threads may hang: serve, and end without waiting for them."""
    kind, config = begun(argv)
    os.umask(0o077)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    try:
        serve(config)
    except (PenstockError, OSError) as error:
        print(f"penstock-{kind}: {error}", file=sys.stderr)
        return 1
    sys.stdout.flush()
    os._exit(0)
