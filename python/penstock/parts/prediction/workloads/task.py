"""Files, operations and tasks of a workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: operations, and whether they have a file
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
    """Layout of a file, over the store's default; None: not specified [Costa 2014].

    `group`: files of one group are on one node; `scatter`: consecutive blocks rotate over that many nodes;
    `host`: location of a file, until another placement is given.
    """

    placement: str | None = None
    group: str | None = None
    scatter: int | None = None
    stripe_width: int | None = None
    replicas: int | None = None
    chunk_bytes: int | None = None
    host: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The specified hints."""
        values = ((name, getattr(self, name)) for name in HINTS)
        return {name: value for name, value in values if value is not None}


HINTS = tuple(Hints.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class File:
    """A file of the store; `size_bytes` None: determined by the tasks' writes.

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
class Command:
    """Program of a task and its arguments; the program is looked up in PATH unless it contains a `/`."""

    program: str
    arguments: tuple[str, ...] = ()

    @property
    def argv(self) -> list[str]:
        """Program and arguments, as for execvp(3)."""
        return [self.program, *self.arguments]

    def to_dict(self) -> dict[str, Any]:
        """As in the schema, and in WfFormat."""
        return {"program": self.program, "arguments": list(self.arguments)}


@dataclass(frozen=True, slots=True)
class Task:
    """One task: its operations in order, after the tasks in `after` and the writers of its inputs.

    `machine`: host or group that must run it, None for any; `launch`: time to launch it (v_c), None for the
    platform's; `not_before_s`: seconds after the start of the workload. `command`: the program that a real
    run starts; predictions use the operations.
    """

    name: str
    operations: tuple[Operation, ...]
    stage: str = ""
    machine: str | None = None
    after: tuple[str, ...] = ()
    launch: Time | None = None
    not_before_s: float = 0.0
    command: Command | None = None

    def to_dict(self) -> dict[str, Any]:
        """As in the schema, without the command, which the simulator does not have."""
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

    def described(self) -> dict[str, Any]:
        """As in the schema, with the command."""
        own = {} if self.command is None else {"command": self.command.to_dict()}
        return {**self.to_dict(), **own}


def plain_time(value: Time) -> Any:
    """JSON value of a time: a number, or a distribution's fields."""
    return dict(value) if isinstance(value, Mapping) else value


def compute(seconds: Time) -> tuple[Operation, ...]:
    """One computing operation, none for 0 seconds."""
    return () if seconds == 0 else (Operation("compute", seconds=seconds),)


def full_reads(files: Sequence[tuple[str, int]]) -> tuple[Operation, ...]:
    """Open and read each file completely; `files` are names and bytes."""
    return tuple(
        operation
        for name, size in files
        for operation in (Operation("open", name), Operation("read", name, 0, size))
    )


def full_writes(files: Sequence[tuple[str, int]]) -> tuple[Operation, ...]:
    """Write each file in one operation; `files` are names and bytes."""
    return tuple(Operation("write", name, 0, size) for name, size in files)
