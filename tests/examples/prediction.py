"""A prediction made by hand for tests of figures, page and trace: tasks in turn on the hosts' slots."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from penstock.analyse.statistics.prediction_intervals import order_statistics
from penstock.parts.prediction.measured_comparison import beside
from penstock.parts.prediction.measured_runs import MeasuredRun, Span
from penstock.parts.prediction.prediction import Prediction, find_bottleneck, ranked_stations
from penstock.parts.prediction.queue_network.applies import Applies, Reason
from penstock.parts.prediction.queue_network.cost import Cost
from penstock.parts.prediction.queue_network.energy import Energy, HostEnergy

STAGES = (
    "mProject",
    "mDiff",
    "mFitPlane",
    "mConcatFit",
    "mBgModel",
    "mBackground",
    "mImgtbl",
    "mAdd",
)


def tasks(n: int, hosts: int, slots: int = 1, seed: int = 1) -> list[dict[str, Any]]:
    """`n` tasks over `hosts` × `slots`, stage after stage; the last one of each stage is critical."""
    rng = np.random.default_rng(seed)
    free = np.zeros(hosts * slots)
    found: list[dict[str, Any]] = []
    per_stage = [max(1, n * w // 100) for w in (25, 30, 22, 1, 1, 18, 1, 1)]
    per_stage[0] += n - sum(per_stage)
    barrier = 0.0
    for stage, count in zip(STAGES, per_stage, strict=True):
        first = len(found)
        for i in range(count):
            place = int(np.argmin(np.maximum(free, barrier)))
            start = float(max(free[place], barrier))
            parts = [float(x) for x in rng.exponential([0.2, 3, 1, 1.2, 0.05])]
            end = start + sum(parts)
            free[place] = end
            launch, compute, read, write, manager = parts
            at = start + launch
            spans = []
            for op, took in (
                ("open", manager),
                ("read", read),
                ("compute", compute),
                ("write", write),
            ):
                file = None if op == "compute" else f"{stage}-{i}"
                spans.append(
                    {
                        "op": op,
                        "file": file,
                        "start_s": at,
                        "end_s": at + took,
                        "bytes": 1 << 20,
                        "local_bytes": 1 << 18,
                    }
                )
                at += took
            found.append(
                {
                    "name": f"{stage}-{i}",
                    "stage": stage,
                    "host": f"nodes-{place // slots}",
                    "ready_s": barrier,
                    "start_s": start,
                    "end_s": end,
                    "launch_s": launch,
                    "compute_s": compute,
                    "read_s": read,
                    "write_s": write,
                    "manager_s": manager,
                    "read_bytes": 1 << 20,
                    "written_bytes": 1 << 20,
                    "local_bytes": 1 << 19,
                    "remote_bytes": 3 << 19,
                    "critical": False,
                    "spans": spans,
                }
            )
        last = max(found[first:], key=lambda t: t["end_s"])
        last["critical"] = True
        barrier = last["end_s"]
    return found


def outcome(n: int = 200, hosts: int = 20, slots: int = 1, seed: int = 1) -> dict[str, Any]:
    """An outcome as the simulator gives it, with detail."""
    rng = np.random.default_rng(seed)
    rows = tasks(n, hosts, slots, seed)
    makespan = max(t["end_s"] for t in rows)
    stages = []
    for stage in STAGES:
        own = [t for t in rows if t["stage"] == stage]
        sums = {
            k: sum(t[k] for t in own)
            for k in (
                "launch_s compute_s read_s write_s manager_s read_bytes written_bytes local_bytes "
                "remote_bytes"
            ).split()
        }
        took = [t["end_s"] - t["start_s"] for t in own]
        stages.append(
            {
                "name": stage,
                "tasks": len(own),
                "start_s": min(t["start_s"] for t in own),
                "end_s": max(t["end_s"] for t in own),
                "task_mean_s": sum(took) / len(took),
                "task_max_s": max(took),
                **sums,
            }
        )
    stations = []
    kinds = {
        "in": "net_in",
        "out": "net_out",
        "loopback": "loopback",
        "storage": "storage",
        "slots": "slots",
    }
    names = [f"nodes-{i}" for i in range(hosts)]
    for host in names:
        for short, kind in kinds.items():
            share = float(rng.beta(2, 3 if kind == "net_in" else 8))
            stations.append(
                station(
                    f"{host}/{short}", host, kind, share, makespan, critical=0.2 * share / hosts
                )
            )
    stations.append(
        station("manager-0/manager", "manager-0", "manager", 0.12, makespan, critical=0.01)
    )
    stations[0] = station("nodes-0/in", "nodes-0", "net_in", 0.97, makespan, critical=0.41)
    per_host = [
        {
            "name": host,
            "app_s": sum(t["compute_s"] for t in rows if t["host"] == host),
            "storage_s": 0.1 * makespan,
            "network_s": 0.3 * makespan,
            "stored_bytes": 1 << 30,
            "sent_bytes": 1 << 30,
            "received_bytes": 1 << 30,
            "tasks": sum(t["host"] == host for t in rows),
        }
        for host in names
    ]
    return {
        "makespan_s": makespan,
        "events": 12345,
        "requests": 4096,
        "error": None,
        "bytes": {
            "network": 3 << 30,
            "control": 1 << 20,
            "loopback": 1 << 30,
            "stored": 2 << 30,
            "read": 3 << 30,
            "written": 1 << 30,
            "read_local": 1 << 30,
            "written_local": 1 << 28,
        },
        "stages": stages,
        "stations": stations,
        "hosts": per_host,
        "operations": {"read": {"n": n, "mean_s": 1.0, "p50_s": 0.7, "p99_s": 4.1}},
        "tasks": rows,
    }


def station(
    name: str, host: str, kind: str, share: float, makespan: float, critical: float = 0.0
) -> dict[str, Any]:
    """One row of the outcome's stations."""
    return {
        "name": name,
        "host": host,
        "kind": kind,
        "servers": 1,
        "requests": 1000,
        "busy_s": share * makespan,
        "utilisation": share,
        "wait_mean_s": 0.004 / (1 - share),
        "wait_max_s": 0.3,
        "queue_mean": share / (1 - share),
        "queue_max": 12,
        "critical_s": critical * makespan,
    }


def sensitivity() -> list[dict[str, Any]]:
    """Rows as `sensitivity_rows` gives them."""
    found = []
    for path, low, high, swing in (
        ("hosts.nodes.storage.write.per_byte", -0.2, 0.31, 12.0),
        ("network.bandwidth", 0.12, -0.05, 6.0),
        ("launch.overhead", -0.01, 0.02, 1.1),
    ):
        found.append(
            {
                "path": path,
                "value": "1 ms/MiB",
                "low": "0.5 ms/MiB",
                "high": "1.5 ms/MiB",
                "makespan_low_s": 1 + low,
                "makespan_high_s": 1 + high,
                "change_low": low,
                "change_high": high,
                "swing_s": swing,
                "chance_s": 0.1,
                "elasticity": 0.4,
                "method": "penstock profile DIR on a nodes host",
                "note": "",
            }
        )
    return found


def prediction(n: int = 200, hosts: int = 20, slots: int = 1) -> Prediction:
    """A whole prediction, everything in it."""
    made = outcome(n, hosts, slots)
    total = made["makespan_s"]
    draws = [total * (1 + 0.002 * (i - 20)) for i in range(39)]
    energy = Energy(
        tuple(
            HostEnergy(h["name"], 91.6 * total, h["app_s"] * 30, 100, 200) for h in made["hosts"]
        ),
        ("manager-0",),
    )
    made_one = Prediction(
        workload="montage",
        platform="cluster",
        makespan_s=total,
        interval=order_statistics(draws, sources=("seeds and launch skew", "2 assumed values")),
        stages=[
            s
            | {"end_low_s": s["end_s"] * 0.98, "end_high_s": s["end_s"] * 1.03}
            | {"lasts_low_s": 0.9 * lasts(s), "lasts_high_s": 1.2 * lasts(s)}
            for s in made["stages"]
        ],
        stations=ranked_stations([made]),
        bottleneck=find_bottleneck(ranked_stations([made])),
        hosts=made["hosts"],
        bytes=made["bytes"],
        operations=made["operations"],
        energy=energy,
        cost=Cost(0.31, "EUR", hosts + 1, total / 3600, False),
        applies=Applies.of(
            [
                Reason("short-tasks", "caution", "the median task takes 1.2 s"),
                Reason("not-calibrated", "note", "no measured run calibrates the interval"),
            ]
        ),
        events=12345,
        requests=4096,
        simulations=39,
        wall_s=0.42,
        seeds=list(range(1, 40)),
        tasks=made["tasks"],
        task_seed=1,
        sensitivity=sensitivity(),
        measure_next={
            "path": "hosts.nodes.storage.write.per_byte",
            "narrows": 0.62,
            "width_s": 10.0,
            "width_if_known_s": 3.8,
            "method": "penstock profile DIR on a nodes host",
            "why": "its range, 0.5 ms/MiB to 1.5 ms/MiB, changes the makespan by 12 s",
        },
        frequencies={
            "conflict": True,
            "statement": "1.2 GHz takes 19 % less energy and 31 % more time than 2.3 GHz",
            "states": [
                {"frequency": "1.2 GHz", "makespan_s": 1.31 * total, "energy_j": 81e3, "cost": 0.4},
                {"frequency": "2.3 GHz", "makespan_s": total, "energy_j": 100e3, "cost": 0.31},
            ],
        },
    )
    beside_it = beside(made_one, measured_runs(made_one), predicted_tasks(made_one))
    placed = {"files": 2, "of": 5}
    return replace(made_one, measured=beside_it | {"pairs": 1, "store": "x"}, placement=placed)


def lasts(stage: dict[str, Any]) -> float:
    """Seconds from a stage's first start to its last end."""
    return float(stage["end_s"] - stage["start_s"])


def measured_runs(made: Prediction) -> list[MeasuredRun]:
    """Two runs: the first stage took half as long as predicted, the second as much longer."""
    off = lasts(made.stages[0]) / 2
    found = []
    for more in (0.0, 0.01):
        stages = {s["name"]: Span(lasts(s) + more) for s in made.stages}
        stages[made.stages[0]["name"]] = Span(off + more)
        stages[made.stages[1]["name"]] = Span(lasts(made.stages[1]) + off + more)
        tasks = {"mProject-0": Span(1.0 + more), "unheard-of": Span(1.0)}
        found.append(MeasuredRun("by hand", made.makespan_s * (1 + more), stages, tasks))
    return found


def predicted_tasks(made: Prediction) -> list[dict[str, Any]]:
    """Rows as `task_times` makes them."""
    return [
        {"name": t["name"], "predicted_s": t["end_s"] - t["start_s"], "low_s": 0.5, "high_s": None}
        for t in made.tasks or []
    ]
