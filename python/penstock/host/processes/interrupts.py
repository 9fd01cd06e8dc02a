"""Ctrl-C, SIGTERM and SIGHUP while a command runs."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Self


class Interrupts:
    """Handler of SIGINT, SIGTERM and SIGHUP while a command runs: forwards them first, then forces the end.

    Recipients are the session of the command once it has `begun`, and the processes that `pids` returns;
    `name` is that of the last signal. An ignored signal (as with nohup(1)) stays ignored.
    """

    def __init__(self, pids: Callable[[], list[int]] = list):
        self.name: str | None = None
        #: pid of the command, which leads its session
        self._command: int | None = None
        self._pids = pids
        # not a threading.Event: a handler that sets it may interrupt a wait that owns its lock
        self._came = -1
        self._before: dict[int, Any] = {}

    @property
    def command_began(self) -> bool:
        """True once the command runs."""
        return self._command is not None

    def begun(self, pid: int) -> None:
        """Forward the signals to a command, with those that arrived before its start."""
        self._command = pid
        if self.name is not None:
            self._send(signal.Signals[self.name])

    def wait(self, until: float | None) -> bool:
        """True if a signal arrives within 0.2 s or before `until` (time.monotonic)."""
        pause_s = 0.2 if until is None else max(0.0, min(0.2, until - time.monotonic()))
        return bool(select.select([self._came], [], [], pause_s)[0])

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        again = self.name is not None
        self.name = signal.Signals(number).name
        os.eventfd_write(self._came, 1)
        self._send(signal.SIGKILL if again else number)

    def _send(self, number: int) -> None:
        session = [] if self._command is None else in_session(self._command)
        for pid in {*session, *self._pids()}:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def __enter__(self) -> Self:
        self._came = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._came)


def in_session(leader: int) -> list[int]:
    """Processes in the session of this leader."""
    return [pid for pid, session in _sessions().items() if session == leader]


def _sessions() -> dict[int, int]:
    """Session by pid."""
    by_pid: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            stat = Path(f"/proc/{int(entry)}/stat").read_bytes()
            by_pid[int(entry)] = int(stat[stat.rindex(b")") + 2 :].split()[3])
    return by_pid
