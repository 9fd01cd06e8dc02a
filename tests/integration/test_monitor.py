"""The process of the sampler during a run: samples, accounting and end."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from penstock.errors import BadInput, PenstockError
from penstock.host.cgroups.cgroup import create_run_cgroup, hierarchies
from penstock.host.journal.journal import Journal
from penstock.host.journal.undo import undo
from penstock.host.processes.launch import launch
from penstock.observe.sampler.monitor import Monitor
from tests.support import commands
from tests.support.waiting import until, wait_for_end

MS = 1_000_000


@pytest.fixture(autouse=True)
def runtime(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path_factory.mktemp("run")
    monkeypatch.setenv("PENSTOCK_RUNTIME", str(path))
    return path


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal.jsonl")


@pytest.fixture
def monitor(journal: Journal, tmp_path: Path) -> Iterator[Monitor]:
    with Monitor(journal, tmp_path, 20 * MS) as sampler:
        yield sampler
    assert journal.open_entries() == []


@pytest.mark.timed
def test_samples_are_on_the_grid_and_accounted_for(monitor: Monitor, tmp_path: Path) -> None:
    monitor.start(None, {}, tmp_path)
    time.sleep(0.5)
    result = monitor.stop()
    receipt = result.receipt
    assert receipt["expected"] == receipt["samples"] + receipt["missed"]
    due = (receipt["end_ns"] - receipt["start_ns"]) // receipt["interval_ns"] + 1
    assert abs(receipt["expected"] - due) <= 1
    samples = result.tables["samples"].to_pandas()
    late = samples[samples.metric == "lateness"]
    assert len(late) == receipt["samples"]
    offsets = late.t_ns - late.value.astype("int64") - receipt["start_ns"]
    assert (offsets % receipt["interval_ns"] == 0).all(), "a sample is not at t0 + k * interval"
    assert receipt["late_max_ns"] == late.value.max()
    assert receipt["cpu_ns"] > 0
    assert {"cpu", "memory"} <= set(samples.source)
    counters = samples[samples.cumulative & (samples.source == "cpu") & (samples.metric == "user")]
    assert (counters.groupby("entity").value.apply(lambda v: v.diff().min()) >= 0).all()
    assert not list(tmp_path.glob("samples.spool*"))


def test_a_run_shorter_than_the_interval_has_several_samples(
    journal: Journal, tmp_path: Path
) -> None:
    with Monitor(journal, tmp_path, 1000 * MS) as slow:
        for _ in range(10):  # a pause of this process may make the run longer than the interval
            slow.start(None, {}, tmp_path)
            time.sleep(0.8)
            result = slow.stop()
            receipt = result.receipt
            duration_ns = receipt["end_ns"] - receipt["start_ns"]
            if duration_ns < 1000 * MS and receipt["between"] > 2:
                break
    assert duration_ns < 1000 * MS
    assert (receipt["interval_ns"], receipt["used_ns"]) == (1000 * MS, 100 * MS)
    # only the sample of the interval is expected: a busy host must not make a run incomplete
    assert (receipt["samples"], receipt["expected"], receipt["complete"]) == (1, 1, "complete")
    times = np.unique(result.tables["samples"].column("t_ns").to_numpy())
    assert len(times) == 1 + receipt["between"] > 3
    busy = result.tables["utilisation"].to_pandas().query("kind == 'cpu' and metric == 'busy'")
    assert busy.groupby("entity").size().min() == len(times) - 1


@pytest.mark.timed
@pytest.mark.parametrize(("in_flight", "percent"), [(0, 0.0), (1, 100.0)])
def test_a_disk_is_sampled_through_its_counters(
    monitor: Monitor, tmp_path: Path, in_flight: int, percent: float
) -> None:
    page = tmp_path / "data.stats"
    counters = [int.from_bytes(b"PKDISK01", "little"), 2, time.monotonic_ns(), *range(100, 120)]
    counters[3 + 12] = in_flight
    page.write_bytes(struct.pack("<23Q", *counters).ljust(4096, b"\0"))
    monitor.start(None, {"data": page}, tmp_path)
    time.sleep(0.15)
    tables = monitor.stop().tables
    disk = tables["samples"].to_pandas().query("source == 'emulated_disk'")
    assert set(disk.entity) == {"data"}
    assert set(disk[disk.metric == "reads"].value) == {100.0}
    busy = tables["utilisation"].to_pandas().query("kind == 'emulated_disk' and metric == 'busy'")
    assert len(busy) > 1
    # the page does not change: its request is in flight all the time
    assert busy.value.median() == pytest.approx(percent, abs=5)


def test_samples_of_a_killed_sampler_are_kept(tmp_path: Path, runtime: Path) -> None:
    """A kill of the sampler loses only later samples, and the run is reported as partial."""
    journal = Journal(tmp_path / "journal.jsonl")
    with Monitor(journal, tmp_path, 10_000_000) as sampling:
        sampling.start(None, None, tmp_path)
        assert sampling._daemon is not None
        deadline = time.monotonic() + 60
        spool, sizes = tmp_path / "samples.spool", {0}
        while len(sizes) < 3:  # the first sample is written at once, the others later
            assert time.monotonic() < deadline
            time.sleep(0.02)
            sizes.add(spool.stat().st_size)
        killed_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        os.kill(sampling._daemon.pid, signal.SIGKILL)
        time.sleep(0.5)
        result = sampling.stop()
        assert result.receipt["died"]
        assert result.receipt["complete"] == "partial"
        assert result.receipt["missed"] >= 40
        times = result.tables["samples"]["t_ns"].to_numpy()
        assert 0 < len(np.unique(times)) == result.receipt["samples"]
        assert times.max() <= killed_ns
        # the next run has a new sampler
        sampling.start(None, None, tmp_path)
        time.sleep(0.2)
        assert "died" not in sampling.stop().receipt
    assert journal.open_entries() == []


def test_one_sampler_serves_many_runs(monitor: Monitor, tmp_path: Path) -> None:
    for _ in range(2):
        monitor.start(None, {}, tmp_path, network=False)
        time.sleep(0.1)
        samples = monitor.stop().tables["samples"].to_pandas()
        assert "network" not in set(samples.source)
        assert samples.t_ns.is_monotonic_increasing


def test_misuse_of_the_monitor_is_refused(
    monitor: Monitor, journal: Journal, tmp_path: Path
) -> None:
    with pytest.raises(PenstockError, match="not started"):
        monitor.stop()
    monitor.start(None, {}, tmp_path)
    with pytest.raises(PenstockError, match="under way"):
        monitor.start(None, {}, tmp_path)
    monitor.stop()
    with pytest.raises(BadInput, match="at least 10 ms"):
        Monitor(journal, tmp_path, 9 * MS)
    with pytest.raises(PenstockError, match="No such file"):
        monitor.start(None, {}, tmp_path / "absent")


@pytest.mark.timed
@pytest.mark.host
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: control groups")
@pytest.mark.skipif(hierarchies().layout == "none", reason="kernel: no control groups")
def test_the_control_group_has_its_own_processor_time(
    monitor: Monitor, journal: Journal, tmp_path: Path
) -> None:
    with create_run_cgroup("monitor", 256 << 20, journal) as group:
        monitor.start(group, {}, tmp_path)
        busy = "import time\nwhile time.process_time() < 0.4: pass"
        launch([sys.executable, "-S", "-c", busy], group)
        time.sleep(0.1)
        result = monitor.stop()
        spent_ns = _increase(result.tables["samples"].to_pandas(), "cpu_time")
        group_ns = group.cpu_ns()
    assert group_ns is not None
    # all processor time of the group is between the first and the last sample
    assert spent_ns == pytest.approx(group_ns, rel=0.05)
    assert spent_ns >= 0.38e9
    utilisation = (
        result.tables["utilisation"].to_pandas().query("kind == 'cgroup_cpu' and metric == 'busy'")
    )
    seconds = np.diff(np.unique(result.tables["samples"].column("t_ns").to_numpy())) / 1e9
    cpus = os.cpu_count() or 1
    assert float((utilisation.value / 100 * seconds).sum()) * cpus == pytest.approx(
        spent_ns / 1e9, rel=1e-6
    )


def _increase(samples: pd.DataFrame, metric: str) -> float:
    frame = samples[(samples.source == "cgroup") & (samples.metric == metric)]
    return float(frame.value.iloc[-1] - frame.value.iloc[0])


def test_the_sampler_ends_with_its_owner(tmp_path: Path, runtime: Path) -> None:
    journal_path = tmp_path / "owner.jsonl"
    program = (
        "import sys, os, signal\n"
        "from penstock.host.journal.journal import Journal\n"
        "from penstock.host.processes.daemon import start_daemon\n"
        "print(start_daemon('sampler', {}, Journal(sys.argv[1])).pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    result = commands.run(
        [sys.executable, "-c", program, str(journal_path)], stdout=subprocess.PIPE, text=True
    )
    wait_for_end(int(result.stdout))
    assert [u.kind for u in undo(Journal(journal_path))] == ["process"]
    assert not list(runtime.glob("*.sock"))


def test_a_daemon_that_cannot_start_reports_the_reason(journal: Journal, tmp_path: Path) -> None:
    from penstock.host.processes.daemon import start_daemon

    with pytest.raises(PenstockError, match=r"sampler: not understood.*expected i64"):
        start_daemon("sampler", {"interval_ns": "soon"}, journal, tmp_path / "log")
    assert journal.open_entries() == []


def test_undo_ends_a_daemon_that_outlives_its_owner(tmp_path: Path, runtime: Path) -> None:
    journal = Journal(tmp_path / "j")
    from penstock.host.processes.daemon import start_daemon

    daemon = start_daemon("sampler", {"outlive_owner": True}, journal)
    assert undo(journal, own=True) == [], "the daemon is alive and owns its entry"
    outcomes = undo(journal, everything=True)
    assert [(u.kind, u.outcome) for u in outcomes] == [("process", "undone")]
    assert not daemon.alive
    assert not list(runtime.glob("*.sock"))
    assert json.dumps([vars(u) for u in outcomes])


def monitor_run(*argv: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-c",
        "from penstock.cli import main; main()",
        "monitor",
        "run",
        *argv,
    ]
    return commands.run(command, capture_output=True, text=True)


def test_the_command_keeps_its_status_and_leaves_a_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.archive.bundle import Bundle

    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path / "state"))
    out = tmp_path / "out"
    shell = ["sh", "-c", "echo said; sleep 0.2; exit 7"]
    result = monitor_run("-i", "0.02", "-o", str(out), "--json", "--", *shell)
    assert result.returncode == 7, result.stderr
    summary = json.loads(result.stdout)
    assert summary["exit_status"] == 7
    assert "said" in result.stderr
    bundle = Bundle.open(out)
    assert {"samples", "utilisation", "clocks", "phases"} <= set(bundle.tables)
    receipt = bundle.manifest["receipts"]["monitor"]
    assert receipt["samples"] == summary["receipt"]["samples"] >= 1
    assert receipt["samples"] + receipt["missed"] == receipt["expected"] > 5  # of 0.2 s
    assert bundle.manifest["state"] == "failed"
    assert not list(out.glob("samples.spool*"))
    assert Journal(tmp_path / "state" / "journal.jsonl").open_entries() == []


@pytest.mark.parametrize(
    ("number", "status", "command"),
    [
        (signal.SIGTERM, 143, "echo up; exec sleep 300"),
        (signal.SIGHUP, 9, "trap 'exit 9' HUP; echo up; while :; do sleep 0.05; done"),
        (signal.SIGINT, 3, "trap 'echo ending; exit 3' INT; echo up; while :; do sleep 0.05; done"),
    ],
)
def test_a_signal_is_passed_to_the_command_and_ends_the_experiment(
    tmp_path: Path, number: int, status: int, command: str
) -> None:
    """penstock survives the signal, ends its command and the experiment."""
    program = str(Path(sys.executable).with_name("penstock"))
    environment = os.environ | {"PENSTOCK_STATE": str(tmp_path / "state")}
    argv = [program, "monitor", "run", "-i", "0.05", "--name", "x", "--", "sh", "-c", command]
    with subprocess.Popen(
        argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "up\n"
        run.send_signal(number)
        out, err = run.communicate(timeout=120)
    assert run.returncode == status, err
    assert "samples" in out
    result = commands.run(
        [program, "monitor", "list", "--json"], env=environment, capture_output=True, text=True
    )
    (experiment,) = json.loads(result.stdout)["experiments"]
    assert (experiment["state"], experiment["name"]) == ("aborted", "x")
    assert Journal(tmp_path / "state" / "journal.jsonl").open_entries() == []


def test_status_is_125_without_a_program_and_2_for_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path / "state"))
    missing = monitor_run("-o", str(tmp_path / "out"), "--", "no-such-program")
    assert missing.returncode == 125
    assert "no-such-program" in missing.stderr
    assert not (tmp_path / "out").exists()
    assert monitor_run("-i", "0.001", "--", "true").returncode == 2


def test_undo_removes_the_partial_bundle_of_a_killed_monitor(tmp_path: Path) -> None:
    program = [str(Path(sys.executable).with_name("penstock"))]
    environment = os.environ | {"PENSTOCK_STATE": str(tmp_path / "state")}
    argv = [*program, "monitor", "run", "-o", str(tmp_path / "out"), "--", "sleep", "60"]
    with subprocess.Popen(argv, env=environment, start_new_session=True) as monitoring:
        until((tmp_path / ".out.partial" / "samples.spool").exists)
        monitoring.kill()
    commands.run([*program, "undo"], env=environment, check=True, capture_output=True, timeout=60)
    assert [p.name for p in tmp_path.iterdir()] == ["state"]
