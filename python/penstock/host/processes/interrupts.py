"""Ctrl-C, SIGTERM and SIGHUP while a command runs."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any, Self


class Interrupts:
    """Handler of SIGINT, SIGTERM and SIGHUP while a command runs: forwards them first, then forces the end.

    `pids` returns the recipients; `name` is that of the last signal. An ignored signal (as with nohup(1))
    stays ignored.
    """

    def __init__(self, pids: Callable[[], list[int]] | None = None):
        self.name: str | None = None
        self._pids = pids
        # not a threading.Event: a handler that sets it may interrupt a wait that owns its lock
        self._came = -1
        self._before: dict[int, Any] = {}

    def wait(self, until: float | None) -> bool:
        """True if a signal arrives within 0.2 s or before `until` (time.monotonic)."""
        pause_s = 0.2 if until is None else max(0.0, min(0.2, until - time.monotonic()))
        return bool(select.select([self._came], [], [], pause_s)[0])

    def pass_on(self) -> None:
        """Forward the signal to processes that did not exist when it arrived."""
        if self.name is not None:
            self._send(signal.Signals[self.name])

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        again = self.name is not None
        self.name = signal.Signals(number).name
        os.eventfd_write(self._came, 1)
        self._send(signal.SIGKILL if again else number)

    def _send(self, number: int) -> None:
        for pid in self._pids() if self._pids is not None else []:
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


def in_sessions_of_children() -> list[int]:
    """Processes in the sessions led by our children: launched commands and their descendants."""
    processes = _processes()
    return in_sessions(
        pid for pid, (parent, own) in processes.items() if (parent, own) == (os.getpid(), pid)
    )


def in_sessions(leaders: Iterable[int]) -> list[int]:
    """Processes in the sessions of these leaders."""
    sessions = set(leaders)
    return [pid for pid, (_, session) in _processes().items() if session in sessions]


def _processes() -> dict[int, tuple[int, int]]:
    """Parent and session by pid."""
    by_pid: dict[int, tuple[int, int]] = {}
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            stat = Path(f"/proc/{int(entry)}/stat").read_bytes()
            _, parent, _, session = stat[stat.rindex(b")") + 2 :].split()[:4]
            by_pid[int(entry)] = int(parent), int(session)
    return by_pid
