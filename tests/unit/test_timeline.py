"""The schedule of a cluster without a host: targets of events, conditions, and refused events."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.emulate.backends.base import Cause
from penstock.emulate.cluster.running import LiveCluster
from penstock.emulate.cluster.settings import Change
from penstock.emulate.schedule.timeline import Timeline
from penstock.errors import BadInput, PenstockError
from penstock.spec.check_cluster import check_cluster
from penstock.spec.cluster import ClusterSpec, DiskSpec, Event, LinkSpec, NodeSpec, When
from tests.support.waiting import until

NODES = (
    NodeSpec("data-0", disks=(DiskSpec("d"), DiskSpec("d2"))),
    NodeSpec("data-1", disks=(DiskSpec("d"),)),
    NodeSpec("app", links=(LinkSpec("back"),)),
)
SLOW = {"slow": {"factor": 10}}


class Disks:
    """Disks that only record their planned events."""

    def __init__(self) -> None:
        self.planned: list[tuple[str, str | None, dict[str, Any]]] = []
        self.refuses: str | None = None
        self.stats = {"writes": 3, "written_bytes": 4096}
        self.looks = 0

    def schedule(self, node: str, name: str | None, events: list[dict[str, Any]]) -> None:
        if node == self.refuses:
            raise PenstockError("it refuses")
        self.planned += [(node, name, e["patch"]) for e in events]

    def check_cut(self, node: str, name: str | None) -> None:
        if node == self.refuses:
            raise BadInput("throttled")

    def of(self, node: str) -> dict[str, Any]:
        return {"d": SimpleNamespace(up=SimpleNamespace(stats=self.current_stats))}

    def current_stats(self) -> dict[str, int]:
        self.looks += 1
        return self.stats

    def await_looks(self) -> None:
        """Wait until all conditions of a test have seen the current numbers."""
        looks = self.looks + 4
        until(lambda: self.looks >= looks)


class FakeCluster:
    """A cluster without processes."""

    def __init__(self) -> None:
        self.nodes = {node.name: SimpleNamespace(spec=node) for node in NODES}
        self.disks = Disks()
        self.fired: list[Change] = []
        self.causes: list[Cause] = []

    def announce(self, kind: str, request: Any) -> None:
        """Discard the entry of the journal."""

    def fire(self, change: Change, planned_ns: int, cause: Cause) -> list[dict[str, Any]]:
        self.fired.append(change)
        self.causes.append(cause)
        return [{"node": n, "planned_ns": planned_ns, "error": ""} for n in change.nodes]


def timeline() -> tuple[FakeCluster, Timeline]:
    cluster = FakeCluster()
    return cluster, Timeline(cast(LiveCluster, cluster), cluster.fire)


def test_an_event_is_for_the_chosen_nodes_that_have_the_disk_or_the_link() -> None:
    cluster, events = timeline()
    events.add([Event(When(9), "disk", SLOW, name="d")])
    assert [p[:2] for p in cluster.disks.planned] == [("data-0", "d"), ("data-1", "d")]
    cluster.disks.planned.clear()
    events.add([Event(When(9), "disk", SLOW, ("data-*",), "d*")])
    assert [p[:2] for p in cluster.disks.planned] == [
        ("data-0", "d"),
        ("data-1", "d"),
        ("data-0", "d2"),
    ]
    events.add([Event(When(0), "network", {"out_bps": 1e6}, name="back")])
    until(lambda: cluster.fired)
    assert cluster.fired == [Change(("app",), "network", {"out_bps": 1e6}, "back")]
    events.stop()


def test_an_event_without_a_matching_node_is_refused_with_its_batch() -> None:
    cluster, events = timeline()
    late = Event(When(9, phase="load"), "cpu", {"cpus": 1})
    for bad in (
        Event(When(9), "disk", SLOW, ("app",), "d"),
        Event(When(9), "network", {"out_bps": 1e6}, name="front"),
        Event(When(condition={"phase": "x"}), "disk", SLOW, ("app",), "d"),
        Event(When(condition={"metric": "writes", "disk": "app.d", "above": 1}), "cpu", {"cpus": 1}),
        Event(When(condition={"metric": "writs", "disk": "data-0.d", "above": 1}), "cpu", {"cpus": 1}),
    ):  # fmt: skip
        with pytest.raises(BadInput, match="event 1"):
            events.add([late, bad])
    unsupported = {
        "metric": "busy_ns",
        "disk": "data-0.d",
        "above": 1,
    }  # this disk has no such counter
    with pytest.raises(BadInput, match=r"busy_ns.*writes, written_bytes"):
        events.add([late, Event(When(condition=unsupported), "cpu", {"cpus": 1})])
    cluster.disks.refuses = "data-1"
    with pytest.raises(PenstockError, match="it refuses"):
        events.add([late, Event(When(9), "disk", SLOW, name="d")])
    assert events.waiting() == []


def test_a_failed_event_does_not_end_other_conditions() -> None:
    cluster, events = timeline()
    cluster.disks.refuses = "data-1"
    wrote = {"metric": "write_bytes", "disk": "data-0.d", "above": 1}
    now = Event(When(condition=wrote), "disk", SLOW, name="d")
    later = Event(When(condition={"phase": "load"}), "disk", SLOW, name="d2")
    events.add([now, later])
    until(events.fired)
    assert events.waiting() == ["the phase load: disk d2 of *"]
    assert [(e["node"], e["asked"], e["error"]) for e in events.fired()] == [
        ("data-1", SLOW, "it refuses")
    ]
    assert [p[:2] for p in cluster.disks.planned] == [("data-0", "d")]
    assert events.mark("load") == 1
    assert cluster.disks.planned[-1][:2] == ("data-0", "d2")
    events.add([Event(When(condition=wrote), "cpu", {"cpus": 1})])
    until(lambda: cluster.fired)
    events.stop()


def test_an_earlier_line_of_a_log_fires_no_event(tmp_path: Path) -> None:
    cluster, events = timeline()
    log = tmp_path / "log"
    log.write_text("done\n")
    condition = {"log": str(log), "regex": "done|^no$"}
    events.add([Event(When(condition=condition), "cpu", {"cpus": 1})])
    time.sleep(0.1)
    assert cluster.fired == []
    assert events.waiting() == [f"a line of {log} that fits 'done|^no$': cpu of *"]
    with pytest.raises(BadInput, match="absolute"):
        events.add([Event(When(condition={"log": "log", "regex": "x"}), "cpu", {"cpus": 1})])
    log.write_text("no\n")  # truncated and rewritten
    until(lambda: len(cluster.fired) == 1)
    with log.open("a") as more:
        more.write("done\n")
    until(lambda: len(cluster.fired) == 2)
    events.stop()


def test_a_condition_fires_each_time_that_it_becomes_true() -> None:
    cluster, events = timeline()
    busy = {"metric": "writes", "disk": "data-0.d", "above": 2}
    events.add([
        Event(When(condition=busy), "cpu", {"cpus": 1}),
        Event(When(condition={**busy, "fires": "once"}), "memory", {"hard": 1 << 30}),
    ])  # fmt: skip
    until(lambda: len(cluster.fired) == 2)
    for turn in (1, 2):
        cluster.disks.stats = {"writes": 1}
        cluster.disks.await_looks()
        assert len(cluster.fired) == 1 + turn
        cluster.disks.stats = {"writes": 10 + turn}
        until(lambda turn=turn: len(cluster.fired) == 2 + turn)
    cluster.disks.await_looks()
    assert [change.resource for change in cluster.fired] == ["cpu", "memory", "cpu", "cpu"]
    assert cluster.causes[-1] == Cause("metric", "writes of data-0.d 12, above 2")
    assert events.waiting() == []
    events.stop()


def test_a_phase_that_is_marked_again_fires_its_condition_again() -> None:
    cluster, events = timeline()
    events.add([
        Event(When(condition={"phase": "load"}), "cpu", {"cpus": 1}),
        Event(When(condition={"phase": "load", "fires": "once"}), "cpu", {"cpus": 2}, ("app",)),
        Event(When(phase="load"), "memory", {"hard": 1 << 30}),
    ])  # fmt: skip
    assert [events.mark("load") for _ in range(3)] == [3, 1, 1]
    until(lambda: len(cluster.fired) == 5)
    assert set(cluster.causes) == {Cause("phase", "load")}
    events.stop()


def test_only_complete_lines_match_and_each_line_fires_once(tmp_path: Path) -> None:
    cluster, events = timeline()
    log = tmp_path / "log"
    log.write_bytes(b"begin\nwindow be")  # the last line is incomplete
    events.add(
        [
            Event(
                When(condition={"log": str(log), "regex": "^begin|window begin"}),
                "cpu",
                {"cpus": 1},
            )
        ]
    )

    def written(part: bytes) -> None:
        with log.open("ab", buffering=0) as more:
            more.write(part)
        time.sleep(0.05)

    written(b"gin")
    assert cluster.fired == []  # not yet a line
    written(b" 1\n")
    until(lambda: len(cluster.fired) == 1)
    written(b"12:00 worker 3: window begin 2, after 5 s\r\nwindow end\nno window\nwindow begin 3\n")
    until(lambda: len(cluster.fired) == 3)
    written(b"w" * 3_000_000)
    written(b"window begin 4\nnothing\n")
    until(lambda: len(cluster.fired) == 4)
    time.sleep(0.05)
    assert [cause.text for cause in cluster.causes[:3]] == [
        "window begin 1",
        "12:00 worker 3: window begin 2, after 5 s",
        "window begin 3",
    ]
    assert cluster.causes[3].text.endswith("wwindow begin 4")
    assert {cause.kind for cause in cluster.causes} == {"log"}
    assert len(cluster.fired) == 4
    events.stop()


def test_different_limits_of_one_disk_can_change_at_one_time() -> None:
    def schedule(*limits: dict[str, float] | None) -> ClusterSpec:
        events = tuple(Event(When(9), "disk", {"limits": each}, name="d") for each in limits)
        return ClusterSpec("c", NODES, (), events)

    nodes = tuple(NodeSpec(n.name, disks=n.disks, links=()) for n in NODES)
    both = schedule({"read_bps": 2e6}, {"write_bps": 1e6})
    check_cluster(ClusterSpec("c", nodes, (), both.events))
    for twice in (
        schedule({"read_bps": 2e6}, {"read_bps": 1e6}),
        schedule({"read_bps": 2e6}, None),
        schedule(None, {"read_bps": 2e6}),
    ):
        with pytest.raises(BadInput, match="events 0 and 1 change limits"):
            check_cluster(ClusterSpec("c", nodes, (), twice.events))


def test_the_supervisor_cuts_power_and_refuses_unsupported_cuts() -> None:
    cluster, events = timeline()
    cut = Event(When(0), "disk", {"power_cut": True}, name="d")
    events.add([cut])
    until(lambda: cluster.fired)
    assert cluster.fired == [Change(("data-0", "data-1"), "disk", {"power_cut": True}, "d")]
    assert (cluster.disks.planned, events.fired()) == ([], [])  # the server of the disk records it
    cluster.disks.refuses = "data-1"
    with pytest.raises(BadInput, match="throttled"):
        events.add([cut])
    with pytest.raises(BadInput, match="only key"):
        events.add([Event(When(0), "disk", {"power_cut": True, **SLOW}, name="d")])
    events.stop()
