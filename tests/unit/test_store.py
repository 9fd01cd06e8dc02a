"""Stores without nodes: hints, what a platform file asks for, what is refused, patterns of kept files."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import BadInput, PenstockError
from penstock.parts.stores.deployment import deployment
from penstock.parts.stores.engines import packages
from penstock.parts.stores.engines.directory import Directory
from penstock.parts.stores.engines.glusterfs import GlusterFS
from penstock.parts.stores.engines.moosefs import MooseFS
from penstock.parts.stores.hints import Placement, attribute, checked
from penstock.parts.stores.staging import matches
from penstock.parts.stores.store import check, ready, with_privileges
from penstock.parts.stores.tags import TAKEN, digest, own, untaken
from penstock.platform.hosts import load_platform
from penstock.spec.store import DEFAULT_ENGINE, Extent, Roles, StoreSpec

PLATFORM = """
penstock_platform: 1
name: p
hosts:
  - {group: head, count: 1, roles: [manager]}
  - {group: store, count: 3, roles: [storage], disks: [{name: d, limits: {read: 10MB/s}}]}
  - {group: app, count: 2, roles: [client]}
network: {bandwidth: 1 Gbit/s, loopback: 1 GB/s}
store: {engine: moosefs, replicas: 2, mount: /shared, keep: [out/*]}
preprocess: {cache: 64MiB, prefetch: 2}
"""


def platform(tmp_path: Path, text: str = PLATFORM) -> Path:
    path = tmp_path / "p.yaml"
    path.write_text(text)
    return path


def test_a_platform_file_says_what_is_put_up(tmp_path: Path) -> None:
    loaded = load_platform(platform(tmp_path), predicted=False)
    nodes, spec, roles = deployment(loaded, keep=("log",))
    assert [n.name for n in nodes.nodes] == [
        "head-0",
        "store-0",
        "store-1",
        "store-2",
        "app-0",
        "app-1",
    ]
    assert roles == Roles(("head-0",), ("store-0", "store-1", "store-2"), ("app-0", "app-1"))
    assert (spec.engine, spec.mount, spec.kept) == ("moosefs", "/shared", ("out/*", "log"))
    assert spec.parameters == {"replicas": 2, "cache": 64 << 20, "prefetch": 2}
    granted = with_privileges(nodes, roles, MooseFS())
    may = {n.name: n.privileges for n in granted.nodes}
    assert may["app-0"] == ("SYS_ADMIN", "/dev/fuse")
    assert may["store-0"] == may["head-0"] == ()


def test_without_an_engine_it_is_the_default(tmp_path: Path) -> None:
    loaded = load_platform(
        platform(tmp_path, PLATFORM.replace("engine: moosefs, ", "")), predicted=False
    )
    assert deployment(loaded)[1].engine == DEFAULT_ENGINE == "cephfs"
    assert deployment(loaded, "glusterfs")[1].engine == "glusterfs"


def test_service_times_are_not_needed_to_put_a_store_up(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="found no manager in group 'head'"):
        load_platform(platform(tmp_path))
    load_platform(platform(tmp_path), predicted=False)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("engine: moosefs", "engine: ext4"), "found 'ext4'; expected moosefs"),
        (("replicas: 2", "replicas: 4"), "4 replicas on 3 storage hosts"),
        (("roles: [client]", "roles: []"), "found no node with the role client"),
        (("roles: [storage]", "roles: []"), "found no node with the role storage"),
    ],
)
def test_what_no_engine_could_be_is_refused(
    tmp_path: Path, change: tuple[str, str], expected: str
) -> None:
    def asked() -> None:
        loaded = load_platform(platform(tmp_path, PLATFORM.replace(*change)), predicted=False)
        _, spec, roles = deployment(loaded)
        check(MooseFS(), spec, roles)

    with pytest.raises(BadInput, match=expected):
        asked()


def test_what_an_engine_refuses_is_told_or_an_error() -> None:
    roles = Roles(("m",), ("a", "b"), ("a",))
    spec = StoreSpec("moosefs", {"chunk": 1 << 20, "replicas": 2})
    assert check(MooseFS(), spec, roles) == [
        "store.chunk: moosefs refuses it: chunks are as large as the file up to 64 MiB, and that is fixed"
    ]
    with pytest.raises(BadInput, match=r"store\.chunk: moosefs refuses it"):
        check(MooseFS(), spec, roles, strict=True)
    assert len(check(Directory(), spec, roles)) == 2


def test_an_engine_that_is_not_installed_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packages.shutil, "which", lambda name, path=None: None)
    assert MooseFS().missing().startswith("no mfsmaster here; `apt-get install moosefs-master")
    with pytest.raises(PenstockError, match=r"moosefs: no mfsmaster here; `apt-get install .*`"):
        ready(StoreSpec("moosefs"), Roles(("m",), ("a",), ("a",)))


def test_values_of_hints() -> None:
    assert checked("Replication", "3") == 3
    assert checked("ChunkSize", "256KiB") == checked("ChunkSize", "262144") == 262144
    assert checked("DP", "collocation g") == Placement("collocation", group="g")
    assert checked("DP", "scatter 8") == Placement("scatter", chunks=8)
    assert checked("colour", "blue") == "blue"
    for key, text in (("Replication", "0"), ("DP", "local g"), ("ChunkSize", "0"), ("DP", "")):
        with pytest.raises(BadInput, match=f"{key}={text}: found {text!r}; expected"):
            checked(key, text)
    for key in ("", "a b", "a=b", "x" * 200, "a/b"):
        with pytest.raises(BadInput, match="found the tag"):
            attribute(key)


def test_patterns_of_kept_files() -> None:
    assert matches("results/a/b", ["results"])
    assert matches("results/a", ["/results/*"])
    assert not matches("other/results", ["results/*"])
    assert not matches("a", [])


def test_tags_that_nobody_was_told_of() -> None:
    mine = {"user.penstock.DP": "local", "user.other": "x"}
    assert untaken(mine, "a", empty=True)
    assert not untaken({"user.other": "x", "user.penstock_taken": "y"}, "a", empty=True)
    taken = {**mine, TAKEN: f"{digest(own(mine))} a"}
    assert not untaken(taken, "a", empty=True)
    # who opens it empty on another node will be the one that writes it
    assert untaken(taken, "b", empty=True)
    assert not untaken(taken, "b", empty=False)
    # `store tag` named the node, whoever opens it
    told = {**mine, TAKEN: f"{digest(own(mine))} *"}
    assert not untaken(told, "b", empty=True)
    # another tag since then
    assert untaken({**told, "user.penstock.Replication": "2"}, "b", empty=False)
    assert own(told) == {"DP": "local"}


def test_an_engine_that_cannot_watch_is_refused() -> None:
    roles = Roles(("m",), ("a", "b"), ("a",))
    check(MooseFS(), StoreSpec("moosefs", watched=True), roles)
    with pytest.raises(BadInput, match="tags cannot be watched: tags replace the file"):
        check(GlusterFS(), StoreSpec("glusterfs", watched=True), roles)


def test_an_extent_in_json() -> None:
    assert Extent(0, 5, ("n",)).to_dict() == {"offset_bytes": 0, "length_bytes": 5, "nodes": ["n"]}
