"""GlusterFS on virtual nodes: what it says of parameters and hints, by bytes on the nodes' disks."""

from __future__ import annotations

import os
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

from penstock.parts.stores.conformance import conform
from penstock.parts.stores.deployment import deployment
from penstock.parts.stores.engines.glusterfs import GlusterFS
from penstock.parts.stores.store import Store
from penstock.platform.hosts import load_platform
from tests.integration.node_ground import NODES, Ground

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


def put_up(ground: Ground, *changes: str) -> Store:
    return Store.up(
        *deployment(load_platform(ground.where / "p.yaml", changes, predicted=False)), outlive=False
    )


@pytest.fixture(name="store", scope="module")
def one_store(ground: Ground) -> Iterator[Store]:
    made = put_up(ground)
    yield made
    made.down()
    assert not any(ground.seen().values()), ground.seen()


def written(store: Store, path: str, node: str, size: int, copies: int = 1) -> Counter[str]:
    """Bytes on each node's disk because of a file that a node writes."""
    before = on_disks(store)
    script = 'head -c "$2" /dev/urandom > "$1" && sync "$1"'
    words = ["/bin/sh", "-c", script, "sh", store.inside(path), str(size)]
    store.run(store.client(node), words, what="writing")
    # sync(1) waits for the file; the engine writes its shards, which are files of their own, later
    # and removes files of earlier commands later as well: only files that grow count
    took, unchanged, end = grown(store, before), 0, time.monotonic() + 90
    while time.monotonic() < end and (unchanged < 2 or sum(took.values()) < size * copies):
        time.sleep(0.5)
        last, took = took, grown(store, before)
        unchanged = unchanged + 1 if took == last else 0
    return took


def grown(store: Store, before: dict[tuple[str, str], int]) -> Counter[str]:
    """Bytes by which files on each node's disk are larger than before."""
    bytes_by_node: Counter[str] = Counter()
    for (node, file), size in on_disks(store).items():
        bytes_by_node[node] += max(0, size - before.get((node, file), 0))
    return +bytes_by_node


def on_disks(store: Store) -> dict[tuple[str, str], int]:
    """Bytes of the files on the bricks' disks by node and first path, whatever the engine calls them."""
    sizes = {}
    for name in store.roles.storage:
        (disk,) = store.cluster.nodes[name].disks.values()
        # blocks of what is not written back yet, to the disk and to its directory, are not counted
        subprocess.run(["sync", "-f", disk.at], check=True)
        subprocess.run(["sync", "-f", disk.directory], check=True)
        files = (p for p in disk.directory.rglob("*") if "/brick" in str(p) and not p.is_symlink())
        # hard links count once
        first: dict[int, str] = {}
        for path in sorted(str(p) for p in files if p.is_file()):
            status = os.stat(path)
            if first.setdefault(status.st_ino, path) == path:
                sizes[name, path] = status.st_blocks * 512
    return sizes


def located(store: Store, path: str) -> Counter[str]:
    """Bytes of a file on each node, as `locate` says it, which covers the file once."""
    at, found = 0, Counter[str]()
    for extent in store.locate(path):
        assert extent.offset_bytes == at
        at += extent.length_bytes
        for node in extent.nodes:
            found[node] += extent.length_bytes
    return found


def alike(found: Counter[str], said: Counter[str]) -> bool:
    """Within what brick files have beside data: blocks of 4 KiB, folders of shards."""
    return all(abs(found[n] - said[n]) <= 128 * 1024 for n in {*found, *said})


def test_every_cell_is_as_it_says(store: Store) -> None:
    shown = conform(store)
    assert [s for s in shown if not s.holds] == []
    how = {s.cell: s.support.how for s in shown}
    assert (how["DP=local"], how["DP=collocation"], how["StripeWidth=1"]) == ("emulated",) * 3
    assert (how["Replication=2"], how["ChunkSize=1024KiB"], how["StripeWidth=2"]) == (
        "refused",
    ) * 3


def test_shards_are_where_they_are_said_to_be(store: Store) -> None:
    size = 26 * MIB + 5
    took = written(store, "/plain", "node-1", size)
    said = located(store, "/plain")
    assert sum(said.values()) == size
    assert alike(took, said), (took, said)
    # another way to ask for the first shard: what the client itself says
    code = "import os, sys; print(os.getxattr(sys.argv[1], 'trusted.glusterfs.pathinfo').decode())"
    words = ["python3", "-c", code, store.inside("/plain")]
    told = store.run(store.client(), words, what="its place")
    hosts = re.findall(r"<POSIX\([^)]*\):([^:>]+):", told)
    assert tuple(hosts) == store.locate("/plain")[0].nodes


@pytest.mark.parametrize(
    ("tag", "chunk"), [("ChunkSize=8MiB", 8 * MIB), ("DP=scatter 3", 12 * MIB)]
)
def test_a_file_has_shards_of_its_own_size(store: Store, tag: str, chunk: int) -> None:
    key, value = tag.split("=")
    path, size = f"/own-{chunk}", 26 * MIB
    (done,) = store.tag(path, {key: value}, create=True)
    assert done.support.how == "emulated"
    took = written(store, path, "node-2", size)
    said = [e.length_bytes for e in store.locate(path)]
    assert said == [chunk] * (size // chunk) + [size % chunk]
    assert alike(took, located(store, path))
    assert store.attributes(path) == {key: value}


def test_a_tag_of_another_does_not_undo_the_first(store: Store) -> None:
    store.tag("/both", {"DP": "collocation both"}, create=True)
    store.tag("/both", {"ChunkSize": "8MiB", "owner": "me"})
    took = written(store, "/both", "node-3", 12 * MIB)
    assert store.attributes("/both")["owner"] == "me"
    first = store.locate("/both")[0]
    assert (first.length_bytes, len(first.nodes)) == (8 * MIB, 1)
    assert alike(took, located(store, "/both"))


def test_files_with_names_of_all_kinds_are_laid_out(store: Store) -> None:
    for number, name in enumerate(("a b", "ü", "x@y:z", "%41")):
        node = random.Random(number).choice(store.roles.storage)
        (done,) = store.tag(f"/names/{name}", {"DP": "local"}, node=node, create=True)
        assert done.support.how == "emulated", (name, done.support.why)
        took = written(store, f"/names/{name}", node, 2 * MIB)
        assert took[node] >= 2 * MIB, name


def test_two_copies_survive_a_node_and_say_so(ground: Ground) -> None:
    store = put_up(ground, "store.replicas=3", "name=gl3", "network.subnet=10.92.1.0/24")
    try:  # four nodes in sets of three: each begins one
        took = written(store, "/three", "node-0", 20 * MIB, copies=3)
        assert sum(took.values()) >= 60 * MIB
        assert alike(took, located(store, "/three"))
        assert all(len(set(e.nodes)) == 3 for e in store.locate("/three"))
        words = ["sha256sum", store.inside("/three")]
        before = store.run(store.client("node-0"), words, what="reading")
        store.cluster.set(["node-3"], "node", None, {"state": "down"})
        store.cluster.refresh()
        up = {s["node"]: s["up"] for s in store.status()["servers"]}
        assert up == {"node-0": True, "node-1": True, "node-2": True, "node-3": False}
        assert store.run(store.client("node-0"), words, what="reading") == before
        assert all("node-3" not in e.nodes and e.nodes for e in store.locate("/three", "node-0"))
    finally:
        store.down()
