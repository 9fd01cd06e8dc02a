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
    slow = f"import time; time.sleep(1); import sys; sys.argv = {['penstock', 'monitor', 'mark', 'x']!r}"
    slow += " + ['--note', 'late']; from penstock.cli import main; main()"
    before = time.time_ns()
    commands.run([sys.executable, "-c", slow], env=environment, check=True)
    after = time.time_ns()
    cli("stop", "x")
    (path,) = tmp_path.glob("experiments/*/x.1-*")
    from penstock.archive.bundle import Bundle

    (mark_ns,) = (
        r["start_utc_ns"]
        for r in Bundle.open(path).table("marks").to_pylist()
        if "late" in r.values()
    )
    # nearer to the call than to the end, which is one second plus the imports later
    assert mark_ns - before < (after - before) / 2


def test_only_a_recent_process_has_a_time_of_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "start_ticks", lambda pid: 1)
    monkeypatch.setattr(processes.time, "clock_gettime", lambda clock: 11.0)
    assert processes.called_ns() is None
    monkeypatch.setattr(processes.time, "clock_gettime", lambda clock: 5.01)
    age_ns = time.time_ns() - (processes.called_ns() or 0)
    assert 4.9e9 < age_ns < 6e9
