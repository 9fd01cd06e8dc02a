"""`penstock monitor start` starts a process that samples this host until the experiment ends."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.parts.monitoring import sampling
from tests.support import commands
from tests.support.waiting import until


class Workspace:
    """A separate state directory, with the processes and files that belong to it."""

    def __init__(self, folder: Path) -> None:
        self.state, self.runtime = folder / "state", folder / "run"
        directories = {"PENSTOCK_STATE": str(self.state), "PENSTOCK_RUNTIME": str(self.runtime)}
        self.environment = {
            k: v for k, v in os.environ.items() if k != "PENSTOCK_SERVER"
        } | directories

    def penstock(self, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "penstock", *arguments]
        result = commands.run(
            argv, env=self.environment, capture_output=True, text=True, timeout=100, check=False
        )
        assert result.returncode == status, result.stderr
        return result

    def rows(self, metric: str) -> list[dict[str, str]]:
        table = self.penstock("monitor", "get", "x", "-m", metric, "--label", "entity").stdout
        return list(csv.DictReader(io.StringIO(table)))

    def stored(self, metric: str) -> bool:
        argv = [sys.executable, "-m", "penstock", "monitor", "get", "x", "-m", metric]
        result = commands.run(argv, env=self.environment, capture_output=True, check=False)
        return result.returncode == 0

    def manifest(self) -> dict[str, Any]:
        (path,) = self.state.glob("experiments/*/x.1-*/manifest.json")
        return dict(json.loads(path.read_text()))

    def recorder(self) -> int | None:
        """Pid of the sampling process, which has this state directory in its environment."""
        variable = f"PENSTOCK_STATE={self.state}".encode()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                is_recorder = (process / "comm").read_text() == "penstock-record\n"
                if is_recorder and variable in (process / "environ").read_bytes().split(b"\0"):
                    return int(process.name)
            except OSError:
                continue
        return None

    def spools(self) -> list[Path]:
        return list(self.state.glob("record-*"))

    def is_clean(self) -> bool:
        return self.recorder() is None and not self.spools() and not list(self.runtime.iterdir())


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    workspace = Workspace(tmp_path)
    yield workspace
    if (pid := workspace.recorder()) is not None:
        os.kill(pid, signal.SIGKILL)
    workspace.penstock("undo")


def test_host_is_sampled_between_start_and_stop(workspace: Workspace) -> None:
    workspace.penstock("monitor", "start", "x", "--interval", "0.1")
    (spool,) = workspace.spools()
    assert spool.stat().st_mode & 0o077 == 0
    # the journal has an open entry, and its owner is alive
    assert "Nothing" in workspace.penstock("undo").stdout
    until(lambda: workspace.stored("sampler_lateness"))
    until(lambda: len(workspace.rows("sampler_lateness")) >= 5)
    workspace.penstock("monitor", "stop", "x")
    assert workspace.is_clean()
    assert "Nothing" in workspace.penstock("undo", "--all").stdout
    rows = workspace.rows("cpu_busy")
    assert len(rows) >= 3
    assert "all" in rows[0]
    manifest = workspace.manifest()
    # a busy host can delay the sampler by more than an interval
    monitor = manifest["receipts"]["monitor"]
    missed = monitor["samples"] < 0.99 * monitor["expected"]
    assert monitor["complete"] == ("partial" if missed else "complete")
    assert manifest["state"] == "ended"


def test_only_current_local_experiments_are_sampled(workspace: Workspace) -> None:
    began = f"{time.time() - 100:.0f}"
    for options in (("--no-sample",), ("--at", began), ("--server", "http://127.0.0.1:1")):
        workspace.penstock("monitor", "start", "x", *options)
        assert not workspace.spools(), options
        assert workspace.recorder() is None
        workspace.penstock("monitor", "rm", "x", status=0 if "--server" not in options else 2)


@pytest.mark.parametrize("end", ["rm", "timeout"])
def test_sampling_ends_with_the_experiment(workspace: Workspace, end: str) -> None:
    workspace.penstock("monitor", "start", "x", *(("--timeout", "1") if end == "timeout" else ()))
    if end == "rm":
        workspace.penstock("monitor", "rm", "x")
    until(workspace.is_clean)
    assert "Nothing" in workspace.penstock("undo", "--all").stdout


def test_sampling_ends_when_another_process_ends_the_experiment(workspace: Workspace) -> None:
    workspace.penstock("monitor", "start", "x")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_STATE", str(workspace.state))
        from penstock.parts.monitoring.outbox.client import Local

        Local().stop("x")
    until(workspace.is_clean)


def test_killed_sampler_is_reported_and_cleaned_up(workspace: Workspace) -> None:
    workspace.penstock("monitor", "start", "x")
    pid = workspace.recorder()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: workspace.recorder() is None)
    assert "sampler ended before it" in workspace.penstock("monitor", "stop", "x").stderr
    assert not workspace.spools()


def test_undo_ends_the_sampler(workspace: Workspace) -> None:
    workspace.penstock("monitor", "start", "x")
    assert "record" in workspace.penstock("undo", "--all").stdout
    assert workspace.is_clean()
    workspace.penstock("monitor", "stop", "x")
    workspace.penstock("monitor", "start", "x")
    pid = workspace.recorder()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: workspace.recorder() is None)
    assert "directory" in workspace.penstock("undo").stdout
    assert not workspace.spools()


def test_running_name_starts_no_second_sampler(workspace: Workspace) -> None:
    workspace.penstock("monitor", "start", "x", "--no-sample")
    assert "is running" in workspace.penstock("monitor", "start", "x", status=1).stderr
    until(workspace.is_clean)


def test_list_has_columns_tags_and_parameters(workspace: Workspace) -> None:
    assert workspace.penstock("monitor", "list").stdout == ""
    workspace.penstock(
        "monitor", "start", "x", "--no-sample", "--tag", "nightly", "-p", "disk=fast"
    )
    head, row = workspace.penstock("monitor", "list").stdout.splitlines()
    assert head.split()[:4] == ["experiment", "state", "begun", "lasted"]
    assert row.split()[:2] == ["x#1", "running"]
    assert row.endswith("nightly disk=fast")


def test_series_of_the_printed_table_can_be_plotted(workspace: Workspace) -> None:
    argv = ("monitor", "run", "--name", "x", "-i", "0.05", "--", "sh", "-c", "sleep 0.4")
    lines = workspace.penstock(*argv).stdout.splitlines()
    rows = {line[: len(line) - 28].strip() for line in lines[2:] if not line.startswith("Idle")}
    assert "cpu_busy all" in rows
    workspace.penstock(
        "plot",
        "x",
        "lines",
        "-s",
        "cpu_busy all",
        "-o",
        str(workspace.state / "f.svg"),
        "--partial",
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
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["disk_write_rate", "vda", "158", "MiB/s", "191", "MiB/s"]
    assert lines[3:] == ["Idle: disk loop0, disk loop1 and disk loop2"]


def test_sampling_ends_before_the_disk_is_full(
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
