"""Stores without nodes: hints, platform files, refused settings, patterns of files to keep."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import BadInput, PenstockError
from penstock.parts.stores import tag_watch
from penstock.parts.stores.deployment import deployment
from penstock.parts.stores.engines import packages
from penstock.parts.stores.engines.directory import Directory
from penstock.parts.stores.engines.glusterfs import GlusterFS
from penstock.parts.stores.engines.moosefs import MooseFS
from penstock.parts.stores.hints import Placement, attribute, checked
from penstock.parts.stores.staging import matches
from penstock.parts.stores.store import check, ready, with_privileges
from penstock.parts.stores.tag_watch import TagWatch
from penstock.parts.stores.tags import TAKEN, Tagged, digest, own, untaken
from penstock.platform.hosts import load_platform
from penstock.spec.store import DEFAULT_ENGINE, Extent, Roles, StoreSpec, refused

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


def test_a_platform_file_decides_the_deployment(tmp_path: Path) -> None:
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
    with_rights = with_privileges(nodes, roles, MooseFS())
    privileges = {n.name: n.privileges for n in with_rights.nodes}
    assert privileges["app-0"] == ("SYS_ADMIN", "/dev/fuse")
    assert privileges["store-0"] == privileges["head-0"] == ()


def test_without_an_engine_it_is_the_default(tmp_path: Path) -> None:
    loaded = load_platform(
        platform(tmp_path, PLATFORM.replace("engine: moosefs, ", "")), predicted=False
    )
    assert deployment(loaded)[1].engine == DEFAULT_ENGINE == "cephfs"
    assert deployment(loaded, "glusterfs")[1].engine == "glusterfs"


def test_service_times_are_not_needed_to_start_a_store(tmp_path: Path) -> None:
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
def test_impossible_deployments_are_refused(
    tmp_path: Path, change: tuple[str, str], expected: str
) -> None:
    def check_platform() -> None:
        loaded = load_platform(platform(tmp_path, PLATFORM.replace(*change)), predicted=False)
        _, spec, roles = deployment(loaded)
        check(MooseFS(), spec, roles)

    with pytest.raises(BadInput, match=expected):
        check_platform()


def test_refusals_of_an_engine_are_warnings_or_errors() -> None:
    roles = Roles(("m",), ("a", "b"), ("a",))
    spec = StoreSpec("moosefs", {"chunk": 1 << 20, "replicas": 2})
    assert check(MooseFS(), spec, roles) == [
        "store.chunk: moosefs refuses it: chunks are as large as the file up to 64 MiB, and that is fixed"
    ]
    with pytest.raises(BadInput, match=r"store\.chunk: moosefs refuses it"):
        check(MooseFS(), spec, roles, strict=True)
    assert len(check(Directory(), spec, roles)) == 2


def test_the_error_of_a_missing_engine_names_its_package(
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
    # brackets are part of names
    assert matches("out/a[1].csv", ["out/a[1].csv"])
    assert matches("out[2]/a", ["out[2]/*"])
    assert not matches("out/a1.csv", ["out/a[1].csv"])


def test_tags_are_untaken_until_an_engine_has_taken_them() -> None:
    attributes = {"user.penstock.DP": "local", "user.other": "x"}
    assert untaken(attributes, "a", empty=True)
    assert not untaken({"user.other": "x", "user.penstock_taken": "y"}, "a", empty=True)
    taken = {**attributes, TAKEN: f"{digest(own(attributes))} a"}
    assert not untaken(taken, "a", empty=True)
    # a node that opens the empty file will be its writer
    assert untaken(taken, "b", empty=True)
    assert not untaken(taken, "b", empty=False)
    # `store tag` took the tags for all nodes
    taken_by_all = {**attributes, TAKEN: f"{digest(own(attributes))} *"}
    assert not untaken(taken_by_all, "b", empty=True)
    # another tag since then
    assert untaken({**taken_by_all, "user.penstock.Replication": "2"}, "b", empty=False)
    assert own(taken_by_all) == {"DP": "local"}


def test_an_engine_that_cannot_watch_is_refused() -> None:
    roles = Roles(("m",), ("a", "b"), ("a",))
    check(MooseFS(), StoreSpec("moosefs", watched=True), roles)
    with pytest.raises(BadInput, match="tags cannot be watched: tags replace the file"):
        check(GlusterFS(), StoreSpec("glusterfs", watched=True), roles)


def test_an_extent_in_json() -> None:
    assert Extent(0, 5, ("n",)).to_dict() == {"offset_bytes": 0, "length_bytes": 5, "nodes": ["n"]}


def test_every_refused_hint_of_a_program_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = TagWatch(lambda: None)  # type: ignore[arg-type, return-value]
    for n in [*range(300), 0]:
        watch._remember([Tagged(f"/s/run/f{n}", "Replication", "9", refused("too many"))])
    report = watch.report()
    assert (report["refusals"], report["forgotten"]) == (301, 0)
    assert {one["path"] for one in report["refused"]} == {f"/s/run/f{n}" for n in range(300)}
    monkeypatch.setattr(tag_watch, "_MOST_REFUSED", 300)
    watch._remember([Tagged("/s/run/g", "Replication", "9", refused("too many"))])
    assert watch.report()["forgotten"] == 1
