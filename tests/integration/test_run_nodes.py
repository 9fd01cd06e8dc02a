"""Studies on two virtual nodes: services, schedules, limits, failures and interruptions."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.archive.bundle import Bundle
from penstock.archive.runs import bundles, undictionaried
from penstock.campaign.evidence.rejudge import rejudged_certificates
from penstock.host.journal.undo import undo
from tests.support import commands

from .node_ground import Ground

pytestmark = [
    pytest.mark.host,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: namespaces and control groups"),
    pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="kernel: no /dev/fuse"),
    pytest.mark.skipif(shutil.which("fio") is None, reason="needs fio"),
]

#: reasons of invalid runs on a busy host; any other reason is a defect
BUSY = ("processor", "late", "busy", "off (limit", "too short")
STUDY = """
penstock: 1
name: pair
question: Does the link or the disk decide?
factors:
  limit: {levels: [max, 2 MB/s]}
design: {kind: full, replicates: 1, seed: 5}
platform:
  nodes:
    - name: store
      memory: 256MiB
      disks: [{name: d, profile: rate-20mib, size: 8MiB, limits: {read: "{limit}"}}]
    - {name: app, cpus: 1}
  network: {bandwidth: 400 Mbit/s}
  schedule:
    - {at: 200ms, nodes: app, cpus: 0.5}
    - {at: 300ms, nodes: store, bandwidth: 200 Mbit/s}
    - {when: {log: app.log, regex: "^done"}, nodes: app, memory: 300MiB}
    - {when: {log: app.log, regex: "^never"}, nodes: app, memory: 400MiB}
workload:
  prepare: head -c 2000000 /dev/urandom > {d}/file; echo {node} >> PREPARED
  mutates: false
  on: app
  services:
    - {name: files, on: store, command: "{python} -m http.server 8000 --directory {d}", ready: {port: 8000}}
  command: |
    {python} - <<END
    import time, urllib.request
    began = time.monotonic()
    got = urllib.request.urlopen("http://store:8000/file").read()
    print("rate", len(got) / (time.monotonic() - began))
    END
    echo done >> {study_dir}/app.log
    sleep 0.5
    cat /proc/sys/kernel/hostname > {run_dir}/where
  timeout: 20s
responses:
  rate: {from: {regex: "rate ([0-9.]+)"}, unit: B/s, better: higher}
observers: {monitor: {interval: 100ms}}
"""
FIO = """
penstock: 1
name: both
question: What becomes of nodes?
factors:
  word: {levels: [one, two]}
design: {kind: full, replicates: 1, seed: 5}
platform:
  nodes: [{name: n, count: 2, memory: 64MiB, disks: [{name: d, profile: rate-20mib, size: 4MiB}]}]
workload:
  on: all
  command: "COMMAND"
  timeout: 20s
responses: {wall: {from: wall_s, unit: s, better: lower}}
observers: {monitor: null}
"""


@pytest.fixture
def ground() -> Iterator[Ground]:
    directory = Path(f"/var/tmp/gt-{os.getpid()}-{time.monotonic_ns() % 10**6}")
    directory.mkdir(mode=0o755)
    created = Ground.create(directory)
    yield created
    undo(created.journal(), own=True, everything=True)
    shutil.rmtree(directory, ignore_errors=True)


def study(ground: Ground, text: str, **values: str) -> Path:
    path = ground.where / "s.yaml"
    for key, value in values.items():
        text = text.replace(key, value)
    path.write_text(text.replace("PREPARED", str(ground.where / "prepared")))
    return path


def run(ground: Ground, path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return ground.penstock("run", str(path), "-o", str(ground.where / "out"), "--json", *arguments)


def leftovers(ground: Ground) -> dict[str, object]:
    """Mounts, processes and clusters on the host that belong to this state."""
    state = ground.host_objects()
    return {k: v for k, v in state.items() if k in ("mounts", "processes", "files")}


NOTHING: dict[str, object] = {"mounts": [], "processes": [], "files": []}


def usable(manifest: dict[str, Any]) -> bool:
    """True if a run is valid, or invalid only because the host was busy."""
    return bool(manifest["valid"]) or any(reason in manifest["reason"] for reason in BUSY)


def by_older_rules(bundle: Bundle) -> Bundle:
    """Copy of the bundle with certificates by the first rules."""
    copy = Bundle.open(
        shutil.copytree(bundle.path, bundle.path.parent.parent / "older" / bundle.path.name)
    )
    table = undictionaried(bundle.table("fidelity"))
    index = table.column_names.index("rules")
    copy.write_table(
        "fidelity", table.set_column(index, "rules", pa.array([1] * table.num_rows, pa.int64()))
    )
    return copy


@pytest.mark.timed
def test_a_study_on_two_nodes(ground: Ground) -> None:
    result = run(ground, study(ground, STUDY))
    assert result.returncode in (0, 1), result.stderr
    runs = list(bundles(ground.where / "out"))
    assert len(runs) == 2
    rates = {}
    for bundle in runs:
        manifest = bundle.manifest
        assert manifest["state"] == "finished", manifest["reason"]
        assert usable(manifest), manifest["reason"]
        assert (bundle.path / "workload" / "where").read_text() == "app\n"
        rates[manifest["levels"]["limit"]] = manifest["responses"]["rate"]["value"]
        fidelity = pq.read_table(bundle.path / "fidelity.parquet").to_pandas()
        assert set(fidelity["disk_id"].astype(str)) == {"store.d"}
        assert set(fidelity["node_id"].astype(str)) == {"store"}
        reevaluated, stored = (
            rejudged_certificates(by_older_rules(bundle)),
            undictionaried(bundle.table("fidelity")),
        )
        assert reevaluated.rejudged
        assert reevaluated.fidelity is not None
        assert reevaluated.fidelity.select(stored.column_names).equals(stored)
        samples = pq.read_table(bundle.path / "samples.parquet").to_pandas()
        groups = samples[samples["source"].astype(str) == "cgroup"]["entity"].astype(str)
        assert {"store", "app"} <= set(groups)
        events = pq.read_table(bundle.path / "events.parquet").to_pandas()
        resources = events["resource"].astype(str)
        assert list(resources).count("memory") == 1  # one line of the log per run
        timed = events[resources.isin(["cpu", "network"])]
        assert list(timed["node_id"].astype(str)) == ["app", "store"]
        assert not any(timed["error"].astype(str))
        phases = pq.read_table(bundle.path / "phases.parquet").to_pandas()
        start = phases[phases["phase_id"].astype(str) == "workload"]["start_ns"].iloc[0]
        after_s = (timed["planned_ns"].to_numpy() - start) / 1e9
        assert after_s == pytest.approx([0.2, 0.3], abs=0.1)
        assert manifest["place"]["nodes"]["store"]["disks"] == {"store.d": "fuse"}
        (not_fired,) = manifest["place"]["not_fired"]
        assert not_fired == f"a line of {ground.where}/app.log that fits '^never': memory of app"
        assert f"never fired, it waited for {not_fired}" in result.stderr
    assert rates["2 MB/s"] < 2.1e6 < rates["max"]
    assert (ground.where / "prepared").read_text() == "store\n"  # once, for both treatments
    assert leftovers(ground) == NOTHING
    report = (ground.where / "out" / "report.html").read_text()
    assert "store.d" in report


def test_the_command_runs_on_all_nodes_with_a_disk_on_each(ground: Ground) -> None:
    command = (
        "fio --name=a --directory={d} --rw=write --bs=64k --size=1m --output=/dev/null && "
        "ls {d} > {run_dir}/{node}.{word} && echo {nodes} && test {word} = one"
    )
    result = run(ground, study(ground, FIO, COMMAND=command), "--keep-going", "--no-report")
    assert result.returncode in (0, 1), result.stderr
    by_word = {b.manifest["levels"]["word"]: b for b in bundles(ground.where / "out")}
    good, bad = by_word["one"], by_word["two"]
    assert usable(good.manifest), good.manifest["reason"]
    assert (good.path / "workload" / "n-0.one").read_text() == "a.0.0\n"
    assert (good.path / "workload" / "n-1.one").read_text() == "a.0.0\n"
    assert (good.path / "stdout.txt").read_text() == "n-0 n-1\n" * 2
    assert (bad.manifest["state"], bad.manifest["exit_status"]) == ("failed", 1)
    assert leftovers(ground) == NOTHING


def test_node_out_of_memory_fails_the_run(ground: Ground) -> None:
    eat = "{python} -c 'x = bytearray(200 << 20)' || true; echo {word}"
    result = run(ground, study(ground, FIO, COMMAND=eat), "--keep-going", "--no-report")
    assert result.returncode == 1, result.stderr
    for bundle in bundles(ground.where / "out"):
        assert bundle.manifest["state"] == "failed"
        assert "because memory ran out" in bundle.manifest["reason"]
        assert bundle.manifest["oom_kills"] >= 2
    assert leftovers(ground) == NOTHING


def test_a_failed_service_fails_the_run_with_its_message(ground: Ground) -> None:
    service = "services: [{name: s, command: 'echo no such luck; exit 3', ready: {port: 9}}]\n  "
    text = FIO.replace("timeout: 20s", service + "timeout: 20s")
    result = run(ground, study(ground, text, COMMAND="echo {word}"), "--keep-going", "--no-report")
    assert result.returncode == 1, result.stderr
    for bundle in bundles(ground.where / "out"):
        assert bundle.manifest["state"] == "failed"
        assert "service s on n-0 ended with status 3: no such luck" in bundle.manifest["reason"]


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_study_is_undone_and_resumed(ground: Ground, number: int) -> None:
    path = study(ground, FIO, COMMAND="test {word} = one || sleep ${{LONG:-30}}; touch {run_dir}/x")
    out = ground.where / "out"
    argv = [sys.executable, "-m", "penstock", "run", str(path), "-o", str(out)]
    argv += ["--set", "design.order=standard"]
    process = commands.popen(argv, env=ground.environment, stderr=subprocess.PIPE)
    until = time.monotonic() + 90
    while not list(out.glob("runs/.r002.partial/stdout.n-1.txt")):
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        assert time.monotonic() < until
        time.sleep(0.05)
    process.send_signal(number)
    process.wait(60)
    if number == signal.SIGKILL:
        assert ground.penstock("undo").returncode == 0
    until = time.monotonic() + 60  # the supervisor detects the end of its conductor
    while leftovers(ground) != NOTHING and time.monotonic() < until:
        time.sleep(0.1)
    assert leftovers(ground) == NOTHING
    ground.environment["LONG"] = "0"
    resumed = run(ground, path, "--resume", "--set", "design.order=standard")
    assert resumed.returncode in (0, 1), resumed.stderr
    summary = json.loads(resumed.stdout)
    assert summary["runs"] == 2
    assert [b.manifest["run_id"] for b in bundles(out)] == ["r001", "r002"]
    assert leftovers(ground) == NOTHING


def test_a_failed_run_is_named_and_excluded_from_the_mean(ground: Ground) -> None:
    text = FIO.replace(
        "count: 2, memory: 64MiB, disks: [{name: d, profile: rate-20mib, size: 4MiB}]",
        "memory: 64MiB",
    )
    text = text.replace("replicates: 1", "replicates: 5").replace("  on: all\n", "")
    text = text.replace(
        "{wall: {from: wall_s, unit: s, better: lower}}",
        "{value: {from: {regex: 'value ([0-9]+)'}, unit: B, better: lower}}",
    )
    counter = ground.where / "count"
    command = (
        f"n=$(cat {counter} 2>/dev/null || echo 0); n=$((n+1)); echo $n > {counter}; "
        "echo {word} value $((1000 + n)); test $n != 4 || {{ sleep 2; exit 1; }}"
    )
    result = run(ground, study(ground, text, COMMAND=command))
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert (summary["runs"], summary["valid_runs"]) == (10, 9)
    (excluded,) = summary["left_out"]
    assert (excluded["run_id"], excluded["state"]) == ("r004", "failed")
    assert "status 1" in excluded["reason"]
    runs = pq.read_table(ground.where / "out" / "runs.parquet").to_pandas()
    values = runs[runs["valid"]]["value"]
    assert sorted(values) == [1000 + n for n in range(1, 11) if n != 4]
    report = (ground.where / "out" / "report.html").read_text()
    assert "r004" in report
    assert any("1 of 10" in line or "9 of 10" in line for line in [report, *summary["answer"]])
