"""A command that another thread stops: it has time to end by itself, and is killed after that time."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.host.processes import launch as launching
from penstock.host.processes.launch import Stop, launch


def stop_when_ready(stop: Stop, ready: Path) -> None:
    def ask() -> None:
        while not ready.exists():
            time.sleep(0.01)
        stop.ask()

    threading.Thread(target=ask, daemon=True).start()


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_command_gets_sigterm_and_then_sigkill(
    tmp_path: Path, stubborn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a command that handles SIGTERM is killed at once, or if one that ignores it stays."""
    monkeypatch.setattr(launching, "STOPPED_WITHIN_S", 30.0 if not stubborn else 0.2)
    ready = tmp_path / "ready"
    trap = "trap '' TERM" if stubborn else "trap 'echo ended; exit 3' TERM"
    stop = Stop()
    stop_when_ready(stop, ready)
    script = f"{trap}; : > {ready}; while :; do sleep 0.05; done"
    result = launch(script, None, tmp_path / "out", timeout_s=120, stop=stop)
    assert (result.stopped, result.timed_out) == (True, False)
    if stubborn:
        assert result.signal == 9
    else:
        assert result.exit_status == 3
        assert (tmp_path / "out").read_text() == "ended\n"
    stop.close()


def test_each_process_gets_one_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a process in both the process group and the control group gets two signals."""
    argv = ["sh", "-c", "sleep 60 & echo $!; wait"]
    with (
        subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True) as child,
        subprocess.Popen(["sleep", "60"], start_new_session=True) as separate,
    ):
        assert child.stdout is not None
        inner = int(child.stdout.readline())
        signalled: list[int] = []
        kill, pidfd = os.kill, os.pidfd_open(child.pid)
        monkeypatch.setattr(
            os, "kill", lambda pid, number: (signalled.append(pid), kill(pid, number))
        )
        group: Any = SimpleNamespace(pids=lambda: [child.pid, inner, separate.pid])
        launching._terminate(child, group, pidfd)
        os.close(pidfd)
        assert [p.wait() for p in (child, separate)] == [-signal.SIGTERM] * 2
        assert signalled == [separate.pid]


def test_one_stop_ends_commands_that_start_after_it(tmp_path: Path) -> None:
    stop = Stop()
    stop.ask()
    for _ in range(2):
        assert launch(["sleep", "60"], None, stop=stop).stopped
    stop.close()


def test_an_unused_stop_changes_nothing(tmp_path: Path) -> None:
    stop = Stop()
    result = launch("exit 4", None, stop=stop)
    assert (result.exit_status, result.stopped) == (4, False)
    result = launch(["sleep", "60"], None, timeout_s=0.1, stop=stop)
    assert (result.timed_out, result.stopped) == (True, False)
    stop.close()
