"""Traced runs as workloads: operations on files, computing between them, dependencies.

Tasks are processes (or threads, or complete commands). Bytes are the results of the calls; a task's time
outside of calls is computing, except for a command's first process, which waits for its children; the time
from the last call before a task to its own first call is its launch.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from penstock.archive.bundle import Bundle
from penstock.archive.selection import select
from penstock.errors import BadInput, PenstockError
from penstock.parts.prediction.workloads.check import check_workload, printable
from penstock.parts.prediction.workloads.dependencies import Lineage, lineage
from penstock.parts.prediction.workloads.graph import levels
from penstock.parts.prediction.workloads.task import File, Operation, Task
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.workload.events import PAUSE_S, Steps, read_steps

#: dependencies of tasks: writers of their inputs only, or also all tasks that ended before their start
ORDERS = ("files", "observed")


def read_traced(path: Path) -> Workload:
    """The workload of a bundle, or of the first valid traced run of a study or a treatment.

    Raises BadInput if there is none.
    """
    named = select(path)
    if named.kind == "run":
        return traced_workload(named.runs)
    best = next((run for run in named.runs if (run / "io_events.parquet").exists()), None)
    if best is None:
        raise BadInput(
            f"{path} has no valid run with traced operations (`trace: {{mode: trace}}` of `observers`)"
        )
    treatment = Bundle.open(best).manifest.get("treatment_id") or "its only treatment"
    return traced_workload([best]).noted(f"the run {best.name} of the study, {treatment}")


def traced_workload(
    paths: Sequence[Path],
    *,
    names: Sequence[str] = (),
    per: str = "process",
    under: Sequence[str] = (),
    order: str = "files",
    compute: str = "gaps",
    launch: bool = True,
    pause_s: float = PAUSE_S,
) -> Workload:
    """One workload of one or several bundles, in real time.

    `names`: the stage of each bundle's tasks (by default, of several: its directory; of one: levels of the
    graph). `compute`: 'gaps' between calls, or 'cpu': the gaps scaled to the sampled processor time. Without
    `launch`, launch times are the platform's. Further: see `read_steps`, ORDERS.
    """
    if order not in ORDERS or compute not in ("gaps", "cpu"):
        raise BadInput(
            f"order {order!r}, computing {compute!r}; expected files or observed, gaps or cpu"
        )
    if names and len(names) != len(paths):
        raise BadInput(f"{len(names)} stages for {len(paths)} bundles; one for each is expected")
    for path in paths:
        if not (path / "manifest.json").is_file():
            raise BadInput(f"{path} is no bundle; `penstock trace --mode trace -o DIR` makes one")
    try:
        steps = read_steps(paths, per=per, under=under, pause_s=pause_s)
    except BadInput:
        raise
    except (PenstockError, OSError, KeyError, ValueError) as error:
        reason = str(error).split("\n")[0]
        raise BadInput(f"{paths[0]}: an incomplete bundle: {reason}") from None
    notes = list(steps.notes)
    scale = _scale(steps, compute, notes)
    line = lineage(steps.table, steps.tasks, parted=order == "observed")
    if line.shared:
        notes.append(
            f"{line.shared} files are read while another task writes them: read as they were before"
        )
    edges = set(line.edges) | (_observed(line) if order == "observed" else set())
    stages = list(names) or ([printable(path.name) for path in paths] if len(paths) > 1 else [])
    built = _Built(steps, line, edges, stages, scale, launch)
    workload = Workload(
        printable(os.path.basename(paths[0].resolve())) if len(paths) == 1 else "joined",
        built.files(),
        built.tasks(),
        tuple(notes),
    )
    check_workload(workload)
    return workload


def _scale(steps: Steps, compute: str, notes: list[str]) -> float:
    gaps = float(
        steps.table[["before_ns", "inside_ns"]].to_numpy().sum() + steps.tasks["after_ns"].sum()
    )
    if steps.cpu_s is None:
        if compute == "cpu":
            raise BadInput("no processor time was sampled with the trace; expected compute: gaps")
        return 1.0
    notes.append(f"{steps.cpu_s:.3g} s of processor time in {gaps / 1e9:.3g} s between calls")
    return steps.cpu_s * 1e9 / gaps if compute == "cpu" and gaps else 1.0


def _observed(line: Lineage) -> set[tuple[int, int]]:
    """Edges from each segment to those that had ended at its start, without transitive ones."""
    start = line.segments["start_ns"].to_numpy()
    end = line.segments["end_ns"].to_numpy()
    edges: set[tuple[int, int]] = set()
    for i in range(len(start)):
        ended = np.flatnonzero(end <= start[i])
        if len(ended):
            # dependencies through an intermediate segment are omitted
            latest = start[ended].max()
            edges |= {(i, int(j)) for j in ended[end[ended] > latest]}
    return edges


class _Built:
    """Files and tasks from steps and lineage."""

    def __init__(
        self,
        steps: Steps,
        line: Lineage,
        edges: set[tuple[int, int]],
        stages: list[str],
        scale: float,
        launch: bool,
    ) -> None:
        self.steps, self.line, self.edges = steps, line, edges
        self.scale, self.launch = scale, launch
        self.names = _file_names(steps.files)
        self.waits: list[list[int]] = [[] for _ in range(len(line.segments))]
        for waits, ahead in sorted(edges):
            self.waits[waits].append(ahead)
        self.task_names = _task_names(steps, line, stages)
        self.stages = stages

    def tasks(self) -> tuple[Task, ...]:
        segments = self.line.segments
        launches = self.steps.tasks["launch_ns"].to_numpy() / 1e9
        parts = dict(tuple(self.line.steps.groupby("segment")))
        level = levels(self.waits)
        tasks = []
        # in order of start: a reader of a pre-existing file waits for preceding writers
        for i in np.argsort(segments["start_ns"].to_numpy(), kind="stable").tolist():
            task, part = int(segments["task"].iloc[i]), int(segments["part"].iloc[i])
            last = i + 1 == len(segments) or int(segments["part"].iloc[i + 1]) == 0
            after = int(self.steps.tasks["after_ns"].iloc[task]) if last else 0
            run = int(self.steps.tasks["run"].iloc[task])
            seconds = float(launches[task]) if part == 0 else 0.0
            tasks.append(
                Task(
                    self.task_names[i],
                    self._operations(parts[i], after),
                    self.stages[run] if self.stages else f"level-{level[i]}",
                    after=tuple(self.task_names[k] for k in self.waits[i]),
                    launch=seconds if self.launch else None,
                )
            )
        return tuple(tasks)

    def _operations(self, rows: pd.DataFrame, after_ns: int) -> tuple[Operation, ...]:
        operations: list[Operation] = []
        opened: set[str] = set()
        idle = 0
        columns = ("file", "write", "offset_bytes", "size_bytes", "before_ns", "inside_ns", "aside")
        for file, write, offset, size, before, inside, aside in zip(
            *(rows[c].tolist() for c in columns), strict=True
        ):
            name = self._aside(file) if aside else self.names[file]
            # computing precedes a write and follows a read
            idle += before + (inside if write else 0)
            operations += self._computing(idle)
            if not write and name not in opened:
                operations.append(Operation("open", name))
                opened.add(name)
            operations.append(Operation("write" if write else "read", name, offset, size))
            idle = 0 if write else inside
        operations += self._computing(idle + after_ns)
        return tuple(operations)

    def _computing(self, own_ns: int) -> list[Operation]:
        seconds = round(own_ns * self.scale) / 1e9
        return [Operation("compute", seconds=seconds)] if seconds > 0 else []

    def _aside(self, file: int) -> str:
        return f"{self.names[file]}@before"

    def files(self) -> tuple[File, ...]:
        """Files with their pre-existing bytes: of inputs, and of files that are only appended to."""
        steps = self.line.steps
        ends = steps.assign(to=steps["offset_bytes"] + steps["size_bytes"])
        written = ends[ends["write"] == 1].groupby("file")
        written_to, low = written["to"].max(), written["offset_bytes"].min()
        first = (
            ends.sort_values("start_ns", kind="stable").drop_duplicates("file").set_index("file")
        )
        own = ends[(ends["write"] == 0) & ~ends["aside"]]
        read_to = own.groupby("file")["to"].max()
        aside = ends[ends["aside"]].groupby("file")["to"].max()
        files = []
        for file, row in self.steps.files.iterrows():
            number = int(str(file))
            name, wrote = self.names[number], int(written_to.get(number, -1))
            read = int(read_to.get(number, -1))
            if number in aside.index:
                files.append(File(self._aside(number), int(aside[number]), preloaded=True))
            if wrote < 0 and read < 0:
                continue
            begins = first.loc[number]
            before = 0
            if begins["write"] == 0 and not begins["aside"]:
                before = int(row["size_bytes"])
            elif int(low.get(number, 0)) > 0:
                before = int(low[number])
            if read > max(wrote, before):
                before = read  # it grew by untraced writes
            if before:
                files.append(File(name, before, preloaded=True))
            else:
                files.append(File(name))
        return tuple(files)


def _file_names(files: pd.DataFrame) -> dict[int, str]:
    """Paths relative to the common directory of all files."""
    paths = files["path"].tolist()
    top = os.path.commonpath([os.path.dirname(p) or "/" for p in paths]) if paths else "/"
    return {
        int(str(number)): printable(os.path.relpath(path, top) if top != "/" else path)
        for number, path in zip(files.index, paths, strict=True)
    }


def _task_names(steps: Steps, line: Lineage, stages: list[str]) -> list[str]:
    """p1, p2, … in order of start; with several runs each under its stage's name."""
    begun = steps.tasks.assign(task=np.arange(len(steps.tasks)))
    begun = begun[begun["task"].isin(line.segments["task"])].sort_values(["run", "start_ns"])
    number = begun.groupby("run").cumcount() + 1
    of = dict(zip(begun["task"].tolist(), number.tolist(), strict=True))
    many = line.segments.groupby("task")["part"].max()
    names = []
    for task, part in zip(line.segments["task"], line.segments["part"], strict=True):
        run = int(steps.tasks["run"].iloc[int(task)])
        head = f"{stages[run]}/" if stages else ""
        tail = f".{int(part) + 1}" if many[task] else ""
        names.append(f"{head}p{of[int(task)]}{tail}")
    return names


def replaced(workload: Workload, again: Workload) -> Workload:
    """The workload with the stages of `again` in place of its own [Costa 2014].

    Raises BadInput if `again` has a stage that the workload lacks, or if a file of a replaced stage is now
    missing, new, or of another size: its readers must then be traced again, too.
    """
    changed = set(again.stages)
    unknown = changed - set(workload.stages)
    if unknown:
        raise BadInput(
            f"stage {', '.join(sorted(unknown))} is new; the workload has {', '.join(workload.stages)}"
        )
    before, after = _outputs(workload, changed), _outputs(again, changed)
    if before != after:
        name = next(n for n in sorted({*before, *after}) if before.get(n) != after.get(n))
        was = f"{before[name]} bytes" if name in before else "not written"
        now = f"{after[name]} bytes" if name in after else "not written"
        raise BadInput(
            f"the output {name!r} of the stages {', '.join(sorted(changed))} was {was} and is {now} now; "
            "trace the stages after it again, too"
        )
    gone = {task.name for task in workload.tasks if task.stage in changed}
    by_stage: dict[str, list[Task]] = {}
    for task in again.tasks:
        by_stage.setdefault(task.stage, []).append(task)
    tasks: list[Task] = []
    for task in workload.tasks:
        if task.name in gone:
            tasks += by_stage.pop(task.stage, [])
        else:
            # successors of a removed task wait for the writers of their files, computed again
            tasks.append(replace(task, after=tuple(n for n in task.after if n not in gone)))
    files = {file.name: file for file in again.files} | {file.name: file for file in workload.files}
    used = {o.file for task in tasks for o in task.operations}
    combined = Workload(
        workload.name, tuple(f for f in files.values() if f.name in used), tuple(tasks)
    )
    combined = combined.noted(*workload.notes, *again.notes)
    check_workload(combined)
    return combined


def _outputs(workload: Workload, stages: set[str]) -> dict[str, int]:
    written = {
        str(o.file)
        for task in workload.tasks
        if task.stage in stages
        for o in task.operations
        if o.op == "write"
    }
    return {name: size for name, size in workload.file_sizes.items() if name in written}
