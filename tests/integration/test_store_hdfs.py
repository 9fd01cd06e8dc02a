"""HDFS on virtual nodes: effects of parameters and hints, by bytes on the disks."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import BadInput, PenstockError
from penstock.host.journal.undo import undo
from penstock.parts.stores.conformance import conform
from penstock.parts.stores.deployment import deployment
from penstock.parts.stores.engines.hdfs import HDFS
from penstock.parts.stores.staging import stage_in, stage_out
from penstock.parts.stores.store import Store
from penstock.platform.hosts import load_platform
from tests.integration.node_ground import NODES, Ground
from tests.support.files import files_below

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
def module_ground() -> Iterator[Ground]:
    directory = Path(tempfile.mkdtemp(prefix="gt-", dir="/var/tmp"))
    created = Ground.create(directory)
    (directory / "run").mkdir()
    (directory / "p.yaml").write_text(PLATFORM)
    with pytest.MonkeyPatch.context() as patch:
        for key in ("PENSTOCK_STATE", "PENSTOCK_RUNTIME"):
            patch.setenv(key, created.environment[key])
        yield created
        undo(created.journal(), own=True, everything=True)
    shutil.rmtree(directory)


@pytest.fixture(name="store", scope="module")
def module_store(ground: Ground) -> Iterator[Store]:
    platform = load_platform(ground.where / "p.yaml", predicted=False)
    store = Store.up(*deployment(platform), outlive=False)
    yield store
    store.down(discard=["*"])
    assert not any(ground.host_objects().values()), ground.host_objects()


def stage_file(store: Store, ground: Ground, path: str, node: str, size: int) -> Counter[str]:
    """Stage a file in from a node and return the bytes that each node's disk received."""
    before = sizes_on_disks(store)
    source = ground.where / "source"
    source.write_bytes(os.urandom(size))
    (staged,) = stage_in(store, source, path, node=node)
    assert staged.size_bytes == size
    return sizes_on_disks(store) - before


def sizes_on_disks(store: Store) -> Counter[str]:
    """Bytes of the blocks on each data node's disk, without their checksums."""
    sizes: Counter[str] = Counter()
    for name in store.roles.storage:
        (disk,) = store.cluster.nodes[name].disks.values()
        sizes[name] = sum(
            status.st_size
            for path, status in files_below(disk.directory)
            if path.name.startswith("blk_") and path.suffix != ".meta"
        )
    return sizes


def located(store: Store, path: str) -> Counter[str]:
    """Bytes of a file on each node by `locate`, whose extents cover the file once."""
    offset, sizes = 0, Counter[str]()
    for extent in store.locate(path):
        assert extent.offset_bytes == offset
        offset += extent.length_bytes
        for node in extent.nodes:
            sizes[node] += extent.length_bytes
    return sizes


def test_an_untagged_file_is_on_the_node_of_its_writer(store: Store, ground: Ground) -> None:
    for node in ("node-1", "node-3"):
        size = 3 * MIB + 7
        received = stage_file(store, ground, f"/plain-{node}", node, size)
        assert received == located(store, f"/plain-{node}") == Counter({node: size})
        assert [e.length_bytes for e in store.locate(f"/plain-{node}")] == [MIB] * 3 + [7]


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_each_copy_is_on_another_node(store: Store, ground: Ground, copies: int) -> None:
    path, size = f"/copies{copies}", 2 * MIB + 3
    (tagged,) = store.tag(path, {"Replication": str(copies)}, node="node-2", create=True)
    assert tagged.support.how == "native"
    received = stage_file(store, ground, path, "node-2", size)
    assert sum(received.values()) == copies * size
    assert received == located(store, path)
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
    (tagged,) = store.tag(path, {key: value}, create=True)
    assert tagged.support.how == "native"
    received = stage_file(store, ground, path, "node-0", size)
    assert [e.length_bytes for e in store.locate(path)] == [chunk, chunk, 512]
    assert received == located(store, path)
    assert store.attributes(path) == {key: value}


def test_a_collocation_group_is_on_one_node(store: Store, ground: Ground) -> None:
    placements = []
    for number, node in enumerate(("node-0", "node-2", "node-3")):
        path = f"/group/{number}"
        store.tag(path, {"DP": "collocation trial"}, node=node, create=True)
        received = stage_file(store, ground, path, node, MIB)
        assert received == located(store, path)
        placements.append(tuple(received))
    assert len(placements[0]) == 1
    assert len(set(placements)) == 1


def test_unsupported_hints_are_refused_and_other_tags_stored(store: Store) -> None:
    tags = {"StripeWidth": "2", "CacheSize": "1MiB", "deduplication": "true", "ChunkSize": "1000"}
    tagged = store.tag("/refused", {**tags, "Replication": "5", "colour": "blue"}, create=True)
    support = {d.key: d.support.how for d in tagged}
    assert support == {**dict.fromkeys([*tags, "Replication"], "refused"), "colour": "native"}
    assert store.attributes("/refused")["colour"] == "blue"
    with pytest.raises(BadInput, match="found no mount of hdfs"):
        conform(store)


def test_a_tag_of_a_file_with_data_is_refused_or_migrates_it(store: Store, ground: Ground) -> None:
    stage_file(store, ground, "/moved", "node-1", 2 * MIB)
    (refused,) = store.tag("/moved", {"ChunkSize": "512KiB"}, node="node-2")
    assert refused.support.how == "refused"
    store.tag("/moved", {"ChunkSize": "512KiB"}, node="node-2", migrate=True)
    assert [(e.length_bytes, e.nodes) for e in store.locate("/moved")] == [
        (MIB // 2, ("node-2",))
    ] * 4


def test_files_to_keep_are_not_lost(store: Store, ground: Ground) -> None:
    source = ground.where / "kept"
    (source / "deep").mkdir(parents=True)
    (source / "a").write_bytes(os.urandom(300_000))
    (source / "deep" / "b with a blank, ü and %41").write_bytes(b"x" * 17)
    (source / "empty").write_bytes(b"")
    assert len(stage_in(store, source, "/", node="node-1")) == 3
    with pytest.raises(PenstockError, match="to be kept, but without a verified copy"):
        store.down()
    assert len(stage_out(store, (), ground.where / "out")) == 3
    for file in ("a", "deep/b with a blank, ü and %41", "empty"):
        assert (ground.where / "out/kept" / file).read_bytes() == (source / file).read_bytes()
    # a later change invalidates the copy
    (source / "a").write_bytes(b"other")
    stage_in(store, source / "a", "/kept/a")
    with pytest.raises(PenstockError, match="kept/a: to be kept"):
        store.down()


def test_programs_in_a_node_can_use_the_hdfs_shell(store: Store) -> None:
    """`hdfs dfs` in a node writes files whose blocks are on that node."""
    script = "head -c 1500000 /dev/urandom > /tmp/f && hdfs dfs -put /tmp/f /shell && hdfs dfs -cat /shell"
    argv = ["/bin/sh", "-c", f"{script} | cmp - /tmp/f"]
    store.run(store.client("node-3"), argv, what="the shell")
    assert located(store, "/shell") == Counter({"node-3": 1_500_000})
