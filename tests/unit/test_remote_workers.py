"""The end of workers of several hosts, with processes and a clock of the test."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path

import pytest

from penstock.parts.remote import workers
from penstock.parts.remote.workers import WorkerPool, WorkerProcess
from penstock.spec.study import Worker


class Clock:
    """Time that passes while a process is awaited."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


class Process:
    """Ends `after_s` from the end of its input; a busy one only when it is killed."""

    def __init__(self, clock: Clock, after_s: float | None) -> None:
        self.clock, self.after_s = clock, after_s
        self.killed = False
        self.stdin = io.BytesIO()

    def wait(self, timeout_s: float | None = None) -> int:
        assert self.stdin.closed
        if self.killed:
            return -9
        assert timeout_s is not None
        if self.after_s is None or 100 + self.after_s > self.clock.now_s + timeout_s:
            self.clock.now_s += timeout_s
            raise subprocess.TimeoutExpired("worker", timeout_s)
        self.clock.now_s = max(self.clock.now_s, 100 + self.after_s)
        return 0

    def kill(self) -> None:
        self.killed = True


def test_busy_workers_are_killed_at_one_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All inputs end before the first worker is awaited, and all have the same 15 s."""
    clock = Clock()
    monkeypatch.setattr(workers, "time", clock)
    pool = WorkerPool("lab", "127.0.0.1", [], tmp_path)
    after_s = {"busy": None, "slow": 14.0, "quick": 0.1, "other": None}
    processes = {name: Process(clock, s) for name, s in after_s.items()}
    pool._running = {
        name: WorkerProcess(Worker(name=name), process, io.BytesIO())  # type: ignore[arg-type]
        for name, process in processes.items()
    }
    pool._end_all()
    assert [name for name, process in processes.items() if process.killed] == ["busy", "other"]
    assert clock.now_s == 115.0
    assert pool.addresses == {}
