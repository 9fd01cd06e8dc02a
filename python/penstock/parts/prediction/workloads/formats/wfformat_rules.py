"""Differences between versions of WfFormat: properties of another version, and characters of ids.

Source: the JSON schemas and READMEs of github.com/wfcommons/WfFormat. All of them allow unknown properties. A
property of another version would be ignored, and means that the file's version is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.parts.prediction.workloads.formats.document import Document, shown
from penstock.spec.source import Path


@dataclass(frozen=True)
class Foreign:
    """Invalid properties at a place of a version: name → its counterpart in that version.

    `where`: keys from the root, `[]` for every element of a list; `versions` in which it is invalid; `of` is
    the version that has it.
    """

    versions: tuple[str, ...]
    where: str
    of: str
    names: Mapping[str, str]


@dataclass(frozen=True)
class Names:
    """Names of properties in a version: those of 1.4 and later."""

    tasks: str = "tasks"
    makespan: str = "makespanInSeconds"
    runtime: str = "runtimeInSeconds"
    size: str = "sizeInBytes"


#: versions whose tasks have their files and run times
FLAT = {
    "1.2": Names("jobs", "makespan", "runtime", "size"),
    "1.3": Names("tasks", "makespan", "runtime", "size"),
    "1.4": Names(),
}
_KB, _FLAT, _SPLIT = ("1.2", "1.3"), tuple(FLAT), ("1.5", "1.6")
_EXECUTION = "`execution`, which has run times, machines and the makespan"
_MACHINE = {"coreCount": "`count`", "speedInMHz": "`speed`"}

FOREIGN = (
    Foreign(("1.2",), "workflow", "1.3", {"tasks": "`jobs`"}),
    Foreign(("1.3", "1.4"), "workflow", "1.2", {"jobs": "`tasks`"}),
    Foreign(_KB, "workflow", "1.4", {"makespanInSeconds": "`makespan`"}),
    Foreign(("1.4",), "workflow", "1.3", {"makespan": "`makespanInSeconds`"}),
    Foreign(
        _KB,
        "workflow.tasks.[]",
        "1.4",
        {
            "runtimeInSeconds": "`runtime`",
            "readBytes": "`bytesRead`",
            "writtenBytes": "`bytesWritten`",
            "memoryInBytes": "`memory`",
        },
    ),
    Foreign(("1.4",), "workflow.tasks.[]", "1.3", {"runtime": "`runtimeInSeconds`"}),
    Foreign(_KB, "workflow.tasks.[].files.[]", "1.4", {"sizeInBytes": "`size`"}),
    Foreign(("1.4",), "workflow.tasks.[].files.[]", "1.3", {"size": "`sizeInBytes`"}),
    Foreign(_KB, "workflow.machines.[]", "1.4", {"memoryInBytes": "`memory`"}),
    Foreign(_FLAT, "", "1.5", {"runtimeSystem": "`wms`"}),
    Foreign(
        _FLAT,
        "workflow",
        "1.5",
        {"specification": "`tasks` in `workflow`", "execution": "run times in `tasks`"},
    ),
    Foreign(_FLAT, "workflow", "1.6", {"metrics": "no `metrics`"}),
    Foreign(
        _FLAT,
        "workflow.tasks.[]",
        "1.5",
        {
            "inputFiles": "`files` with `link`",
            "outputFiles": "`files` with `link`",
            "coreCount": "`cores`",
            "energyInKWh": "`energy`",
            "avgPowerInW": "`avgPower`",
            "machines": "`machine`, one text",
            "executedAt": "only the `executedAt` of the workflow",
        },
    ),
    Foreign(_FLAT, "workflow.tasks.[].files.[]", "1.5", {"id": "`name`"}),
    Foreign(_FLAT, "workflow.machines.[].cpu", "1.5", _MACHINE),
    Foreign(_SPLIT, "", "1.4", {"wms": "`runtimeSystem`"}),
    Foreign(
        _SPLIT,
        "workflow",
        "1.4",
        {
            "tasks": "`specification`, which has tasks and files",
            "machines": _EXECUTION,
            "makespanInSeconds": _EXECUTION,
            "executedAt": _EXECUTION,
        },
    ),
    Foreign(
        _SPLIT,
        "workflow.specification.tasks.[]",
        "1.4",
        {
            "files": "`inputFiles` and `outputFiles`",
            "runtimeInSeconds": "`runtimeInSeconds` in `execution.tasks`",
            "cores": "`coreCount` in `execution.tasks`",
        },
    ),
    Foreign(
        _SPLIT,
        "workflow.specification.files.[]",
        "1.4",
        {"link": "`inputFiles` and `outputFiles` of tasks"},
    ),
    Foreign(
        _SPLIT,
        "workflow.execution.tasks.[]",
        "1.4",
        {
            "files": "`inputFiles` and `outputFiles` in `specification.tasks`",
            "cores": "`coreCount`",
            "energy": "`energyInKWh`",
            "avgPower": "`avgPowerInW`",
        },
    ),
    Foreign(
        _SPLIT,
        "workflow.execution.machines.[].cpu",
        "1.4",
        {"count": "`coreCount`", "speed": "`speedInMHz`"},
    ),
    Foreign(("1.5",), "workflow.specification", "1.6", {"metrics": "no `metrics`"}),
    Foreign(("1.5",), "workflow.execution", "1.6", {"metrics": "no `metrics`"}),
)

#: characters of ids: of tasks in 1.5, of files in 1.5, of both in 1.6
_TASK_15 = (re.compile(r"[0-9a-zA-Z_.#-]+"), "letters, digits and _ . # -")
_ANY_ID = (re.compile(r"[0-9a-zA-Z_.#:/-]+"), "letters, digits and _ . # : / -")

#: metrics of 1.6 that are counts
_COUNTS = {
    "specification": (
        "numberOfTasks",
        "numberOfFiles",
        "sumOfFileSizesInBytes",
        "numberOfLevels",
        "minimumWidth",
        "maximumWidth",
    ),
    "execution": ("totalNumBytesRead", "totalNumBytesWritten"),
}


def names_of(version: str) -> Names:
    """Names of properties in a version."""
    return FLAT.get(version, Names())


def check_version(document: Document, version: str) -> None:
    """Record properties of another version, and invalid ids and metrics."""
    tasks = names_of(version).tasks
    for rule in FOREIGN:
        if version not in rule.versions:
            continue
        steps = rule.where.replace("workflow.tasks", f"workflow.{tasks}").split(".")
        for path, values in _places(document.value, (), steps if rule.where else []):
            for name in rule.names.keys() & values.keys():
                fault = f"`{name}`, which WfFormat {rule.of} has and {version} has not"
                counterpart = rule.names[name].replace("`tasks`", f"`{tasks}`")
                document.mistake((*path, name), fault, f"{counterpart} in {version}", key=True)
    if version in _SPLIT:
        _ids(document, version)
        _parents_by_name(document, version)
    if version == "1.6":
        _metrics(document)


def _places(
    values: Any, path: Path, steps: list[str]
) -> Iterator[tuple[tuple[str | int, ...], Mapping[str, Any]]]:
    """Every object on the path; the reader reports other types."""
    if not steps:
        if isinstance(values, Mapping):
            yield tuple(path), values
        return
    if steps[0] == "[]":
        for i, row in enumerate(values if isinstance(values, list) else ()):
            yield from _places(row, (*path, i), steps[1:])
    elif isinstance(values, Mapping) and steps[0] in values:
        yield from _places(values[steps[0]], (*path, steps[0]), steps[1:])


def _ids(document: Document, version: str) -> None:
    """Check the characters of ids at their definition; references must match one."""
    of_tasks = _TASK_15 if version == "1.5" else _ANY_ID
    for what, (allowed, description) in (("tasks", of_tasks), ("files", _ANY_ID)):
        where = ["workflow", "specification", what, "[]"]
        for path, row in _places(document.value, (), where):
            own = row.get("id")
            if isinstance(own, str) and own and not allowed.fullmatch(own):
                expected = f"an id of {description}, in {version}"
                document.mistake(
                    (*path, "id"), f"{shown(own)} as the id of a {what[:-1]}", expected
                )


def _parents_by_name(document: Document, version: str) -> None:
    """1.4 refers to parents by name; later versions by id."""
    rows = list(_places(document.value, (), ["workflow", "specification", "tasks", "[]"]))
    ids = {row.get("id") for _, row in rows if isinstance(row.get("id"), str)}
    named: dict[str, str] = {}
    for _, row in rows:
        if isinstance(row.get("name"), str) and isinstance(row.get("id"), str):
            named.setdefault(row["name"], row["id"])
    for path, row in rows:
        for side in ("parents", "children"):
            others = row.get(side)
            for k, other in enumerate(others if isinstance(others, list) else ()):
                if isinstance(other, str) and other not in ids and other in named:
                    fault = f"{other!r} among the {side} of the task {row.get('id')!r}, a name"
                    expected = f"an id in {version}, such as {named[other]!r}"
                    document.mistake((*path, side, k), fault, expected)


def _metrics(document: Document) -> None:
    for part, names in _COUNTS.items():
        for path, values in _places(document.value, (), ["workflow", part, "metrics"]):
            for name in names:
                value = values.get(name, 0)
                if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                    fault = f"{shown(value)} as `{name}`"
                    document.mistake((*path, name), fault, "an integer of at least 0")


def metric_notes(document: Document, tasks: int, sizes: Mapping[str, int]) -> list[str]:
    """Contradictions between the metrics of an instance of 1.6 and their sums."""
    true = {
        "numberOfTasks": tasks,
        "numberOfFiles": len(sizes),
        "sumOfFileSizesInBytes": sum(sizes.values()),
    }
    notes = []
    for _, values in _places(document.value, (), ["workflow", "specification", "metrics"]):
        for name, value in true.items():
            if name in values and values[name] != value:
                notes.append(f"`metrics` say {name} {values[name]:,}; it is {value:,}")
    return notes
