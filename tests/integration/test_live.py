"""Alerts that end runs on the host, on nodes and on a host of a campaign; events of the live stream."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest

from penstock.archive.runs import bundles
from penstock.host.journal.journal import Journal
from tests.support import commands

from .node_ground import Ground

pytestmark = [
    pytest.mark.host,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: control groups, tracing"),
]
TOKEN = "a-token-of-many-letters"
#: the command runs until it is ended; its background process must end with it
STUDY = """
penstock: 1
name: hot
question: Does an alert end it?
factors:
  word: {levels: [one, two]}
design: {kind: full, replicates: 1, seed: 5}
platform: PLATFORM
workload:
  command: |
    sh -c 'while :; do sleep 1; done' MARK {word} &
    trap 'echo ended >> {run_dir}/said; exit 1' TERM
    while :; do :; done
  timeout: 120s
responses: {wall: {from: wall_s, unit: s, better: lower}}
observers: {monitor: {interval: 100ms}}
alerts:
  - RULE for 300ms then abort
  - memory_available > 1 MiB
"""
HOST = "cpu_busy{entity=all} > 1%"
NODE = "cgroup_cpu_busy{entity=n-*} > 1%"
NODES = "{nodes: [{name: n, count: 2}]}"


@pytest.fixture
def ground() -> Iterator[Ground]:
    directory = Path(f"/var/tmp/gt-{os.getpid()}-{time.monotonic_ns() % 10**6}")
    directory.mkdir(mode=0o755)
    created = Ground.create(directory)
    yield created
    result = created.penstock("undo", "--all")
    shutil.rmtree(directory, ignore_errors=True)
    assert result.returncode == 0, result.stderr


def processes_with(argument: str) -> list[int]:
    """Processes with an argument in their command line."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if argument.encode() in path.read_bytes().split(b"\0"):
                pids.append(int(path.parent.name))
        except OSError:
            continue
    return pids


@pytest.mark.parametrize(
    ("platform", "rule", "hosts"),
    [
        ("{nodes: [{name: here}]}", HOST, ""),
        (NODES, NODE, ""),
        ("{nodes: [{name: here}]}", HOST, "hosts: {listen: 127.0.0.1, workers: [{name: left}]}"),
    ],
    ids=["host", "nodes", "hosts"],
)
def test_an_alert_ends_the_run_and_the_study(
    ground: Ground, platform: str, rule: str, hosts: str
) -> None:
    """The alert ends the command; the run is invalid; nothing remains on the host."""
    mark = f"mark-{ground.where.name}"
    text = STUDY.replace("PLATFORM", platform).replace("RULE", rule).replace("MARK", mark)
    if platform == NODES:
        text = text.replace("workload:", "workload:\n  on: all")
    (ground.where / "s.yaml").write_text(text + hosts + "\n")
    out = ground.where / "out"
    result = ground.penstock(
        "run", "--no-report", str(ground.where / "s.yaml"), "-o", str(out), "--json"
    )
    assert result.returncode == 1, result.stderr
    summary = json.loads(result.stdout)
    assert summary["runs"] == 1  # the study stops as after a failed workload
    assert "alert" in summary["stopped_because"]
    assert processes_with(mark) == []
    (bundle,) = bundles(out)
    manifest = bundle.manifest
    assert (manifest["state"], manifest["valid"]) == ("aborted", False)
    assert manifest["reason"].startswith(f"alert: {rule} for 300ms then abort: ")
    assert manifest["times"]["wall_s"] < 100
    rows = pq.read_table(bundle.path / "alerts.parquet").to_pylist()
    aborted = [r for r in rows if r["aborted"]]
    assert len(aborted) == 1
    assert 300_000_000 <= aborted[0]["fired_ns"] - aborted[0]["since_ns"] < 2_000_000_000
    assert aborted[0]["fired_ns"] <= manifest["times"]["end_ns"]
    assert [r["action"] for r in rows if r["metric"] == "memory_available"] == ["note"]
    if platform != NODES:
        # the command handled SIGTERM
        assert (bundle.path / "workload" / "said").read_text() == "ended\n"
    assert not Journal(ground.where / "state" / "journal.jsonl").open_entries()
    if platform == NODES or hosts:  # the rest is the same for every platform
        return
    options = ("--resume", "--keep-going", "--no-report", "--json")
    result = ground.penstock("run", str(ground.where / "s.yaml"), "-o", str(out), *options)
    summary = json.loads(result.stdout)
    assert (summary["runs"], summary["valid_runs"]) == (2, 0)
    result = ground.penstock("analyse", str(out), "--json")
    assert result.returncode == 1  # without a valid run there are findings but no answer
    findings = json.loads(result.stdout)["findings"]
    fired = [f for f in findings if f["code"] == "alert-fired" and "abort" in f["statement"]]
    assert [f["evidence"]["ended"] for f in fired] == [["r001", "r002"]]


def test_an_alert_ends_a_monitored_command(ground: Ground) -> None:
    argv = ["monitor", "run", "-i", "0.1", "--name", "x", "--json"]
    busy = ["--", "sh", "-c", "while :; do :; done"]
    result = ground.penstock(*argv, "--alert", f"{HOST} for 200ms then abort", *busy)
    assert result.returncode == 124, result.stderr
    summary = json.loads(result.stdout)
    assert summary["aborted"]
    assert [a["aborted"] for a in summary["alerts"]] == [True]
    experiments = json.loads(ground.penstock("monitor", "list", "--json").stdout)["experiments"]
    assert [e["state"] for e in experiments] == ["aborted"]
    # an alert without abort leaves the status of the command
    quick = ["--", "sh", "-c", "sleep 1; exit 7"]
    result = ground.penstock(*argv, "--alert", "memory_available > 1 MiB", *quick)
    assert result.returncode == 7
    assert not json.loads(result.stdout)["aborted"]
    assert "alert: memory_available > 1 MiB" in result.stderr


class Stream:
    """Events of a server's live stream, collected by a thread."""

    def __init__(self, url: str) -> None:
        self.events: list[tuple[str, Any, int]] = []
        self._url = url
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(httpx.HTTPError):  # the server ends before the test
            self._follow()

    def _follow(self) -> None:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        url = f"{self._url}/api/v1/live"
        with httpx.stream("GET", url, headers=headers, timeout=600) as response:
            name = ""
            for line in response.iter_lines():
                if line.startswith("event: "):
                    name = line[7:]
                elif line.startswith("data: "):
                    self.events.append((name, json.loads(line[6:]), time.monotonic_ns()))

    def values(self, name: str) -> list[Any]:
        return [value for event, value, _ in list(self.events) if event == name]

    def until(self, condition: Any, within_s: float = 120) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, [e[:2] for e in self.events[-5:]]
            time.sleep(0.1)


#: some phases of a run in their order; several last milliseconds
PHASES = ("arm", "workload", "disarm")


def written_in_order(event: list[Any]) -> bool:
    """True if an event `patterns` reports sequential writes to a file `f`."""
    files = [file for program in event for file in program["files"]]
    return any(
        file["path"].endswith("/f")
        and file["direction"] == "write"
        and file["class"] in ("consecutive", "sequential")
        for file in files
    )


def test_the_live_stream_reports_a_traced_study(ground: Ground) -> None:
    """A study and a server: phases, samples, patterns, ends of runs and findings."""
    token = ground.where / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    server = commands.popen(
        [sys.executable, "-m", "penstock", "serve", "--port", "0", "--token-file", str(token)],
        env=ground.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    stack = contextlib.ExitStack()
    try:
        assert server.stdout is not None
        stream = Stream(server.stdout.readline().strip().rstrip("/"))
        stream.until(lambda: stream.values("now"))
        text = STUDY.replace("PLATFORM", "{nodes: [{name: here}]}").replace(
            "RULE", "cpu_busy > 101%"
        )
        head, _, tail = text.partition("  command: |")
        # each run lasts until the stream has reported its samples and patterns
        command = (
            "dd if=/dev/zero of={run_dir}/f bs=4k count=30000 conv=notrunc; "
            f"while ! test -e {ground.where}/go-{{word}}; do sleep 0.1; done"
        )
        tail = tail.partition("  timeout:")[2]
        text = f"{head}  command: {command}\n  timeout:{tail}"
        text = text.replace("100ms}}", "100ms}, trace: {}}")
        (ground.where / "s.yaml").write_text(text)
        out = str(ground.where / "out")
        argv = [sys.executable, "-m", "penstock", "run", str(ground.where / "s.yaml"), "-o", out]
        argv += ["--no-report"]
        study = commands.popen(
            argv, env=ground.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        stack.callback(study.kill)
        for run in ("r001", "r002"):

            def of_run(run: str = run) -> list[tuple[str, Any]]:
                """Events since the start of the run's workload."""
                events = [(name, value) for name, value, _ in stream.events]
                for index, (name, value) in enumerate(events):
                    if name == "phase" and (value["phase"], value["run_id"]) == ("workload", run):
                        return events[index:]
                return []

            def reported(run: str = run, of_run: Any = of_run) -> bool:
                used = [v for name, v in of_run() if name == "use" and v["name"] == f"hot {run}"]
                patterns = [v for name, v in of_run() if name == "patterns"]
                return len(used) > 5 and any(map(written_in_order, patterns))

            stream.until(reported)
            (ground.where / f"go-{of_run()[0][1]['levels']['word']}").touch()
        _, errors = study.communicate(timeout=250)
        assert study.returncode == 0, errors
        stream.until(
            lambda: any(f["code"] != "alert-fired" for v in stream.values("found") for f in v)
        )
        nows = [item for value in stream.values("now") for item in value if item["kind"] == "study"]
        assert nows[0]["planned"] == 2
        phases = [p for p in stream.values("phase") if p["study"] == "hot"]
        assert phases[-1]["phase"] == "analysing"
        for bundle in bundles(ground.where / "out"):
            rows = pq.read_table(bundle.path / "phases.parquet").to_pylist()
            recorded = {row["phase_id"] for row in rows} & {*PHASES}
            streamed = [p["phase"] for p in phases if p["run_id"] == bundle.manifest["run_id"]]
            assert recorded == {*PHASES}
            assert [p for p in streamed if p in PHASES] == [*PHASES]
        used = [v for v in stream.values("use") if v["name"].startswith("hot r00")]
        assert {"hot r001", "hot r002"} <= {v["name"] for v in used}
        assert all("cgroup_cpu_busy" in v["values"] for v in used[3:6])
        ended = {e["run_id"]: e for value in stream.values("ended") for e in value}
        assert ended.keys() == {"r001", "r002"}
        assert {e["state"] for e in ended.values()} == {"finished"}
        fired = [f for value in stream.values("found") for f in value if f["code"] == "alert-fired"]
        assert any("memory_available > 1 MiB" in f["text"] for f in fired)
        stream.until(lambda: stream.values("now")[-1] == [])
    finally:
        stack.close()
        server.send_signal(signal.SIGTERM)
        server.wait(120)
    assert not Journal(ground.where / "state" / "journal.jsonl").open_entries()
