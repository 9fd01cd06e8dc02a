"""Seeding, predictions and runs of the scenarios of an engine, each stored as soon as it is complete."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from penstock.errors import BadInput, PenstockError
from penstock.parts.prediction.queue_network.predict import predict
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.parts.stores.calibration.seed import identified, measure_store
from penstock.parts.stores.deployment import deployment
from penstock.parts.stores.store import Store
from penstock.parts.stores.workflow.execute import Executed, RunFailed, execute, placement
from penstock.parts.stores.workflow.run import refused_tags, store_of
from penstock.platform.hosts import Platform, load_platform
from studies.common.host_load import Limits, Load, watched
from studies.common.measurements import measurement_values, measurements_of
from studies.common.results import RowFile
from studies.prediction_study.evaluation import Case, Predicted, predicted_by
from studies.prediction_study.scenarios import SLOW, Scenario
from studies.stores import ENGINES

Row = dict[str, Any]

CLUSTER = Path(__file__).parent / "cluster.platform.yaml"
#: rates of the slow link and of the slow disk: half of the cluster's
SLOW_LINK, SLOW_DISK = "10 Mbit/s", "20MB/s"
#: number of a run that is not counted: the first of a scenario on a store, which may create pools
WARM_UP = -1
#: planted: predictions of a model whose links have this rate, and the number of scenarios that have them
PLANTED_LINKS, PLANTED_SCENARIOS = "10 Mbit/s", 4
#: time of a run over its predicted time, before the first run is measured
_PACE = 1.5


@dataclass(frozen=True)
class Size:
    """Size of the campaign. `budget_s`: of seeding; `healthy`, `clean`, `faulty`: trials of the faults."""

    name: str
    runs: int
    budget_s: float
    healthy: int
    clean: int
    faulty: int


FULL = Size("full", 8, 90.0, 10, 20, 10)
QUICK = Size("quick", 2, 15.0, 2, 1, 1)


@dataclass(frozen=True)
class Head:
    """Identity of the results in a file; `sha256`: checksum of the frozen scenarios."""

    engine: str
    size: str
    sha256: str


@dataclass(frozen=True)
class Seeds:
    """Measurements on three nodes, and on three nodes with the slow disk, as JSON values."""

    nominal: Row
    slow_disk: Row | None = None


@dataclass(frozen=True)
class Prediction:
    """A prediction, made before the scenario ran. `planted`: by the model with slow links."""

    scenario: Scenario
    predicted: Predicted
    planted: bool = False


@dataclass(frozen=True)
class Run:
    """A run. `label`: the fault that was made, empty for a scenario; `number`: WARM_UP, or from 0.

    `hosts`: host of each task; `operations`: rows of the table `workflow_operations`; `places`: locations of
    the files, as `penstock predict --placement` reads them; `reason` of an invalid run, or empty.
    """

    scenario: Scenario
    label: str
    number: int
    makespan_s: float
    load: Load | None
    hosts: dict[str, str]
    operations: list[Row]
    places: dict[str, list[Row]]
    reason: str = ""


KINDS = (Head, Seeds, Prediction, Run)


@dataclass
class Part:
    """Results of an engine or of the faults, and their file."""

    file: RowFile
    head: Head
    seeds: Seeds | None = None
    predictions: list[Prediction] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)

    @classmethod
    def opened(cls, path: Path, head: Head) -> Part:
        """The results of a file, which is created if absent. BadInput if they are of another head."""
        part = cls(RowFile(path, KINDS), head)
        rows = part.file.rows()
        if not rows:
            part.file.append(head)
        elif rows[0] != head:
            raise BadInput(f"{path}: found results of {rows[0]}; expected {head}. Use another OUT")
        for row in rows[1:]:
            part._take(row)
        return part

    def add(self, row: Seeds | Prediction | Run) -> None:
        """Store a row."""
        self.file.append(row)
        self._take(row)

    def _take(self, row: Seeds | Prediction | Run) -> None:
        if isinstance(row, Seeds):
            self.seeds = row
        elif isinstance(row, Prediction):
            self.predictions.append(row)
        else:
            self.runs.append(row)

    def counted(self, scenario: Scenario, label: str = "") -> list[Run]:
        """Runs without warm-ups."""
        return [
            run
            for run in self.runs
            if (run.scenario, run.label) == (scenario, label) and run.number != WARM_UP
        ]

    def valid(self, scenario: Scenario, label: str = "") -> list[Run]:
        """Valid runs without warm-ups."""
        return [run for run in self.counted(scenario, label) if not run.reason]

    def predicted(self, scenario: Scenario, *, planted: bool = False) -> Predicted | None:
        """The prediction of a scenario; None without any."""
        same = (p for p in self.predictions if (p.scenario, p.planted) == (scenario, planted))
        return next((p.predicted for p in same), None)

    def cases(self, scenarios: Iterable[Scenario], *, planted: bool = False) -> list[Case]:
        """Scenarios with a prediction and two valid runs at least."""
        result = []
        for scenario in scenarios:
            times = tuple(run.makespan_s for run in self.valid(scenario))
            predicted = self.predicted(scenario, planted=planted)
            if predicted is not None and len(times) > 1:
                result.append(Case(scenario, times, predicted))
        return result


def lacking(part: Part, scenario: Scenario, number: int, runs: int) -> bool:
    """True if a scenario needs a run of this number: not valid yet, and fewer invalid runs than `runs`."""
    counted = part.counted(scenario)
    valid = any(run.number == number and not run.reason for run in counted)
    return not valid and sum(bool(run.reason) for run in counted) < runs


def cluster(engine: str, changes: Sequence[str] = ()) -> Platform:
    """The cluster with a store of this engine."""
    values = [f"store.engine={engine}", *ENGINES[engine].changes, *changes]
    return load_platform(CLUSTER, values, predicted=False)


def disks(rate: str) -> str:
    """The disk of a node, with this rate, as in a platform file."""
    return f"[{{name: store, limits: {{read: {rate}, write: {rate}}}}}]"


def cluster_of(engine: str, scenario: Scenario) -> Platform:
    """The cluster on which a scenario runs."""
    own = [f"network: {{bandwidth: {SLOW_LINK}}}"] * scenario.slow_link
    own += [f"disks: {disks(SLOW_DISK)}"] * scenario.slow_disk
    changes = [f"hosts.node.count={scenario.nodes}"]
    if own:
        changes.append(f"hosts.node.except={{{SLOW}: {{{', '.join(own)}}}}}")
    return cluster(engine, changes)


def seeded(engine: str, budget_s: float, *, slow_disk: bool) -> Seeds:
    """Measure service times on three nodes; with `slow_disk` also on three with a slow disk."""
    clusters = [cluster(engine)]
    if slow_disk:
        clusters.append(cluster(engine, [f"hosts.node.disks={disks(SLOW_DISK)}"]))
    seen = [measure_store(nodes, budget_s=budget_s, note=note) for nodes in clusters]
    return Seeds(*map(measurement_values, seen))


def platform_of(engine: str, seeds: Seeds) -> Platform:
    """The seeded platform, as `penstock seed` writes it."""
    document = identified(cluster(engine), measurements_of(seeds.nominal)).document
    return Platform.from_dict(document)


def values_of(engine: str, seeds: Seeds, scenario: Scenario) -> Row:
    """Values of the seeded platform for a scenario."""
    own: Row = {}
    if scenario.slow_link:
        own["network"] = {"bandwidth": SLOW_LINK}
    if scenario.slow_disk:
        if seeds.slow_disk is None:
            raise BadInput(f"{scenario}: found no service times of the slow disk; expected some")
        document = identified(cluster(engine), measurements_of(seeds.slow_disk)).document
        own["storage"] = next(g for g in document["hosts"] if g["group"] == "node")["storage"]
    values = {"hosts.node.count": scenario.nodes, "scheduler.kind": scenario.scheduler}
    return values | ({"hosts.node.except": {str(SLOW): own}} if own else {})


def workload_of(scenario: Scenario, platform: Platform) -> Workload:
    """The workload of a scenario on a platform; a pipeline on half of the nodes.

    Pipelines of local files on all of them would use all of the host's processors.
    """
    chunk = deployment(platform)[1].parameters.get("chunk")
    width = scenario.nodes // 2 if scenario.pattern == "pipeline" else scenario.nodes
    return scenario.workload(None if chunk is None else int(chunk), width)


def predict_all(part: Part, scenarios: Sequence[Scenario]) -> None:
    """Predict scenarios without a prediction by the default model; some remote ones also with slow links."""
    assert part.seeds is not None
    engine = part.head.engine
    platform, started = platform_of(engine, part.seeds), cluster(engine)
    remote = [s for s in scenarios if not s.hints][:PLANTED_SCENARIOS]
    for scenario in scenarios:
        for planted in (False, True)[: 1 + (scenario in remote)]:
            if part.predicted(scenario, planted=planted) is not None:
                continue
            values = values_of(engine, part.seeds, scenario)
            values |= {"network.bandwidth": PLANTED_LINKS} if planted else {}
            prediction = predict(
                workload_of(scenario, started), platform.with_values(values), explained=False
            )
            part.add(Prediction(scenario, predicted_by(prediction), planted))


def measure(
    part: Part, scenarios: Sequence[Scenario], size: Size, limits: Limits | None = None
) -> None:
    """Seed, predict, then run every scenario, on one store for each cluster; nothing is repeated.

    Raises PenstockError if seeding or the start of a store fails; the part has everything until then. A store
    that fails after a run, or does not stop, is replaced.
    """
    if part.seeds is None:
        note(f"{part.head.engine}: service times")
        slow = any(scenario.slow_disk for scenario in scenarios)
        part.add(seeded(part.head.engine, size.budget_s, slow_disk=slow))
    predict_all(part, scenarios)
    remaining = Remaining(part, scenarios, size.runs)
    for key in dict.fromkeys(scenario.cluster for scenario in scenarios):
        on_cluster = [scenario for scenario in scenarios if scenario.cluster == key]
        platform = cluster_of(part.head.engine, on_cluster[0])
        while any(
            lacking(part, scenario, n, size.runs)
            for scenario in on_cluster
            for n in range(size.runs)
        ):
            before = len(part.runs)
            try:
                with store_of(platform, part.head.engine) as store:
                    runner = Runner(store, platform, limits or Limits())
                    blocks(part, on_cluster, size.runs, runner, remaining)
            except PenstockError as error:
                if len(part.runs) == before:
                    raise
                note(f"{part.head.engine}: {error}; the missing runs are measured on a new store")


@dataclass(frozen=True)
class Runner:
    """Run scenarios on a store."""

    store: Store
    platform: Platform
    limits: Limits

    def run(self, scenario: Scenario, number: int, label: str = "") -> Run:
        """One run with the load of the host. RunFailed if it fails."""
        clients = [host for host in self.platform.hosts if "client" in host.roles]
        with watched(self.store.cluster) as watch:
            done = execute(
                workload_of(scenario, self.platform),
                self.store,
                slots={host.name: host.slots for host in clients},
                groups={host.name: host.group for host in clients},
                by_data=scenario.hints,
            )
        return run_of(scenario, done, number, label, watch.load, self.limits)


def run_of(
    scenario: Scenario, done: Executed, number: int, label: str, load: Load, limits: Limits
) -> Run:
    """The run with its measurements, and the reason why it is not valid."""
    if refused := refused_tags([done]):
        reason = f"hint refused: {next(iter(refused.values()))}"
    elif done.died:
        reason = f"died: {', '.join(done.died)}"
    else:
        reason = limits.exceeded(load)
    hosts = {row["task"]: row["host"] for row in done.tasks.to_pylist()}
    operations, places = done.operations.to_pylist(), placement(done)
    return Run(scenario, label, number, done.makespan_s, load, hosts, operations, places, reason)


def blocks(
    part: Part, scenarios: Sequence[Scenario], runs: int, runner: Runner, remaining: Remaining
) -> None:
    """Warm-ups, then blocks of all scenarios in random order. RunFailed after a run that failed."""
    numbers = range(runs)
    for number in (WARM_UP, *numbers):
        order = [
            s
            for s in scenarios
            if any(lacking(part, s, n, runs) for n in (numbers if number == WARM_UP else (number,)))
        ]
        Random(f"{part.head.engine} {scenarios[0].cluster} {number}").shuffle(order)
        for scenario in order:
            again = True
            while again:
                try:
                    run = runner.run(scenario, number)
                except RunFailed as error:
                    failed = max(number, 0)
                    part.add(Run(scenario, "", failed, 0.0, None, {}, [], {}, f"failed: {error}"))
                    raise
                part.add(run)
                remaining.show(run)
                again = number != WARM_UP and lacking(part, scenario, number, runs)


@dataclass
class Remaining:
    """Progress with the remaining time, from the predicted times and the pace of the runs so far."""

    part: Part
    scenarios: Sequence[Scenario]
    runs: int
    begin: float = field(default_factory=time.monotonic)
    predicted_s: float = 0.0

    def show(self, run: Run) -> None:
        """Note a run and the remaining time."""
        self.predicted_s += self._predicted(run.scenario)
        spent = time.monotonic() - self.begin
        pace = spent / self.predicted_s if self.predicted_s else _PACE
        lack = {scenario: self.lacking(scenario) for scenario in self.scenarios}
        left_s = pace * sum(count * self._predicted(scenario) for scenario, count in lack.items())
        total = self.runs * len(self.scenarios)
        name = "warm-up" if run.number == WARM_UP else f"run {run.number + 1} of {self.runs}"
        reason = f"; not valid: {run.reason}" if run.reason and run.number != WARM_UP else ""
        note(
            f"{self.part.head.engine} [{total - sum(lack.values())}/{total}, {left_s / 60:.0f} min left] "
            f"{run.scenario}, {name}: {run.makespan_s:.2f} s{reason}"
        )

    def lacking(self, scenario: Scenario) -> int:
        """Runs that a scenario needs."""
        return sum(lacking(self.part, scenario, n, self.runs) for n in range(self.runs))

    def _predicted(self, scenario: Scenario) -> float:
        predicted = self.part.predicted(scenario)
        return math.nan if predicted is None else predicted.mean_s


def note(text: str) -> None:
    """Print a line of progress."""
    print(f"  {text}", file=sys.stderr, flush=True)
