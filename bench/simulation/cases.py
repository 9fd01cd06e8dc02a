"""Cases of the bench: each is a function of a `Scale` that returns rows."""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.simulation import scenarios as s
from bench.simulation import simgrid, simpy_model, vectors
from bench.simulation.measure import (
    Row,
    Timed,
    interleaved,
    linear_r2,
    peak_memory,
    rate_rows,
    row,
    time_rows,
    timed,
)
from bench.simulation.penstock_engine import Simulator, frames
from penstock.parts.prediction.queue_network.predict import predict
from studies import stores

Json = dict[str, Any]
FRAMES, TRAINS = "penstock, frames", "penstock, trains"
INTERVAL = "penstock, predict"
SIMPY, SIMGRID = "SimPy, frames", "SimGrid, chunks as flows"
MB = s.MB


@dataclass(frozen=True)
class Scale:
    """Size of all cases: rounds of cheap and of expensive cases, amounts of data."""

    rounds: int
    dear_rounds: int
    hosts: tuple[int, ...]
    chunks: int  # chunk requests of a case of `events`
    reduce_bytes: dict[str, int]
    peer_bytes: int  # bytes per node of the reduce that the other simulators run
    whole_nodes: int
    scaling: tuple[int, ...]
    scaling_rounds: int
    configurations: int
    montage_tasks: int
    montage_hosts: tuple[int, ...]


QUICK = Scale(
    rounds=2,
    dear_rounds=1,
    hosts=(10, 30),
    chunks=2_000,
    reduce_bytes={"medium": 2 * s.MIB},
    peer_bytes=s.MIB,
    whole_nodes=30,
    scaling=(10, 20, 30, 40),
    scaling_rounds=1,
    configurations=40,
    montage_tasks=180,
    montage_hosts=(10,),
)
NORMAL = Scale(
    rounds=10,
    dear_rounds=5,
    hosts=(50, 200, 1000),
    chunks=100_000,
    reduce_bytes={"medium": 10 * MB, "large": 100 * MB},
    peer_bytes=10 * MB,
    whole_nodes=1000,
    scaling=(20, 100, 200, 300, 400, 500, 600, 700, 800, 900, 1000),
    scaling_rounds=3,
    configurations=10_000,
    montage_tasks=1000,
    montage_hosts=(50, 1000),
)
FULL = Scale(**{**NORMAL.__dict__, "scaling": (20, *range(25, 1001, 25)), "scaling_rounds": 3})


def reduce_case(nodes: int, size: int, optimised: bool) -> tuple[Json, Json]:
    """Workload and platform of the reduce on `nodes` nodes, one of which is the manager."""
    scheduler = "data_location" if optimised else "workqueue"
    return s.reduce(nodes - 1, size, optimised), s.platform(nodes, scheduler=scheduler)


def penstock_engines(work: Json, network: Json) -> dict[str, Callable[[], Any]]:
    """Both granularities; includes reading the platform and writing the outcome as JSON."""
    simulator = Simulator(work)
    texts = {FRAMES: json.dumps(frames(network)), TRAINS: json.dumps(network)}
    return {name: (lambda text=text: simulator.outcome(text)) for name, text in texts.items()}


def difference_row(case: str, runs: dict[str, list[Timed]]) -> Row:
    """Change of the makespan by merging frames into trains [%]."""
    each = runs[FRAMES][0].result["makespan_s"]
    merged = runs[TRAINS][0].result["makespan_s"]
    return row(case, TRAINS, "makespan beside frames", [(merged / each - 1) * 100], "%")


def penstock_rows(case: str, runs: dict[str, list[Timed]]) -> list[Row]:
    """Time, rates and result at both granularities."""
    rows = []
    for engine in (FRAMES, TRAINS):
        if any(r.result["error"] for r in runs[engine]):
            raise RuntimeError(f"{case}: {runs[engine][0].result['error']}")
        rows += time_rows(case, engine, runs[engine])
        outcomes = [r.result for r in runs[engine]]
        rows += rate_rows(case, engine, "events/s", [o["events"] for o in outcomes], runs[engine])
        rows += rate_rows(
            case, engine, "chunk requests/s", [o["requests"] for o in outcomes], runs[engine]
        )
        rows.append(row(case, engine, "makespan", [o["makespan_s"] for o in outcomes], "s"))
    return [*rows, difference_row(case, runs)]


def events(scale: Scale) -> list[Row]:
    """Every host reads and writes, striped over all hosts; the number of chunk requests is independent of the
    number of hosts.
    """
    rows = []
    for hosts in scale.hosts:
        size = max(1, scale.chunks // (2 * hosts)) * s.MIB
        case = f"events, {hosts} hosts"
        work = s.pipeline(hosts, size, stages=1)
        runs = interleaved(penstock_engines(work, s.platform(hosts + 1)), scale.rounds, case)
        rows += penstock_rows(case, runs)
    return rows


def reduces(scale: Scale) -> list[Row]:
    rows = []
    for name, size in scale.reduce_bytes.items():
        for label, optimised in (("DSS", False), ("WOSS", True)):
            case = f"reduce, 20 nodes, {name}, {label}"
            runs = interleaved(
                penstock_engines(*reduce_case(20, size, optimised)), scale.rounds, case
            )
            rows += penstock_rows(case, runs)
    return rows


def peers(scale: Scale) -> list[Row]:
    """The same reduce with the same placement in every engine: fixed machines, no shuffle, links that differ
    by up to 1 %. With equal links, frames would meet at the same instant, and SimPy's order would depend
    on the rounding of its sums.
    """
    case = f"reduce beside peers, 20 nodes, {scale.peer_bytes / MB:.1f} MB each"
    work = s.reduce(19, scale.peer_bytes, False, pinned=True)
    network = s.platform(20, shuffle="none")
    for number, host in enumerate(network["hosts"]):
        rate_bps = s.GIGABIT_BPS * (1 + 0.01 * (number * 0.618034 % 1))
        host["network"] = host["network"] | {"out_bps": rate_bps, "in_bps": rate_bps * 1.001}
    engines = penstock_engines(work, network) | {SIMPY: lambda: simpy_model.simulate(work, network)}
    with tempfile.TemporaryDirectory(prefix="penstock-simgrid-") as place:
        if simgrid.missing() is None:
            peer = simgrid.SimGrid(Path(place))
            engines[SIMGRID] = lambda: peer.simulate(work, network)
        else:
            print(simgrid.missing(), file=sys.stderr)
        runs = interleaved(engines, scale.dear_rounds, case)
    rows = penstock_rows(case, runs)
    simpy_runs = runs[SIMPY]
    rows += time_rows(case, SIMPY, simpy_runs)
    # an event is a completed service of a server, in both; SimPy's own events are three times as many
    rows += rate_rows(case, SIMPY, "events/s", [r.result.services for r in simpy_runs], simpy_runs)
    rows += rate_rows(
        case, SIMPY, "SimPy's steps/s", [r.result.steps for r in simpy_runs], simpy_runs
    )
    rows += rate_rows(
        case, SIMPY, "chunk requests/s", [r.result.requests for r in simpy_runs], simpy_runs
    )
    frames_s = runs[FRAMES][0].result["makespan_s"]
    rows.append(row(case, SIMPY, "makespan", [r.result.makespan_s for r in simpy_runs], "s"))
    deviations = [(r.result.makespan_s / frames_s - 1) * 100 for r in simpy_runs]
    rows.append(row(case, SIMPY, "makespan beside frames", deviations, "%"))
    if SIMGRID in runs:
        # SimGrid's own clock: the time of the call would include the start of a process
        fluid = [Timed(r.result.wall_s, r.result.cpu_s, r.result) for r in runs[SIMGRID]]
        runs[SIMGRID] = fluid
        rows += time_rows(case, SIMGRID, fluid)
        requests = [float(simpy_runs[0].result.requests)] * len(fluid)
        rows += rate_rows(case, SIMGRID, "chunk requests/s", requests, fluid)
        rows.append(row(case, SIMGRID, "makespan", [r.result.makespan_s for r in fluid], "s"))
        deviations = [(r.result.makespan_s / frames_s - 1) * 100 for r in fluid]
        rows.append(row(case, SIMGRID, "makespan beside frames", deviations, "%"))
    for engine in (SIMPY, SIMGRID):
        for own in (FRAMES, TRAINS):
            pairs = zip(runs.get(engine, []), runs[own], strict=False)
            times = [peer.cpu_s / own_run.cpu_s for peer, own_run in pairs]
            if times:
                rows.append(row(case, own, f"times faster than {engine.split(',')[0]}", times, ""))
    return rows


def agreement(scale: Scale) -> list[Row]:
    """Two engines on the closed forms of the specification (§12): deviation in parts per million."""
    del scale
    rows = []
    for vector in vectors.all_vectors():
        case = f"closed form: {vector.name}"
        makespans_s = {
            FRAMES: Simulator(vector.workload).simulate(frames(vector.network))["makespan_s"],
            SIMPY: simpy_model.simulate(vector.workload, vector.network).makespan_s,
        }
        for engine, makespan_s in makespans_s.items():
            deviation_ppm = (makespan_s / vector.expected_s - 1) * 1e6
            rows.append(row(case, engine, "beside the closed form", [deviation_ppm], "ppm"))
    return rows


def montage_workload(tasks: int) -> Json:
    """An instance of WfCommons' Montage recipe of about `tasks` tasks, as WfFormat, read by penstock."""
    import random

    import numpy
    from wfcommons import MontageRecipe, WorkflowGenerator

    from penstock.parts.prediction.workloads.read import read_workload

    random.seed(1)
    numpy.random.seed(1)
    workflow = WorkflowGenerator(MontageRecipe.from_num_tasks(tasks)).build_workflow()
    with tempfile.TemporaryDirectory(prefix="penstock-montage-") as place:
        path = Path(place) / "montage.json"
        workflow.write_json(path)
        return read_workload(path).to_dict()


def montage(scale: Scale) -> list[Row]:
    rows = []
    work = montage_workload(scale.montage_tasks)
    moved = sum(
        step.get("size_bytes") or 0
        for task in work["tasks"]
        for step in task["operations"]
        if step["op"] in ("read", "write")
    )
    for hosts in scale.montage_hosts:
        case = f"Montage, {len(work['tasks'])} tasks, {hosts} hosts"
        network = s.platform(hosts + 1, replicas=2)
        runs = interleaved(penstock_engines(work, network), scale.rounds, case)
        rows += penstock_rows(case, runs)
        rows.append(row(case, "-", "data written and read", [moved / 1e9], "GB"))
    return rows


def whole(scale: Scale) -> list[Row]:
    """The largest published scenario: 100 MB per node and stage on 1000 nodes."""
    rows = []
    name = "large" if "large" in scale.reduce_bytes else "medium"
    size = scale.reduce_bytes[name]
    moved = (scale.whole_nodes - 1) * size * 6 / 1e9
    for label, optimised in (("DSS", False), ("WOSS", True)):
        case = f"reduce, {scale.whole_nodes} nodes, {name}, {label}"
        work, network = reduce_case(scale.whole_nodes, size, optimised)
        runs = interleaved(penstock_engines(work, network), scale.dear_rounds, case)
        rows += penstock_rows(case, runs)
        rows.append(row(case, "-", "data written and read", [moved], "GB"))
        for engine, platform in ((FRAMES, frames(network)), (TRAINS, network)):
            before, after = peak_memory(work, platform)
            rows.append(row(case, engine, "peak resident memory", [after / 2**20], "MiB"))
            rows.append(
                row(case, engine, "of it by the simulation", [(after - before) / 2**20], "MiB")
            )
    return rows


def scaling(scale: Scale) -> list[Row]:
    """Weak scaling: constant data per node, up to 1000 nodes; linearity of the cost."""
    rows = []
    size = scale.reduce_bytes.get("large", scale.reduce_bytes["medium"])
    x = [float(n) for n in scale.scaling]
    times: dict[tuple[str, str], list[float]] = {}
    counts: dict[tuple[str, str], list[float]] = {}
    for nodes in scale.scaling:
        for label, optimised in (("DSS", False), ("WOSS", True)):
            case = f"weak scaling, {nodes} nodes, {label}"
            engines = penstock_engines(*reduce_case(nodes, size, optimised))
            runs = interleaved(engines, scale.scaling_rounds, case)
            for engine in (FRAMES, TRAINS):
                rows += time_rows(case, engine, runs[engine])
                cpu = row(case, engine, "", [r.cpu_s for r in runs[engine]], "")["value"]
                times.setdefault((engine, label), []).append(cpu)
                event_count = float(runs[engine][0].result["events"])
                counts.setdefault((engine, label), []).append(event_count)
                rows.append(row(case, engine, "events", [event_count], ""))
    for (engine, label), times_s in times.items():
        case = f"weak scaling, {label}"
        rows.append(row(case, engine, "R2 of CPU time against nodes", [linear_r2(x, times_s)], ""))
        r2 = linear_r2(x, counts[engine, label])
        rows.append(row(case, engine, "R2 of events against nodes", [r2], ""))
    return rows


def grid(count: int) -> list[str]:
    """`count` different configurations of 20 nodes, every level used."""
    levels = itertools.product(
        (262144, 524288, s.MIB, 2 * s.MIB, 4 * s.MIB),
        (1, 2, 4, 8, None),
        (1, 2),
        ("striped", "round_robin", "local", "random"),
        (125e6, 312.5e6, 625e6, 1.25e9, 3.125e9),
        (4e-9, 2e-9, 1e-9, 5e-10, 2.5e-10),
        ("workqueue", "data_location"),
    )
    chosen = list(levels)
    step = max(1, len(chosen) // count)
    return [
        json.dumps(
            s.platform(
                20,
                chunk_bytes=chunk,
                stripe_width=width,
                replicas=replicas,
                placement=placement,
                out_bps=out_bps,
                storage_s_per_byte=disk,
                scheduler=scheduler,
            )
        )
        for chunk, width, replicas, placement, out_bps, disk, scheduler in chosen[::step][:count]
    ]


def configurations(scale: Scale) -> list[Row]:
    """Many configurations of one reduce on all cores, in batches."""
    simulator = Simulator(s.reduce(19, scale.reduce_bytes["medium"], False))
    networks = grid(scale.configurations)
    makespans: list[float] = []
    batch = 500

    def simulate_all() -> None:
        makespans.clear()
        for start in range(0, len(networks), batch):
            for outcomes in simulator.many(networks[start : start + batch], [1]):
                outcome = json.loads(outcomes[0])
                if outcome["error"] is not None:
                    raise RuntimeError(outcome["error"])
                makespans.append(outcome["makespan_s"])
            print(f"configurations: {len(makespans)} of {len(networks)}", file=sys.stderr)

    runs = [timed(simulate_all) for _ in range(min(scale.dear_rounds, 5))]
    case = f"{len(networks)} configurations, medium reduce, 20 nodes, all cores"
    return [
        row(case, TRAINS, "wall time", [r.wall_s for r in runs], "s"),
        row(case, TRAINS, "configurations/s", [len(networks) / r.wall_s for r in runs], "1/s"),
        row(case, TRAINS, "different makespans", [float(len(set(makespans)))], ""),
        row(case, TRAINS, "largest over smallest", [max(makespans) / min(makespans)], ""),
    ]


def curves(scale: Scale) -> list[Row]:
    """Cost as a function of data, hosts and tasks, one of them at a time."""
    big = scale.whole_nodes >= 1000
    megabytes = (1, 3, 10, 30, 100, 300, 1000) if big else (1, 2, 4)
    hosts = (5, 10, 20, 50, 100, 200, 500, 1000) if big else (5, 10, 20)
    tasks = (10, 30, 100, 300, 1000, 3000, 10_000) if big else (10, 30, 90)
    volume = 2000 * s.MIB if big else 40 * s.MIB  # total of all hosts
    points: list[tuple[str, float, Json, Json]] = []
    for each in megabytes:
        points.append(("MB per node", each, *reduce_case(20, each * MB, False)))
    for each in hosts:
        size = max(1, volume // each)
        points.append(("hosts, same data", each, s.pipeline(each, size, 1), s.platform(each + 1)))
    for each in tasks:
        work = s.pipeline(10, s.MIB, stages=max(1, each // 10))
        points.append(("tasks", float(len(work["tasks"])), work, s.platform(20)))
    rows = []
    for name, value, work, network in points:
        case = f"cost against {name}: {value:g}"
        runs = interleaved(penstock_engines(work, network), min(scale.rounds, 5))
        for engine in (FRAMES, TRAINS):
            rows += time_rows(case, engine, runs[engine])
            rows.append(row(case, engine, "events", [runs[engine][0].result["events"]], ""))
    return rows


def predictions(scale: Scale) -> list[Row]:
    """Predictions of recorded runs on a store, with their intervals, and the node seconds of these runs."""
    seen, recorded = stores.read_recorded(stores.CLUSTER.parent / "moosefs.json.gz")
    seeded = stores.seeded_under(seen.engine, seen, stores.models(seen.engine)[stores.DEFAULT])
    chosen = recorded if scale.hosts[0] >= 50 else recorded[::11]
    questions = [
        (
            recorded_run.scenario.workload(),
            seeded(stores.changes_of(recorded_run.scenario)).with_values(
                {"scheduler.kind": recorded_run.scenario.scheduler}
            ),
        )
        for recorded_run in chosen
    ]
    spent: list[list[float]] = [[] for _ in chosen]
    for _ in range(scale.dear_rounds + 1):
        for times, question in zip(spent, questions, strict=True):
            begin = time.process_time()  # of all threads
            predict(*question, explained=False)
            times.append(time.process_time() - begin)
    each_s = [statistics.median(times[1:]) for times in spent]  # the first round loads modules
    node_seconds = [
        (recorded_run.scenario.nodes + 1) * recorded_run.mean_s for recorded_run in chosen
    ]
    case = f"predictions of {len(chosen)} recorded runs on MooseFS"
    ratios = [a / b for a, b in zip(node_seconds, each_s, strict=True)]
    return [
        row(case, INTERVAL, "CPU time", each_s, "s"),
        row(case, INTERVAL, "node seconds of the run per CPU second", ratios, ""),
    ]


def planted() -> dict[str, list[Row]]:
    """Rows of planted failures: a simulator that repeats each run eight times, and a storage 5 % too slow."""
    work, network = s.pipeline(50, 100 * s.MIB, stages=1), s.platform(51)

    def eight_times(call: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: [call() for _ in range(8)][-1]

    engines = {name: eight_times(call) for name, call in penstock_engines(work, network).items()}
    vector = next(v for v in vectors.all_vectors() if v.name == "write, 200 ms disk")
    slower = frames(vectors.apart(1, 0.21))
    makespan_s = Simulator(vector.workload).simulate(slower)["makespan_s"]
    deviation_ppm = (makespan_s / vector.expected_s - 1) * 1e6
    return {
        "a simulator that does everything eight times": penstock_rows(
            "events, 50 hosts, eight times", interleaved(engines, 1)
        ),
        "a storage 5 % slower": [
            row("closed form", FRAMES, "beside the closed form", [deviation_ppm], "ppm")
        ],
    }


CASES: dict[str, Callable[[Scale], list[Row]]] = {
    "agreement": agreement,
    "events": events,
    "reduce": reduces,
    "peers": peers,
    "montage": montage,
    "whole": whole,
    "scaling": scaling,
    "configurations": configurations,
    "curves": curves,
    "predictions": predictions,
}
