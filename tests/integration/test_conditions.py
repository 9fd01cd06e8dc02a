"""Conditions that become true repeatedly, on disks and nodes; each change records its cause."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from penstock.archive.runs import bundles
from penstock.emulate.cluster.cluster import Cluster
from penstock.platform.schedule import for_disk, read_schedule
from penstock.spec.cluster import ClusterSpec, DiskSpec, Event, Limits, NodeSpec, When
from tests.integration.disk_bench import MIB, Bench, flat, one_bench
from tests.integration.node_ground import NODES, Ground
from tests.support.waiting import until

__all__ = ["one_bench"]  # a fixture
pytestmark = NODES

STUDY = """
penstock: 1
name: windows
question: Does each window slow the disks down?
factors:
  size: {levels: [4k, 8k]}
design: {kind: full, replicates: 1, seed: 5}
platform:
  nodes:
    - {name: n, count: 2, disks: [{name: d, limits: {read: 50MB/s}}]}
  schedule:
    - {at: 100ms, nodes: n-1, disk: d, limits.write: 40MB/s}
    - {when: {log: app.log, regex: "window [0-9]+ begins"}, nodes: n-*, disk: d, slow.factor: 2}
    - {when: {log: app.log, regex: "window [0-9]+ ends"}, nodes: n-0, disk: d, slow.factor: max}
    - {when: {metric: written_bytes, disk: n-0.d, above: 10000}, nodes: n-1, cpus: 1}
workload:
  mutates: true
  on: n-0
  command: |
    for i in 1 2 3; do
      printf 'at %s: window %s' size={size} $i >> {study_dir}/app.log; sleep 0.1
      echo ' begins' >> {study_dir}/app.log; sleep 0.2
      echo "window $i ends" >> {study_dir}/app.log; sleep 0.2
    done
    head -c 40000 /dev/zero > {d}/f; sync {d}/f; sleep 3
  timeout: 30s
responses: {wall: {from: wall_s, unit: s, better: lower}}
observers: {monitor: null}
"""


def read_directly(path: Path, offset: int) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        import mmap

        assert os.preadv(fd, [mmap.mmap(-1, 4096)], offset) == 4096
    finally:
        os.close(fd)


def test_a_counter_of_a_disk_triggers_a_change_in_each_window(bench: Bench) -> None:
    bench.up(flat(0.4))
    path = bench.file("f", MIB)
    schedule_file = bench.base / "s.yaml"
    schedule_file.write_text(
        "- {when: {metric: in_flight, above: 0}, servers: 2}\n"
        "- {when: {metric: in_flight, above: 0, fires: once}, limits.read: 90MB/s}\n"
        "- {when: {phase: load}, readahead: false}\n"
        "- {at: 0s, phase: load, cache: false}\n"
    )
    bench.server.schedule("d", for_disk(read_schedule(schedule_file), time.monotonic_ns()))
    for window in range(3):
        read_directly(path, 4096 * window)
        time.sleep(0.4)
    assert [bench.server.mark("load") for _ in range(2)] == [2, 1]
    until(lambda: len(bench.server.events("d")["events"]) == 7)
    events = bench.server.events("d")["events"]
    by_key: dict[str, list[dict[str, str]]] = {}
    for event in events:
        by_key.setdefault(next(iter(event["asked"])), []).append(event["cause"])
    metric_cause = {"kind": "metric", "text": "in_flight 1, above 0"}
    phase_cause = {"kind": "phase", "text": "load"}
    assert by_key == {
        "servers": [metric_cause] * 3,
        "limits": [metric_cause],
        "readahead": [phase_cause] * 2,
        "cache": [phase_cause],
    }
    bench.server.patch("d", {"servers": None})
    assert bench.server.events("d")["events"][-1]["cause"]["kind"] == "request"


@pytest.fixture
def ground() -> Iterator[Ground]:
    directory = Path(f"/var/tmp/cond-{os.getpid()}-{time.monotonic_ns() % 10**6}")
    directory.mkdir(mode=0o755)
    yield Ground.create(directory)
    shutil.rmtree(directory, ignore_errors=True)


def test_each_row_of_several_nodes_names_node_disk_and_cause(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PENSTOCK_STATE", "PENSTOCK_RUNTIME"):
        monkeypatch.setenv(name, ground.environment[name])
    log = ground.where / "log"
    log.write_text("")
    nodes = tuple(
        NodeSpec(f"n-{i}", disks=(DiskSpec("d", limits=Limits(read_bps=9e6)),), links=())
        for i in range(2)
    )
    begins = {"log": str(log), "regex": "begins"}
    slow = Event(When(condition=begins), "disk", {"slow": {"factor": 3}}, ("n-*",), "d")
    busy = Event(When(condition=begins), "cpu", {"cpus": 1.0}, ("n-1",))
    with Cluster.up(ClusterSpec("cond", nodes), ground.journal(), outlive=False) as cluster:
        cluster.schedule([slow, busy])
        for window in range(3):
            with log.open("a", buffering=1) as file:
                file.write(f"window {window} be")
                file.flush()
                time.sleep(0.05)
                file.write("gins now\n")
            until(lambda window=window: len(cluster.events()) == 2 + 3 * (window + 1))
        first, rows = cluster.events()[:2], cluster.events()[2:]
    assert {e["cause"]["kind"] for e in first} == {"begin"}
    causes = sorted(
        (e["cause"]["text"], e["node"], e["resource"], e.get("name") or "") for e in rows
    )
    assert causes == [
        (f"window {window} begins now", node, resource, name)
        for window in range(3)
        for node, resource, name in (
            ("n-0", "disk", "d"),
            ("n-1", "cpu", ""),
            ("n-1", "disk", "d"),
        )
    ]
    assert {e["cause"]["kind"] for e in rows} == {"log"}
    assert not any(e["error"] for e in rows)


def test_events_of_a_study_record_their_causes(ground: Ground) -> None:
    path = ground.where / "s.yaml"
    path.write_text(STUDY)
    result = ground.penstock(
        "run", "--no-report", str(path), "-o", str(ground.where / "out"), "--json"
    )
    assert result.returncode in (0, 1), result.stderr  # on a busy host no run may be valid
    events: list[dict[str, Any]] = []
    for bundle in bundles(ground.where / "out"):
        table = pq.read_table(bundle.path / "events.parquet")
        rows = table.to_pylist()
        causes = [
            (r["node_id"], r["resource"], r["name"], r["cause"], r["cause_text"]) for r in rows
        ]
        size = json.loads((bundle.path / "manifest.json").read_text())["levels"]["size"]
        begins = [f"at size={size}: window {i} begins" for i in (1, 2, 3)]
        for node in ("n-0", "n-1"):
            assert [c[4] for c in causes if c[0] == node and "begins" in c[4]] == begins
        assert [c[4] for c in causes if "ends" in c[4]] == [f"window {i} ends" for i in (1, 2, 3)]
        assert {c[:4] for c in causes if c[3] == "log"} == {
            ("n-0", "disk", "d", "log"),
            ("n-1", "disk", "d", "log"),
        }
        metric = [c for c in causes if c[3] == "metric"]
        assert [c[:3] for c in metric] == [("n-1", "cpu", "")]
        assert metric[0][4].startswith("written_bytes of n-0.d ")
        assert metric[0][4].endswith(", above 10000")
        assert [c[:3] for c in causes if c[3] == "phase"] == [("n-1", "disk", "d")]
        events += rows
    assert len(events) == 2 * (6 + 3 + 1 + 1)
