"""The end of workers of several hosts, with simulated processes and a simulated clock."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import warnings
from pathlib import Path

import pytest

from penstock.parts.remote import workers
from penstock.parts.remote.workers import WorkerPool, WorkerProcess
from penstock.spec.study import Worker


class Clock:
    """Time that passes only during waits for a process."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


class Process:
    """Ends `after_s` after the end of its input; a busy process (None) ends only when it is killed."""

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
    """All inputs end before the wait for the first worker, and all workers share the same 15 s."""
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


def test_the_scheduler_listens_at_one_port(tmp_path: Path) -> None:
    """Dask's default port of its pages, 8787, may be in use, and is not opened."""
    pid = os.getpid()
    own = f"127.{1 + (pid >> 16)}.{pid >> 8 & 255}.{pid & 255}"  # another run has another address
    with socket.create_server((own, 8787)), warnings.catch_warnings():
        warnings.simplefilter("error")
        before = listening()
        with WorkerPool("lab", own, [], tmp_path):
            new = listening() - before
    assert [address for address, _ in new] == [own]


def listening() -> set[tuple[str, int]]:
    """Addresses and TCP ports at which this process listens, other than those of 127.0.0.1."""
    sockets = {os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}
    ports = set()
    for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        digits, port = fields[1].split(":")
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
            ports.add((socket.inet_ntoa(bytes.fromhex(digits)[::-1]), int(port, 16)))
    return {(address, port) for address, port in ports if address != "127.0.0.1"}
