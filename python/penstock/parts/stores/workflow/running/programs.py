"""Programs of a workflow: which there are, and their input files on this host."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from penstock.errors import BadInput
from penstock.host.nodes.spawner import PATH
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.parts.stores.workflow.folder import paths_of
from penstock.parts.stores.workflow.running.run_files import inputs_of, outputs_of
from penstock.text import first_of, listed

_NAMED = 10
_WITHOUT = (
    "Without programs and data, `penstock predict` predicts the workflow, and --emulate runs it with "
    "emulated input, output and run times"
)


def emulated(workload: Workload) -> Workload:
    """The workload without commands: tasks execute their operations."""
    tasks = tuple(replace(task, command=None) for task in workload.tasks)
    return replace(workload, tasks=tasks, origin=None)


def runs_programs(workload: Workload) -> bool:
    """True if a task has a command."""
    return any(task.command is not None for task in workload.tasks)


def inputs_on_host(workload: Workload, directory: Path) -> dict[str, Path]:
    """Files below `directory` that the workload's programs read, and no task writes before.

    BadInput that names all absent ones, and all programs that are not on this host, whose files nodes see. A
    relative path with a `/`, such as `./prepare`, is a file of the run: an input, or an output of a task.
    """
    programs = [task for task in workload.tasks if task.command is not None]
    preloaded = {f.name for f in workload.files if f.preloaded}
    used = {n for t in programs for n in (*inputs_of(t), *outputs_of(t)) if n in preloaded}
    own = {os.path.normpath(t.command.program) for t in programs if t.command is not None}
    paths = paths_of(workload.file_sizes)
    used |= {name for name in preloaded if paths[name] in own}
    sources = {name: directory / paths[name] for name in sorted(used)}
    counts = Counter(t.command.program for t in programs if t.command is not None)
    mistakes = [_absent_programs(counts, set(paths.values())), _absent_inputs(sources, directory)]
    if any(mistakes):
        raise BadInput("\n".join([*filter(None, mistakes), _WITHOUT]))
    return sources


def _absent_programs(counts: Mapping[str, int], files: set[str]) -> str:
    """The mistake of programs that are not there; `counts`: tasks by program."""
    absent = {one: count for one, count in counts.items() if not _exists(one, files)}
    if not absent:
        return ""
    return (
        f"command: found {len(absent)} programs of {sum(absent.values())} tasks that are not installed: "
        f"{listed(first_of(list(absent), _NAMED))}; expected programs in {PATH}, with an absolute path, or "
        "among the files of the workflow"
    )


def _absent_inputs(sources: Mapping[str, Path], directory: Path) -> str:
    absent = [name for name, path in sources.items() if not path.is_file()]
    if not absent:
        return ""
    return (
        f"--inputs: found {len(absent)} of {len(sources)} input files not in {directory}: "
        f"{listed(first_of(absent, _NAMED))}; expected all files that programs read and no task writes"
    )


def _exists(program: str, files: set[str]) -> bool:
    if program.startswith("/") or "/" not in program:
        return shutil.which(program, path=PATH) is not None
    return os.path.normpath(program) in files
