"""Nodes and storages as dimensions: refused values, and the study that measures the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.errors import BadInput
from penstock.parts.prediction.black_box.model import learnt
from penstock.parts.prediction.black_box.predict import task_time
from penstock.parts.prediction.black_box.space import MIB, Point, Space, with_dimensions
from penstock.parts.prediction.learning.deployment import Deployment, Ground, of_point, site_of
from penstock.parts.prediction.learning.learn import _paired
from penstock.parts.prediction.learning.measure_points import deployed_study, run_of
from penstock.plugins import STORE_ENGINES

PLATFORM = """
penstock_platform: 1
name: trial
hosts:
  - {group: head, count: 1, roles: [manager], manager: {service: 0.5ms}}
  - group: node
    count: 3
    roles: [storage, client]
    storage: {read: {overhead: 0.2ms, per_byte: 2ms/MiB}, write: {overhead: 0.2ms, per_byte: 2ms/MiB}}
    disks: [{name: store, limits: {read: 20MB/s, write: 10MB/s}}]
network: {bandwidth: 100 Mbit/s, loopback: 1 GB/s}
store: {engine: directory, chunk: 1MiB}
"""
SPACE = Space(
    pattern=("sequential",),
    clients=(0,),
    request_bytes=(65536, MIB),
    data_bytes=(2 * MIB,),
    nodes=(1, 2),
    storage=("local", "directory"),
)


@pytest.fixture
def platform(tmp_path: Path) -> Path:
    file = tmp_path / "cluster.yaml"
    file.write_text(PLATFORM)
    return file


def test_points_of_nodes_are_restored_from_their_names() -> None:
    assert len(SPACE.grid()) == 16
    assert [run_of(p.name) for p in SPACE.grid()] == SPACE.grid()
    assert "x1" not in Point("read", "sequential", "buffered", 0, 4096, MIB).name
    with pytest.raises(BadInput):
        run_of("read sequential 4KiB of 1MiB buffered +0 x2")
    space = with_dimensions(SPACE, ["nodes=16,4", "storage=cephfs,local"])
    assert (space.nodes, space.storage) == ((4, 16), ("cephfs", "local"))
    old = {k: v for k, v in SPACE.to_dict().items() if k not in ("nodes", "storage")}
    assert (Space.from_dict(old).nodes, Space.from_dict(old).storage) == ((1,), ("local",))
    for text in ("nodes=0", "nodes=65", "storage=NFS mount"):
        with pytest.raises(BadInput, match="expected"):
            with_dimensions(SPACE, [text])


def refusal(ground: Ground, **values: Any) -> str:
    with pytest.raises(BadInput) as refused:
        ground.check(SPACE.with_values(**values))
    return str(refused.value)


def test_invalid_dimensions_of_a_directory(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    assert "expected 1, or a platform file" in refusal(ground, storage=["local"])
    assert "expected --mount nfs=DIR" in refusal(ground, nodes=[1], storage=["local", "nfs"])
    mounted = Ground(tmp_path, {"nfs": tmp_path / "nfs"})
    mounted.check(SPACE.with_values(nodes=[1], storage=["local", "nfs"]))
    assert mounted.directory(Deployment(1, "nfs")) == tmp_path / "nfs"
    assert mounted.archive(tmp_path, Deployment()) == tmp_path
    assert mounted.archive(tmp_path, Deployment(1, "nfs")) == tmp_path / "nodes-1-nfs"


def test_invalid_dimensions_of_a_platform(platform: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ground = Ground(platform)
    ground.check(SPACE)
    assert "at most 3, the clients" in refusal(ground, nodes=[1, 4])
    missing = refusal(ground, storage=["local", "rbd"])
    assert "the storage 'rbd', which is not installed; expected local, or" in missing
    assert "hdfs cannot be measured" in refusal(ground, storage=["hdfs"])
    assert "expected a directory with it" in refusal(Ground(platform, {"a": platform.parent}))
    monkeypatch.setattr(type(STORE_ENGINES), "__iter__", lambda _: iter(()))
    monkeypatch.setattr(type(STORE_ENGINES), "__contains__", lambda *_: False)
    without_engines = refusal(ground)
    assert "none: the part that adds it is not installed" in without_engines


def test_study_of_local_disks(platform: Path) -> None:
    points = [p for p in SPACE.grid() if of_point(p) == Deployment(2, "local")]
    study = deployed_study(platform, Deployment(2, "local"), points, 0.5)
    workload = study.document["workload"]
    assert workload["on"] == ["node-0", "node-1"]
    assert "services" not in workload
    assert '"{disk-store}"' in workload["prepare"]
    assert [level.name for level in study.factors[0].levels] == [p.name for p in points]
    assert "store" not in study.document["platform"]


def test_study_of_a_store(platform: Path) -> None:
    points = [p for p in SPACE.grid() if of_point(p) == Deployment(2, "directory")]
    study = deployed_study(platform, Deployment(2, "directory"), points, 0.5)
    store, workload = study.document["platform"]["store"], study.document["workload"]
    assert (store["engine"], store["chunk"], store["manager"]) == ("directory", "1MiB", ["head-0"])
    assert store["storage"] == store["clients"] == ["node-0", "node-1", "node-2"]
    # another node writes the data of a node, and has them in its cache
    (layout,) = workload["services"]
    assert layout["on"] == ["node-1", "node-2"]
    assert "node-1) to=node-0;; node-2) to=node-1;;" in layout["command"]
    assert workload["mutates"] is True
    of_moosefs = site_of(platform, Deployment(1, "moosefs"))
    assert "chunk" not in of_moosefs.platform["store"]  # a parameter of the other engine


def test_deployments_have_two_points_each() -> None:
    grid = SPACE.grid()
    point = next(p for p in grid if of_point(p) == Deployment(2, "directory"))
    new = _paired([], [point], SPACE)
    assert new[0] == point
    assert [of_point(p) for p in new] == [Deployment(2, "directory")] * 2
    assert _paired(new, [], SPACE) == []
    with pytest.raises(BadInput, match="found one point of nodes-2-directory"):
        _paired(
            [],
            [point],
            SPACE.with_values(operation=[point.operation], request_bytes=[point.request_bytes]),
        )


def test_a_model_of_nodes_predicts_jobs() -> None:
    """Nodes share a store, but not their local disks."""

    def rate(p: Point) -> float:
        return 1e8 if p.storage == "local" else 1e8 / p.nodes

    space = SPACE.with_values(nodes=[1, 2, 4])
    points = space.grid()
    model = learnt(space, points, [rate(p) for p in points], complete=False)
    job = dict.fromkeys(("map_in", "map_out", "reduce_in", "reduce_out"), 4e8)
    local = task_time(model, "mapreduce", **job, nodes=4, reducers=2, storage="local")
    remote = task_time(model, "mapreduce", **job, nodes=4, reducers=2, storage="directory")
    assert local.time_s == pytest.approx(2 * 1.0 + 2 * 2.0, rel=1e-6)
    assert remote.time_s == pytest.approx(2 * 4.0 + 2 * 4.0, rel=1e-6)
    outside = task_time(model, "scan", size=2 * MIB, nodes=8, storage="directory")
    assert [b.message.split(" is outside")[0] for b in outside.beyond] == ["nodes 8"]
    with pytest.raises(BadInput, match="the storage nfs, which was not measured"):
        task_time(model, "scan", size=2 * MIB, storage="nfs")
