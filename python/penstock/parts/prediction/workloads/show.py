"""Summary of a workload, as a table for the terminal and as one object."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from penstock.console import Console
from penstock.parts.prediction.workloads.distribution import mean_s
from penstock.parts.prediction.workloads.graph import named
from penstock.parts.prediction.workloads.task import Operation
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.terminal import table_of
from penstock.text import counted, shortened

_WIDTH = 100
_BAR = 30
_MOST_LEVELS = 40
_MOST_STAGES = 40


def document_of(workload: Workload, aggregate: bool = False) -> dict[str, Any]:
    """Tasks, files, bytes, stages and levels; with `aggregate` also the effect of merging operations.

    Bytes: `preloaded` exists before the run, operations move `read` and `written`, `results` are written and
    read by no task.
    """
    sizes = workload.file_sizes
    before = {file.name for file in workload.files if file.preloaded}
    read = {o.file for task in workload.tasks for o in task.operations if o.op == "read"}
    wrote = {o.file for task in workload.tasks for o in task.operations if o.op == "write"}
    stages = _stages(workload)
    values: dict[str, Any] = {
        "name": workload.name,
        "tasks": len(workload.tasks),
        "files": len(sizes),
        "operations": sum(len(task.operations) for task in workload.tasks),
        "dependencies": sum(len(waits) for waits in workload.dependencies),
        "compute_s": sum(stage["compute_s"] for stage in stages),
        "bytes": {
            "preloaded": sum(sizes[name] for name in before),
            "read": sum(stage["read_bytes"] for stage in stages),
            "written": sum(stage["written_bytes"] for stage in stages),
            "results": sum(sizes[str(name)] for name in wrote - read),
        },
        "stages": stages,
        "levels": _levels(workload),
        "notes": list(workload.notes),
    }
    if aggregate:
        values["aggregate"] = _aggregated(workload)
    return values


def _stages(workload: Workload) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    files: dict[str, dict[str, set[str]]] = defaultdict(lambda: {"read": set(), "write": set()})
    for task, level in zip(workload.tasks, workload.levels, strict=True):
        name = task.stage or task.name
        row = rows.setdefault(
            name,
            {
                "stage": name,
                "tasks": 0,
                "first_level": level,
                "compute_s": 0.0,
                "read_bytes": 0,
                "written_bytes": 0,
            },
        )
        row["tasks"] += 1
        row["first_level"] = min(row["first_level"], level)
        for o in task.operations:
            if o.op == "compute":
                row["compute_s"] += mean_s(o.seconds)
            elif o.op in ("read", "write"):
                row["read_bytes" if o.op == "read" else "written_bytes"] += o.size_bytes
                files[name][o.op].add(str(o.file))
    for name, row in rows.items():
        row["files_read"] = len(files[name]["read"])
        row["files_written"] = len(files[name]["write"])
    return list(rows.values())


def _levels(workload: Workload) -> list[dict[str, Any]]:
    stages: dict[int, Counter[str]] = defaultdict(Counter)
    for task, level in zip(workload.tasks, workload.levels, strict=True):
        stages[level][task.stage or task.name] += 1
    return [
        {"level": level, "tasks": sum(stages[level].values()), "stages": dict(stages[level])}
        for level in sorted(stages)
    ]


def _aggregated(workload: Workload) -> dict[str, int]:
    """Numbers of reads and writes before and after merging contiguous ones."""
    before = after = 0
    for task in workload.tasks:
        last: Operation | None = None
        for o in task.operations:
            if o.op in ("read", "write"):
                before += 1
                after += not (last is not None and _goes_on(last, o))
            last = o
    return {"operations": before, "merged": after}


def _goes_on(last: Operation, o: Operation) -> bool:
    end = last.offset_bytes + last.size_bytes
    return (last.op, last.file, end) == (o.op, o.file, o.offset_bytes)


def show(workload: Workload, aggregate: bool = False) -> None:
    """Print the values of `document_of`, with a line for every level of the graph."""
    values = document_of(workload, aggregate)
    console = Console(width=_WIDTH)
    moved = values["bytes"]
    console.print(
        f"{shortened(values['name'])}: {counted(values['tasks'], 'task')} in "
        f"{counted(len(values['stages']), 'stage')}, {counted(values['files'], 'file')}, "
        f"{counted(values['operations'], 'operation')}"
    )
    console.print(
        f"{size(moved['preloaded'])} in existing files, {size(moved['read'])} read, "
        f"{size(moved['written'])} written, {size(moved['results'])} of it results; "
        f"{values['compute_s']:,.4g} s of computing"
    )
    columns = ("stage", "#level", "#tasks", "#compute s", "#read", "#files", "#written", "#files")
    rows = [
        (
            shortened(row["stage"]),
            str(row["first_level"]),
            f"{row['tasks']:,}",
            f"{row['compute_s']:,.4g}",
            size(row["read_bytes"]),
            f"{row['files_read']:,}",
            size(row["written_bytes"]),
            f"{row['files_written']:,}",
        )
        for row in values["stages"][:_MOST_STAGES]
    ]
    console.print(table_of(columns, rows))
    if len(values["stages"]) > _MOST_STAGES:
        console.print(f"... {len(values['stages']) - _MOST_STAGES:,} further stages in --json")
    console.print(picture(values["levels"]))
    if aggregate:
        merged = values["aggregate"]
        console.print(
            f"merging subsequent operations: {merged['operations']:,} reads and writes become "
            f"{merged['merged']:,}"
        )
    for note in values["notes"]:
        console.print(f"note: {note}", markup=False)


def picture(levels: list[dict[str, Any]]) -> str:
    """One line per level: the number of parallel tasks, and their stages."""
    widest = max(level["tasks"] for level in levels)
    lines = ["level  tasks"]
    for level in levels[:_MOST_LEVELS]:
        bar = "█" * max(1, round(_BAR * level["tasks"] / widest))
        stages = named((f"{n} {name}" for name, n in level["stages"].items()), 3)
        line = f"{level['level']:>5} {level['tasks']:>6}  {bar:<{_BAR}}  {stages}"
        lines.append(line if len(line) <= _WIDTH else line[: _WIDTH - 1] + "…")
    if len(levels) > _MOST_LEVELS:
        lines.append(f"  ... {len(levels) - _MOST_LEVELS} further levels")
    return "\n".join(lines)


def size(number: float) -> str:
    """Bytes as text, three significant digits."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(number) < 1024 or unit == "TiB":
            return f"{number:.0f} B" if unit == "B" else f"{number:,.3g} {unit}"
        number /= 1024
    return ""
