"""Reader of the native description of a workload (schema `penstock/workload/1`), JSON or YAML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from penstock.parts.prediction.workloads.check import MOST_SECONDS, problems, unprintable
from penstock.parts.prediction.workloads.distribution import wrong_with
from penstock.parts.prediction.workloads.formats.command import command_of
from penstock.parts.prediction.workloads.formats.document import Document, shown
from penstock.parts.prediction.workloads.task import (
    HINTS,
    OPERATIONS,
    PLACEMENTS,
    File,
    Hints,
    Operation,
    Task,
    Time,
)
from penstock.parts.prediction.workloads.workflow import SCHEMA, Workload
from penstock.spec.source import Path
from penstock.spec.units import MOST_BYTES

_FILE = ("name", "size_bytes", "preloaded", "hints")
_TASK = ("name", "stage", "machine", "after", "launch", "not_before_s", "operations", "command")
_FIELDS = {
    "open": ("op", "file"),
    "close": ("op", "file"),
    "read": ("op", "file", "offset_bytes", "size_bytes"),
    "write": ("op", "file", "offset_bytes", "size_bytes"),
    "set_xattr": ("op", "file", "hints"),
    "compute": ("op", "seconds"),
}
_TEXTS = ("group", "host")
_NOTHING = ...


def workload_from_dict(values: Any, where: str = "workload") -> Workload:
    """The workload of plain values, checked; BadInput with `where` and the task of each mistake."""
    return workload_of(Document(where, values))


def workload_of(document: Document) -> Workload:
    """The workload of a document; BadInput with the position of every mistake."""
    return _Reader(document).workload()


class _Reader:
    def __init__(self, document: Document) -> None:
        self.document = document

    def workload(self) -> Workload:
        values = self.document.value
        if not isinstance(values, dict):
            self.wrong((), values, "an object with `schema`, `files` and `tasks`")
            self.document.check()
        if values.get("schema") != SCHEMA:
            schema = values.get("schema", _NOTHING)
            self.wrong(("schema",) if "schema" in values else (), schema, f"{SCHEMA!r} as schema")
            self.document.check()
        self.only((), values, ("schema", "name", "files", "tasks"))
        name = self.text((), values, "name", "")
        files = tuple(
            self.file(("files", i), v) for i, v in enumerate(self.array((), values, "files", []))
        )
        sizes = {f.name: f.size_bytes for f in files if f.size_bytes is not None}
        tasks = tuple(
            self.task(("tasks", i), v, sizes)
            for i, v in enumerate(self.array((), values, "tasks", _NOTHING))
        )
        self.document.check()
        workload = Workload(name or "workload", files, tasks)
        for problem in problems(workload):
            self.document.mistake(problem.path, problem.found, problem.expected)
        self.document.check()
        return workload

    def file(self, at: Path, values: Any) -> File:
        if not self.object(at, values, "a file"):
            return File("")
        self.only(at, values, _FILE)
        hints = self.hints((*at, "hints"), values["hints"]) if "hints" in values else None
        size = None
        if values.get("size_bytes") is not None:
            size = self.size(at, values, "size_bytes", f"the file {values.get('name')!r}")
        preloaded = values.get("preloaded", False)
        if not isinstance(preloaded, bool):
            self.wrong((*at, "preloaded"), preloaded, "true or false")
        return File(self.text(at, values, "name", _NOTHING), size, bool(preloaded), hints)

    def task(self, at: Path, values: Any, sizes: dict[str, int]) -> Task:
        if not self.object(at, values, "a task"):
            return Task("", ())
        self.only(at, values, _TASK)
        name = self.text(at, values, "name", _NOTHING)
        whose = f"the task {name!r}"
        after = self.array(at, values, "after", [])
        for k, ahead in enumerate(after):
            if not isinstance(ahead, str):
                self.wrong((*at, "after", k), ahead, f"names of tasks for which {whose} waits")
        start = self.seconds((*at, "not_before_s"), values.get("not_before_s", 0), whose)
        launch = values.get("launch")
        machine = values.get("machine")
        if machine is not None and (not isinstance(machine, str) or unprintable(machine)):
            self.wrong((*at, "machine"), machine, "the name of a host or a group")
        operations = self.array(at, values, "operations", [])
        return Task(
            name=name,
            operations=tuple(
                self.operation((*at, "operations", k), o, whose, sizes)
                for k, o in enumerate(operations)
            ),
            stage=self.text(at, values, "stage", name),
            machine=machine if isinstance(machine, str) else None,
            after=tuple(dict.fromkeys(a for a in after if isinstance(a, str))),
            launch=None if launch is None else self.time((*at, "launch"), launch, whose),
            not_before_s=start,
            command=command_of(self.document, at, values, whose),
        )

    def operation(self, at: Path, values: Any, whose: str, sizes: dict[str, int]) -> Operation:
        if not self.object(at, values, f"an operation of {whose}"):
            return Operation("compute")
        op = values.get("op", _NOTHING)
        if not isinstance(op, str) or op not in OPERATIONS:
            self.wrong((*at, "op"), op, f"{', '.join(OPERATIONS)} as `op` ({whose})")
            return Operation("compute")
        self.only(at, values, _FIELDS[op])
        if op == "compute":
            if "seconds" not in values:
                self.wrong(at, _NOTHING, f"`seconds` of computing ({whose})")
            return Operation(
                op, seconds=self.time((*at, "seconds"), values.get("seconds", 0), whose)
            )
        file = self.text(at, values, "file", _NOTHING)
        if op == "set_xattr":
            return Operation(
                op, file, hints=self.hints((*at, "hints"), values.get("hints", _NOTHING))
            )
        if op not in ("read", "write"):
            return Operation(op, file)
        offset = self.size(at, values, "offset_bytes", whose) if "offset_bytes" in values else 0
        if "size_bytes" in values:
            size = self.size(at, values, "size_bytes", whose)
        elif op == "read" and file in sizes:
            size = max(0, sizes[file] - offset)
        else:
            size = 0
            self.wrong(at, _NOTHING, f"`size_bytes` of {op} {file!r} ({whose})")
        if offset + size > MOST_BYTES:
            self.wrong(
                (*at, "size_bytes"), offset + size, f"an end of at most 2^60 bytes ({whose})"
            )
        return Operation(op, file, offset, size)

    def hints(self, at: Path, values: Any) -> Hints:
        if not self.object(at, values, "an object of hints"):
            return Hints()
        self.only(at, values, HINTS)
        hints: dict[str, Any] = {}
        for name in HINTS:
            value = values.get(name)
            if value is None:
                continue
            if name == "placement":
                if value not in PLACEMENTS:
                    self.wrong((*at, name), value, f"one of {', '.join(PLACEMENTS)}")
            elif name in _TEXTS:
                if not isinstance(value, str) or not value or unprintable(value):
                    self.wrong((*at, name), value, "a name")
            elif not _is_integer(value) or value < 1:
                self.wrong((*at, name), value, "an integer of at least 1")
            hints[name] = value
        if hints.get("placement") == "collocate" and "group" not in hints:
            self.wrong((*at, "placement"), "collocate", "`group` with placement collocate")
        if hints.get("placement") == "host" and "host" not in hints:
            self.wrong((*at, "placement"), "host", "`host` with placement host")
        return Hints(**hints)

    def size(self, at: Path, values: Mapping[str, Any], name: str, whose: str) -> int:
        value = values.get(name)
        if _is_integer(value) and 0 <= value <= MOST_BYTES:
            return int(value)
        expected = f"an integer number of bytes from 0 to 2^60 ({whose})"
        self.wrong((*at, name), value, expected)
        return 0

    def seconds(self, at: Path, value: Any, whose: str) -> float:
        if _is_number(value) and 0 <= value <= MOST_SECONDS:
            return float(value)
        most = f"from 0 to {MOST_SECONDS:.0e}".replace("e+0", "e")
        self.wrong(at, value, f"seconds, a finite number {most} ({whose})")
        return 0.0

    def time(self, at: Path, value: Any, whose: str) -> Time:
        if not isinstance(value, dict):
            return self.seconds(at, value, whose)
        wrong = wrong_with(value)
        if wrong:
            self.document.mistake(
                at, wrong, f"a distribution, such as kind: constant, value_s: 0.1 ({whose})"
            )
        return dict(value)

    def text(self, at: Path, values: Mapping[str, Any], name: str, otherwise: Any) -> str:
        value = values.get(name, otherwise)
        if isinstance(value, str) and (value or otherwise is not _NOTHING):
            return value
        path = (*at, name) if name in values else at
        self.wrong(path, value, f"`{name}`, a text that is not empty")
        return ""

    def array(self, at: Path, values: Mapping[str, Any], name: str, otherwise: Any) -> list[Any]:
        value = values.get(name, otherwise)
        if isinstance(value, list):
            return value
        what = {"after": "names of tasks", "tasks": "tasks"}.get(name, name)
        self.wrong((*at, name) if name in values else at, value, f"a list of {what} (`{name}`)")
        return []

    def object(self, at: Path, values: Any, expected: str) -> bool:
        if not isinstance(values, dict):
            self.wrong(at, values, expected)
        return isinstance(values, dict)

    def only(self, at: Path, values: Mapping[str, Any], names: tuple[str, ...]) -> None:
        for name in values:
            if name not in names:
                self.document.mistake(
                    (*at, name), f"`{name}`", f"only {', '.join(names)}", key=True
                )

    def wrong(self, at: Path, value: Any, expected: str) -> None:
        self.document.mistake(at, shown(value), expected)


def _is_integer(value: Any) -> TypeGuard[int | float]:
    if isinstance(value, float):
        return value.is_integer()
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
