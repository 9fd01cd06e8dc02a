"""`penstock monitor start` samples this host until the experiment ends, by a process that ends with it."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.parts.monitoring import sampling
from tests.support import commands


class Ground:
    """A state directory of its own, and what runs and lies there."""

    def __init__(self, place: Path) -> None:
        self.state, self.runtime = place / "state", place / "run"
        own = {"PENSTOCK_STATE": str(self.state), "PENSTOCK_RUNTIME": str(self.runtime)}
        self.environment = {k: v for k, v in os.environ.items() if k != "PENSTOCK_SERVER"} | own

    def penstock(self, *words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "penstock", *words]
        done = commands.run(
            line, env=self.environment, capture_output=True, text=True, timeout=100, check=False
        )
        assert done.returncode == status, done.stderr
        return done

    def rows(self, metric: str) -> list[dict[str, str]]:
        said = self.penstock("monitor", "get", "x", "-m", metric, "--label", "entity").stdout
        return list(csv.DictReader(io.StringIO(said)))

    def stored(self, metric: str) -> bool:
        line = [sys.executable, "-m", "penstock", "monitor", "get", "x", "-m", metric]
        done = commands.run(line, env=self.environment, capture_output=True, check=False)
        return done.returncode == 0

    def manifest(self) -> dict[str, Any]:
        (found,) = self.state.glob("experiments/*/x.1-*/manifest.json")
        return dict(json.loads(found.read_text()))

    def recorder(self) -> int | None:
        """The pid of the process that samples; it names this state directory in its environment."""
        ours = f"PENSTOCK_STATE={self.state}".encode()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                named = (process / "comm").read_text() == "penstock-record\n"
                if named and ours in (process / "environ").read_bytes().split(b"\0"):
                    return int(process.name)
            except OSError:
                continue
        return None

    def spools(self) -> list[Path]:
        return list(self.state.glob("record-*"))

    def is_clean(self) -> bool:
        return self.recorder() is None and not self.spools() and not list(self.runtime.iterdir())


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    ground = Ground(tmp_path)
    yield ground
    if (pid := ground.recorder()) is not None:
        os.kill(pid, signal.SIGKILL)
    ground.penstock("undo")


def wait_for(there: Callable[[], object]) -> None:
    until = time.monotonic() + 60
    while not there():
        assert time.monotonic() < until
        time.sleep(0.1)


def test_between_start_and_stop_the_host_is_sampled(ground: Ground) -> None:
    ground.penstock("monitor", "start", "x", "--interval", "0.1")
    (spool,) = ground.spools()
    assert spool.stat().st_mode & 0o077 == 0
    # it is an entry of the journal while it lasts, and its owner lives
    assert "Nothing" in ground.penstock("undo").stdout
    wait_for(lambda: ground.stored("sampler_lateness"))
    ground.penstock("monitor", "stop", "x")
    assert ground.is_clean()
    assert "Nothing" in ground.penstock("undo", "--all").stdout
    rows = ground.rows("cpu_busy")
    assert len(rows) >= 3
    assert "all" in rows[0]
    manifest = ground.manifest()
    assert manifest["receipts"]["monitor"]["complete"] == "complete"
    assert manifest["state"] == "ended"


def test_nothing_is_sampled_unless_it_is_of_now_and_here(ground: Ground) -> None:
    began = f"{time.time() - 100:.0f}"
    for words in (("--no-sample",), ("--at", began), ("--server", "http://127.0.0.1:1")):
        ground.penstock("monitor", "start", "x", *words)
        assert not ground.spools(), words
        assert ground.recorder() is None
        ground.penstock("monitor", "rm", "x", status=0 if "--server" not in words else 2)


@pytest.mark.parametrize("end", ["rm", "timeout"])
def test_sampling_ends_with_the_experiment(ground: Ground, end: str) -> None:
    ground.penstock("monitor", "start", "x", *(("--timeout", "1") if end == "timeout" else ()))
    if end == "rm":
        ground.penstock("monitor", "rm", "x")
    wait_for(ground.is_clean)
    assert "Nothing" in ground.penstock("undo", "--all").stdout


def test_it_ends_where_another_command_ends_the_experiment(ground: Ground) -> None:
    ground.penstock("monitor", "start", "x")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_STATE", str(ground.state))
        from penstock.parts.monitoring.outbox.client import Local

        Local().stop("x")
    wait_for(ground.is_clean)


def test_a_killed_sampler_is_named_at_the_end_and_undone(ground: Ground) -> None:
    ground.penstock("monitor", "start", "x")
    pid = ground.recorder()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: ground.recorder() is None)
    assert "sampler ended before it" in ground.penstock("monitor", "stop", "x").stderr
    assert not ground.spools()


def test_undo_ends_it_after_a_crash(ground: Ground) -> None:
    ground.penstock("monitor", "start", "x")
    assert "record" in ground.penstock("undo", "--all").stdout
    assert ground.is_clean()
    ground.penstock("monitor", "stop", "x")
    ground.penstock("monitor", "start", "x")
    pid = ground.recorder()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: ground.recorder() is None)
    assert "directory" in ground.penstock("undo").stdout
    assert not ground.spools()


def test_a_name_that_runs_leaves_no_second_sampler(ground: Ground) -> None:
    ground.penstock("monitor", "start", "x", "--no-sample")
    assert "is running" in ground.penstock("monitor", "start", "x", status=1).stderr
    wait_for(ground.is_clean)


def test_the_list_names_its_columns_tags_and_parameters(ground: Ground) -> None:
    assert ground.penstock("monitor", "list").stdout == ""
    ground.penstock("monitor", "start", "x", "--no-sample", "--tag", "nightly", "-p", "disk=fast")
    head, row = ground.penstock("monitor", "list").stdout.splitlines()
    assert head.split()[:4] == ["experiment", "state", "begun", "lasted"]
    assert row.split()[:2] == ["x#1", "running"]
    assert row.endswith("nightly disk=fast")


def test_a_run_prints_what_was_used_by_the_names_that_plot_takes(ground: Ground) -> None:
    line = ("monitor", "run", "--name", "x", "-i", "0.05", "--", "sh", "-c", "sleep 0.4")
    said = ground.penstock(*line).stdout.splitlines()
    rows = {line[: len(line) - 28].strip() for line in said[2:] if not line.startswith("Idle")}
    assert "cpu_busy all" in rows
    ground.penstock(
        "plot", "x", "lines", "-s", "cpu_busy all", "-o", str(ground.state / "f.svg"), "--partial"
    )


def test_idle_devices_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    from penstock.parts.monitoring.cli.monitor.command import _show

    receipt = {"samples": 2, "expected": 2, "late_p99_ns": 1000}
    used = {"kind": "disk", "entity": "vda", "metric": "write_rate", "unit": "B/s"}
    idle = [
        {"kind": "disk", "entity": f"loop{k}", "metric": m, "unit": "%", "mean": 0.0, "max": 0.0}
        for k in range(3)
        for m in ("busy", "queue_depth")
    ]
    _show(1.0, receipt, [{**used, "mean": 1.658e8, "max": 2e8}, *idle])
    said = capsys.readouterr().out.splitlines()
    assert said[2].split() == ["disk_write_rate", "vda", "158", "MiB/s", "191", "MiB/s"]
    assert said[3:] == ["Idle: disk loop0, disk loop1 and disk loop2"]


def test_sampling_ends_before_the_disk_of_its_spool_is_full(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    daemon = sampling._Daemon.__new__(sampling._Daemon)
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path))
    free = 2 << 30
    monkeypatch.setattr(sampling, "disk_usage", lambda _: SimpleNamespace(free=free))
    daemon._recording = None
    assert not daemon._full()
    daemon._recording = cast(Any, object())
    assert not daemon._full()
    free = 1 << 29
    assert daemon._full()
