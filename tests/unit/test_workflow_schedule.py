"""Assignment of tasks to nodes, locations of their data, and hints from the graph of a workflow."""

from __future__ import annotations

import json

import pyarrow as pa

from penstock.archive.schemas import TABLES
from penstock.parts.prediction.measured_runs import runs_of
from penstock.parts.prediction.workloads.task import File, Hints, Operation, Task
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.parts.stores.workflow.execute import Executed
from penstock.parts.stores.workflow.hints import derived, tags_of
from penstock.parts.stores.workflow.run import measured_runs, placement
from penstock.parts.stores.workflow.schedule import Scheduler, bytes_by_node
from penstock.spec.store import Extent


def reads(name: str, size: int = 100, at: int = 0) -> Operation:
    return Operation("read", name, at, size)


def writes(name: str, size: int = 100) -> Operation:
    return Operation("write", name, 0, size)


FLOW = Workload(
    "flow",
    (File("in", 100, preloaded=True),),
    (
        Task("a", (reads("in"), writes("x"))),
        Task("b", (reads("in"), writes("y"))),
        Task("join", (reads("x"), reads("y"), writes("z"))),
        Task("c", (Operation("compute", seconds=1.0),), machine="n-1"),
    ),
)
HOSTS = {"n-0": 1, "n-1": 1}
GROUPS = {"n-0": "n", "n-1": "n"}


def scheduler(*, by_data: bool = False, hosts: dict[str, int] = HOSTS) -> Scheduler:
    return Scheduler(FLOW, hosts, GROUPS, by_data)


def test_tasks_wait_for_the_writers_of_their_inputs() -> None:
    queue = scheduler()
    assert queue.next() == [(0, "n-0"), (1, "n-1")]
    assert queue.next() == []
    queue.ended(0, "n-0")
    assert queue.next() == []  # c must run on n-1, join waits for b
    queue.ended(1, "n-1")
    assert queue.next() == [(3, "n-1"), (2, "n-0")]
    queue.ended(2, "n-0")
    assert not queue.finished
    queue.ended(3, "n-1")
    assert queue.finished


def test_tasks_spread_over_hosts_or_fill_the_first() -> None:
    jobs = Workload(
        "jobs", (), tuple(Task(f"t{i}", (Operation("compute", seconds=1.0),)) for i in range(5))
    )
    hosts = dict.fromkeys(("n-0", "n-1", "n-2"), 2)
    groups = dict.fromkeys(hosts, "n")
    spread = Scheduler(jobs, hosts, groups, by_data=False)
    assert [host for _, host in spread.next()] == ["n-0", "n-1", "n-2", "n-0", "n-1"]
    packed = Scheduler(jobs, hosts, groups, by_data=False, pack=True)
    assert [host for _, host in packed.next()] == ["n-0", "n-0", "n-1", "n-1", "n-2"]


def test_a_task_before_its_earliest_start_takes_no_slot() -> None:
    jobs = Workload(
        "jobs",
        (),
        (
            Task("late", (Operation("compute", seconds=1.0),), not_before_s=10.0),
            Task("soon", (Operation("compute", seconds=1.0),), not_before_s=2.0),
            Task("now", (Operation("compute", seconds=1.0),)),
            Task("then", (Operation("compute", seconds=1.0),), after=("now",), not_before_s=5.0),
        ),
    )
    queue = Scheduler(jobs, {"n-0": 1}, {"n-0": "n"}, by_data=False)
    assert queue.next(0.0) == [(2, "n-0")]
    queue.ended(2, "n-0")
    assert queue.next(1.0) == []
    assert queue.wakes_s == 2.0
    assert queue.next(7.0) == [(1, "n-0")]
    queue.ended(1, "n-0")
    assert queue.next(8.0) == [(3, "n-0")]
    assert queue.wakes_s == 10.0
    staggered = Scheduler(jobs, {"n-0": 4}, {"n-0": "n"}, by_data=False, stagger_s=3.0)
    assert staggered.next(2.5) == []
    assert [number for number, _ in staggered.next(3.0)] == [1, 2]


def test_a_task_runs_on_the_node_with_most_of_its_input() -> None:
    queue = scheduler(by_data=True)
    started = queue.next()
    for number, host in started:
        queue.ended(number, host)
    queue.extents["x"] = [Extent(0, 100, ("n-0",))]
    queue.extents["y"] = [Extent(0, 60, ("n-1",)), Extent(60, 40, ("n-1", "n-0"))]
    # n-0 has 140 of its bytes, n-1 100
    assert (2, "n-0") in queue.next()


def test_only_bytes_read_by_the_task_count() -> None:
    task = Task("t", (reads("big", 10, at=95),))
    extents = {"big": [Extent(0, 100, ("left",)), Extent(100, 1000, ("right",))]}
    assert bytes_by_node(task, extents) == {"left": 5, "right": 5}


def test_hints_from_the_graph() -> None:
    hints = {f.name: f.hints for f in derived(FLOW, 4).files}
    assert hints["x"] == hints["y"] == Hints(placement="collocate", group="join")
    assert (
        hints["in"] is None or hints["in"].placement is None
    )  # one copy is enough for two readers
    assert "z" not in hints
    chain = Workload("chain", (), (Task("p", (writes("f"),)), Task("q", (reads("f"),))))
    assert [f.hints for f in derived(chain, 4).files] == [Hints(placement="local")]
    wide = Workload(
        "wide",
        (File("db", 100, preloaded=True),),
        tuple(Task(f"t{i}", (reads("db"),)) for i in range(19)),
    )
    assert derived(wide, 8).files[0].hints == Hints(replicas=4)
    assert derived(wide, 2).files[0].hints == Hints(replicas=2)


def test_hints_as_tags() -> None:
    assert tags_of(None) == {}
    assert tags_of(Hints(placement="collocate", group="g", replicas=2)) == {
        "DP": "collocation g",
        "Replication": "2",
    }
    assert tags_of(Hints(stripe_width=3, chunk_bytes=65536)) == {
        "StripeWidth": "3",
        "ChunkSize": "65536",
    }


def test_a_run_can_be_compared_with_predictions() -> None:
    rows = [
        {
            "task": n,
            "stage": s,
            "host": "n-0",
            "ready_s": r,
            "sent_s": r + 0.1,
            "start_s": r + 0.2,
            "end_s": e,
        }
        for n, s, r, e in (
            ("a", "make", 0.0, 2.0),
            ("b", "make", 0.0, 3.0),
            ("join", "join", 3.0, 4.5),
        )
    ]
    table = pa.Table.from_pylist(rows, TABLES["workflow_tasks"].arrow)
    nothing = TABLES["workflow_operations"].arrow.empty_table()
    run = Executed(4.5, table, nothing, extents={"f": [Extent(0, 5, ("n-0",))]})
    (read,) = runs_of(json.dumps(measured_runs([run])).encode(), "measured.json")
    assert read.makespan_s == 4.5
    spans = {name: (span.start_s, span.end_s) for name, span in read.stages.items()}
    assert spans == {"make": (0.0, 3.0), "join": (3.0, 4.5)}
    assert placement(run) == {"f": [{"offset_bytes": 0, "length_bytes": 5, "hosts": ["n-0"]}]}
