"""Faults applied to a running store: each must be identified, and none in runs without a fault.

A trial is a few runs of workloads with local and remote files. Each operation of its runs is compared with
the model (`suspects`); the usual deviations from the model are those of healthy trials.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

import pyarrow as pa

from bench import record
from penstock.emulate.cluster.change_arguments import changes_of
from penstock.parts.stores.workflow.run import store_of
from penstock.parts.stores.workflow.running.executed import Executed
from penstock.parts.stores.workflow.suspects import Comparison, Suspect, suspects, usual
from penstock.platform.hosts import Platform
from penstock.spec.store import Extent
from studies.claims import Claim, Finding, claim, met_if
from studies.common.host_load import Limits
from studies.prediction_study.runs import (
    WARM_UP,
    Part,
    Run,
    Runner,
    Size,
    cluster,
    disks,
    note,
    platform_of,
    workload_of,
)
from studies.prediction_study.scenarios import Scenario

ENGINE, NODES = "moosefs", 4
#: rate of the disks: reading a local input then takes longer than the spread of its processing time
DISK = "10MB/s"
#: runs of a trial: local inputs, which are read from the disks; new files, which a storage node may read from
#: its page cache, have other sizes
WORKLOADS = (
    Scenario("gather", 4, NODES, hints=True),
    Scenario("gather", 4, NODES, hints=True),
    Scenario("pipeline", 1, NODES, hints=False),
    Scenario("scatter", 1, NODES, hints=False),
)
#: trials without a fault: for the usual deviations, and for the share without a suspect
HEALTHY, CLEAN = "healthy", "no fault"
#: factor by which the platform's time of a read is too long
WRONG = 1.2
SEEDED = "a seeded read 20 % too long"
#: required share of the trials with a fault, and of those without one
IDENTIFIED, SILENT = 0.9, 0.95


@dataclass(frozen=True)
class Fault:
    """A fault: changes of the nodes that apply and revert it; one of `names` must be suspected first."""

    applied: tuple[str, ...]
    reverted: tuple[str, ...]
    names: tuple[str, ...]


FAULTS = {
    "a link at 80 %": Fault(
        ("node-1", "bandwidth=16Mbit/s"), ("node-1", "bandwidth=20Mbit/s"), ("link of node-1",)
    ),
    "a slow node": Fault(
        ("node-2", "cpus=0.15"), ("node-2", "cpus=max"), ("storage of node-2", "link of node-2")
    ),
    "a slow disk": Fault(
        ("node-3", "disk.store.limits.read=5MB/s", "disk.store.limits.write=5MB/s"),
        ("node-3", "disk.store.limits.read=10MB/s", "disk.store.limits.write=10MB/s"),
        ("storage of node-3",),
    ),
}


def trials_of(size: Size) -> dict[str, int]:
    """Number of trials by label."""
    return {HEALTHY: size.healthy, CLEAN: size.clean, **dict.fromkeys(FAULTS, size.faulty)}


def trial(part: Part, label: str, number: int) -> list[Run]:
    """Runs of the first valid attempt of a trial; empty without one."""
    runs = [run for run in part.runs if (run.label, run.number) == (label, number)]
    attempts = [runs[i : i + len(WORKLOADS)] for i in range(len(runs))]
    return next(
        (
            attempt
            for attempt in attempts
            if [run.scenario for run in attempt] == list(WORKLOADS)
            and not any(run.reason for run in attempt)
        ),
        [],
    )


def complete_trials(part: Part, label: str, most: int) -> list[list[Run]]:
    """The valid trials of a label."""
    return [runs for number in range(most) if (runs := trial(part, label, number))]


def measure(part: Part, size: Size, limits: Limits | None = None) -> None:
    """Apply the faults in random order on one store; completed trials are not repeated.

    A trial with an invalid run is repeated once. Raises PenstockError if the store fails.
    """
    everything = [(label, n) for label, count in trials_of(size).items() for n in range(count)]
    order = [key for key in everything if not trial(part, *key)]
    if not order:
        return
    Random(f"faults {len(order)}").shuffle(order)
    order.sort(key=lambda key: key[0] != HEALTHY)
    platform = cluster(ENGINE, [f"hosts.node.count={NODES}", f"hosts.node.disks={disks(DISK)}"])
    with store_of(platform, ENGINE) as store:
        runner = Runner(store, platform, limits or Limits())
        for scenario in dict.fromkeys(WORKLOADS):
            part.add(runner.run(scenario, WARM_UP))
        for number, key in enumerate(order, 1):
            for _ in range(2):
                _attempt(part, runner, *key)
                if runs := trial(part, *key):
                    break
            times = ", ".join(f"{run.makespan_s:.2f}" for run in runs) or "not valid"
            note(f"faults [{number}/{len(order)}] {key[0]}, trial {key[1] + 1}: {times} s")


def _attempt(part: Part, runner: Runner, label: str, number: int) -> None:
    """One attempt: apply the fault, run the workloads, revert the fault."""
    fault = FAULTS.get(label)
    if fault is not None:
        runner.store.cluster.change(changes_of(fault.applied))
    try:
        runs = [runner.run(scenario, number, label) for scenario in WORKLOADS]
    finally:
        if fault is not None:
            runner.store.cluster.change(changes_of(fault.reverted))
    for run in runs:
        part.add(run)


def executed_of(run: Run) -> Executed:
    """The run as the comparison with the model reads it."""
    tasks = pa.Table.from_pylist([{"task": t, "host": h} for t, h in run.hosts.items()])
    extents = {
        name: [Extent(p["offset_bytes"], p["length_bytes"], tuple(p["hosts"])) for p in places]
        for name, places in run.places.items()
    }
    operations = pa.Table.from_pylist(run.operations)
    return Executed(run.makespan_s, tasks, operations, extents=extents)


def comparisons(trials: Sequence[Sequence[Run]]) -> list[Comparison]:
    """Runs of trials with their model, by workload."""
    return [
        Comparison(
            workload_of(scenario, cluster(ENGINE)),
            [executed_of(run) for runs in trials for run in runs if run.scenario == scenario],
        )
        for scenario in dict.fromkeys(WORKLOADS)
    ]


def longer_reads(platform: Platform) -> Platform:
    """The platform with a time of reading that is too long, as from a seeding that went wrong."""
    read = next(h for h in platform.lower()["hosts"] if h["storage"])["storage"]["read"]
    value = {
        "overhead": f"{1e6 * WRONG * read['overhead']:.6g} us",
        "per_byte": f"{1e3 * WRONG * read['s_per_byte'] * 2**20:.6g} ms/MiB",
    }
    return platform.with_values({"hosts.node.storage.read": value})


def named(part: Part, size: Size) -> dict[str, list[list[Suspect]]]:
    """Suspects of each valid trial, by label; empty without healthy trials."""
    healthy = complete_trials(part, HEALTHY, size.healthy)
    if part.seeds is None or not healthy:
        return {}
    platform = platform_of(ENGINE, part.seeds)
    usual_ratios = usual(platform, comparisons(healthy))

    def of(label: str, most: int, model: Platform) -> Iterator[list[Suspect]]:
        for runs in complete_trials(part, label, most):
            yield suspects(model, comparisons([runs]), usual_ratios)

    result = {
        label: list(of(label, most, platform))
        for label, most in trials_of(size).items()
        if label != HEALTHY
    }
    return result | {SEEDED: list(of(CLEAN, size.faulty, longer_reads(platform)))}


def claims_of(suspected: dict[str, list[list[Suspect]]], size: Size) -> list[Claim]:
    """Each fault is suspected first in 9 of 10 trials; there is no suspect in 19 of 20 without a fault."""
    expected = {
        SEEDED: ("storage.read",),
        **{label: fault.names for label, fault in FAULTS.items()},
    }
    claims = []
    for label, names in {CLEAN: (), **expected}.items():
        trials = suspected.get(label, [])
        most = size.clean if label == CLEAN else size.faulty

        def evaluate(
            trials: list[list[Suspect]] = trials, names: tuple[str, ...] = names
        ) -> Finding:
            first = [
                suspects_of_trial[0].name if suspects_of_trial else ""
                for suspects_of_trial in trials
            ]
            correct = sum(name in (names or ("",)) for name in first)
            wrong = sorted({name or "nothing" for name in first if name not in (names or ("",))})
            other_names = f"; the others: {', '.join(wrong)}" if wrong else ""
            share = IDENTIFIED if names else SILENT
            return met_if(
                correct >= share * len(first), f"{correct} of {len(first)} trials{other_names}"
            )

        share = "9 of 10" if names else "19 of 20"
        claims.append(
            claim(
                f"faults: {label}",
                f"suspected first: {' or '.join(names) or 'nothing'}",
                {f"{label}, trial {n + 1}": int(n < len(trials)) for n in range(most)},
                evaluate,
                criterion=f"in {share} trials",
            )
        )
    return claims


def rows_of(suspected: dict[str, list[list[Suspect]]]) -> list[record.Row]:
    """Factor of the first suspect by fault."""
    return [
        record.row(f"faults: {label}", "", "times as long, by the first suspect", factors, "")
        for label, trials in suspected.items()
        if (
            factors := [
                suspects_of_trial[0].factor for suspects_of_trial in trials if suspects_of_trial
            ]
        )
    ]
