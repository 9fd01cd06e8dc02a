"""Synthetic workloads of one access pattern each: pipeline, reduce, broadcast, scatter, gather, checkpoint.

The patterns are those of Costa 2014, Table 2.2 (which has no measurements of scatter and gather). With
`optimised` the files have the hints of a workflow-optimised store (WOSS, Costa 2014), without it the store's
default layout (DSS). Sizes: medium is ten times small, large ten times medium, as published in
docs/workload-file.md (MiB in place of MB).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.errors import BadInput
from penstock.parts.prediction.workloads.task import (
    File,
    Hints,
    Operation,
    Task,
    Time,
    compute,
    full_reads,
    full_writes,
)
from penstock.parts.prediction.workloads.workflow import Workload

MIB = 1 << 20

#: bytes of the pattern's file, by size
SIZES = {
    "pipeline": {"small": 10 * MIB, "medium": 100 * MIB, "large": 1000 * MIB},
    "reduce": {"small": 1 * MIB, "medium": 10 * MIB, "large": 100 * MIB},
    "broadcast": {"small": 10 * MIB, "medium": 100 * MIB, "large": 1000 * MIB},
    "scatter": {"small": 1 * MIB, "medium": 10 * MIB, "large": 100 * MIB},
    "gather": {"small": 1 * MIB, "medium": 10 * MIB, "large": 100 * MIB},
    "checkpoint": {"small": 1 * MIB, "medium": 10 * MIB, "large": 100 * MIB},
}

#: default chunk of a store, in which the hint `scatter` counts
CHUNK_BYTES = MIB


@dataclass(frozen=True)
class Shape:
    """Parameters common to all patterns.

    `width`: parallel tasks; `file_bytes`: size of the pattern's file; `compute_s`: computing of every task at
    speed 1, between its reads and its writes; `launch`: time to launch a task, None for the platform's;
    `staged`: tasks that write the inputs and read the results, instead of existing inputs; `chunk_bytes`:
    chunk of the store, in which the hint `scatter` counts.
    """

    width: int = 19
    file_bytes: int = 10 * MIB
    optimised: bool = False
    compute_s: float = 0.0
    launch: Time | None = None
    staged: bool = False
    chunk_bytes: int = CHUNK_BYTES

    def __post_init__(self) -> None:
        if self.width < 1:
            raise BadInput(f"a width of {self.width}; at least 1 is expected")
        if not 0 <= self.file_bytes <= 2**62:
            raise BadInput(f"files of {self.file_bytes} bytes; 0 to 2^62 are expected")
        if not 0 <= self.compute_s < float("inf"):
            raise BadInput(f"computing of {self.compute_s} s; a finite time is expected")
        if self.chunk_bytes < 1:
            raise BadInput(f"chunks of {self.chunk_bytes} bytes; at least 1 is expected")

    def chunks(self, size: int) -> int:
        """Chunks of the store that contain `size` bytes."""
        return max(1, -(-size // self.chunk_bytes))

    def hints(self, hints: Hints) -> Hints | None:
        """The hints, if the workload uses any."""
        return hints if self.optimised else None


_LOCAL = Hints(placement="local")


class _Builder:
    """Files and tasks of a workload under construction."""

    def __init__(self, name: str, shape: Shape) -> None:
        self.name, self.shape = name, shape
        self.files: list[File] = []
        self.tasks: list[Task] = []

    def input_file(self, name: str, size: int, hints: Hints) -> tuple[str, int]:
        """An input file: pre-existing, or written by a task of its own."""
        if self.shape.staged:
            self.output_file(name, _LOCAL if hints.placement == "collocate" else hints)
            write = full_writes([(name, size)])
            self.tasks.append(Task(f"stage-in-{name}", write, "stage-in", launch=self.shape.launch))
        else:
            self.files.append(File(name, size, True, self.shape.hints(hints)))
        return name, size

    def output_file(self, name: str, hints: Hints | None) -> None:
        """A file that a task writes."""
        self.files.append(File(name, hints=self.shape.hints(hints) if hints else None))

    def task(
        self,
        stage: str,
        name: str,
        reads: Sequence[tuple[str, int]] = (),
        writes: Sequence[tuple[str, int]] = (),
    ) -> None:
        """A task that reads complete files, computes and writes complete files."""
        work = compute(self.shape.compute_s)
        self.own(stage, name, (*full_reads(reads), *work, *full_writes(writes)))

    def own(self, stage: str, name: str, operations: Sequence[Operation]) -> None:
        """A task of any operations."""
        self.tasks.append(Task(name, tuple(operations), stage, launch=self.shape.launch))

    def workload(self, results: Sequence[tuple[str, int]] = ()) -> Workload:
        """The workload, with a last stage that reads the results if it is staged."""
        if self.shape.staged and results:
            self.own("stage-out", "stage-out", full_reads(results))
        return Workload(self.name, tuple(self.files), tuple(self.tasks))


def pipeline(shape: Shape, stages: int = 3) -> Workload:
    """`width` chains of `stages` tasks; each reads the output of the preceding one and writes as much."""
    if stages < 1:
        raise BadInput(f"{stages} stages; at least 1 is expected")
    builder = _Builder("pipeline", shape)
    ends = []
    for i in range(shape.width):
        # pre-existing inputs are on one node each, which then runs the first task of the chain
        before = builder.input_file(
            f"in-{i}", shape.file_bytes, Hints(placement="collocate", group=f"p{i}")
        )
        for k in range(stages):
            after = (f"out-{i}-{k + 1}", shape.file_bytes)
            builder.output_file(after[0], _LOCAL)
            builder.task(f"stage-{k + 1}", f"p{i}-{k + 1}", [before], [after])
            before = after
        ends.append(before)
    return builder.workload(ends)


def reduce(shape: Shape) -> Workload:
    """`width` tasks write a file each, one task reads them all and writes as much."""
    builder = _Builder("reduce", shape)
    parts = []
    for i in range(shape.width):
        before = builder.input_file(
            f"in-{i}", shape.file_bytes, Hints(placement="collocate", group=f"p{i}")
        )
        part = (f"part-{i}", shape.file_bytes)
        builder.output_file(part[0], Hints(placement="collocate", group="reduce"))
        builder.task("produce", f"produce-{i}", [before], [part])
        parts.append(part)
    result = ("result", shape.file_bytes * shape.width)
    builder.output_file(result[0], _LOCAL)
    builder.task("reduce", "reduce", parts, [result])
    return builder.workload([result])


def broadcast(shape: Shape, replicas: int = 2) -> Workload:
    """One task writes a file, `width` tasks read it completely and write a tenth of it each.

    Optimised: `replicas` copies of that file, local results.
    """
    builder = _Builder("broadcast", shape)
    shared = ("shared", shape.file_bytes)
    builder.output_file(shared[0], Hints(replicas=replicas))
    builder.task("produce", "produce", [], [shared])
    results = []
    for i in range(shape.width):
        result = (f"out-{i}", shape.file_bytes // 10)
        builder.output_file(result[0], _LOCAL)
        builder.task("consume", f"consume-{i}", [shared], [result])
        results.append(result)
    return builder.workload(results)


def scatter(shape: Shape) -> Workload:
    """One task writes a file of `width` parts, `width` tasks read one part each and write as much.

    Optimised: every part's chunks are on one node (`scatter`, in chunks of the store; Costa 2014).
    """
    builder = _Builder("scatter", shape)
    source = ("whole", shape.file_bytes * shape.width)
    builder.output_file(
        source[0], Hints(placement="scatter", scatter=shape.chunks(shape.file_bytes))
    )
    builder.task("split", "split", [], [source])
    results = []
    for i in range(shape.width):
        result = (f"out-{i}", shape.file_bytes)
        builder.output_file(result[0], _LOCAL)
        part = Operation("read", source[0], i * shape.file_bytes, shape.file_bytes)
        work = (Operation("open", source[0]), part, *compute(shape.compute_s))
        builder.own("consume", f"consume-{i}", (*work, *full_writes([result])))
        results.append(result)
    return builder.workload(results)


def gather(shape: Shape) -> Workload:
    """`width` tasks write one part each of one file, one task reads all of it and writes as much.

    Optimised: the file is on one node, which runs the last task.
    """
    builder = _Builder("gather", shape)
    total = shape.file_bytes * shape.width
    builder.output_file("whole", Hints(placement="collocate", group="gather"))
    for i in range(shape.width):
        before = builder.input_file(
            f"in-{i}", shape.file_bytes, Hints(placement="collocate", group=f"p{i}")
        )
        part = Operation("write", "whole", i * shape.file_bytes, shape.file_bytes)
        work = compute(shape.compute_s)
        builder.own("produce", f"produce-{i}", (*full_reads([before]), *work, part))
    builder.output_file("result", _LOCAL)
    builder.task("collect", "collect", [("whole", total)], [("result", total)])
    return builder.workload([("result", total)])


def checkpoint(
    shape: Shape, rounds: int = 3, every_s: float = 10.0, shared: bool = False
) -> Workload:
    """`width` processes compute for `every_s` seconds and write a checkpoint, `rounds` times [Costa 2014].

    One file per writer and round (N-N), or with `shared` one file per round with a part from each writer
    (N-1). They do not synchronise.
    """
    if rounds < 1:
        raise BadInput(f"{rounds} rounds; at least 1 is expected")
    if not 0 <= every_s < float("inf"):
        raise BadInput(f"a checkpoint every {every_s} s; a finite time is expected")
    builder = _Builder("checkpoint", shape)
    size = shape.file_bytes
    for i in range(shape.width):
        steps: list[Operation] = []
        for k in range(1, rounds + 1):
            steps += compute(every_s)
            name = f"checkpoint-{k}" if shared else f"checkpoint-{k}-{i}"
            steps.append(Operation("write", name, i * size if shared else 0, size))
            if not shared:
                builder.output_file(name, _LOCAL)
        builder.own("writer", f"writer-{i}", steps)
    if shared:
        for k in range(1, rounds + 1):
            builder.output_file(
                f"checkpoint-{k}", Hints(placement="scatter", scatter=shape.chunks(size))
            )
    return builder.workload()


#: the patterns by name
PATTERNS: dict[str, Callable[..., Workload]] = {
    "pipeline": pipeline,
    "reduce": reduce,
    "broadcast": broadcast,
    "scatter": scatter,
    "gather": gather,
    "checkpoint": checkpoint,
}
