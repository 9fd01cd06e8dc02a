"""Placement hints from a workflow's graph, and a file's hints as tags of a store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace

from penstock.parts.prediction.workloads.task import File, Hints
from penstock.parts.prediction.workloads.workflow import Workload

#: equivalent hints of each tag
_HINTS_OF_TAGS = {
    "DP": ("placement", "group", "scatter", "host"),
    "Replication": ("replicas",),
    "StripeWidth": ("stripe_width",),
    "ChunkSize": ("chunk_bytes",),
}


def tags_of(hints: Hints | None) -> dict[str, str]:
    """Tags (`penstock store tag`) equivalent to a file's hints."""
    if hints is None:
        return {}
    tags = {}
    if hints.placement == "local":
        tags["DP"] = "local"
    elif hints.placement == "collocate":
        tags["DP"] = f"collocation {hints.group}"
    elif hints.placement == "scatter":
        tags["DP"] = f"scatter {hints.scatter}"
    elif hints.host is not None:  # as in predictions, also without `placement: host`
        tags["DP"] = f"host {hints.host}"
    if hints.replicas is not None:
        tags["Replication"] = str(hints.replicas)
    if hints.stripe_width is not None:
        tags["StripeWidth"] = str(hints.stripe_width)
    if hints.chunk_bytes is not None:
        tags["ChunkSize"] = str(hints.chunk_bytes)
    return tags


def without(workload: Workload, refused: Collection[tuple[str, str]]) -> Workload:
    """The workload without the hints that a store refused: pairs of a file and the key of its tag."""
    if not refused:
        return workload

    def remaining(name: str | None, hints: Hints | None) -> Hints | None:
        if hints is None:
            return None
        keys = (key for file, key in refused if file == name)
        gone = {hint: None for key in keys for hint in _HINTS_OF_TAGS.get(key, ())}
        return replace(hints, **gone)

    files = tuple(replace(f, hints=remaining(f.name, f.hints)) for f in workload.files)
    tasks = tuple(
        replace(
            task,
            operations=tuple(replace(o, hints=remaining(o.file, o.hints)) for o in task.operations),
        )
        for task in workload.tasks
    )
    return replace(workload, files=files, tasks=tasks, origin=None)


def derived(workload: Workload, nodes: int) -> Workload:
    """The workload with hints from its graph for files without one [Costa 2014, the runtime's rules].

    A file with one reader is placed with its writer; the inputs of a task that reads many are collocated; a
    file with several readers gets a copy for each further one, at most four and at most `nodes`.
    """
    readers: dict[str, set[int]] = defaultdict(set)
    written: set[str] = set()
    for number, task in enumerate(workload.tasks):
        for operation in task.operations:
            if operation.op == "read" and operation.file is not None:
                readers[operation.file].add(number)
            elif operation.op == "write" and operation.file is not None:
                written.add(operation.file)
    inputs: dict[int, list[str]] = defaultdict(list)
    for name, by_readers in readers.items():
        if len(by_readers) == 1 and name in written:
            inputs[next(iter(by_readers))].append(name)
    derived_hints: dict[str, Hints] = {}
    for number, names in inputs.items():
        for name in names:
            derived_hints[name] = (
                Hints(placement="collocate", group=workload.tasks[number].name)
                if len(names) > 1
                else Hints(placement="local")
            )
    for name, by_readers in readers.items():
        copies = min(4, nodes, max(1, (len(by_readers) + 1) // 2))
        if len(by_readers) > 1 and copies > 1:
            derived_hints[name] = Hints(replicas=copies)
    declared = {f.name for f in workload.files}
    files = tuple(
        replace(f, hints=derived_hints.get(f.name)) if f.hints is None else f
        for f in workload.files
    )
    files += tuple(File(n, hints=h) for n, h in derived_hints.items() if n not in declared)
    return replace(workload, files=files, origin=None)
