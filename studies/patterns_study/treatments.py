"""Treatments of the study of workflow patterns, and the clusters that they run on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from penstock.parts.prediction.workloads.make import make_workload
from penstock.parts.prediction.workloads.task import File, Hints, Operation, Task, compute
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.parts.stores.workflow.compare import AWARE, DEFAULT

KIB = 1024
#: sizes of the pattern's file [KiB]: a quarter of the published ones, like the rate of the links; reduce has
#: two published sizes
FILE_KIB = {
    "pipeline": (2560,),
    "reduce": (256, 2560),
    "broadcast": (2560,),
    "scatter": (1024,),
    "gather": (1024,),
}
#: copies of a broadcast file
COPIES = (1, 2, 4)
#: chunk of CephFS, a quarter of the seeded one [KiB]
CEPH_CHUNK_KIB = 64
#: the node with a link of twice the rate
FAST = "node-0"
#: BLAST: chunks of its database [KiB], bytes of the database, seconds that all queries compute. Reading takes
#: a node about 1.7 s, or with `s` storage nodes 1.7 a/s; computing takes 30 s / a
CHUNKS_KIB = (64, 256, 1024)
DATABASE_BYTES, COMPUTE_S = 5 << 20, 30.0
QUERY_BYTES, ANSWER_BYTES = 20_000, 100_000


@dataclass(frozen=True)
class Treatment:
    """A pattern with a file size on a store of an engine.

    `copies`: of a broadcast file, 0 by default. `fast`: the last task of `reduce` runs on a node with a link
    of twice the rate, which the workflow-aware store collects its inputs on.
    """

    engine: str
    nodes: int
    pattern: str
    file_kib: int
    store: str
    copies: int = 0
    fast: bool = False

    def __str__(self) -> str:
        return f"{self.engine}, {self.nodes} nodes: {self.case}"

    @property
    def name(self) -> str:
        """Pattern and size."""
        fast = " on a faster node" if self.fast else ""
        return f"{self.pattern}{fast} of {self.file_kib} KiB"

    @property
    def case(self) -> str:
        """Pattern, size and store."""
        copies = (
            f", {self.copies} {'copy' if self.copies == 1 else 'copies'}" if self.copies else ""
        )
        return f"{self.name}, {self.store} store{copies}"

    @property
    def aware(self) -> bool:
        """True if files have hints and tasks go to the node with their data."""
        return self.store == AWARE

    def values(self) -> dict[str, Any]:
        """Values of the platform for a simulation."""
        kind = "data_location" if self.aware else "workqueue"
        return {"hosts.node.count": self.nodes, "scheduler.kind": kind}

    def workload(self) -> Workload:
        """The workload; its width is the number of nodes."""
        options = {
            "width": self.nodes,
            "file_bytes": self.file_kib * KIB,
            "optimised": self.aware,
            "replicas": self.copies or None,
        }
        generated = make_workload(self.pattern, "small", options)
        files, tasks = generated.files, generated.tasks
        if self.pattern == "scatter":
            # the generator assumes chunks of 1 MiB
            chunks = self.file_kib // CEPH_CHUNK_KIB
            files = _hinted(files, lambda h: h if h.scatter is None else replace(h, scatter=chunks))
        if self.fast:
            files = _hinted(files, lambda h: Hints(host=FAST) if h.group == "reduce" else h)
            tasks = tuple(replace(t, machine=FAST) if t.name == "reduce" else t for t in tasks)
        return replace(generated, files=files, tasks=tasks, origin=None)


def _hinted(files: tuple[File, ...], change: Callable[[Hints], Hints]) -> tuple[File, ...]:
    """Files with other hints; those without any have none."""
    return tuple(f if f.hints is None else replace(f, hints=change(f.hints)) for f in files)


@dataclass(frozen=True)
class Split:
    """BLAST on `nodes` nodes, of which `app` search and the others store the database."""

    nodes: int
    app: int
    chunk_kib: int

    #: no hints on placement, and tasks go to the next idle node
    aware = False

    def __str__(self) -> str:
        return f"BLAST on {self.nodes} nodes: {self.case}"

    @property
    def storage(self) -> int:
        """Storage nodes."""
        return self.nodes - self.app

    @property
    def case(self) -> str:
        """Split and chunk size."""
        return f"{self.app} + {self.storage}, chunks of {self.chunk_kib} KiB"

    def values(self) -> dict[str, Any]:
        """Values of the platform for a simulation."""
        return {
            "hosts.app.count": self.app,
            "hosts.store.count": self.storage,
            "scheduler.kind": "workqueue",
        }

    def workload(self) -> Workload:
        """Each node reads its part of the queries and the database, computes, and writes its answers."""
        files = [File("database", DATABASE_BYTES, True, Hints(chunk_bytes=self.chunk_kib * KIB))]
        tasks = []
        for i in range(self.app):
            query, answer = f"queries-{i}", f"answers-{i}"
            files += [File(query, QUERY_BYTES // self.app, True), File(answer)]
            steps = (
                Operation("read", query, 0, QUERY_BYTES // self.app),
                Operation("read", "database", 0, DATABASE_BYTES),
                *compute(COMPUTE_S / self.app),
                Operation("write", answer, 0, ANSWER_BYTES // self.app),
            )
            tasks.append(Task(f"search-{i}", steps, "search"))
        answers = [
            Operation("read", f"answers-{i}", 0, ANSWER_BYTES // self.app) for i in range(self.app)
        ]
        result = Operation("write", "result", 0, ANSWER_BYTES)
        tasks.append(Task("join", (*answers, result), "join"))
        return Workload("blast", (*files, File("result")), tuple(tasks))


AnyTreatment = Treatment | Split


@dataclass(frozen=True)
class Size:
    """Size of the study. `budget_s`: time to measure service times; `scaled`: nodes of simulations only."""

    name: str
    repeat: int
    seeds: int
    budget_s: float
    scaled: tuple[int, ...]


FULL = Size("full", 15, 39, 90.0, (25, 50, 100))
QUICK = Size("quick", 3, 39, 20.0, (25,))


@dataclass(frozen=True)
class Cluster:
    """Changes of the platform file, and the treatments on a store of it."""

    changes: tuple[str, ...]
    treatments: tuple[AnyTreatment, ...]


@dataclass(frozen=True)
class Pair:
    """The same pattern, size and nodes on both stores."""

    default: Treatment
    aware: Treatment


@dataclass(frozen=True)
class Ground:
    """An engine, the sizes of its clusters, and the patterns on them: pattern and file size in KiB.

    `changes`: of the cluster's file. `chunk`: that of the model, empty for the engine's usual one. `warm`:
    the first use of a hint creates something, so that a first run of each treatment is not counted. `fast`:
    as in a treatment.
    """

    engine: str
    nodes: tuple[int, ...]
    patterns: tuple[tuple[str, int], ...]
    changes: tuple[str, ...] = ()
    chunk: str = ""
    warm: bool = False
    fast: bool = False
    file: str = "cluster.platform.yaml"

    @property
    def clusters(self) -> list[Cluster]:
        """A cluster for each number of nodes."""
        return [
            Cluster(
                (f"store.engine={self.engine}", *self.changes, f"hosts.node.count={nodes}"),
                tuple(self.treatments(nodes)),
            )
            for nodes in self.nodes
        ]

    def simulated_only(self, size: Size) -> list[AnyTreatment]:
        """Treatments on larger clusters."""
        return [treatment for nodes in size.scaled for treatment in self.treatments(nodes)]

    def pairs(self, nodes: Iterable[int]) -> list[Pair]:
        """Patterns to be compared on both stores; broadcast is compared by copies."""
        return [
            Pair(
                Treatment(self.engine, count, pattern, kib, DEFAULT, fast=self.fast),
                Treatment(self.engine, count, pattern, kib, AWARE, fast=self.fast),
            )
            for count, (pattern, kib) in product(nodes, self.patterns)
            if pattern != "broadcast"
        ]

    def broadcasts(self, nodes: int) -> list[Treatment]:
        """Treatments of one broadcast: one, two and four copies, all on the workflow-aware store."""
        return [
            Treatment(self.engine, nodes, pattern, kib, AWARE, copies)
            for pattern, kib in self.patterns
            if pattern == "broadcast"
            for copies in COPIES
        ]

    def treatments(self, nodes: int) -> list[Treatment]:
        """All treatments on `nodes` nodes."""
        on_both_stores = [
            treatment for pair in self.pairs([nodes]) for treatment in (pair.default, pair.aware)
        ]
        plain = [
            replace(treatment, store=DEFAULT, copies=0) for treatment in self.broadcasts(nodes)[:1]
        ]
        return [*on_both_stores, *plain, *self.broadcasts(nodes)]


def _all(*patterns: str) -> tuple[tuple[str, int], ...]:
    return tuple((pattern, kib) for pattern in patterns for kib in FILE_KIB[pattern])


@dataclass(frozen=True)
class SplitGround:
    """BLAST on CephFS: totals of application and storage nodes, and the splits of the largest one."""

    nodes: tuple[int, ...]
    chunks_kib: tuple[int, ...]
    apps: tuple[int, ...] = ()
    engine: str = "cephfs"
    changes: tuple[str, ...] = ("preprocess.cache=0B",)
    chunk: str = "256KiB"
    warm: bool = True
    file: str = "blast.platform.yaml"

    def splits(self, nodes: int, chunk_kib: int) -> list[Split]:
        """All splits of `nodes` nodes, by application nodes."""
        return [Split(nodes, app, chunk_kib) for app in self.apps or range(1, nodes)]

    @property
    def clusters(self) -> list[Cluster]:
        """A cluster for each split; chunk sizes are hints of its files."""
        return [
            Cluster(
                (*self.changes, f"hosts.app.count={app}", f"hosts.store.count={nodes - app}"),
                tuple(Split(nodes, app, kib) for kib in self.chunks_kib),
            )
            for nodes in self.nodes
            for app in self.apps or range(1, nodes)
        ]

    def simulated_only(self, size: Size) -> list[AnyTreatment]:
        """None: a run shows whether the simulation is right."""
        return []


AnyGround = Ground | SplitGround

#: MooseFS keeps a file of this size on one node per copy, and refuses `scatter`; CephFS spreads its chunks.
#: Its servers take too much of two processors for more than eight nodes
GROUNDS: dict[str, AnyGround] = {
    "moosefs": Ground("moosefs", (4, 8, 16), _all("pipeline", "reduce", "gather", "broadcast")),
    "cephfs": Ground(
        "cephfs",
        (4, 8),
        _all("pipeline", "reduce", "gather", "broadcast", "scatter"),
        (f"store.chunk={CEPH_CHUNK_KIB}KiB", "preprocess.cache=0B"),
        f"{CEPH_CHUNK_KIB}KiB",
        True,
    ),
    "reducer": Ground(
        "moosefs",
        (4, 8, 16),
        (("reduce", 2560),),
        ("hosts.node.except={0: {network: {bandwidth: 50 Mbit/s}}}",),
        fast=True,
    ),
    "blast": SplitGround((5, 9), CHUNKS_KIB),
}


def ground_of(name: str, size: Size) -> AnyGround:
    """A ground; in the quick size on few nodes, and CephFS only with the patterns that MooseFS lacks."""
    ground = GROUNDS[name]
    if size.name == FULL.name:
        return ground
    if isinstance(ground, SplitGround):
        return replace(ground, nodes=(9,), apps=(1, 5, 8), chunks_kib=(256,))
    small = tuple((p, kib) for p, kib in ground.patterns if (p, kib) != ("reduce", 256))
    if name == "cephfs":
        small = tuple((p, kib) for p, kib in small if p in ("broadcast", "scatter"))
    return replace(ground, nodes=(4,), patterns=small)
