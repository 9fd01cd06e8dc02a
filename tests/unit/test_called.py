"""A mark has the time of its call, not the later time after its imports."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from penstock.host.processes import processes
from tests.support import commands

PENSTOCK = [sys.executable, "-m", "penstock", "monitor"]


def test_a_mark_has_the_time_of_its_call(tmp_path: Path) -> None:
    environment = os.environ | {
        "PENSTOCK_STATE": str(tmp_path),
        "PENSTOCK_RUNTIME": str(tmp_path / "run"),
    }
    environment.pop("PENSTOCK_SERVER", None)

    def cli(*arguments: str) -> str:
        result = commands.run(
            [*PENSTOCK, *arguments], env=environment, capture_output=True, text=True, check=True
        )
        return result.stdout

    cli("start", "x")
    # the program waits for a second before the mark, as one with many imports
    slow = "import time; print(time.time_ns(), flush=True); time.sleep(1); import sys; "
    # also on a busy host
    slow += "from penstock.host.processes import processes; processes._JUST_S = 600; "
    slow += f"sys.argv = {['penstock', 'monitor', 'mark', 'x', '--note', 'late']!r}; "
    slow += "from penstock.cli import main; main()"
    before_ns = time.time_ns()
    result = commands.run(
        [sys.executable, "-c", slow], env=environment, capture_output=True, text=True, check=True
    )
    begin_ns = int(result.stdout.split()[0])
    cli("stop", "x")
    (path,) = tmp_path.glob("experiments/*/x.1-*")
    from penstock.archive.bundle import Bundle

    (mark_ns,) = (
        r["start_utc_ns"]
        for r in Bundle.open(path).table("marks").to_pylist()
        if "late" in r.values()
    )
    # to 10 ms the start of the process, a second before the mark at the earliest
    assert before_ns - 100_000_000 < mark_ns < begin_ns + 100_000_000


def test_only_a_recent_process_has_a_time_of_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "start_ticks", lambda pid: 1)
    monkeypatch.setattr(processes.time, "clock_gettime", lambda clock: 11.0)
    assert processes.called_ns() is None
    monkeypatch.setattr(processes.time, "clock_gettime", lambda clock: 5.01)
    before_ns = time.time_ns()
    called_ns = processes.called_ns()
    assert called_ns is not None
    assert before_ns <= called_ns + 5_000_000_000 <= time.time_ns()
