"""Placement hints from a workflow's graph, and a file's hints as tags of a store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from penstock.parts.prediction.workloads.engine_hints import placement_tag, without_tags
from penstock.parts.prediction.workloads.task import File, Hints, Operation
from penstock.parts.prediction.workloads.workflow import Workload

#: kinds of the tag DP
_KINDS = ("local", "collocation", "scatter", "host")


def tags_of(hints: Hints | None) -> dict[str, str]:
    """Tags (`penstock store tag`) equivalent to a file's hints."""
    if hints is None:
        return {}
    tags = {}
    placed = placement_tag(hints)
    if placed is not None and placed[0] in _KINDS:
        tags["DP"] = f"{placed[0]} {placed[1]}".strip()
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
        return without_tags(hints, {key for file, key in refused if file == name})

    files = tuple(replace(f, hints=remaining(f.name, f.hints)) for f in workload.files)
    tasks = tuple(
        replace(
            task,
            operations=tuple(replace(o, hints=remaining(o.file, o.hints)) for o in task.operations),
        )
        for task in workload.tasks
    )
    return replace(workload, files=files, tasks=tasks, origin=None)


def derived(workload: Workload, nodes: int, chunk_bytes: int | None = None) -> Workload:
    """The workload with hints from its graph for files without one (`hints_of_graph`)."""
    return with_hints(workload, hints_of_graph(workload, nodes, chunk_bytes))


def with_hints(workload: Workload, hints: Mapping[str, Hints]) -> Workload:
    """The workload with hints for files without one."""
    declared = {f.name for f in workload.files}
    files = tuple(
        replace(f, hints=hints.get(f.name)) if f.hints is None else f for f in workload.files
    )
    files += tuple(File(n, hints=h) for n, h in hints.items() if n not in declared)
    return replace(workload, files=files, origin=None)


def hints_of_graph(
    workload: Workload, nodes: int, chunk_bytes: int | None = None
) -> dict[str, Hints]:
    """Hints by file, from the graph [Costa 2014, the runtime's rules].

    A file with one reader is placed with its writer; the inputs of a task that reads many are collocated; a
    file of which every reader reads another part of equal size is scattered, if that is a number of chunks
    (`chunk_bytes`); another file with several readers gets a copy for each further one, at most four and at
    most `nodes`.
    """
    readers: dict[str, dict[int, list[Operation]]] = defaultdict(lambda: defaultdict(list))
    written: set[str] = set()
    for number, task in enumerate(workload.tasks):
        for operation in task.operations:
            if operation.op == "read" and operation.file is not None:
                readers[operation.file][number].append(operation)
            elif operation.op == "write" and operation.file is not None:
                written.add(operation.file)
    inputs: dict[int, list[str]] = defaultdict(list)
    for name, by_reader in readers.items():
        if len(by_reader) == 1 and name in written:
            inputs[next(iter(by_reader))].append(name)
    hints: dict[str, Hints] = {}
    for number, names in inputs.items():
        for name in names:
            hints[name] = (
                Hints(placement="collocate", group=workload.tasks[number].name)
                if len(names) > 1
                else Hints(placement="local")
            )
    for name, by_reader in readers.items():
        chunks = _chunks_of_parts(by_reader, chunk_bytes) if len(by_reader) > 1 else 0
        copies = min(4, nodes, max(1, (len(by_reader) + 1) // 2))
        if chunks:
            hints[name] = Hints(placement="scatter", scatter=chunks)
        elif len(by_reader) > 1 and copies > 1:
            hints[name] = Hints(replicas=copies)
    return hints


def _chunks_of_parts(by_reader: Mapping[int, Sequence[Operation]], chunk_bytes: int | None) -> int:
    """Chunks of the part that each reader of a file reads; 0 unless parts are disjoint and of equal size."""
    if chunk_bytes is None:
        return 0
    parts = sorted(
        (min(o.offset_bytes for o in rows), max(o.offset_bytes + o.size_bytes for o in rows))
        for rows in by_reader.values()
    )
    size = parts[0][1] - parts[0][0]
    regular = all(
        begin == number * size and (end - begin == size or number == len(parts) - 1)
        for number, (begin, end) in enumerate(parts)
    )
    return size // chunk_bytes if regular and size and size % chunk_bytes == 0 else 0
