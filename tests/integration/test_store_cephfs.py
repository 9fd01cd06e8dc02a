"""CephFS on virtual nodes: bytes on disks by hint, counters of daemons, and death of a node."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.host.journal.journal import Journal
from penstock.host.journal.undo import undo
from penstock.parts.monitoring.collectors.collector import Receipt
from penstock.parts.monitoring.collectors.runner import Collecting, collectors_of
from penstock.parts.monitoring.experiments.points import canonical_labels
from penstock.parts.monitoring.experiments.recorded import Recorded, recorded
from penstock.parts.monitoring.usage.dashboards import DASHBOARDS, rows_of
from penstock.parts.monitoring.usage.usage import uses_of_points
from penstock.parts.stores.engines.cephfs import CephFS
from penstock.testing import MemorySink
from tests.integration.node_ground import NODES, Ground
from tests.support import commands

pytestmark = [
    *NODES,
    pytest.mark.long,
    pytest.mark.skipif(bool(CephFS().missing()), reason=CephFS().missing()),
]

PLATFORM = """
penstock_platform: 1
name: ceph
hosts:
  - {group: boss, count: 1, roles: [manager]}
  - group: n
    count: 4
    roles: [storage, client]
    disks: [{name: store, limits: {read: 400MB/s, write: 400MB/s}}]
network: {bandwidth: 100 Mbit/s, loopback: 2 GB/s, subnet: 10.91.0.0/24}
store: {engine: cephfs, chunk: 128KiB}
"""
REFUSED = {"CacheSize=4MiB", "deduplication=true"}


def penstock(ground: Ground, *arguments: str, status: int = 0) -> str:
    argv = [sys.executable, "-m", "penstock", *arguments]
    result = commands.run(
        argv, env=ground.environment, cwd=ground.where, capture_output=True, text=True, timeout=240
    )
    assert result.returncode == status, result.stdout + result.stderr
    return result.stdout if status == 0 else result.stderr


def run_in_node(ground: Ground, node: str, script: str) -> str:
    return penstock(ground, "nodes", "exec", node, "--", "sh", "-c", script)


@pytest.fixture(name="ground", scope="module")
def module_ground() -> Iterator[Ground]:
    directory = Path(tempfile.mkdtemp(prefix="gt-", dir="/var/tmp"))
    created = Ground.create(directory)
    (directory / "run").mkdir()
    (directory / "ceph.yaml").write_text(PLATFORM)
    yield created
    undo(Journal(directory / "state" / "journal.jsonl"), own=True, everything=True)
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def store(ground: Ground) -> Iterator[Ground]:
    output = penstock(ground, "store", "up", "cephfs", "-p", "ceph.yaml")
    assert "cephfs up on 4 storage nodes" in output
    yield ground
    penstock(ground, "store", "down")
    assert not any(ground.host_objects().values()), ground.host_objects()


def test_mistakes_are_reported_before_a_daemon_starts(ground: Ground) -> None:
    for change, expected in (
        ("store.chunk=100000B", "chunk: found 100000 bytes; expected a multiple of 64 KiB"),
        ("store.replication=chain", "found chain; expected parallel"),
        ("store.stripe=9", "expected at most 4"),
    ):
        arguments = ["store", "up", "cephfs", "-p", "ceph.yaml", "--set", change]
        assert expected in penstock(ground, *arguments, status=2)


def test_each_hint_has_its_effect_on_disks(store: Ground) -> None:
    cells = json.loads(penstock(store, "store", "conformance", "--json"))["cells"]
    assert [c for c in cells if not c["holds"]] == []
    assert {c["cell"] for c in cells if c["how"] == "refused"} == REFUSED
    support = {c["cell"]: c["how"] for c in cells}
    assert (support["DP=scatter 4"], support["ChunkSize=64KiB"]) == ("native", "native")
    assert (support["DP=local"], support["StripeWidth=2"]) == ("emulated", "emulated")


def test_hints_can_be_combined(store: Ground) -> None:
    """Two copies, one of them on the writer's node, and a chunk size: in any order of tags."""
    for path, tags in (
        ("one", ["Replication=2", "DP=local", "ChunkSize=256KiB"]),
        ("two", ["ChunkSize=256KiB", "DP=local", "Replication=2"]),
    ):
        penstock(store, "store", "tag", path, *tags, "--create", "--strict", "-n", "n-3")
        run_in_node(
            store, "n-3", f"head -c 4194304 /dev/urandom > /store/{path}; sync /store/{path}"
        )
        extents = json.loads(penstock(store, "store", "locate", path, "--json"))["extents"]
        assert {e["length_bytes"] for e in extents} == {256 * 1024}
        assert {e["nodes"][0] for e in extents} == {"n-3"}
        assert {len(set(e["nodes"])) for e in extents} == {2}
    # a truncated file keeps its layout
    run_in_node(store, "n-0", "echo x > /store/held; : > /store/held")
    arguments = ["store", "tag", "held", "ChunkSize=64KiB", "--strict"]
    argv = [sys.executable, "-m", "penstock", *arguments]
    result = commands.run(
        argv, env=store.environment, cwd=store.where, capture_output=True, text=True
    )
    assert (result.returncode, "it has contained data" in result.stdout) == (1, True)


def test_hints_of_a_directory_apply_to_its_files(store: Ground) -> None:
    run_in_node(store, "n-0", "mkdir /store/narrow")
    penstock(store, "store", "tag", "narrow", "DP=collocation g", "ChunkSize=512KiB", "--strict")
    run_in_node(store, "n-1", "for i in 1 2; do head -c 1048576 /dev/zero > /store/narrow/$i; done")
    placements = set()
    for path in ("narrow/1", "narrow/2"):
        extents = json.loads(penstock(store, "store", "locate", path, "--json"))["extents"]
        assert [e["length_bytes"] for e in extents] == [512 * 1024] * 2
        placements |= {tuple(e["nodes"]) for e in extents}
    assert len(placements) == 1


class DaemonCounters:
    """Collected counters of the daemons in all nodes, by their admin sockets."""

    def __init__(self, ground: Ground) -> None:
        (cluster,) = json.loads(penstock(ground, "nodes", "status", "--json"))["clusters"]
        self.sink, self.receipt = MemorySink(), Receipt("ceph")
        self.sockets = [
            {
                "path": f"/proc/{node['pid']}/root/run/penstock-ceph/*.asok",
                "labels": {"host": node["name"]},
            }
            for node in cluster["nodes"]
        ]

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        settings = {"type": "ceph", "sockets": self.sockets, "interval_s": 0.5, "timeout_s": 10}
        self.begin_ns = time.time_ns()
        collecting = Collecting(collectors_of({"ceph": settings}), self.sink)
        with collecting:
            yield
        self.receipt = collecting.receipts["ceph"]

    def values(self, metric: str, daemon: str) -> list[float]:
        rows = [r for r in self.sink.rows() if r["metric"] == metric]
        return [r["float"] for r in rows if json.loads(r["labels"])["daemon"] == daemon]

    def until(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < end, "the condition did not become true within 120 s"
            time.sleep(0.1)

    def await_polls(self, daemon: str = "mon.a", times: int = 2) -> None:
        """Wait for `times` more polls of a daemon."""
        expected = len(self.values("ceph_success", daemon)) + times
        self.until(lambda: len(self.values("ceph_success", daemon)) >= expected)

    def increase(self, metric: str) -> float:
        """Increase of a counter, summed over all OSDs."""
        values = [self.values(metric, f"osd.{number}") for number in range(4)]
        return sum(series[-1] - series[0] for series in values)

    def recording(self) -> Recorded:
        return recorded(self.sink.batches.values(), self.begin_ns, time.time_ns())


SIZE = 8 * 2**20


def test_daemons_count_written_and_read_bytes(store: Ground) -> None:
    # detects the socket of another daemon, sums instead of counts, and wrong units
    counters = DaemonCounters(store)
    with counters.collecting():
        counters.await_polls()
        run_in_node(
            store, "n-0", f"head -c {SIZE} /dev/urandom > /store/counted; sync /store/counted"
        )
        run_in_node(store, "n-1", "cat /store/counted > /dev/null")
        counters.await_polls()
        # compare with Ceph's own program
        before = counters.values("ceph_osd_op_w", "osd.0")[-1]
        command = "ceph daemon /run/penstock-ceph/osd.0.*.asok perf dump osd op_w"
        dump: Any = json.loads(run_in_node(store, "n-0", command))
        counters.await_polls()
        assert before <= dump["osd"]["op_w"] <= counters.values("ceph_osd_op_w", "osd.0")[-1]
    assert (counters.receipt.errors, counters.receipt.counted["failed"]) == ([], 0)
    # names add to the bytes of the file
    assert SIZE <= counters.increase("ceph_osd_op_w_in_bytes") < SIZE + 2**20
    assert SIZE <= counters.increase("ceph_osd_op_r_out_bytes") < SIZE + 2**20
    recording = counters.recording()
    series = recording.series.to_pylist()
    daemons = {
        (labels["host"], labels["daemon"])
        for labels in map(json.loads, {r["labels"] for r in series})
    }
    clients = {(f"n-{number}", "client.admin") for number in range(4)}
    osds = {(f"n-{number}", f"osd.{number}") for number in range(4)}
    assert daemons == osds | clients | {("boss-0", name) for name in ("mon.a", "mgr.a", "mds.a")}
    assert {r["resets"] for r in series} == {r["restarts"] for r in series} == {0}
    rows = rows_of(DASHBOARDS["volumes"], uses_of_points(recording, {}))
    plots = {host: {p.key: lines for p, lines in row} for host, row in rows.items()}
    (line,) = [line for line in plots["n-0"]["ceph-throughput"] if line.name == "osd.0 write"]
    step_s = (line.utc_ns[1:] - line.utc_ns[:-1]) / 1e9
    plotted_bytes = float((line.value[1:] * step_s).sum())
    values = counters.values("ceph_osd_op_w_in_bytes", "osd.0")
    assert plotted_bytes == pytest.approx(values[-1] - values[1], rel=1e-6)
    (commit,) = plots["n-0"]["ceph-store"]
    assert commit.name == "osd.0 commit"
    assert 0 < commit.value.max() < 10
    assert {line.name for line in plots["boss-0"]["ceph-metadata"]} == {"mds.a"}
    assert any("write" in line.name for line in plots["n-0"]["ceph-clients-latency"])
    assert canonical_labels({"daemon": "osd.0", "host": "n-0"}) in {r["labels"] for r in series}


def test_two_copies_stay_readable_after_the_death_of_a_node(store: Ground) -> None:
    penstock(store, "store", "tag", "kept", "Replication=2", "--create", "--strict")
    script = "head -c 4194304 /dev/urandom > /store/kept; sync /store/kept; sha256sum /store/kept"
    before = run_in_node(store, "n-0", script)
    counters = DaemonCounters(store)
    with counters.collecting():
        counters.await_polls("osd.3")
        penstock(store, "nodes", "set", "n-3", "state=down")
        counters.until(lambda: counters.values("ceph_success", "osd.3")[-1] == 0.0)
        counters.await_polls("osd.3", 4)
    # no points of the dead daemon are expected after its socket has gone; the others continue
    assert "n-3 osd.3: its socket is gone" in counters.receipt.errors
    assert counters.values("ceph_success", "osd.3").count(0.0) >= 4
    recording = counters.recording()
    host_of = {
        r["series_id"]: json.loads(r["labels"])["host"] for r in recording.series.to_pylist()
    }
    assert "n-3" in {host_of.get(g["series_id"]) for g in recording.gaps.to_pylist()}
    missed = counters.receipt.counted["missed"]
    for row in recording.series.to_pylist():
        # the dying daemon may miss two polls
        dying = 2 * (host_of[row["series_id"]] == "n-3")
        assert row["expected"] - row["stored"] <= dying + missed, row["metric"]
    assert counters.values("ceph_success", "osd.2")[-1] == 1.0
    read_again = "timeout 100 sh -c 'cat /store/kept > /tmp/kept' && sha256sum < /tmp/kept"
    assert run_in_node(store, "n-1", read_again).split()[0] == before.split()[0]
    status = json.loads(penstock(store, "store", "status", "--json"))
    assert {s["node"]: s["up"] for s in status["servers"]}["n-3"] is False
    extents = json.loads(penstock(store, "store", "locate", "kept", "-n", "n-1", "--json"))[
        "extents"
    ]
    nodes = {n for e in extents for n in e["nodes"]}
    assert "n-3" not in nodes
    assert all(e["nodes"] for e in extents)
