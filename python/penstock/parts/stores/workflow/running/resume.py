"""Tasks of an interrupted run that need not be repeated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.parts.prediction.workloads.task import Task
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.parts.stores.workflow.running.journal import Row, RunJournal
from penstock.parts.stores.workflow.running.run_files import (
    RunFiles,
    changed_in_place,
    created_by,
    inputs_of,
    outputs_of,
    outputs_of_one,
    results_of,
)


@dataclass(frozen=True)
class Complete:
    """Entries of completed tasks by number; their outputs; inputs that are in the store."""

    tasks: dict[int, Row] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    inputs: set[str] = field(default_factory=set)


def remaining(workload: Workload, files: RunFiles, journal: RunJournal) -> Complete:
    """Completed tasks of a journal whose outputs are as they were, as far as they are still needed.

    Partial outputs of the other tasks are removed. A completed task is repeated if an output of it that is a
    result, or that a remaining task reads, is absent, lost, or another one.
    """
    present = files.listing()
    done = {
        i: journal.tasks[t.name] for i, t in enumerate(workload.tasks) if t.name in journal.tasks
    }
    paths = {files.inside(name): name for name in files.paths}
    expected = dict(journal.inputs)
    for row in sorted(done.values(), key=lambda r: int(r["ended_ns"])):
        for path, facts in row.get("outputs", {}).items():
            size, changed = facts[:2] if facts else (-1, "")
            expected[paths[path]] = (size, changed)
    intact = {name for name, facts in expected.items() if present.get(name) == facts}
    if files.servers_down():
        intact -= set(files.lost(sorted(intact)))
    done = repeated(workload, done, intact)
    rest = [task for i, task in enumerate(workload.tasks) if i not in done]
    preloaded = {f.name for f in workload.files if f.preloaded}
    others = preloaded | {n for i in done for n in outputs_of(workload.tasks[i])}
    partial = {name for task in rest for name in created_by(task)} & present.keys()
    files.remove(sorted(partial - others))
    needed = {name for task in rest for name in _needed_by(task, files.sole)}
    inputs = {
        n for n in preloaded if n in intact or n not in needed or n in _changed(workload, done)
    }
    outputs = [n for i in done for n in outputs_of(workload.tasks[i]) if n in intact]
    return Complete(done, list(dict.fromkeys(outputs)), inputs)


def _needed_by(task: Task, sole: set[str]) -> list[str]:
    """Files that a task needs: its inputs, and outputs of which others write a part, or that exist before."""
    return [*inputs_of(task), *(n for n in outputs_of(task) if n not in sole)]


def _changed(workload: Workload, done: Mapping[int, Row]) -> set[str]:
    """Files that completed tasks changed in place."""
    return {name for i in done for name in changed_in_place(workload.tasks[i])}


def repeated(workload: Workload, done: Mapping[int, Row], intact: set[str]) -> dict[int, Row]:
    """The completed tasks without those that must be repeated for files that are not `intact`."""
    remaining_done, results = dict(done), set(results_of(workload))
    sole = outputs_of_one(workload)
    while True:
        rest = [task for i, task in enumerate(workload.tasks) if i not in remaining_done]
        needed = {name for task in rest for name in _needed_by(task, sole)} | results
        again = [
            i
            for i in remaining_done
            if any(n in needed and n not in intact for n in outputs_of(workload.tasks[i]))
        ]
        if not again:
            return remaining_done
        for i in again:
            del remaining_done[i]
