"""WfFormat 1.2 to 1.6 as workloads.

An instance has no list of operations: a task reads all its inputs, computes, and writes all its outputs. Its
measured run time includes input and output: the computing part is `avgCPU` of it (at most all of it), or the
rest after `io_share`; all of it if neither is known. The simulator adds the storage's time.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import Any

from penstock.parts.prediction.workloads.check import problems
from penstock.parts.prediction.workloads.formats.document import Document
from penstock.parts.prediction.workloads.formats.instance import (
    OWN,
    Instance,
    Job,
    file_id_of,
    identifier,
    read_instance,
    stages,
)
from penstock.parts.prediction.workloads.formats.native_format import workload_of
from penstock.parts.prediction.workloads.formats.upgrade import upgraded
from penstock.parts.prediction.workloads.formats.wfformat_rules import names_of
from penstock.parts.prediction.workloads.graph import changed_in_place, fed_before, in_order
from penstock.parts.prediction.workloads.sizes import Kind, SizeModel, alike, suffix_of
from penstock.parts.prediction.workloads.task import (
    File,
    Operation,
    Task,
    full_reads,
    full_writes,
)
from penstock.parts.prediction.workloads.workflow import SCHEMA, Workload
from penstock.spec.source import Path
from penstock.text import percentage


def workload_of_instance(
    document: Document, *, size_model: SizeModel | None = None, io_share: float | None = None
) -> Workload:
    """The workload of an instance of WfFormat, checked; BadInput with file, line and task.

    `io_share`: share of every run time that was input and output (0 to 1); None: derived from `avgCPU`. An
    instance written by penstock gives the original workload.
    """
    instance = read_instance(document)
    own = _own(document, instance) if size_model is None and io_share is None else None
    if own is not None:
        return own
    names = stages(instance.jobs)
    kinds = _kinds(instance, names)
    sizes = instance.sizes
    notes = list(instance.notes)
    if size_model is not None:
        sizes = size_model.sizes(sizes, kinds)
    else:
        notes += [text] if (text := alike(sizes, kinds)) else []
    notes += _time_notes(instance.jobs, io_share)
    tasks = tuple(
        _task(job, stage, sizes, io_share) for job, stage in zip(instance.jobs, names, strict=True)
    )
    files = _files(instance, tasks, sizes)
    if changed_in_place(tasks):
        tasks = in_order(tasks)
    workload = Workload(instance.name, files, tasks, tuple(notes))
    _check(document, instance, workload)
    waits = _waits(instance, workload)
    new_sizes = None if size_model is None else sizes
    return replace(workload, origin=partial(_instance, document.value, waits, new_sizes))


def _waits(instance: Instance, workload: Workload) -> list[list[str]]:
    """Predecessors of each task, in the order of the instance."""
    names = [task.name for task in workload.tasks]
    waits = dict(zip(names, workload.dependencies, strict=True))
    return [[names[i] for i in waits[job.id]] for job in instance.jobs]


def compute_s(job: Job, io_share: float | None = None) -> float:
    """Seconds that a task computes at speed 1 [ours]."""
    if job.runtime_s is None:
        return 0.0
    if io_share is not None:
        return job.runtime_s * (1 - io_share)
    if job.avg_cpu is not None and job.avg_cpu > 0:
        return job.runtime_s * min(1.0, job.avg_cpu / 100)
    return job.runtime_s


def _task(job: Job, stage: str, sizes: dict[str, int], io_share: float | None) -> Task:
    seconds = compute_s(job, io_share)
    reads = full_reads([(name, sizes[name]) for name in job.inputs])
    writes = full_writes([(name, sizes[name]) for name in job.outputs])
    # an empty task serves to order others
    idle = not (reads or writes or seconds)
    work = (Operation("compute", seconds=seconds),) if seconds or idle else ()
    operations = (*reads, *work, *writes)
    return Task(job.id, operations, stage, after=tuple(job.parents), command=job.command)


def _files(instance: Instance, tasks: tuple[Task, ...], sizes: dict[str, int]) -> tuple[File, ...]:
    used = {name for job in instance.jobs for name in (*job.inputs, *job.outputs)}
    written = {name for job in instance.jobs for name in job.outputs}
    before = fed_before(tasks)
    return tuple(
        File(name, size, preloaded=name not in written or name in before)
        for name, size in sizes.items()
        if name in used
    )


def _kinds(instance: Instance, names: list[str]) -> dict[str, Kind]:
    kinds: dict[str, Kind] = {}
    for written in (True, False):
        for job, stage in zip(instance.jobs, names, strict=True):
            for name in job.outputs if written else job.inputs:
                kinds.setdefault(name, Kind(stage, suffix_of(name), written))
    return kinds


def _time_notes(jobs: list[Job], io_share: float | None) -> list[str]:
    timed = [job for job in jobs if job.runtime_s is not None]
    notes = []
    if timed and io_share is not None:
        notes.append(f"computing is {percentage(1 - io_share)} of the run times, as requested")
    elif timed:
        n_with_cpu = sum(job.avg_cpu is not None and job.avg_cpu > 0 for job in timed)
        if n_with_cpu:
            notes.append(f"computing of {n_with_cpu} tasks is avgCPU of their run time")
        if n_with_cpu < len(timed):
            notes.append(
                f"computing of {len(timed) - n_with_cpu} tasks is all of their run time, input and output "
                "included (no avgCPU; --io-share sets another share)"
            )
    if not timed:
        notes.append("no run times, so the tasks compute nothing")
    elif untimed := len(jobs) - len(timed):
        notes.append(f"{untimed} tasks have no run time, so they compute nothing")
    many = sum(job.cores > 1 for job in jobs)
    if many:
        most = max(job.cores for job in jobs)
        notes.append(
            f"{many} tasks used several cores (up to {most:g}); each takes one slot of a host here"
        )
    return notes


def _check(document: Document, instance: Instance, workload: Workload) -> None:
    """Record errors of the workload at the respective task of the instance."""
    places = {job.id: job.path for job in instance.jobs}
    for problem in problems(workload):
        path: Path = ()
        if problem.path[:1] == ("tasks",) and len(problem.path) > 1:
            path = places[workload.tasks[int(problem.path[1])].name]
        document.mistake(path, problem.found, problem.expected)
    document.check()


def _own(document: Document, instance: Instance) -> Workload | None:
    """The workload in the instance's own properties; None if these were changed since."""
    head = document.value.get(OWN)
    if not isinstance(head, dict) or any(job.own is None for job in instance.jobs):
        return None
    values = {
        "schema": SCHEMA,
        "name": head.get("name", instance.name),
        "files": head.get("files"),
        "tasks": [job.own for job in instance.jobs],
    }
    workload = workload_of(Document(document.file, values))
    sizes = {identifier(name): size for name, size in workload.file_sizes.items()}
    parents = [{identifier(workload.tasks[i].name) for i in w} for w in workload.dependencies]
    if sizes != instance.sizes or parents != [set(job.parents) for job in instance.jobs]:
        return None
    return replace(workload, origin=partial(_instance, document.value, [], None))


def _instance(
    values: dict[str, Any], waits: list[list[str]], sizes: dict[str, int] | None
) -> dict[str, Any]:
    """Instance of WfFormat 1.6 for the input."""
    return upgraded(values if sizes is None else _resized(values, sizes), waits)


def _resized(values: dict[str, Any], sizes: dict[str, int]) -> dict[str, Any]:
    """The instance with these sizes, a copy."""
    instance = copy.deepcopy(values)
    workflow = instance["workflow"]
    for file in workflow.get("specification", {}).get("files", []):
        file["sizeInBytes"] = sizes[file["id"]]
    names = names_of(values["schemaVersion"])
    for task in workflow.get(names.tasks, []):
        for file in task.get("files") or []:
            file[names.size] = sizes[file_id_of(file)]
    return instance
