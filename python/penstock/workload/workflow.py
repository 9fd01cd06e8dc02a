"""A workload as the simulator takes it: files, and tasks of operations (schema `penstock/workload/1`).

A = (start, tasks), task = (machine, compute, overhead, operations, dependencies), operation = (type, file,
size, offset): the description is independent of the store and of the deployment, so that one of them
serves to predict several [Costa 2014]. What happens between two operations of a
task is an operation `compute` of its own, instead of a timestamp on every operation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from penstock.errors import BadInput

SCHEMA = "penstock/workload/1"

#: what an operation may be, and whether it names a file
OPERATIONS = {
    "open": True,
    "read": True,
    "write": True,
    "close": True,
    "set_xattr": True,
    "compute": False,
}

PLACEMENTS = (
    "striped",
    "round_robin",
    "local",
    "collocate",
    "scatter",
    "random",
    "balanced",
    "host",
)

#: seconds, or a distribution as in a storage profile (`{"kind": "exponential", "mean_s": 0.2}`)
Time = float | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Hints:
    """How a file is to be laid out, over the store's default; None: not said [Costa 2014].

    `group`: files of one group go to one node; `scatter`: nodes that consecutive blocks go round; `host`:
    where a file lies or goes, until another placement is given.
    """

    placement: str | None = None
    group: str | None = None
    scatter: int | None = None
    stripe_width: int | None = None
    replicas: int | None = None
    chunk_bytes: int | None = None
    host: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The hints that are given."""
        given = ((name, getattr(self, name)) for name in HINTS)
        return {name: value for name, value in given if value is not None}


HINTS = tuple(Hints.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class File:
    """A file of the store; `size_bytes` None: what the tasks write says it.

    `preloaded`: it exists before the run.
    """

    name: str
    size_bytes: int | None = None
    preloaded: bool = False
    hints: Hints | None = None

    def to_dict(self) -> dict[str, Any]:
        """As in the schema."""
        values: dict[str, Any] = {"name": self.name}
        if self.size_bytes is not None:
            values["size_bytes"] = self.size_bytes
        if self.preloaded:
            values["preloaded"] = True
        if self.hints is not None:
            values["hints"] = self.hints.to_dict()
        return values


@dataclass(frozen=True, slots=True)
class Operation:
    """One step of a task: `op` on `file`, or computing for `seconds` at speed 1."""

    op: str
    file: str | None = None
    offset_bytes: int = 0
    size_bytes: int = 0
    seconds: Time = 0.0
    hints: Hints | None = None

    def to_dict(self) -> dict[str, Any]:
        """As in the schema."""
        if self.op == "compute":
            return {"op": "compute", "seconds": plain_time(self.seconds)}
        values: dict[str, Any] = {"op": self.op, "file": self.file}
        if self.op in ("read", "write"):
            values["offset_bytes"] = self.offset_bytes
            values["size_bytes"] = self.size_bytes
        if self.op == "set_xattr":
            values["hints"] = self.hints.to_dict() if self.hints else {}
        return values


@dataclass(frozen=True, slots=True)
class Task:
    """One task: its operations in order, behind the tasks in `after` and the writers of what it reads.

    `machine`: host or group that must run it, None for any; `launch`: time to launch it (v_c), None for the
    platform's; `not_before_s`: seconds after the start of the workload.
    """

    name: str
    operations: tuple[Operation, ...]
    stage: str = ""
    machine: str | None = None
    after: tuple[str, ...] = ()
    launch: Time | None = None
    not_before_s: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """As in the schema."""
        values: dict[str, Any] = {"name": self.name, "stage": self.stage or self.name}
        if self.machine is not None:
            values["machine"] = self.machine
        if self.after:
            values["after"] = list(self.after)
        if self.launch is not None:
            values["launch"] = plain_time(self.launch)
        if self.not_before_s:
            values["not_before_s"] = self.not_before_s
        values["operations"] = [operation.to_dict() for operation in self.operations]
        return values


@dataclass(frozen=True)
class Workload:
    """Files and tasks. `notes`: what was assumed while it was read; `origin` makes its instance of WfFormat.

    Neither of the two is part of the workload: they are not compared and not in `to_dict`. `origin` is None
    where there was no instance; drop it (`replace(workload, origin=None)`) where tasks or files are changed.
    """

    name: str
    files: tuple[File, ...]
    tasks: tuple[Task, ...]
    notes: tuple[str, ...] = field(default=(), compare=False)
    origin: Callable[[], dict[str, Any]] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def from_dict(cls, values: Any, where: str = "workload") -> Workload:
        """The workload of plain values, checked; BadInput with `where` and the task of each mistake."""
        from penstock.workload.described import workload_of
        from penstock.workload.document import Document

        return workload_of(Document(where, values))

    def to_dict(self) -> dict[str, Any]:
        """As in the schema: what `from_dict` reads and the simulator takes."""
        return {
            "schema": SCHEMA,
            "name": self.name,
            "files": [file.to_dict() for file in self.files],
            "tasks": [task.to_dict() for task in self.tasks],
        }

    def to_json(self) -> str:
        """`to_dict` as text, a line per file and task."""
        values = self.to_dict()
        rows = {key: [json.dumps(v, allow_nan=False) for v in values[key]] for key in _LISTS}
        head = f'{{"schema": "{SCHEMA}",\n "name": {json.dumps(self.name)},\n'
        lists = (f' "{key}": [\n  ' + ",\n  ".join(rows[key]) + "]" for key in _LISTS)
        return head + ",\n".join(lists) + "}\n"

    def check(self) -> None:
        """Raises BadInput, naming the tasks, if the workload cannot be run.

        A file that no one writes and that is not there before, a task without operations, a name given
        twice, dependencies that go round in a circle, reading past the end of a file, an unknown task.
        """
        from penstock.workload.check import problems

        found = problems(self)
        if found:
            raise BadInput("\n".join(f"workload {self.name}: {problem}" for problem in found))

    @cached_property
    def dependencies(self) -> tuple[tuple[int, ...], ...]:
        """For each task the indices of the tasks it waits for, rising: `after`, and writers of what it reads.

        A task that writes the file itself, or reads one that was there before, waits only for writers that
        stand before it in the list.
        """
        from penstock.workload.graph import dependencies

        return dependencies(self.tasks, [file.name for file in self.files if file.preloaded])

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """For each task the number of its level: 0, or one more than the deepest task it waits for."""
        from penstock.workload.graph import levels

        return levels(self.dependencies)

    @cached_property
    def file_sizes(self) -> dict[str, int]:
        """Bytes of every file after the run: as given, or what the writes leave."""
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
        """The same with further notes."""
        return replace(self, notes=(*self.notes, *(n for n in notes if n not in self.notes)))


_LISTS = ("files", "tasks")


def plain_time(value: Time) -> Any:
    """A time as JSON has it: a number, or a distribution's fields."""
    return dict(value) if isinstance(value, Mapping) else value


def compute(seconds: Time) -> tuple[Operation, ...]:
    """One operation that computes, none for 0 seconds."""
    return () if seconds == 0 else (Operation("compute", seconds=seconds),)


def whole_reads(files: Sequence[tuple[str, int]]) -> tuple[Operation, ...]:
    """Opening and reading each file from its beginning to its end; `files` are names and bytes."""
    return tuple(
        operation
        for name, size in files
        for operation in (Operation("open", name), Operation("read", name, 0, size))
    )


def whole_writes(files: Sequence[tuple[str, int]]) -> tuple[Operation, ...]:
    """Writing each file in one go; `files` are names and bytes."""
    return tuple(Operation("write", name, 0, size) for name, size in files)
