"""Homogeneity of running nodes: a node with a slower disk or link is reported."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.emulate.cluster.cluster import Cluster
from penstock.host.journal.journal import Journal
from penstock.parts.stores.calibration.homogeneity import judged, measured
from penstock.platform.cluster import checked_cluster
from penstock.platform.hosts import load_platform
from penstock.spec.cluster import ClusterSpec
from tests.integration.node_ground import NODES

pytestmark = [pytest.mark.timed, *NODES, pytest.mark.long]
STORAGE = [f"node-{i}" for i in range(4)]
PLATFORM = """
penstock_platform: 1
name: gt-alike
hosts:
  - {group: head, count: 1, roles: [manager]}
  - group: node
    count: 4
    roles: [storage, client]
    disks: [{name: store, limits: {read: 40MB/s, write: 40MB/s}}]
network: {bandwidth: 100 Mbit/s, loopback: 1 GB/s, subnet: 10.94.0.0/24}
store: {engine: moosefs}
"""


@pytest.fixture(name="alike", scope="module")
def four_nodes_alike(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Cluster, ClusterSpec]]:
    file = tmp_path_factory.mktemp("alike") / "p.yaml"
    file.write_text(PLATFORM)
    spec = checked_cluster(load_platform(file, predicted=False))
    with Cluster.up(spec, Journal(), outlive=False) as cluster:
        yield cluster, spec


@pytest.fixture(name="faults", scope="module")
def one_slow_disk_and_one_slow_link(alike: tuple[Cluster, ClusterSpec]) -> set[tuple[str, str]]:
    """Reported faults with a disk that is three times slower and a link at 80 % on another node."""
    cluster, _ = alike
    slow = {"read_bps": 40e6 / 3, "write_bps": 40e6 / 3}
    cluster.set(["node-2"], "disk", "store", {"limits": slow})
    cluster.set(["node-1"], "network", None, {"out_bps": 10e6, "in_bps": 10e6})
    try:
        return unlike_resources(alike)
    finally:
        cluster.set(["node-1"], "network", None, {"out_bps": 12.5e6, "in_bps": 12.5e6})
        limits = {"read_bps": 40e6, "write_bps": 40e6}
        cluster.set(["node-2"], "disk", "store", {"limits": limits})


def unlike_resources(alike: tuple[Cluster, ClusterSpec]) -> set[tuple[str, str]]:
    report = judged(measured(*alike, STORAGE, budget_s=30))
    assert set(report.shows) == {"disk, write", "disk, read", "link, out", "link, in"}
    return {(u.node, u.what) for u in report.unlike}


def test_equal_nodes(alike: tuple[Cluster, ClusterSpec]) -> None:
    assert unlike_resources(alike) == set()


def test_one_disk_three_times_slower(faults: set[tuple[str, str]]) -> None:
    disks = {fault for fault in faults if fault[1].startswith("disk")}
    assert disks == {("node-2", "disk, write"), ("node-2", "disk, read")}


def test_one_link_at_80_percent(faults: set[tuple[str, str]]) -> None:
    links = {fault for fault in faults if fault[1].startswith("link")}
    assert links == {("node-1", "link, out"), ("node-1", "link, in")}
