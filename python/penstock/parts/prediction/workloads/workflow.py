"""Input of the simulator: files, and tasks of operations (schema `penstock/workload/1`).

A = (start, tasks), task = (machine, compute, overhead, operations, dependencies), operation = (type, file,
size, offset): the description is independent of the store and of the deployment, so that it can predict
several [Costa 2014]. Computing between two operations of a task is a separate operation `compute`, instead of
a timestamp on every operation.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from penstock.parts.prediction.workloads import graph
from penstock.parts.prediction.workloads.task import File, Task

SCHEMA = "penstock/workload/1"


@dataclass(frozen=True)
class Workload:
    """Files and tasks. `notes`: assumptions of the reader; `origin` restores its instance of WfFormat.

    Neither is part of the workload: they are excluded from comparisons and `to_dict`. `origin` is None
    without an instance; drop it (`replace(workload, origin=None)`) if tasks or files change.
    """

    name: str
    files: tuple[File, ...]
    tasks: tuple[Task, ...]
    notes: tuple[str, ...] = field(default=(), compare=False)
    origin: Callable[[], dict[str, Any]] | None = field(default=None, compare=False, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Schema, without commands: the input of `workload_from_dict` and the simulator."""
        return {
            "schema": SCHEMA,
            "name": self.name,
            "files": [file.to_dict() for file in self.files],
            "tasks": [task.to_dict() for task in self.tasks],
        }

    def to_json(self) -> str:
        """The schema with the commands of tasks, as text, a line per file and task."""
        values = self.to_dict() | {"tasks": [task.described() for task in self.tasks]}
        rows = {key: [json.dumps(v, allow_nan=False) for v in values[key]] for key in _LISTS}
        head = f'{{"schema": "{SCHEMA}",\n "name": {json.dumps(self.name)},\n'
        lists = (f' "{key}": [\n  ' + ",\n  ".join(rows[key]) + "]" for key in _LISTS)
        return head + ",\n".join(lists) + "}\n"

    @cached_property
    def dependencies(self) -> tuple[tuple[int, ...], ...]:
        """For each task the indices of its predecessors, ascending: `after`, and writers of its inputs.

        A task that writes the file itself, or reads a pre-existing one, waits only for writers before it in
        the list.
        """
        return graph.dependencies(self.tasks, [file.name for file in self.files if file.preloaded])

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """For each task its level: 0, or one more than its deepest predecessor."""
        return graph.levels(self.dependencies)

    @cached_property
    def file_sizes(self) -> dict[str, int]:
        """Bytes of every file after the run: as specified, or as written."""
        sizes = {f.name: f.size_bytes or 0 for f in self.files}
        for task in self.tasks:
            for o in task.operations:
                if o.op == "write" and o.file is not None:
                    sizes[o.file] = max(sizes.get(o.file, 0), o.offset_bytes + o.size_bytes)
        return sizes

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of the stages, in the order of their first task."""
        return tuple(dict.fromkeys(task.stage or task.name for task in self.tasks))

    def noted(self, *notes: str) -> Workload:
        """A copy with further notes."""
        return replace(self, notes=(*self.notes, *(n for n in notes if n not in self.notes)))


_LISTS = ("files", "tasks")
