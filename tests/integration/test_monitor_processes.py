"""Samples of processes, files and commands; the programs read and write known numbers of bytes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from penstock.host.cgroups.cgroup import create_run_cgroup, hierarchies
from penstock.host.journal.journal import Journal
from penstock.host.processes.launch import launch
from penstock.observe.sampler.monitor import Monitor, MonitorResult
from penstock.spec.application import Application

MS = 1_000_000
#: KiB written and read by each child: different prime numbers
WRITTEN, READ = (1009, 2003), (3001, 4001)
#: writes, waits, reads and waits, so that each state is sampled
CHILD = """
import os, sys, time
out, source, written, read = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
file = os.open(source, os.O_RDONLY)
sink = os.open(out, os.O_WRONLY | os.O_CREAT)
time.sleep(1.0)
for _ in range(written):
    os.write(sink, bytes(1024))
time.sleep(2.0)
for _ in range(read):
    assert len(os.read(file, 1024)) == 1024
time.sleep(3.0)
"""


@pytest.fixture(autouse=True)
def runtime(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_RUNTIME", str(tmp_path_factory.mktemp("run")))


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path / "journal.jsonl")
    yield journal
    assert journal.open_entries() == []


def parent(tmp_path: Path) -> list[str]:
    """A command that starts the children and waits for them."""
    source = tmp_path / "source"
    source.write_bytes(bytes(1024 * max(READ)))
    child = tmp_path / "child.py"
    child.write_text(CHILD)
    children = [
        f"{sys.executable} {child} {tmp_path}/out-{n} {source} {written} {read} &"
        for n, (written, read) in enumerate(zip(WRITTEN, READ, strict=True))
    ]
    return ["sh", "-c", " ".join(children) + " wait"]


def processes(result: MonitorResult) -> pd.DataFrame:
    samples = result.tables["samples"].to_pandas()
    return samples[(samples.source == "process") & (samples.entity != "all")]


def assert_bytes_of_children(samples: pd.DataFrame) -> None:
    """Assert the exact bytes that the children wrote and that they read in one phase."""
    written = {}
    for _, rows in samples[samples.metric.isin(["call_written_bytes"])].groupby("entity"):
        written[rows.entity.iloc[0]] = float(rows.value.max())
    children = [
        e for e, written_bytes in written.items() if "comm=python" in e and written_bytes > 0
    ]
    assert sorted(written[e] for e in children) == [1024.0 * n for n in WRITTEN]
    for entity in children:
        reads = samples[(samples.entity == entity) & (samples.metric == "call_read_bytes")]
        final = reads.value.max()
        read = 1024 * READ[WRITTEN.index(int(written[entity] // 1024))]
        assert final - read in set(reads.value), "expected a sample before the first read"


@pytest.mark.skipif(
    hierarchies().unified is None and not hierarchies().v1, reason="no control groups"
)
def test_bytes_of_the_children_of_a_command(journal: Journal, tmp_path: Path) -> None:
    application = Application(processes=True)
    with (
        Monitor(journal, tmp_path, 50 * MS, application=application) as monitor,
        create_run_cgroup("processes", None, journal) as group,
    ):
        monitor.start(group, {}, tmp_path)
        launch(parent(tmp_path), group, stdout=subprocess.DEVNULL)
        result = monitor.stop()
    samples = processes(result)
    assert_bytes_of_children(samples)
    by_metric = samples.groupby("metric").value.max()
    assert by_metric["threads"] == 1
    assert by_metric["resident"] > 1 << 20
    # counters only grow, also of idle processes
    ordered = samples[samples.cumulative].sort_values("t_ns", kind="stable")
    assert (ordered.groupby(["entity", "metric"]).value.diff().dropna() >= 0).all()
    stats = result.receipt["process"]
    assert stats["seen"] >= 3
    assert stats["most_not_sampled"] == 0
    assert not set(result.tables["utilisation"]["kind"].to_pylist()) & {"process"}


def test_bytes_of_descendants_without_a_control_group(journal: Journal, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as before:
        try:
            application = Application(processes=True)
            with Monitor(journal, tmp_path, 50 * MS, application=application) as monitor:
                monitor.start(None, {}, tmp_path)
                time.sleep(0.1)  # the kernel's start times have a resolution of 10 ms
                subprocess.run(parent(tmp_path), check=True)
                result = monitor.stop()
        finally:
            before.kill()
    samples = processes(result)
    assert_bytes_of_children(samples)
    assert f"pid={before.pid} comm=sleep" not in set(samples.entity)
    assert f"pid={os.getpid()}" not in set(samples.entity.str.split().str[0])


def test_series_of_files_and_commands_and_of_their_success(
    journal: Journal, tmp_path: Path
) -> None:
    depth = tmp_path / "depth"
    application = Application(
        files={"depth": str(depth), "never": str(tmp_path / "never")},
        metrics={"counted": "echo 17 of 32", "slow": "sleep 600", "wrong": "exit 4"},
    )
    with Monitor(journal, tmp_path, 50 * MS, application=application) as monitor:
        monitor.start(None, {}, tmp_path)
        time.sleep(1.0)
        depth.write_text("5\n")
        time.sleep(4.0)
        depth.unlink()
        time.sleep(1.0)
        result = monitor.stop()
    samples = result.tables["samples"].to_pandas()
    values = samples.set_index(["source", "entity", "metric"]).value.sort_index()
    assert set(values["file", "depth", "value"]) == {5.0}
    assert set(values["file", "depth", "up"]) == {0.0, 1.0}
    assert set(values["file", "never", "up"]) == {0.0}
    assert ("file", "never", "value") not in values.index
    assert set(values["command", "counted", "value"]) == {17.0}
    assert set(values["command", "slow", "up"]) == {0.0} == set(values["command", "wrong", "up"])
    stats = result.receipt["command"]
    assert stats["counted"].keys() == {"runs"}
    assert stats["slow"]["late"] == stats["slow"]["runs"] >= 1
    assert stats["wrong"]["failed"] == stats["wrong"]["runs"] >= 2
    # samples do not wait for commands
    assert values["command", "slow", "seconds"].min() > 0.5
    receipt = result.receipt
    assert receipt["samples"] + receipt["missed"] == receipt["expected"] > 20
    sources = samples[samples.metric == "source_up"]
    assert {"source=cpu", "source=file", "source=command"} <= set(sources.entity)
    assert set(sources.value) == {1.0}
    seconds = samples[samples.metric == "source_seconds"].value
    assert ((seconds > 0) & (seconds < 10)).all()
    assert result.receipt["sources"]["cpu"]["readings"] == result.receipt["samples"]
