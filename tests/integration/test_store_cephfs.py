"""CephFS on virtual nodes: what each hint does by bytes on their disks, what the death of a node takes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.host.journal import Journal
from penstock.host.undo import undo
from penstock.store.cephfs import CephFS
from tests.integration.node_ground import NODES, Ground

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
    done = subprocess.run(
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
    done = subprocess.run(
        line, env=store.environment, cwd=store.where, capture_output=True, text=True
    )
    assert (done.returncode, "it has held data" in done.stdout) == (1, True)


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


def test_a_node_that_dies_leaves_two_copies_readable(store: Ground) -> None:
    penstock(store, "store", "tag", "kept", "Replication=2", "--create", "--strict")
    script = "head -c 4194304 /dev/urandom > /store/kept; sync /store/kept; sha256sum /store/kept"
    before = within(store, "n-0", script)
    penstock(store, "nodes", "set", "n-3", "state=down")
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
