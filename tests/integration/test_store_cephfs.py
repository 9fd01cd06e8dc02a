"""CephFS on virtual nodes: what each hint does by bytes on their disks, what the death of a node takes, and
what its daemons count meanwhile."""

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


def penstock(ground: Ground, *words: str, status: int = 0) -> str:
    line = [sys.executable, "-m", "penstock", *words]
    done = commands.run(
        line, env=ground.environment, cwd=ground.where, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout if status == 0 else done.stderr


def within(ground: Ground, node: str, script: str) -> str:
    return penstock(ground, "nodes", "exec", node, "--", "sh", "-c", script)


@pytest.fixture(name="ground", scope="module")
def one_for_all() -> Iterator[Ground]:
    where = Path(tempfile.mkdtemp(prefix="gt-", dir="/var/tmp"))
    made = Ground.made(where)
    (where / "run").mkdir()
    (where / "ceph.yaml").write_text(PLATFORM)
    yield made
    undo(Journal(where / "state" / "journal.jsonl"), own=True, everything=True)
    shutil.rmtree(where)


@pytest.fixture(scope="module")
def store(ground: Ground) -> Iterator[Ground]:
    said = penstock(ground, "store", "up", "cephfs", "-p", "ceph.yaml")
    assert "cephfs up on 4 storage nodes" in said
    yield ground
    penstock(ground, "store", "down")
    assert not any(ground.seen().values()), ground.seen()


def test_mistakes_are_told_before_a_daemon_starts(ground: Ground) -> None:
    for change, expected in (
        ("store.chunk=100000B", "chunk: found 100000 bytes; expected a multiple of 64 KiB"),
        ("store.replication=chain", "found chain; expected parallel"),
        ("store.stripe=9", "expected at most 4"),
    ):
        words = ["store", "up", "cephfs", "-p", "ceph.yaml", "--set", change]
        assert expected in penstock(ground, *words, status=2)


def test_each_hint_by_bytes_on_disks(store: Ground) -> None:
    cells = json.loads(penstock(store, "store", "conformance", "--json"))["cells"]
    assert [c for c in cells if not c["holds"]] == []
    assert {c["cell"] for c in cells if c["how"] == "refused"} == REFUSED
    how = {c["cell"]: c["how"] for c in cells}
    assert (how["DP=scatter 4"], how["ChunkSize=64KiB"]) == ("native", "native")
    assert (how["DP=local"], how["StripeWidth=2"]) == ("emulated", "emulated")


def test_hints_go_together(store: Ground) -> None:
    """Two copies, one of them with the writer, and a chunk's size: in whatever order they are said."""
    for path, tags in (
        ("one", ["Replication=2", "DP=local", "ChunkSize=256KiB"]),
        ("two", ["ChunkSize=256KiB", "DP=local", "Replication=2"]),
    ):
        penstock(store, "store", "tag", path, *tags, "--create", "--strict", "-n", "n-3")
        within(store, "n-3", f"head -c 4194304 /dev/urandom > /store/{path}; sync /store/{path}")
        extents = json.loads(penstock(store, "store", "locate", path, "--json"))["extents"]
        assert {e["length_bytes"] for e in extents} == {256 * 1024}
        assert {e["nodes"][0] for e in extents} == {"n-3"}
        assert {len(set(e["nodes"])) for e in extents} == {2}
    # a file that is empty again keeps the layout that its bytes had
    within(store, "n-0", "echo x > /store/held; : > /store/held")
    words = ["store", "tag", "held", "ChunkSize=64KiB", "--strict"]
    line = [sys.executable, "-m", "penstock", *words]
    done = commands.run(
        line, env=store.environment, cwd=store.where, capture_output=True, text=True
    )
    assert (done.returncode, "it has contained data" in done.stdout) == (1, True)


def test_what_a_directory_says_holds_for_its_files(store: Ground) -> None:
    within(store, "n-0", "mkdir /store/narrow")
    penstock(store, "store", "tag", "narrow", "DP=collocation g", "ChunkSize=512KiB", "--strict")
    within(store, "n-1", "for i in 1 2; do head -c 1048576 /dev/zero > /store/narrow/$i; done")
    held = set()
    for path in ("narrow/1", "narrow/2"):
        extents = json.loads(penstock(store, "store", "locate", path, "--json"))["extents"]
        assert [e["length_bytes"] for e in extents] == [512 * 1024] * 2
        held |= {tuple(e["nodes"]) for e in extents}
    assert len(held) == 1


class Watched:
    """What the daemons in all nodes count, by their admin sockets, while it is at work."""

    def __init__(self, ground: Ground) -> None:
        (said,) = json.loads(penstock(ground, "nodes", "status", "--json"))["clusters"]
        self.sink, self.receipt = MemorySink(), Receipt("ceph")
        self.sockets = [
            {
                "path": f"/proc/{node['pid']}/root/run/penstock-ceph/*.asok",
                "labels": {"host": node["name"]},
            }
            for node in said["nodes"]
        ]

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        settings = {"type": "ceph", "sockets": self.sockets, "interval_s": 0.5, "timeout_s": 10}
        self.begin_ns = time.time_ns()
        collecting = Collecting(collectors_of({"ceph": settings}), self.sink)
        with collecting:
            yield
        self.receipt = collecting.receipts["ceph"]

    def values(self, metric: str, daemon: str) -> list[float]:
        rows = [r for r in self.sink.rows() if r["metric"] == metric]
        return [r["float"] for r in rows if json.loads(r["labels"])["daemon"] == daemon]

    def until(self, true: Callable[[], object]) -> None:
        end = time.monotonic() + 120
        while not true():
            assert time.monotonic() < end, "it did not come"
            time.sleep(0.1)

    def polled(self, daemon: str = "mon.a", times: int = 2) -> None:
        """Waits for points of so many more polls."""
        wanted = len(self.values("ceph_success", daemon)) + times
        self.until(lambda: len(self.values("ceph_success", daemon)) >= wanted)

    def grown(self, metric: str) -> float:
        """By how much a counter of all OSDs grew."""
        found = [self.values(metric, f"osd.{number}") for number in range(4)]
        return sum(one[-1] - one[0] for one in found)

    def made(self) -> Recorded:
        return recorded(self.sink.batches.values(), self.begin_ns, time.time_ns())


SIZE = 8 * 2**20


def test_its_daemons_count_what_was_written_and_read(store: Ground) -> None:
    # would break with another daemon's socket, sums for counts, or a counter taken for one of another unit
    watched = Watched(store)
    with watched.at_work():
        watched.polled()
        within(store, "n-0", f"head -c {SIZE} /dev/urandom > /store/counted; sync /store/counted")
        within(store, "n-1", "cat /store/counted > /dev/null")
        watched.polled()
        # Ceph's own program says the same
        before = watched.values("ceph_osd_op_w", "osd.0")[-1]
        asked = "ceph daemon /run/penstock-ceph/osd.0.*.asok perf dump osd op_w"
        said: Any = json.loads(within(store, "n-0", asked))
        watched.polled()
        assert before <= said["osd"]["op_w"] <= watched.values("ceph_osd_op_w", "osd.0")[-1]
    assert (watched.receipt.errors, watched.receipt.counted["failed"]) == ([], 0)
    # beside the file's bytes there are those of names
    assert SIZE <= watched.grown("ceph_osd_op_w_in_bytes") < SIZE + 2**20
    assert SIZE <= watched.grown("ceph_osd_op_r_out_bytes") < SIZE + 2**20
    made = watched.made()
    series = made.series.to_pylist()
    daemons = {
        (labels["host"], labels["daemon"])
        for labels in map(json.loads, {r["labels"] for r in series})
    }
    clients = {(f"n-{number}", "client.admin") for number in range(4)}
    osds = {(f"n-{number}", f"osd.{number}") for number in range(4)}
    assert daemons == osds | clients | {("boss-0", name) for name in ("mon.a", "mgr.a", "mds.a")}
    assert {r["resets"] for r in series} == {r["restarts"] for r in series} == {0}
    rows = rows_of(DASHBOARDS["volumes"], uses_of_points(made, {}))
    shown = {host: {p.key: lines for p, lines in row} for host, row in rows.items()}
    (written,) = [x for x in shown["n-0"]["ceph-throughput"] if x.name == "osd.0 write"]
    step_s = (written.utc_ns[1:] - written.utc_ns[:-1]) / 1e9
    moved = float((written.value[1:] * step_s).sum())
    counted = watched.values("ceph_osd_op_w_in_bytes", "osd.0")
    assert moved == pytest.approx(counted[-1] - counted[1], rel=1e-6)
    (commit,) = shown["n-0"]["ceph-store"]
    assert commit.name == "osd.0 commit"
    assert 0 < commit.value.max() < 10
    assert {x.name for x in shown["boss-0"]["ceph-metadata"]} == {"mds.a"}
    assert any("write" in x.name for x in shown["n-0"]["ceph-clients-latency"])
    assert canonical_labels({"daemon": "osd.0", "host": "n-0"}) in {r["labels"] for r in series}


def test_a_node_that_dies_leaves_two_copies_readable(store: Ground) -> None:
    penstock(store, "store", "tag", "kept", "Replication=2", "--create", "--strict")
    script = "head -c 4194304 /dev/urandom > /store/kept; sync /store/kept; sha256sum /store/kept"
    before = within(store, "n-0", script)
    watched = Watched(store)
    with watched.at_work():
        watched.polled("osd.3")
        penstock(store, "nodes", "set", "n-3", "state=down")
        watched.until(lambda: watched.values("ceph_success", "osd.3")[-1] == 0.0)
        watched.polled("osd.3", 4)
    # of the dead one nothing is expected once its socket is gone, and the others go on
    assert "n-3 osd.3: its socket is gone" in watched.receipt.errors
    assert watched.values("ceph_success", "osd.3").count(0.0) >= 4
    made = watched.made()
    host_of = {r["series_id"]: json.loads(r["labels"])["host"] for r in made.series.to_pylist()}
    assert "n-3" in {host_of.get(g["series_id"]) for g in made.gaps.to_pylist()}
    missed = watched.receipt.counted["missed"]
    for row in made.series.to_pylist():
        # it may be asked while it dies
        dying = 2 * (host_of[row["series_id"]] == "n-3")
        assert row["expected"] - row["stored"] <= dying + missed, row["metric"]
    assert watched.values("ceph_success", "osd.2")[-1] == 1.0
    again = "timeout 100 sh -c 'cat /store/kept > /tmp/kept' && sha256sum < /tmp/kept"
    assert within(store, "n-1", again).split()[0] == before.split()[0]
    status = json.loads(penstock(store, "store", "status", "--json"))
    assert {s["node"]: s["up"] for s in status["servers"]}["n-3"] is False
    extents = json.loads(penstock(store, "store", "locate", "kept", "-n", "n-1", "--json"))[
        "extents"
    ]
    nodes = {n for e in extents for n in e["nodes"]}
    assert "n-3" not in nodes
    assert all(e["nodes"] for e in extents)
