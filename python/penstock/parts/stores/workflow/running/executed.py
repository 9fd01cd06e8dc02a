"""Result of one run of a workflow: tables of its tasks and operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.archive.schemas import TABLES
from penstock.errors import PenstockError
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.parts.stores.tags import Tagged
from penstock.parts.stores.workflow.running.journal import Row
from penstock.parts.stores.workflow.running.recovery import Troubles
from penstock.spec.store import Extent

#: share by which the size of an output may differ from the workload's without a warning
_DIFFERS = 0.1


@dataclass
class Executed:
    """A run of a workflow: seconds from its first task's dispatch to the end of its last; tables of rows.

    `tags` has the results of the hints; `extents` the locations of the files at the end, by name; `begin_ns`
    the first dispatch (CLOCK_MONOTONIC).
    """

    makespan_s: float
    tasks: pa.Table
    operations: pa.Table
    tags: list[Tagged] = field(default_factory=list)
    extents: dict[str, list[Extent]] = field(default_factory=dict)
    begin_ns: int = 0
    #: servers and nodes that died during the run, without loss of a file
    died: list[str] = field(default_factory=list)
    troubles: Troubles = field(default_factory=Troubles)
    #: bytes of the outputs of programs, by file
    sizes: dict[str, int] = field(default_factory=dict)
    #: number of tasks that an earlier command completed (a resumed run)
    earlier: int = 0

    def spans(self) -> dict[str, tuple[float, float]]:
        """By stage, in order of start: first task ready, last task ended [s]."""
        spans: dict[str, tuple[float, float]] = {}
        for task in sorted(self.tasks.to_pylist(), key=lambda t: t["ready_s"]):
            first, last = spans.get(task["stage"], (task["ready_s"], task["end_s"]))
            spans[task["stage"]] = (first, max(last, task["end_s"]))
        return spans

    def overhead_s(self) -> list[float]:
        """Runner's time for each task: decision, dispatch, launch, and report; not of the store's calls."""
        return [
            sum(row[key] or 0.0 for key in ("decision_s", "dispatch_s", "launch_s", "report_s"))
            for row in self.tasks.to_pylist()
        ]


def placement(run: Executed) -> dict[str, list[dict[str, Any]]]:
    """Locations of the files, as input of `penstock predict --placement`."""
    return {
        name: [
            {
                "offset_bytes": e.offset_bytes,
                "length_bytes": e.length_bytes,
                "hosts": list(e.nodes),
            }
            for e in extents
        ]
        for name, extents in run.extents.items()
    }


class RunFailed(PenstockError):  # noqa: N818 - reads as what it is
    """A run that failed; `executed` has its measurements until then."""

    def __init__(self, text: str, executed: Executed) -> None:
        super().__init__(text)
        self.executed = executed


def executed(
    workload: Workload,
    answers: Mapping[int, Row],
    begin_ns: int,
    *,
    extents: Mapping[str, Sequence[Extent]],
    tags: Sequence[Tagged],
    troubles: Troubles,
    earlier: int = 0,
) -> Executed:
    """Tables of the completed tasks, times in seconds from the first dispatch."""
    tasks, operations, sizes = list[Row](), list[Row](), dict[str, int]()
    for number, answer in sorted(answers.items()):
        task = workload.tasks[number]
        tasks.append(
            {"task": task.name, "stage": task.stage or task.name, **_times(answer, begin_ns)}
        )
        for index, start_ns, end_ns in answer["operations"]:
            one = task.operations[index]
            operations.append(
                {
                    "task": task.name,
                    "number": index,
                    "op": one.op,
                    "file": one.file,
                    "offset_bytes": one.offset_bytes,
                    "size_bytes": one.size_bytes,
                    "start_s": (start_ns - begin_ns) / 1e9,
                    "end_s": (end_ns - begin_ns) / 1e9,
                }
            )
        for name, facts in answer.get("files", {}).items():
            sizes[name] = facts[0]
    makespan_s = max((t["end_s"] for t in tasks), default=0.0)
    return Executed(
        makespan_s,
        pa.Table.from_pylist(tasks, TABLES["workflow_tasks"].arrow),
        pa.Table.from_pylist(operations, TABLES["workflow_operations"].arrow),
        list(tags),
        {name: list(places) for name, places in extents.items()},
        begin_ns,
        troubles.died,
        troubles,
        sizes,
        earlier,
    )


def _times(answer: Row, begin_ns: int) -> Row:
    """Columns of a task from its answer."""
    ended_ns: int = answer["stored_ns" if "stored_ns" in answer else "ended_ns"]
    decided_ns = answer["ready_ns"] + answer["decision_ns"]
    row = {
        f"{key}_s": (at_ns - begin_ns) / 1e9
        for key, at_ns in (
            ("ready", answer["ready_ns"]),
            ("sent", answer["sent_ns"]),
            ("start", answer["started_ns"]),
            ("end", ended_ns),
        )
    }
    spans: dict[str, int | None] = {
        "queue": answer["ready_ns"] - answer["complete_ns"],
        "decision": answer["decision_ns"],
        "tag": answer["tag_ns"],
        "dispatch": answer["forked_ns"] - decided_ns - answer["tag_ns"],
        "launch": answer["started_ns"] - answer["forked_ns"],
        "report": answer["heard_ns"] - ended_ns if "heard_ns" in answer else None,
        "locate": answer.get("locate_ns", 0),
    }
    row |= {f"{k}_s": None if ns is None else max(0, ns) / 1e9 for k, ns in spans.items()}
    return {**row, "host": answer["host"], "attempt": answer["attempt"]}


def other_sizes(workload: Workload, run: Executed) -> list[str]:
    """A warning if outputs of programs have other sizes than in the workload, which a prediction uses."""
    declared = workload.file_sizes
    differing = [
        name
        for name, size in run.sizes.items()
        if abs(size - declared[name]) > _DIFFERS * max(declared[name], 1)
    ]
    if not differing:
        return []
    name = differing[0]
    return [
        f"{len(differing)} outputs differ in size from the workload, such as {name}: "
        f"{run.sizes[name]:,} bytes, declared {declared[name]:,}; predictions use the declared sizes"
    ]
