"""GlusterFS on virtual nodes: effects of parameters and hints, by bytes on the nodes' disks."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.host.journal.undo import undo
from penstock.parts.stores.conformance import conform
from penstock.parts.stores.deployment import deployment
from penstock.parts.stores.engines.glusterfs import GlusterFS
from penstock.parts.stores.store import Store
from penstock.platform.hosts import load_platform
from tests.integration.node_ground import NODES, Ground
from tests.support.files import files_below

LACKING = GlusterFS().missing()
pytestmark = [*NODES, pytest.mark.long, pytest.mark.skipif(bool(LACKING), reason=LACKING)]

MIB = 2**20
PLATFORM = """
penstock_platform: 1
name: gl
hosts:
  - {group: head, count: 1, roles: [manager]}
  - group: node
    count: 4
    roles: [storage, client]
    disks: [{name: store, limits: {read: 400MB/s, write: 400MB/s}}]
network: {bandwidth: 100 Mbit/s, loopback: 1 GB/s, subnet: 10.92.0.0/24}
store: {engine: glusterfs, chunk: 4MiB}
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


def start_store(ground: Ground, *changes: str) -> Store:
    return Store.up(
        *deployment(load_platform(ground.where / "p.yaml", changes, predicted=False)), outlive=False
    )


@pytest.fixture(name="store", scope="module")
def module_store(ground: Ground) -> Iterator[Store]:
    store = start_store(ground)
    yield store
    store.down()
    assert not any(ground.host_objects().values()), ground.host_objects()


def write_file(store: Store, path: str, node: str, size: int, copies: int = 1) -> Counter[str]:
    """Write a file on a node and return the bytes that each node's disk received."""
    before = sizes_on_disks(store)
    script = 'head -c "$2" /dev/urandom > "$1" && sync "$1"'
    argv = ["/bin/sh", "-c", script, "sh", store.inside(path), str(size)]
    store.run(store.client(node), argv, what="writing")
    # sync(1) waits for the file; the engine writes its shards, which are other files, later. It
    # removes files of earlier commands later too: only files that grow count
    received, unchanged, end = growth(store, before), 0, time.monotonic() + 90
    while time.monotonic() < end and (unchanged < 2 or sum(received.values()) < size * copies):
        time.sleep(0.5)
        previous, received = received, growth(store, before)
        unchanged = unchanged + 1 if received == previous else 0
    return received


def growth(store: Store, before: dict[tuple[str, str], int]) -> Counter[str]:
    """Bytes by which files on each node's disk are larger than before."""
    bytes_by_node: Counter[str] = Counter()
    for (node, file), size in sizes_on_disks(store).items():
        bytes_by_node[node] += max(0, size - before.get((node, file), 0))
    return +bytes_by_node


def sizes_on_disks(store: Store) -> dict[tuple[str, str], int]:
    """Bytes of the files on the bricks' disks, by node and first path."""
    sizes = {}
    for name in store.roles.storage:
        (disk,) = store.cluster.nodes[name].disks.values()
        # st_blocks lacks data that is not written back, to the disk or to its directory
        subprocess.run(["sync", "-f", disk.at], check=True)
        subprocess.run(["sync", "-f", disk.directory], check=True)
        # hard links count once
        first: dict[int, str] = {}
        for path, status in sorted(
            (str(path), status) for path, status in files_below(disk.directory)
        ):
            if "/brick" in path and first.setdefault(status.st_ino, path) == path:
                sizes[name, path] = status.st_blocks * 512
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


def nearly_equal(on_disk: Counter[str], by_locate: Counter[str]) -> bool:
    """True if equal within the overhead of brick files: blocks of 4 KiB, folders of shards."""
    return all(abs(on_disk[n] - by_locate[n]) <= 128 * 1024 for n in {*on_disk, *by_locate})


def test_glusterfs_conforms_to_its_support_table(store: Store) -> None:
    cells = conform(store)
    assert [s for s in cells if not s.holds] == []
    support = {s.cell: s.support.how for s in cells}
    assert (support["DP=local"], support["DP=collocation"], support["StripeWidth=1"]) == (
        "emulated",
    ) * 3
    assert (support["Replication=2"], support["ChunkSize=1024KiB"], support["StripeWidth=2"]) == (
        "refused",
    ) * 3


def test_locate_reports_the_places_of_shards(store: Store) -> None:
    size = 26 * MIB + 5
    received = write_file(store, "/plain", "node-1", size)
    by_locate = located(store, "/plain")
    assert sum(by_locate.values()) == size
    assert nearly_equal(received, by_locate), (received, by_locate)
    # compare the first shard with the report of the client
    code = "import os, sys; print(os.getxattr(sys.argv[1], 'trusted.glusterfs.pathinfo').decode())"
    argv = ["python3", "-c", code, store.inside("/plain")]
    output = store.run(store.client(), argv, what="its place")
    hosts = re.findall(r"<POSIX\([^)]*\):([^:>]+):", output)
    assert tuple(hosts) == store.locate("/plain")[0].nodes


@pytest.mark.parametrize(
    ("tag", "chunk"), [("ChunkSize=8MiB", 8 * MIB), ("DP=scatter 3", 12 * MIB)]
)
def test_a_file_has_shards_of_its_own_size(store: Store, tag: str, chunk: int) -> None:
    key, value = tag.split("=")
    path, size = f"/own-{chunk}", 26 * MIB
    (tagged,) = store.tag(path, {key: value}, create=True)
    assert tagged.support.how == "emulated"
    received = write_file(store, path, "node-2", size)
    lengths = [e.length_bytes for e in store.locate(path)]
    assert lengths == [chunk] * (size // chunk) + [size % chunk]
    assert nearly_equal(received, located(store, path))
    assert store.attributes(path) == {key: value}


def test_another_tag_keeps_the_first(store: Store) -> None:
    store.tag("/both", {"DP": "collocation both"}, create=True)
    store.tag("/both", {"ChunkSize": "8MiB", "owner": "me"})
    received = write_file(store, "/both", "node-3", 12 * MIB)
    assert store.attributes("/both")["owner"] == "me"
    first = store.locate("/both")[0]
    assert (first.length_bytes, len(first.nodes)) == (8 * MIB, 1)
    assert nearly_equal(received, located(store, "/both"))


def test_unusual_file_names(store: Store) -> None:
    for number, name in enumerate(("a b", "ü", "x@y:z", "%41")):
        node = random.Random(number).choice(store.roles.storage)
        (tagged,) = store.tag(f"/names/{name}", {"DP": "local"}, node=node, create=True)
        assert tagged.support.how == "emulated", (name, tagged.support.why)
        received = write_file(store, f"/names/{name}", node, 2 * MIB)
        assert received[node] >= 2 * MIB, name


def test_copies_survive_the_death_of_a_node(ground: Ground) -> None:
    store = start_store(ground, "store.replicas=3", "name=gl3", "network.subnet=10.92.1.0/24")
    try:  # four nodes in sets of three: each node starts a set
        received = write_file(store, "/three", "node-0", 20 * MIB, copies=3)
        assert sum(received.values()) >= 60 * MIB
        assert nearly_equal(received, located(store, "/three"))
        assert all(len(set(e.nodes)) == 3 for e in store.locate("/three"))
        argv = ["sha256sum", store.inside("/three")]
        before = store.run(store.client("node-0"), argv, what="reading")
        store.cluster.set(["node-3"], "node", None, {"state": "down"})
        store.cluster.refresh()
        up = {s["node"]: s["up"] for s in store.status()["servers"]}
        assert up == {"node-0": True, "node-1": True, "node-2": True, "node-3": False}
        assert store.run(store.client("node-0"), argv, what="reading") == before
        assert all("node-3" not in e.nodes and e.nodes for e in store.locate("/three", "node-0"))
    finally:
        store.down()
