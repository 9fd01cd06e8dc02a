"""Processes, files and commands that a monitor samples: of programs that read and write known bytes."""

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
#: prime numbers of KiB, another one of each child
WRITTEN, READ = (1009, 2003), (3001, 4001)
#: writes, waits, reads, and waits for its end, so that each of its states is sampled
CHILD = """
import os, sys, time
out, source, written, read = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
file = os.open(source, os.O_RDONLY)
sink = os.open(out, os.O_WRONLY | os.O_CREAT)
time.sleep(0.5)
for _ in range(written):
    os.write(sink, bytes(1024))
time.sleep(0.5)
for _ in range(read):
    assert len(os.read(file, 1024)) == 1024
time.sleep(1.0)
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
    """A command that starts the children, and waits for them."""
    source = tmp_path / "source"
    source.write_bytes(bytes(1024 * max(READ)))
    child = tmp_path / "child.py"
    child.write_text(CHILD)
    started = [
        f"{sys.executable} {child} {tmp_path}/out-{n} {source} {written} {read} &"
        for n, (written, read) in enumerate(zip(WRITTEN, READ, strict=True))
    ]
    return ["sh", "-c", " ".join(started) + " wait"]


def processes(result: MonitorResult) -> pd.DataFrame:
    samples = result.tables["samples"].to_pandas()
    return samples[(samples.source == "process") & (samples.entity != "all")]


def told_bytes(found: pd.DataFrame) -> None:
    """What the children wrote is there, to the byte, and what they read in one go, too."""
    grown = {}
    for _, rows in found[found.metric.isin(["call_written_bytes"])].groupby("entity"):
        grown[rows.entity.iloc[0]] = float(rows.value.max())
    children = [e for e, most in grown.items() if "comm=python" in e and most > 0]
    assert sorted(grown[e] for e in children) == [1024.0 * n for n in WRITTEN]
    for entity in children:
        mine = found[(found.entity == entity) & (found.metric == "call_read_bytes")]
        last = mine.value.max()
        read = 1024 * READ[WRITTEN.index(int(grown[entity] // 1024))]
        assert last - read in set(mine.value), "what was read before is nobody else's"


@pytest.mark.skipif(
    hierarchies().unified is None and not hierarchies().v1, reason="no control groups"
)
def test_children_of_a_command_by_what_they_read_and_wrote(
    journal: Journal, tmp_path: Path
) -> None:
    asked = Application(processes=True)
    with (
        Monitor(journal, tmp_path, 50 * MS, application=asked) as monitor,
        create_run_cgroup("processes", None, journal) as group,
    ):
        monitor.start(group, {}, tmp_path)
        launch(parent(tmp_path), group, stdout=subprocess.DEVNULL)
        result = monitor.stop()
    found = processes(result)
    told_bytes(found)
    by_metric = found.groupby("metric").value.max()
    assert by_metric["threads"] == 1
    assert by_metric["resident"] > 1 << 20
    # counters only grow, whoever is idle meanwhile
    ordered = found[found.cumulative].sort_values("t_ns", kind="stable")
    assert (ordered.groupby(["entity", "metric"]).value.diff().dropna() >= 0).all()
    told = result.receipt["process"]
    assert told["seen"] >= 3
    assert told["most_not_sampled"] == 0
    assert not set(result.tables["utilisation"]["kind"].to_pylist()) & {"process"}


def test_descendants_where_there_is_no_group(journal: Journal, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as before:
        try:
            asked = Application(processes=True)
            with Monitor(journal, tmp_path, 50 * MS, application=asked) as monitor:
                monitor.start(None, {}, tmp_path)
                time.sleep(0.1)  # the kernel's clock of beginnings goes by hundredths
                subprocess.run(parent(tmp_path), check=True)
                result = monitor.stop()
        finally:
            before.kill()
    found = processes(result)
    told_bytes(found)
    assert f"pid={before.pid} comm=sleep" not in set(found.entity)
    assert f"pid={os.getpid()}" not in set(found.entity.str.split().str[0])


def test_files_and_commands_are_series_and_so_is_how_it_went(
    journal: Journal, tmp_path: Path
) -> None:
    depth = tmp_path / "depth"
    asked = Application(
        files={"depth": str(depth), "never": str(tmp_path / "never")},
        metrics={"counted": "echo 17 of 32", "slow": "sleep 600", "wrong": "exit 4"},
    )
    with Monitor(journal, tmp_path, 50 * MS, application=asked) as monitor:
        monitor.start(None, {}, tmp_path)
        time.sleep(0.3)
        depth.write_text("5\n")
        time.sleep(2.2)
        depth.unlink()
        time.sleep(0.2)
        result = monitor.stop()
    samples = result.tables["samples"].to_pandas()
    of = samples.set_index(["source", "entity", "metric"]).value.sort_index()
    assert set(of["file", "depth", "value"]) == {5.0}
    assert set(of["file", "depth", "up"]) == {0.0, 1.0}
    assert set(of["file", "never", "up"]) == {0.0}
    assert ("file", "never", "value") not in of.index
    assert set(of["command", "counted", "value"]) == {17.0}
    assert set(of["command", "slow", "up"]) == {0.0} == set(of["command", "wrong", "up"])
    told = result.receipt["command"]
    assert told["counted"].keys() == {"runs"}
    assert told["slow"]["late"] == told["slow"]["runs"] >= 1
    assert told["wrong"]["failed"] == told["wrong"]["runs"] >= 2
    # no sample waited for a command
    assert of["command", "slow", "seconds"].min() > 0.5
    assert result.receipt["samples"] > 20
    sources = samples[samples.metric == "source_up"]
    assert {"source=cpu", "source=file", "source=command"} <= set(sources.entity)
    assert set(sources.value) == {1.0}
    seconds = samples[samples.metric == "source_seconds"].value
    assert ((seconds > 0) & (seconds < 10)).all()
    assert result.receipt["sources"]["cpu"]["readings"] == result.receipt["samples"]
