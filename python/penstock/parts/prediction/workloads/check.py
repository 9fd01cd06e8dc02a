"""Errors that prevent the execution of a workload, with their paths in the canonical description."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from penstock.errors import BadInput
from penstock.parts.prediction.workloads.graph import circle
from penstock.parts.prediction.workloads.task import Task
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.spec.source import Path

#: names appear in tables, files and addresses: no control characters, no unpaired surrogates
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
#: maximum length of a name
MOST_NAME = 4096
#: the longest time of a task, in seconds: the simulator's clock ends at some 190 years
MOST_SECONDS = 5e9


def unprintable(name: str) -> str:
    """Error of a text as a name; empty if valid."""
    match = _UNPRINTABLE.search(name)
    if match:
        return f"the character U+{ord(match[0]):04X} in a name"
    return f"a name of {len(name):,} characters" if len(name) > MOST_NAME else ""


def printable(name: str) -> str:
    """The text as a name: unprintable characters as escapes such as `\\x0a`; long ones truncated."""
    escaped = _UNPRINTABLE.sub(lambda m: m[0].encode("unicode_escape").decode(), name)
    return escaped if len(escaped) <= MOST_NAME else f"{escaped[: MOST_NAME - 1]}…"


@dataclass(frozen=True)
class Problem:
    """One error, at `path` of the canonical description."""

    path: Path
    found: str
    expected: str

    def __str__(self) -> str:
        return f"found {self.found}; expected {self.expected}"


def check_workload(workload: Workload) -> None:
    """Raise BadInput, naming the tasks, if the workload cannot be run.

    A file that no task writes and that does not exist before, a task without operations, a duplicate name,
    cyclic dependencies, reading past the end of a file, an unknown task.
    """
    faults = problems(workload)
    if faults:
        raise BadInput("\n".join(f"workload {workload.name}: {problem}" for problem in faults))


def problems(workload: Workload) -> list[Problem]:
    """All errors of the workload; empty if it can be run."""
    faults: list[Problem] = []
    if not workload.tasks:
        faults.append(Problem(("tasks",), "no tasks", "at least one"))
    faults += _twice("files", "the file", [f.name for f in workload.files])
    twice = _twice("tasks", "the task", [t.name for t in workload.tasks])
    faults += twice
    names = {task.name for task in workload.tasks}
    faults += _unnamed(workload)
    for i, task in enumerate(workload.tasks):
        faults += _of_task(i, task, names)
    faults += _of_files(workload)
    if not twice:
        faults += _circle(workload)
    return faults


def _unnamed(workload: Workload) -> list[Problem]:
    """Unprintable names."""
    named: list[tuple[Path, str]] = [(("name",), workload.name)]
    named += [(("files", i, "name"), file.name) for i, file in enumerate(workload.files)]
    for i, task in enumerate(workload.tasks):
        named.append((("tasks", i, "name"), task.name))
        if task.stage != task.name:
            named.append((("tasks", i, "stage"), task.stage))
        for k, o in enumerate(task.operations):
            if o.file is not None:
                named.append((("tasks", i, "operations", k, "file"), o.file))
    wrong = {name: fault for name in {n for _, n in named} if (fault := unprintable(name))}
    expected = f"a name of at most {MOST_NAME:,} characters that can be printed"
    return [Problem(path, wrong[name], expected) for path, name in named if name in wrong]


def _twice(kind: str, what: str, names: list[str]) -> list[Problem]:
    many = {name for name, n in Counter(names).items() if n > 1}
    seen: set[str] = set()
    faults = []
    for i, name in enumerate(names):
        if name in many and name in seen:
            faults.append(
                Problem((kind, i, "name"), f"{what} {name!r} a second time", "each name once")
            )
        seen.add(name)
    return faults


def _of_task(i: int, task: Task, names: set[str]) -> list[Problem]:
    at: Path = ("tasks", i)
    faults = []
    if not task.operations:
        faults.append(
            Problem(at, f"no operations in the task {task.name!r}", "at least one operation")
        )
    for k, name in enumerate(task.after):
        if name == task.name:
            where = (*at, "after", k)
            faults.append(
                Problem(where, f"the task {name!r} waiting for itself", "the name of another task")
            )
        elif name not in names:
            text = f"{name!r}, for which the task {task.name!r} waits"
            faults.append(Problem((*at, "after", k), text, "the name of a task"))
    return faults


def _of_files(workload: Workload) -> list[Problem]:
    """Files absent when read, and contradictory sizes."""
    unknown = {f.name for f in workload.files if f.preloaded and f.size_bytes is None}
    sizes: dict[str, int] = {f.name: f.size_bytes or 0 for f in workload.files if f.preloaded}
    written: dict[str, int] = {}
    writers: dict[str, set[int]] = {}
    preloaded = {f.name for f in workload.files if f.preloaded}
    for i, task in enumerate(workload.tasks):
        for o in task.operations:
            if o.op == "write" and o.file is not None:
                writers.setdefault(o.file, set()).add(i)
                end = o.offset_bytes + o.size_bytes
                written[o.file] = max(written.get(o.file, 0), end)
                sizes[o.file] = max(sizes.get(o.file, 0), end)
    faults = []
    for i, task in enumerate(workload.tasks):
        here = set()
        for k, o in enumerate(task.operations):
            at: Path = ("tasks", i, "operations", k)
            if o.file is not None and o.op == "write":
                here.add(o.file)
            if o.file is None or o.op in ("write", "set_xattr"):
                continue
            if o.file not in sizes:
                text = f"{o.file!r}, which the task {task.name!r} {_verb(o.op)} and no task writes"
                faults.append(
                    Problem((*at, "file"), text, "a preloaded file, or one that a task writes")
                )
            elif o.file in unknown:
                continue
            elif o.op == "read" and writers.get(o.file) == {i} and o.file not in preloaded | here:
                text = f"{o.file!r}, which the task {task.name!r} reads before its only writer"
                faults.append(
                    Problem((*at, "file"), text, "a preloaded file, or one that is written before")
                )
            elif o.op == "read" and o.offset_bytes + o.size_bytes > sizes[o.file]:
                end = o.offset_bytes + o.size_bytes
                text = f"the task {task.name!r} reading {o.file!r} to byte {end}"
                faults.append(
                    Problem((*at, "size_bytes"), text, f"at most its {sizes[o.file]} bytes")
                )
    for i, file in enumerate(workload.files):
        if file.preloaded or file.size_bytes is None or file.name not in written:
            continue
        if file.size_bytes != written[file.name]:
            text = f"{file.size_bytes} bytes of {file.name!r}"
            expected = f"{written[file.name]}, which its writers leave (or no size)"
            faults.append(Problem(("files", i, "size_bytes"), text, expected))
    for i, file in enumerate(workload.files):
        if file.name in unknown:
            text = f"no size of {file.name!r}, which exists before the run"
            faults.append(Problem(("files", i), text, "size_bytes"))
    return faults


def _verb(op: str) -> str:
    return {"open": "opens", "read": "reads", "close": "closes"}.get(op, "uses")


def _waits_for_itself(task: Task) -> bool:
    return task.name in task.after


def _circle(workload: Workload) -> list[Problem]:
    around = circle(workload.dependencies)
    if not around or (len(around) == 1 and _waits_for_itself(workload.tasks[around[0]])):
        return []  # reported for `after`
    names = [workload.tasks[i].name for i in around]
    shown = [*names[:4], "…", names[-1]] if len(names) > 6 else names
    text = f"tasks that wait for each other: {' → '.join([*shown, names[0]])}"
    return [Problem(("tasks", around[0]), text, "no circle among the tasks")]
