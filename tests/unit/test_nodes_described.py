"""Specifications of clusters: serialisation, change arguments, validation and warnings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.emulate.cluster.capacity import warnings
from penstock.emulate.cluster.change_arguments import changes_of
from penstock.emulate.cluster.wire import from_json, to_json
from penstock.errors import BadInput
from penstock.host.nodes.node_group import parse_cpuset
from penstock.spec.check_cluster import (
    check_cluster,
    check_condition,
    check_cpu,
    check_memory,
    matching,
)
from penstock.spec.cluster import (
    ClusterSpec,
    Delay,
    DiskSpec,
    Event,
    Limits,
    LinkSpec,
    NetworkSpec,
    NodeSpec,
    When,
)

SPEC = ClusterSpec(
    "c",
    (
        NodeSpec(
            "a",
            image=Path("/an image"),
            cpus=0.5,
            cpuset=(0,),
            cpu_ratio=0.25,
            memory_bytes=1 << 28,
            disks=(
                DiskSpec(
                    "d",
                    profile={"k": [1, {"x": None}]},
                    directory=Path("/d"),
                    limits=Limits(read_bps=1e6),
                    owner=(1, 2),
                    patch={"slow": {"factor": 3}},
                ),
            ),
            links=(LinkSpec("n", "10.1.0.5", 1e6, 2e6, Delay(0.1, 0.01, "normal"), loss=0.1),),
        ),
        NodeSpec("b", ssh=True, links=()),
    ),
    (NetworkSpec("n", "10.1.0.0/24", delays={("a", "b"): 0.2, ("b", "a"): 0.3}),),
    (Event(When(1.5, "load"), "disk", {"limits": {"read_bps": "max"}}, ("a",), "d"),),
    "runc",
)


def test_specification_survives_serialisation() -> None:
    assert from_json(ClusterSpec, json.loads(json.dumps(to_json(SPEC)))) == SPEC


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"name": "c"}, "nodes"),
        ({"name": "c", "nodes": [{"name": "a", "cpu": 1}]}, "found 'cpu'; expected any of name"),
        ({"name": "c", "nodes": [{"name": "a", "cpus": "1"}]}, "found '1'; expected float"),
        ({"name": "c", "nodes": {}}, "expected a list"),
    ],
)
def test_bad_documents_are_refused(broken: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_json(ClusterSpec, broken)


@given(st.sets(st.integers(0, 200), min_size=1))
def test_cpuset_lists_are_parsed(processors: set[int]) -> None:
    assert parse_cpuset(",".join(map(str, processors))) == tuple(sorted(processors))


def test_cpuset_ranges_are_parsed() -> None:
    assert parse_cpuset("0-2,5") == (0, 1, 2, 5)
    with pytest.raises(ValueError, match="empty"):
        parse_cpuset("3-1")
    with pytest.raises(ValueError, match="invalid literal"):
        parse_cpuset("0-")
    for text in ("0-1000000000000000000", "100000"):
        with pytest.raises(ValueError, match="at most processor 99999"):
            parse_cpuset(text)


def test_change_arguments() -> None:
    line = "a-* b cpus=0.5 memory=1GiB c disk.data.limits.read=5MB/s disk.data.slow.factor=3"
    line += " link.out=10Mbit/s link.back.delay=5ms link.back.loss=1% state=down"
    changes = [(c.nodes, c.resource, c.name, c.patch) for c in changes_of(line.split())]
    assert changes == [
        (("a-*", "b"), "cpu", None, {"cpus": 0.5}),
        (("a-*", "b"), "memory", None, {"hard": 1 << 30}),
        (("c",), "disk", "data", {"limits": {"read_bps": 5e6}, "slow": {"factor": 3.0}}),
        (("c",), "network", None, {"out_bps": 1.25e6}),
        (("c",), "network", "back", {"delay": 0.005, "loss": 0.01}),
        (("c",), "node", None, {"state": "down"}),
    ]


def test_max_removes_a_limit() -> None:
    (change,) = changes_of(["n", "disk.d.limits.write=max"])
    assert change.patch == {"limits": {"write_bps": "max"}}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("cpus=1", "before any node"),
        ("a", "nothing to be set"),
        ("a cpus=1 b", "nothing to be set"),
        ("a speed=3", "found 'speed'; expected one of cpus"),
        ("a memory=3", "a size with its unit"),
        ("a disk.d.limits.read=5MB", "a bandwidth"),
        ("a cpus=1 cpus=2", "given twice"),
        ("a cpuset=x", "processors such as"),
        ("a link.speed=1", "found 'link.speed'"),
    ],
)
def test_bad_change_arguments(line: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        changes_of(line.split())


def test_patterns_select_nodes() -> None:
    nodes = ["a-0", "a-1", "b.c", "bxc"]
    assert matching(["b*", "a-1"], nodes) == ["a-1", "b.c", "bxc"]
    assert matching(["b.c"], nodes) == ["b.c"]
    assert matching(["*"], nodes) == nodes
    with pytest.raises(BadInput, match="no node 'c-\\*'; there are a-0"):
        matching(["c-*"], nodes)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (ClusterSpec("c", ()), "found no node"),
        (
            ClusterSpec(
                "c",
                (NodeSpec("a", links=()),),
                (NetworkSpec("m", "10.0.0.0/16"), NetworkSpec("n", "10.0.3.0/24")),
            ),
            "10.0.3.0/24 overlaps 10.0.0.0/16 of m",
        ),
        (
            ClusterSpec(
                "c", (NodeSpec("a", disks=(DiskSpec("d"), DiskSpec("e", mount="/disks/d"))),)
            ),
            "mount point /disks/d occurs 2 times",
        ),
        (
            ClusterSpec(
                "c",
                (NodeSpec("a", disks=(DiskSpec("d", mount="/proc/x"),)),),
            ),
            "mount point found",
        ),
        (
            ClusterSpec(
                "c", (NodeSpec("a", disks=(DiskSpec("d", limits=Limits(read_bps=-1.0)),)),)
            ),
            "read_bps found -1.0",
        ),
        (
            ClusterSpec(
                "c", (NodeSpec("a", disks=(DiskSpec("d", limits=Limits(read_bps=float("nan"))),)),)
            ),
            "read_bps found nan",
        ),
        (
            ClusterSpec("c", (NodeSpec("a", links=(LinkSpec("x"),)),)),
            "no such network; there are net",
        ),
        (ClusterSpec("c", (NodeSpec("a", links=(LinkSpec(out_bps=0.0),)),)), "out_bps found 0.0"),
        (
            ClusterSpec("c", (NodeSpec("a", image=Path("/nowhere")),)),
            "image /nowhere is not a directory",
        ),
        (
            ClusterSpec("c", (NodeSpec("a", memory_bytes=8 << 20, memory_soft_bytes=9 << 20),)),
            "above the hard one",
        ),
        (
            ClusterSpec("c", (NodeSpec("a"),), runtime="docker"),
            "found runtime 'docker'; expected one",
        ),
        (
            ClusterSpec("c", (NodeSpec("a"),), events=(Event(When(-1), "cpu", {"cpus": 1}),)),
            "time found -1",
        ),
        (
            ClusterSpec("c", (NodeSpec("a"),), events=(Event(When(), "cpu", {"cpus": 1}, ("z",)),)),
            "event 0: no node 'z'",
        ),
    ],
)
def test_bad_clusters_are_refused(spec: ClusterSpec, message: str) -> None:
    with pytest.raises(BadInput) as error:
        check_cluster(spec)
    assert message in str(error.value)


@pytest.mark.parametrize("value", [1e18, 10**400, float("inf"), float("nan"), -1, 0])
def test_processors_and_memory_are_bounded(value: float) -> None:
    (fault,) = check_cpu({"cpus": value}, "n")
    assert "n: cpus found" in fault
    assert list(check_memory({"hard": value}, "n"))


def test_bad_conditions() -> None:
    assert list(check_condition({"phase": "load"}, "e")) == []
    assert list(check_condition({"metric": "reads", "disk": "n.d", "above": 5}, "e")) == []
    assert list(check_condition({"log": "/l", "regex": "go"}, "e")) == []
    assert "one of metric, log and phase" in next(check_condition({}, "e"))
    assert "NODE.DISK" in next(check_condition({"metric": "reads", "disk": "n"}, "e"))
    assert "regex" in next(check_condition({"log": "/l", "regex": "["}, "e"))


class Slow:
    """Capacity of a host whose emulated disks reach 100 MB/s and 1000 requests/s."""

    read_bps = write_bps = 100e6
    iops = 1000.0


def test_warnings_about_exceeded_capacity() -> None:
    def cluster(read_bps: float) -> ClusterSpec:
        disks = tuple(DiskSpec(n, limits=Limits(read_bps=read_bps)) for n in ("d", "e"))
        return ClusterSpec("c", tuple(NodeSpec(n, disks=disks) for n in ("a", "b")))

    assert warnings(cluster(19e6), Slow()) == []
    (warning,) = warnings(cluster(21e6), Slow())
    assert "read_bps" in warning
    assert "80 %" in warning
    many = ClusterSpec("c", tuple(NodeSpec(f"n{i}", cpus=1000.0) for i in range(2)))
    assert "2000 processors" in warnings(many, Slow())[0]
    large = ClusterSpec("c", (NodeSpec("a", memory_bytes=1 << 50),))
    assert "memory limits" in warnings(large, Slow())[0]


def test_disk_features_of_nodes() -> None:
    (change,) = changes_of(["n", "disk.d.bad_space.share=50%", "disk.d.slow.ramp=1s"])
    slow = {"factor": 1.0, "ramp_s": 1.0}
    assert change.patch == {"bad_space": {"share": 0.5, "mode": "error"}, "slow": slow}
    (change,) = changes_of(["n", "disk.d.bad_space=max", "disk.d.slow=max"])
    assert change.patch == {"bad_space": "max", "slow": "max"}
    with pytest.raises(BadInput, match=r"bad_space\.share"):
        changes_of(["n", "disk.d.bad_space.mode=flip"])
