"""Wait for a condition, or for processes that are not children of a test."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from penstock.host.processes.processes import start_ticks


def until(condition: Callable[[], object], within_s: float = 60.0, every_s: float = 0.02) -> None:
    """Poll a condition until it is true; fail after `within_s`."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"the condition is still false after {within_s:g} s"
        time.sleep(every_s)


def wait_for_end(pid: int) -> None:
    """Wait until a process has ended; its parent may not have read its status."""
    deadline = time.monotonic() + 60
    while start_ticks(pid) is not None:
        assert time.monotonic() < deadline, f"process {pid} still runs"
        time.sleep(0.01)


def read_pid(path: Path) -> int:
    """Wait for the line with a pid that a shell writes into a file."""
    deadline = time.monotonic() + 60
    while not path.exists() or not (line := path.read_text()).endswith("\n"):
        assert time.monotonic() < deadline, f"{path.name} has no pid"
        time.sleep(0.01)
    return int(line)
