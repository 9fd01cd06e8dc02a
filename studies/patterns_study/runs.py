"""Runs of the treatments on started stores, and simulations of them and of larger clusters."""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from penstock.errors import PenstockError
from penstock.host.cgroups.busy import busy_share, busy_ticks, current_share
from penstock.parts.prediction.queue_network.simulate import Simulator, makespan
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.parts.stores.calibration.seed import identified, measure_store
from penstock.parts.stores.calibration.trials import BUSIEST
from penstock.parts.stores.store import Store
from penstock.parts.stores.workflow.compare import AWARE, DEFAULT
from penstock.parts.stores.workflow.energy import energy_of, metered
from penstock.parts.stores.workflow.execute import Executed, execute
from penstock.parts.stores.workflow.run import refused_tags, store_of
from penstock.platform.cluster import cluster_spec
from penstock.platform.hosts import Platform, load_platform, read_platform
from studies.patterns_study.treatments import (
    FILE_KIB,
    AnyGround,
    AnyTreatment,
    Cluster,
    Ground,
    Size,
    Treatment,
)
from studies.stores import DEFAULT as MODEL
from studies.stores import models

HERE = Path(__file__).parent
#: minimum number of runs of a measured treatment: an interval needs two
LEAST = 2
#: attempts of a treatment in a block: the first, and one after an invalid run
TRIES = 2
#: time before a run in which the processors that others use are read [s]
BEFORE_S = 1.0
#: planted: access to the node's own files, slower than its link
SLOW_LOOPBACK = "0.3 MB/s"
PLANTED_NODES = 4


@dataclass(frozen=True)
class Run:
    """A measured run. `reason` of an invalid run, or empty.

    `response_s`: mean time of a read or write; `moved_bytes`: of all of them; `remote_bytes`: those of them
    that crossed a link, by the places of the files; `stored_bytes`: of all copies at the end; `busy`: share
    of the host's processors; `others_cpus`: processors in use before the run, without work of the study.
    """

    treatment: AnyTreatment
    block: int
    makespan_s: float
    stages_s: dict[str, float]
    response_s: float
    moved_bytes: int
    remote_bytes: int
    stored_bytes: int
    energy_j: float
    busy: float
    others_cpus: float
    reason: str = ""


@dataclass(frozen=True)
class Simulated:
    """Makespans of a treatment with the seeds 1, 2, … [s]."""

    treatment: AnyTreatment
    makespans_s: tuple[float, ...]


@dataclass
class Part:
    """Results on a ground. `platform`: the cluster's file with measured service times.

    `planted`: a pipeline on both stores, simulated with slow access to the node's own files.
    """

    ground: str
    size: Size
    platform: str = ""
    runs: list[Run] = field(default_factory=list)
    simulated: list[Simulated] = field(default_factory=list)
    planted: list[Simulated] = field(default_factory=list)

    def valid(self, treatment: AnyTreatment) -> list[Run]:
        """Valid runs of a treatment."""
        return [run for run in self.runs if run.treatment == treatment and not run.reason]

    def makespans(self, treatment: AnyTreatment) -> list[float]:
        """Makespans of the valid runs [s]."""
        return [run.makespan_s for run in self.valid(treatment)]

    def simulations(self, treatment: AnyTreatment) -> tuple[float, ...]:
        """Simulated makespans of a treatment [s]."""
        return next((s.makespans_s for s in self.simulated if s.treatment == treatment), ())


def measured_counts(part: Part, treatments: Iterable[AnyTreatment]) -> dict[str, int]:
    """Number of valid runs of each treatment."""
    return {str(treatment): len(part.valid(treatment)) for treatment in treatments}


def simulated_counts(part: Part, treatments: Iterable[AnyTreatment]) -> dict[str, int]:
    """Number of simulations of each treatment."""
    return {f"{treatment}, simulated": len(part.simulations(treatment)) for treatment in treatments}


def measure(ground: AnyGround, part: Part, save: Callable[[Part], None] = lambda _: None) -> Part:
    """Measure and simulate the missing treatments of `part`; `save` is called after each run.

    Raises PenstockError if the store or a run fails; `part` has the runs until then.
    """
    clusters = ground.clusters
    if not part.platform:
        _note(f"{part.ground}: service times")
        part.platform = seeded(ground, part.size.budget_s)
        save(part)
    for cluster in clusters:
        _measure_on(ground, cluster, part, save)
    platform = read_platform(part.platform.encode(), HERE / ground.file)
    everything = [planned for cluster in clusters for planned in cluster.treatments]
    for treatment in (*everything, *ground.simulated_only(part.size)):
        if not part.simulations(treatment):
            part.simulated.append(simulate(treatment, platform, part.size.seeds))
    if isinstance(ground, Ground) and not part.planted:
        slow = platform.with_values({"network.loopback": SLOW_LOOPBACK})
        kib = FILE_KIB["pipeline"][-1]
        part.planted = [
            simulate(
                Treatment(ground.engine, PLANTED_NODES, "pipeline", kib, store),
                slow,
                part.size.seeds,
            )
            for store in (DEFAULT, AWARE)
        ]
    save(part)
    return part


def platform_of(ground: AnyGround, cluster: Cluster) -> Platform:
    """The platform of a cluster."""
    return load_platform(HERE / ground.file, cluster.changes, predicted=False)


def seeded(ground: AnyGround, budget_s: float) -> str:
    """Platform file with service times that are measured on three nodes."""
    nodes = platform_of(ground, ground.clusters[0])
    seen = measure_store(nodes, budget_s=budget_s, note=_note)
    values: dict[str, Any] = {**models(ground.engine)[MODEL]}
    if ground.chunk:
        values["store.chunk"] = ground.chunk
    return Platform.from_dict(identified(nodes.with_values(values), seen).document).to_yaml()


def simulate(treatment: AnyTreatment, platform: Platform, seeds: int) -> Simulated:
    """Simulate a treatment. PenstockError if a run cannot end."""
    network = platform.with_values(treatment.values()).lower()
    outcomes = Simulator(treatment.workload()).runs(network, range(1, seeds + 1))
    for outcome in outcomes:
        if outcome.get("error"):
            raise PenstockError(f"{treatment}: the simulated run cannot end: {outcome['error']}")
    return Simulated(treatment, tuple(makespan(outcome) for outcome in outcomes))


def _measure_on(
    ground: AnyGround, cluster: Cluster, part: Part, save: Callable[[Part], None]
) -> None:
    """Blocks of all treatments in random order, on one store that stays up."""
    blocks = [
        (block, [t for t in cluster.treatments if _is_missing(part.runs, t, block)])
        for block in range(part.size.repeat)
    ]
    if not any(missing for _, missing in blocks):
        return
    platform = platform_of(ground, cluster)
    with store_of(platform, ground.engine) as store:
        if ground.warm:
            for treatment in cluster.treatments:
                _run(treatment, -1, store, platform)
        for block, missing in blocks:
            Random(f"{cluster.changes} {block}").shuffle(missing)
            for treatment in missing:
                while _is_missing(part.runs, treatment, block):
                    run = _run(treatment, block, store, platform)
                    part.runs.append(run)
                    save(part)
                    _note(f"{treatment}: {run.makespan_s:.2f} s {run.reason}".rstrip())


def _is_missing(runs: Sequence[Run], treatment: AnyTreatment, block: int) -> bool:
    """True if a treatment needs another run in a block."""
    tries = [run for run in runs if run.treatment == treatment and run.block == block]
    return len(tries) < TRIES and all(run.reason for run in tries)


def _run(treatment: AnyTreatment, block: int, store: Store, platform: Platform) -> Run:
    """One run, with its metrics."""
    workload = treatment.workload()
    clients = [host for host in platform.hosts if "client" in host.roles]
    slots = {host.name: host.slots for host in clients}
    others_cpus = current_share(BEFORE_S) * (os.cpu_count() or 1)
    before = busy_ticks()
    with metered(store.cluster) as readings:
        done = execute(
            workload,
            store,
            slots=slots,
            groups={host.name: host.group for host in clients},
            by_data=treatment.aware,
        )
    busy = busy_share(before, busy_ticks())
    energy = energy_of(done, readings, platform, cluster_spec(platform), slots)
    rows = [row for row in done.operations.to_pylist() if row["op"] in ("read", "write")]
    return Run(
        treatment,
        block,
        done.makespan_s,
        {name: last - first for name, (first, last) in done.spans().items()},
        statistics.fmean(row["end_s"] - row["start_s"] for row in rows),
        sum(row["size_bytes"] for row in rows),
        remote_bytes(workload, done),
        sum(len(e.nodes) * e.length_bytes for places in done.extents.values() for e in places),
        0.0 if energy is None else energy.total_j,
        busy,
        others_cpus,
        _reason(done, busy),
    )


def _reason(done: Executed, busy: float) -> str:
    """Reason why a run is not valid: a refused hint, a dead server, or too little processor time."""
    if refused := refused_tags([done]):
        return f"hint refused: {next(iter(refused.values()))}"
    if done.died:
        return f"died: {', '.join(done.died)}"
    if busy > BUSIEST:
        return f"the host's processors were {busy:.0%} busy"
    return ""


def remote_bytes(workload: Workload, done: Executed) -> int:
    """Bytes of reads and writes that crossed a link, by the places of the files at the end of the run.

    A write sends a copy to every node with one, except that of the task.
    """
    hosts = {task["task"]: task["host"] for task in done.tasks.to_pylist()}
    total = 0
    for task in workload.tasks:
        host = hosts[task.name]
        for operation in task.operations:
            if operation.op not in ("read", "write") or operation.file is None:
                continue
            end = operation.offset_bytes + operation.size_bytes
            for extent in done.extents.get(operation.file, ()):
                last = min(end, extent.offset_bytes + extent.length_bytes)
                size = max(0, last - max(operation.offset_bytes, extent.offset_bytes))
                if operation.op == "read":
                    total += size * (host not in extent.nodes)
                else:
                    total += size * sum(node != host for node in extent.nodes)
    return total


def _note(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)
