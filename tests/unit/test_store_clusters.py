"""Stores on clusters of several hosts, from their records; no host responds."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import BadInput, PenstockError
from penstock.host.journal.journal import Journal
from penstock.parts.remote.cluster.coordinator import RemoteCluster
from penstock.parts.remote.cluster.records import place
from penstock.parts.remote.running.nodes import ClusterOnHosts
from penstock.parts.stores.clusters import (
    digests_of,
    interrupted,
    live_cluster,
    require_one_host,
)
from penstock.parts.stores.store import Store, ready, up_already
from penstock.spec.cluster import ClusterSpec, LinkSpec, NetworkSpec, NodeSpec
from penstock.spec.store import Roles, StoreSpec
from penstock.spec.study import Worker
from tests.support import commands

SPEC = StoreSpec("moosefs", {"replicas": 2}, "/store", ("results/*",))
ROLES = Roles(("n-0",), ("n-0", "n-1"), ("n-1",))
NODES = ClusterSpec("lab", (NodeSpec("n-0"), NodeSpec("n-1")), ())


@pytest.fixture(name="cluster", autouse=True)
def recorded_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RemoteCluster:
    """A cluster with a store, in its own state directory."""
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("PENSTOCK_RUNTIME", str(tmp_path / "run"))
    workers = (Worker(name="left", python="/no/python"), Worker(name="right", python="/no/python"))
    host_of = {"n-0": "left", "n-1": "right"}
    cluster = RemoteCluster("lab", "key", "192.0.2.9", workers, host_of, {})
    place("lab").mkdir(parents=True)
    cluster._write()
    Store(ClusterOnHosts(cluster), SPEC, ROLES, {"phase": "up", "master": "a"})._keep()
    return cluster


def test_the_record_of_a_cluster_has_its_store() -> None:
    store = Store.find()
    assert (store.name, store.spec, store.roles) == ("lab", SPEC, ROLES)
    assert store.complete
    assert store.status()["trouble"].startswith("node n-0 is lost: host left: ")
    with pytest.raises(PenstockError, match="node n-1 is lost: host right: "):
        store.client("n-1")
    with pytest.raises(BadInput, match="found nodes on several hosts"):
        require_one_host(store.cluster)


def test_a_store_of_the_same_description_is_up_already() -> None:
    assert up_already(NODES, SPEC, ROLES) is not None
    with pytest.raises(BadInput, match="a store lab is up that is another"):
        up_already(NODES, replace(SPEC, kept=()), ROLES)
    assert up_already(replace(NODES, name="other"), SPEC, ROLES) is None


def test_a_store_on_nodes_with_other_limits_is_another(cluster: RemoteCluster) -> None:
    """`workflow run --set` used the running nodes, and the prediction the others."""
    state = {"phase": "up", "nodes": digests_of(NODES)}
    Store(ClusterOnHosts(cluster), SPEC, ROLES, state)._keep()
    assert up_already(NODES, SPEC, ROLES, any_use=True) is not None
    slower = replace(NODES.nodes[0], links=(LinkSpec(out_bps=1e6),))
    others = replace(NODES, nodes=(slower, NODES.nodes[1]), networks=(NetworkSpec(delay_s=0.01),))
    with pytest.raises(
        BadInput, match="up with other limits, disks or links of nodes, and networks than"
    ):
        up_already(others, SPEC, ROLES, any_use=True)


def test_a_cluster_whose_command_died_is_interrupted(
    cluster: RemoteCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner of an entry is alive while this process is."""
    cluster.ending()
    cluster.ending()
    (entry,) = Journal().open_entries()
    assert interrupted() == []
    monkeypatch.setattr(type(entry.owner), "alive", False)
    assert interrupted() == ["lab"]
    assert not Store.find().complete
    cluster.settled()
    assert interrupted() == []


def test_the_command_that_undoes_a_start_ends_well_without_its_cluster(
    cluster: RemoteCluster,
) -> None:
    cluster.ending()
    (entry,) = Journal().open_entries()
    line, record = entry.new["line"], place("lab") / "cluster.json"
    assert line == f"test ! -e {record} || {sys.executable} -m penstock hosts down lab"
    record.unlink()
    assert commands.run(["/bin/sh", "-c", line]).returncode == 0


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (replace(SPEC, engine="directory", parameters={}), "found directory on several hosts"),
        (replace(SPEC, watched=True), "--watch: found it on several hosts"),
    ],
)
def test_stores_that_need_one_host_are_refused(spec: StoreSpec, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        ready(spec, ROLES, here=False)


def test_no_second_cluster_of_a_name_is_started_here() -> None:
    directory = StoreSpec("directory", {}, "/store", ())
    with pytest.raises(BadInput, match="a cluster lab is up on several hosts already"):
        Store.up(NODES, directory, ROLES)


def test_a_cluster_without_a_record_is_not_up() -> None:
    assert live_cluster("lab") is not None
    assert live_cluster("other") is None
