"""The schedule of a cluster without a host: what events act on, conditions, and what is refused."""

from __future__ import annotations

import time
from collections.abc import Callable
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

NODES = (
    NodeSpec("data-0", disks=(DiskSpec("d"), DiskSpec("d2"))),
    NodeSpec("data-1", disks=(DiskSpec("d"),)),
    NodeSpec("app", links=(LinkSpec("back"),)),
)
SLOW = {"slow": {"factor": 10}}


class Disks:
    """Disks that only remember what they are to do."""

    def __init__(self) -> None:
        self.planned: list[tuple[str, str | None, dict[str, Any]]] = []
        self.refuses: str | None = None
        self.stats = {"writes": 3, "written_bytes": 4096}

    def schedule(self, node: str, name: str | None, events: list[dict[str, Any]]) -> None:
        if node == self.refuses:
            raise PenstockError("it refuses")
        self.planned += [(node, name, e["patch"]) for e in events]

    def check_cut(self, node: str, name: str | None) -> None:
        if node == self.refuses:
            raise BadInput("throttled")

    def of(self, node: str) -> dict[str, Any]:
        return {"d": SimpleNamespace(up=SimpleNamespace(stats=lambda: self.stats))}


class Held:
    """A cluster that is not there."""

    def __init__(self) -> None:
        self.nodes = {node.name: SimpleNamespace(spec=node) for node in NODES}
        self.disks = Disks()
        self.fired: list[Change] = []
        self.causes: list[Cause] = []

    def announce(self, what: str, asked: Any) -> None:
        """The journal is told."""

    def fire(self, change: Change, planned_ns: int, cause: Cause) -> list[dict[str, Any]]:
        self.fired.append(change)
        self.causes.append(cause)
        return [{"node": n, "planned_ns": planned_ns, "error": ""} for n in change.nodes]


def timeline() -> tuple[Held, Timeline]:
    held = Held()
    return held, Timeline(cast(LiveCluster, held), held.fire)


def until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + 5
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_an_event_is_for_the_chosen_nodes_that_have_the_disk_or_the_link() -> None:
    held, events = timeline()
    events.add([Event(When(9), "disk", SLOW, name="d")])
    assert [p[:2] for p in held.disks.planned] == [("data-0", "d"), ("data-1", "d")]
    held.disks.planned.clear()
    events.add([Event(When(9), "disk", SLOW, ("data-*",), "d*")])
    assert [p[:2] for p in held.disks.planned] == [
        ("data-0", "d"),
        ("data-1", "d"),
        ("data-0", "d2"),
    ]
    events.add([Event(When(0), "network", {"out_bps": 1e6}, name="back")])
    until(lambda: held.fired)
    assert held.fired == [Change(("app",), "network", {"out_bps": 1e6}, "back")]
    events.stop()


def test_what_no_chosen_node_has_is_refused_and_nothing_is_kept() -> None:
    held, events = timeline()
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
    gone = {"metric": "busy_ns", "disk": "data-0.d", "above": 1}  # this disk counts no such thing
    with pytest.raises(BadInput, match=r"busy_ns.*writes, written_bytes"):
        events.add([late, Event(When(condition=gone), "cpu", {"cpus": 1})])
    held.disks.refuses = "data-1"
    with pytest.raises(PenstockError, match="it refuses"):
        events.add([late, Event(When(9), "disk", SLOW, name="d")])
    assert events.waiting() == []


def test_a_condition_whose_event_fails_ends_no_other() -> None:
    held, events = timeline()
    held.disks.refuses = "data-1"
    wrote = {"metric": "write_bytes", "disk": "data-0.d", "above": 1}
    now = Event(When(condition=wrote), "disk", SLOW, name="d")
    later = Event(When(condition={"phase": "load"}), "disk", SLOW, name="d2")
    events.add([now, later])
    until(events.fired)
    assert events.waiting() == ["the phase load: disk d2 of *"]
    assert [(e["node"], e["asked"], e["error"]) for e in events.fired()] == [
        ("data-1", SLOW, "it refuses")
    ]
    assert [p[:2] for p in held.disks.planned] == [("data-0", "d")]
    assert events.mark("load") == 1
    assert held.disks.planned[-1][:2] == ("data-0", "d2")
    events.add([Event(When(condition=wrote), "cpu", {"cpus": 1})])
    until(lambda: held.fired)
    events.stop()


def test_a_line_that_was_there_before_sets_nothing_off(tmp_path: Path) -> None:
    held, events = timeline()
    log = tmp_path / "log"
    log.write_text("done\n")
    seen = {"log": str(log), "regex": "done"}
    events.add([Event(When(condition=seen), "cpu", {"cpus": 1})])
    time.sleep(0.1)
    assert held.fired == []
    assert events.waiting() == [f"a line of {log} that fits 'done': cpu of *"]
    with pytest.raises(BadInput, match="absolute"):
        events.add([Event(When(condition={"log": "log", "regex": "x"}), "cpu", {"cpus": 1})])
    log.write_text("no\n")  # begun anew
    time.sleep(0.1)
    with log.open("a") as more:
        more.write("done\n")
    until(lambda: held.fired)
    events.stop()


def test_a_condition_fires_each_time_that_it_comes_to_hold() -> None:
    held, events = timeline()
    busy = {"metric": "writes", "disk": "data-0.d", "above": 2}
    events.add([
        Event(When(condition=busy), "cpu", {"cpus": 1}),
        Event(When(condition={**busy, "fires": "once"}), "memory", {"hard": 1 << 30}),
    ])  # fmt: skip
    until(lambda: len(held.fired) == 2)
    for turn in (1, 2):
        held.disks.stats = {"writes": 1}
        time.sleep(0.1)
        assert len(held.fired) == 1 + turn
        held.disks.stats = {"writes": 10 + turn}
        until(lambda turn=turn: len(held.fired) == 2 + turn)
    time.sleep(0.1)
    assert [change.resource for change in held.fired] == ["cpu", "memory", "cpu", "cpu"]
    assert held.causes[-1] == Cause("metric", "writes of data-0.d 12, above 2")
    assert events.waiting() == []
    events.stop()


def test_a_phase_that_is_marked_again_sets_its_condition_off_again() -> None:
    held, events = timeline()
    events.add([
        Event(When(condition={"phase": "load"}), "cpu", {"cpus": 1}),
        Event(When(condition={"phase": "load", "fires": "once"}), "cpu", {"cpus": 2}, ("app",)),
        Event(When(phase="load"), "memory", {"hard": 1 << 30}),
    ])  # fmt: skip
    assert [events.mark("load") for _ in range(3)] == [3, 1, 1]
    until(lambda: len(held.fired) == 5)
    assert set(held.causes) == {Cause("phase", "load")}
    events.stop()


def test_lines_count_whole_and_each_for_itself(tmp_path: Path) -> None:
    held, events = timeline()
    log = tmp_path / "log"
    log.write_bytes(b"begin\nwindow be")  # of the last line there is but a part
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
    assert held.fired == []  # not yet a line
    written(b" 1\n")
    until(lambda: len(held.fired) == 1)
    written(b"12:00 worker 3: window begin 2, after 5 s\r\nwindow end\nno window\nwindow begin 3\n")
    until(lambda: len(held.fired) == 3)
    written(b"w" * 3_000_000)
    written(b"window begin 4\nnothing\n")
    until(lambda: len(held.fired) == 4)
    time.sleep(0.05)
    assert [cause.text for cause in held.causes[:3]] == [
        "window begin 1",
        "12:00 worker 3: window begin 2, after 5 s",
        "window begin 3",
    ]
    assert held.causes[3].text.endswith("wwindow begin 4")
    assert {cause.kind for cause in held.causes} == {"log"}
    assert len(held.fired) == 4
    events.stop()


def test_limits_of_one_disk_at_one_date_are_each_for_themselves() -> None:
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


def test_power_cuts_are_made_by_the_supervisor_and_refused_where_there_are_none() -> None:
    held, events = timeline()
    cut = Event(When(0), "disk", {"power_cut": True}, name="d")
    events.add([cut])
    until(lambda: held.fired)
    assert held.fired == [Change(("data-0", "data-1"), "disk", {"power_cut": True}, "d")]
    assert (held.disks.planned, events.fired()) == ([], [])  # the disk's server has noted it
    held.disks.refuses = "data-1"
    with pytest.raises(BadInput, match="throttled"):
        events.add([cut])
    with pytest.raises(BadInput, match="only key"):
        events.add([Event(When(0), "disk", {"power_cut": True, **SLOW}, name="d")])
    events.stop()
