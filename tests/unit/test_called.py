"""A mark bears the time of its call, not that of the end of its imports."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from penstock.host.processes import processes
from tests.support import commands

PENSTOCK = [sys.executable, "-m", "penstock", "monitor"]


def test_a_mark_is_of_the_moment_of_its_call(tmp_path: Path) -> None:
    own = os.environ | {"PENSTOCK_STATE": str(tmp_path), "PENSTOCK_RUNTIME": str(tmp_path / "run")}
    own.pop("PENSTOCK_SERVER", None)

    def cli(*words: str) -> str:
        done = commands.run(
            [*PENSTOCK, *words], env=own, capture_output=True, text=True, check=True
        )
        return done.stdout

    cli("start", "x")
    # the program waits for a second before it gets to the mark, as one that imports much
    slow = f"import time; time.sleep(1); import sys; sys.argv = {['penstock', 'monitor', 'mark', 'x']!r}"
    slow += " + ['--note', 'late']; from penstock.cli import main; main()"
    before = time.time_ns()
    commands.run([sys.executable, "-c", slow], env=own, check=True)
    after = time.time_ns()
    cli("stop", "x")
    (path,) = tmp_path.glob("experiments/*/x.1-*")
    from penstock.archive.bundle import Bundle

    (at,) = (
        r["start_utc_ns"]
        for r in Bundle.open(path).table("marks").to_pylist()
        if "late" in r.values()
    )
    # nearer to the call than to the end, which is a second and the imports later
    assert at - before < (after - before) / 2


def test_an_old_process_was_not_called_just_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "start_ticks", lambda pid: 1)
    monkeypatch.setattr(processes.time, "clock_gettime", lambda clock: 11.0)
    assert processes.called_ns() is None
    monkeypatch.setattr(processes.time, "clock_gettime", lambda clock: 5.01)
    age_ns = time.time_ns() - (processes.called_ns() or 0)
    assert 4.9e9 < age_ns < 6e9
