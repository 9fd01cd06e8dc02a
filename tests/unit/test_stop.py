"""A command that another thread ends: it has time to end by itself, and does not outlive that time."""

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


def asked_soon(stop: Stop, ready: Path) -> None:
    def ask() -> None:
        while not ready.exists():
            time.sleep(0.01)
        stop.ask()

    threading.Thread(target=ask, daemon=True).start()


@pytest.mark.parametrize("stubborn", [False, True])
def test_it_is_asked_and_then_killed(
    tmp_path: Path, stubborn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails where a command that minds SIGTERM is killed at once, or one that does not is left."""
    monkeypatch.setattr(launching, "STOPPED_WITHIN_S", 30.0 if not stubborn else 0.2)
    ready = tmp_path / "ready"
    trap = "trap '' TERM" if stubborn else "trap 'echo ended; exit 3' TERM"
    stop = Stop()
    asked_soon(stop, ready)
    line = f"{trap}; : > {ready}; while :; do sleep 0.05; done"
    done = launch(line, None, tmp_path / "out", timeout_s=120, stop=stop)
    assert (done.stopped, done.timed_out) == (True, False)
    if stubborn:
        assert done.signal == 9
    else:
        assert done.exit_status == 3
        assert (tmp_path / "out").read_text() == "ended\n"
    stop.close()


def test_each_process_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails where one that is in the process group and in the control group is asked twice."""
    line = ["sh", "-c", "sleep 60 & echo $!; wait"]
    with (
        subprocess.Popen(line, stdout=subprocess.PIPE, start_new_session=True) as child,
        subprocess.Popen(["sleep", "60"], start_new_session=True) as apart,
    ):
        assert child.stdout is not None
        inner = int(child.stdout.readline())
        asked: list[int] = []
        kill, pidfd = os.kill, os.pidfd_open(child.pid)
        monkeypatch.setattr(os, "kill", lambda pid, what: (asked.append(pid), kill(pid, what)))
        group: Any = SimpleNamespace(pids=lambda: [child.pid, inner, apart.pid])
        launching._terminate(child, group, pidfd)
        os.close(pidfd)
        assert [p.wait() for p in (child, apart)] == [-signal.SIGTERM] * 2
        assert asked == [apart.pid]


def test_one_stop_ends_several_and_those_that_begin_after_it(tmp_path: Path) -> None:
    stop = Stop()
    stop.ask()
    for _ in range(2):
        assert launch(["sleep", "60"], None, stop=stop).stopped
    stop.close()


def test_without_being_asked_nothing_is_other(tmp_path: Path) -> None:
    stop = Stop()
    done = launch("exit 4", None, stop=stop)
    assert (done.exit_status, done.stopped) == (4, False)
    done = launch(["sleep", "60"], None, timeout_s=0.1, stop=stop)
    assert (done.timed_out, done.stopped) == (True, False)
    stop.close()
