"""Hints of the files of a workflow of jobs, from its graph: the rules of `penstock workflow run`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.parts.prediction.workloads.task import Operation, Task
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.parts.stores.workflow.hints import derived, tags_of

Tags = dict[str, str]


@dataclass(frozen=True)
class GraphJob:
    """A job of the graph: the files that it reads and writes, and its rule.

    `taggable`: outputs that may have hints; `local`: Snakemake runs it itself.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    rule: str = ""
    taggable: tuple[str, ...] = ()
    local: bool = False


def tags_by_file(jobs: Iterable[GraphJob], storage_nodes: int) -> dict[str, Tags]:
    """Tags of each file that a job writes and others read.

    A file with one reader is placed with its writer, the inputs of a job that reads many on one node; a file
    with several readers is replicated (`workflow.hints.derived`).
    """
    tasks = tuple(_task(job) for job in jobs)
    return tags_of_written(derived(Workload("jobs", (), tasks), storage_nodes))


def tags_of_written(workload: Workload) -> dict[str, Tags]:
    """Tags of the files with hints that tasks write."""
    written = {o.file for task in workload.tasks for o in task.operations if o.op == "write"}
    tags = {f.name: tags_of(f.hints) for f in workload.files if f.name in written}
    return {name: of_file for name, of_file in tags.items() if of_file}


def _task(job: GraphJob) -> Task:
    reads = tuple(Operation("read", name) for name in dict.fromkeys(job.inputs))
    writes = tuple(Operation("write", name) for name in dict.fromkeys(job.outputs))
    return Task(job.name, reads + writes)
