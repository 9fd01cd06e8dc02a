"""HDFS on virtual nodes: what it says of parameters and hints, by bytes on the disks; it has no mount."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import BadInput, PenstockError
from penstock.parts.stores.conformance import conform
from penstock.parts.stores.deployment import deployment
from penstock.parts.stores.engines.hdfs import HDFS
from penstock.parts.stores.staging import stage_in, stage_out
from penstock.parts.stores.store import Store
from penstock.platform.hosts import load_platform
from tests.integration.node_ground import NODES, Ground

LACKING = HDFS().missing()
pytestmark = [*NODES, pytest.mark.long, pytest.mark.skipif(bool(LACKING), reason=LACKING)]

MIB = 2**20
PLATFORM = """
penstock_platform: 1
name: hd
hosts:
  - {group: head, count: 1, roles: [manager]}
  - group: node
    count: 4
    roles: [storage, client]
    disks: [{name: store, limits: {read: 400MB/s, write: 400MB/s}}]
network: {bandwidth: 100 Mbit/s, loopback: 1 GB/s, subnet: 10.92.0.0/24}
store: {engine: hdfs, chunk: 1MiB, keep: [kept/*]}
"""


@pytest.fixture(name="ground", scope="module")
def one_for_all() -> Iterator[Ground]:
    where = Path(tempfile.mkdtemp(prefix="gt-", dir="/var/tmp"))
    made = Ground.made(where)
    (where / "run").mkdir()
    (where / "p.yaml").write_text(PLATFORM)
    with pytest.MonkeyPatch.context() as patch:
        for key in ("PENSTOCK_STATE", "PENSTOCK_RUNTIME"):
            patch.setenv(key, made.environment[key])
        yield made
    shutil.rmtree(where)


@pytest.fixture(name="store", scope="module")
def one_store(ground: Ground) -> Iterator[Store]:
    platform = load_platform(ground.where / "p.yaml", predicted=False)
    made = Store.up(*deployment(platform), outlive=False)
    yield made
    made.down(discard=["*"])
    assert not any(ground.seen().values()), ground.seen()


def written(store: Store, ground: Ground, path: str, node: str, size: int) -> Counter[str]:
    """Bytes of blocks on each node's disk because of a file that is staged in from a node."""
    before = on_disks(store)
    source = ground.where / "source"
    source.write_bytes(os.urandom(size))
    (staged,) = stage_in(store, source, path, node=node)
    assert staged.size_bytes == size
    return on_disks(store) - before


def on_disks(store: Store) -> Counter[str]:
    """Bytes of the blocks on each data node's disk, without their checksums."""
    found: Counter[str] = Counter()
    for name in store.roles.storage:
        (disk,) = store.cluster.nodes[name].disks.values()
        blocks = (p for p in disk.directory.rglob("blk_*") if p.suffix != ".meta")
        found[name] = sum(p.stat().st_size for p in blocks)
    return found


def located(store: Store, path: str) -> Counter[str]:
    """Bytes of a file on each node, as `locate` says it, which covers the file once."""
    at, found = 0, Counter[str]()
    for extent in store.locate(path):
        assert extent.offset_bytes == at
        at += extent.length_bytes
        for node in extent.nodes:
            found[node] += extent.length_bytes
    return found


def test_an_untagged_file_is_with_its_writer(store: Store, ground: Ground) -> None:
    for node in ("node-1", "node-3"):
        size = 3 * MIB + 7
        took = written(store, ground, f"/plain-{node}", node, size)
        assert took == located(store, f"/plain-{node}") == Counter({node: size})
        assert [e.length_bytes for e in store.locate(f"/plain-{node}")] == [MIB] * 3 + [7]


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_copies_are_on_as_many_nodes(store: Store, ground: Ground, copies: int) -> None:
    path, size = f"/copies{copies}", 2 * MIB + 3
    (done,) = store.tag(path, {"Replication": str(copies)}, node="node-2", create=True)
    assert done.support.how == "native"
    took = written(store, ground, path, "node-2", size)
    assert sum(took.values()) == copies * size
    assert took == located(store, path)
    assert all(len(set(e.nodes)) == copies and "node-2" in e.nodes for e in store.locate(path))


@pytest.mark.parametrize(
    ("tag", "chunk"),
    [
        ("ChunkSize=64KiB", 64 * 1024),
        ("ChunkSize=256KiB", 256 * 1024),
        ("DP=scatter 2", 2 * MIB),
    ],
)
def test_a_file_has_blocks_of_its_own_size(
    store: Store, ground: Ground, tag: str, chunk: int
) -> None:
    key, value = tag.split("=")
    path, size = f"/own-{chunk}", 2 * chunk + 512
    (done,) = store.tag(path, {key: value}, create=True)
    assert done.support.how == "native"
    took = written(store, ground, path, "node-0", size)
    assert [e.length_bytes for e in store.locate(path)] == [chunk, chunk, 512]
    assert took == located(store, path)
    assert store.attributes(path) == {key: value}


def test_a_group_is_on_one_node_whoever_writes(store: Store, ground: Ground) -> None:
    held = []
    for number, node in enumerate(("node-0", "node-2", "node-3")):
        path = f"/group/{number}"
        store.tag(path, {"DP": "collocation trial"}, node=node, create=True)
        took = written(store, ground, path, node, MIB)
        assert took == located(store, path)
        held.append(tuple(took))
    assert len(held[0]) == 1
    assert len(set(held)) == 1


def test_what_it_cannot_is_refused_and_kept(store: Store) -> None:
    tags = {"StripeWidth": "2", "CacheSize": "1MiB", "deduplication": "true", "ChunkSize": "1000"}
    done = store.tag("/refused", {**tags, "Replication": "5", "colour": "blue"}, create=True)
    how = {d.key: d.support.how for d in done}
    assert how == {**dict.fromkeys([*tags, "Replication"], "refused"), "colour": "native"}
    assert store.attributes("/refused")["colour"] == "blue"
    with pytest.raises(BadInput, match="found no mount of hdfs"):
        conform(store)


def test_a_file_with_data_is_refused_or_migrated(store: Store, ground: Ground) -> None:
    written(store, ground, "/moved", "node-1", 2 * MIB)
    (asked,) = store.tag("/moved", {"ChunkSize": "512KiB"}, node="node-2")
    assert asked.support.how == "refused"
    store.tag("/moved", {"ChunkSize": "512KiB"}, node="node-2", migrate=True)
    assert [(e.length_bytes, e.nodes) for e in store.locate("/moved")] == [
        (MIB // 2, ("node-2",))
    ] * 4


def test_what_is_kept_is_not_lost(store: Store, ground: Ground) -> None:
    inside = ground.where / "kept"
    (inside / "deep").mkdir(parents=True)
    (inside / "a").write_bytes(os.urandom(300_000))
    (inside / "deep" / "b with a blank, ü and %41").write_bytes(b"x" * 17)
    (inside / "empty").write_bytes(b"")
    assert len(stage_in(store, inside, "/", node="node-1")) == 3
    with pytest.raises(PenstockError, match="to be kept, but without a verified copy"):
        store.down()
    assert len(stage_out(store, (), ground.where / "out")) == 3
    for file in ("a", "deep/b with a blank, ü and %41", "empty"):
        assert (ground.where / "out/kept" / file).read_bytes() == (inside / file).read_bytes()
    # what changes afterwards is not safe any more
    (inside / "a").write_bytes(b"other")
    stage_in(store, inside / "a", "/kept/a")
    with pytest.raises(PenstockError, match="kept/a: to be kept"):
        store.down()


def test_programs_of_a_node_have_its_shell(store: Store) -> None:
    """Their files are HDFS files as others are, written from the node that they are on."""
    script = "head -c 1500000 /dev/urandom > /tmp/f && hdfs dfs -put /tmp/f /shell && hdfs dfs -cat /shell"
    words = ["/bin/sh", "-c", f"{script} | cmp - /tmp/f"]
    store.run(store.client("node-3"), words, what="the shell")
    assert located(store, "/shell") == Counter({"node-3": 1_500_000})
