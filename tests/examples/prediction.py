"""A constructed prediction for tests of figures, page and trace: each task runs on the first free slot."""

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
    """`n` tasks over `hosts` × `slots`, stage after stage; the last task of each stage is critical."""
    rng = np.random.default_rng(seed)
    free_s = np.zeros(hosts * slots)
    rows: list[dict[str, Any]] = []
    per_stage = [max(1, n * w // 100) for w in (25, 30, 22, 1, 1, 18, 1, 1)]
    per_stage[0] += n - sum(per_stage)
    barrier_s = 0.0
    for stage, count in zip(STAGES, per_stage, strict=True):
        first = len(rows)
        for i in range(count):
            slot = int(np.argmin(np.maximum(free_s, barrier_s)))
            start = float(max(free_s[slot], barrier_s))
            parts = [float(x) for x in rng.exponential([0.2, 3, 1, 1.2, 0.05])]
            end = start + sum(parts)
            free_s[slot] = end
            launch, compute, read, write, manager = parts
            now_s = start + launch
            spans = []
            for op, duration_s in (
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
                        "start_s": now_s,
                        "end_s": now_s + duration_s,
                        "bytes": 1 << 20,
                        "local_bytes": 1 << 18,
                    }
                )
                now_s += duration_s
            rows.append(
                {
                    "name": f"{stage}-{i}",
                    "stage": stage,
                    "host": f"nodes-{slot // slots}",
                    "ready_s": barrier_s,
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
        last = max(rows[first:], key=lambda t: t["end_s"])
        last["critical"] = True
        barrier_s = last["end_s"]
    return rows


def outcome(n: int = 200, hosts: int = 20, slots: int = 1, seed: int = 1) -> dict[str, Any]:
    """A detailed outcome in the format of the simulator."""
    rng = np.random.default_rng(seed)
    task_rows = tasks(n, hosts, slots, seed)
    makespan = max(t["end_s"] for t in task_rows)
    stages = []
    for stage in STAGES:
        stage_rows = [t for t in task_rows if t["stage"] == stage]
        sums = {
            k: sum(t[k] for t in stage_rows)
            for k in (
                "launch_s compute_s read_s write_s manager_s read_bytes written_bytes local_bytes "
                "remote_bytes"
            ).split()
        }
        durations_s = [t["end_s"] - t["start_s"] for t in stage_rows]
        stages.append(
            {
                "name": stage,
                "tasks": len(stage_rows),
                "start_s": min(t["start_s"] for t in stage_rows),
                "end_s": max(t["end_s"] for t in stage_rows),
                "task_mean_s": sum(durations_s) / len(durations_s),
                "task_max_s": max(durations_s),
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
            "app_s": sum(t["compute_s"] for t in task_rows if t["host"] == host),
            "storage_s": 0.1 * makespan,
            "network_s": 0.3 * makespan,
            "stored_bytes": 1 << 30,
            "sent_bytes": 1 << 30,
            "received_bytes": 1 << 30,
            "tasks": sum(t["host"] == host for t in task_rows),
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
        "tasks": task_rows,
    }


def station(
    name: str, host: str, kind: str, share: float, makespan: float, critical: float = 0.0
) -> dict[str, Any]:
    """Row of a station in the outcome."""
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
    """Rows in the format of `sensitivity_rows`."""
    rows = []
    for path, low, high, swing in (
        ("hosts.nodes.storage.write.per_byte", -0.2, 0.31, 12.0),
        ("network.bandwidth", 0.12, -0.05, 6.0),
        ("launch.overhead", -0.01, 0.02, 1.1),
    ):
        rows.append(
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
    return rows


def prediction(n: int = 200, hosts: int = 20, slots: int = 1) -> Prediction:
    """A prediction with all fields set."""
    result = outcome(n, hosts, slots)
    total = result["makespan_s"]
    draws = [total * (1 + 0.002 * (i - 20)) for i in range(39)]
    energy = Energy(
        tuple(
            HostEnergy(h["name"], 91.6 * total, h["app_s"] * 30, 100, 200) for h in result["hosts"]
        ),
        ("manager-0",),
    )
    predicted = Prediction(
        workload="montage",
        platform="cluster",
        makespan_s=total,
        interval=order_statistics(draws, sources=("seeds and launch skew", "2 assumed values")),
        stages=[
            s
            | {"end_low_s": s["end_s"] * 0.98, "end_high_s": s["end_s"] * 1.03}
            | {"lasts_low_s": 0.9 * duration_s(s), "lasts_high_s": 1.2 * duration_s(s)}
            for s in result["stages"]
        ],
        stations=ranked_stations([result]),
        bottleneck=find_bottleneck(ranked_stations([result])),
        hosts=result["hosts"],
        bytes=result["bytes"],
        operations=result["operations"],
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
        tasks=result["tasks"],
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
    comparison = beside(predicted, measured_runs(predicted), predicted_tasks(predicted))
    placement = {"files": 2, "of": 5}
    return replace(predicted, measured=comparison | {"pairs": 1, "store": "x"}, placement=placement)


def duration_s(stage: dict[str, Any]) -> float:
    """Seconds from a stage's first start to its last end."""
    return float(stage["end_s"] - stage["start_s"])


def measured_runs(predicted: Prediction) -> list[MeasuredRun]:
    """Two runs: the first stage took half as long as predicted, the second longer by the same time."""
    offset_s = duration_s(predicted.stages[0]) / 2
    runs = []
    for excess in (0.0, 0.01):
        stages = {s["name"]: Span(duration_s(s) + excess) for s in predicted.stages}
        stages[predicted.stages[0]["name"]] = Span(offset_s + excess)
        stages[predicted.stages[1]["name"]] = Span(
            duration_s(predicted.stages[1]) + offset_s + excess
        )
        task_spans = {"mProject-0": Span(1.0 + excess), "unheard-of": Span(1.0)}
        runs.append(MeasuredRun("by hand", predicted.makespan_s * (1 + excess), stages, task_spans))
    return runs


def predicted_tasks(predicted: Prediction) -> list[dict[str, Any]]:
    """Rows in the format of `task_times`."""
    return [
        {"name": t["name"], "predicted_s": t["end_s"] - t["start_s"], "low_s": 0.5, "high_s": None}
        for t in predicted.tasks or []
    ]
