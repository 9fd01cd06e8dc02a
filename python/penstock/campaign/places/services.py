"""Commands that must run on nodes before the measured one, and are stopped after it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.emulate.cluster.cluster import RunningNode
from penstock.errors import PenstockError
from penstock.spec.study import Service

_LOOK_EVERY_S = 0.02
_END_WITHIN_S = 10.0
#: state of a listening socket in /proc/net/tcp (include/net/tcp_states.h)
_LISTENING = "0A"


@dataclass
class _Up:
    service: Service
    node: RunningNode
    process: subprocess.Popen[bytes]
    log: Path
    test: str | None

    @property
    def called(self) -> str:
        return f"service {self.service.name} on {self.node.name}"


class Services:
    """Services of one run. `logs` gets the output of each as service-NAME.NODE.txt."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._up: list[_Up] = []

    def start(
        self,
        service: Service,
        node: RunningNode,
        command: str,
        env: Mapping[str, str],
        test: str | None = None,
    ) -> None:
        """Start one service on one node; placeholders of `command` and of the readiness `test` are
        substituted."""
        log = self._logs / f"service-{service.name}.{node.name}.txt"
        line = f"exec {command}" if _simple(command) else command
        argv = node.enter(["/bin/sh", "-c", line], env=env, user=service.user)
        with open(log, "wb") as sink:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True
            )
        self._up.append(_Up(service, node, process, log, test))

    def await_ready(self, service: Service) -> None:
        """Wait until the service is ready on all its nodes. Raises PenstockError with its last output."""
        until = time.monotonic() + service.within_s
        for up in [u for u in self._up if u.service is service]:
            while not _ready(up):
                if up.process.poll() is not None and service.ready is not None:
                    status = up.process.returncode
                    raise PenstockError(f"{up.called} ended with status {status}: {_last(up.log)}")
                if time.monotonic() > until:
                    raise PenstockError(
                        f"{up.called} was not ready within {service.within_s:g} s: {_last(up.log)}"
                    )
                time.sleep(_LOOK_EVERY_S)

    def fault(self) -> str:
        """Services that ended too early, as a message; empty if none did."""
        dead = [u for u in self._up if u.process.poll() not in (None, 0)]
        return "; ".join(
            f"{u.called} ended with status {u.process.returncode}: {_last(u.log)}" for u in dead
        )

    def pids(self) -> set[int]:
        """Processes of all services."""
        return {p for u in self._up for p in (u.process.pid, *descendants(u.process.pid))}

    def stop(self) -> None:
        """Stop them in reverse order: the service's signal to its first process, then SIGKILL to the rest."""
        while self._up:
            up = self._up.pop()
            number = getattr(signal, f"SIG{up.service.stop}", signal.SIGTERM)
            first = _children(up.process.pid)
            for pid in first or [up.process.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            try:
                up.process.wait(_END_WITHIN_S)
            except subprocess.TimeoutExpired:
                for pid in [*descendants(up.process.pid), up.process.pid]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                up.process.wait()


def _simple(command: str) -> bool:
    """True if a line is a single command, which can replace the shell and so receives signals directly."""
    return re.search(r"[;&|<>()`$\n\"'\\]|^\s*(cd|exec|export|\w+=)", command) is None


def _ready(up: _Up) -> bool:
    ready = up.service.ready
    if ready is None:
        return True
    if ready.port is not None:
        return _listens(up.node.pid, ready.port)
    if ready.log is not None:
        with contextlib.suppress(OSError):
            return re.search(ready.log, up.log.read_text(errors="replace")) is not None
        return False
    argv = up.node.enter(["/bin/sh", "-c", up.test or "true"])
    done = subprocess.run(argv, capture_output=True, stdin=subprocess.DEVNULL)
    return done.returncode == 0


def _listens(pid: int, port: int) -> bool:
    """True if a process listens on a TCP port in the network namespace of `pid`."""
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    return True
    return False


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def descendants(pid: int) -> list[int]:
    """All descendants of a process, deepest first."""
    pids = []
    for child in _children(pid):
        pids += [*descendants(child), child]
    return pids


def _last(log: Path) -> str:
    with contextlib.suppress(OSError):
        lines = [w for w in log.read_text(errors="replace").splitlines() if w.strip()]
        return lines[-1].strip()[:200] if lines else "it printed nothing"
    return "it printed nothing"
