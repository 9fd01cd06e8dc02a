"""Times of the runs of the Hadoop studies, and the times that the bytes of their disks predict."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from settings import limit_bps

from penstock.archive.bundle import Bundle


@dataclass(frozen=True)
class Run:
    """One run: its time [s] and the deciding nodes. `predicted_s` is 0 without a prediction."""

    run_id: str
    storage: str
    setting: str
    replicate: int
    valid: bool
    time_s: float
    last_reducer: str
    checksum: str
    straggler: str
    predicted_s: float = 0.0
    #: stage → node whose disk needed longest for it, and that time [s]
    slowest: dict[str, tuple[str, float]] = field(default_factory=dict)


def _runs(
    out: Path, invalid: bool, read: Callable[[Bundle, dict[str, Any]], Run]
) -> tuple[list[Run], list[str]]:
    """Valid runs (with `invalid`, all that ended normally), and reasons why others are excluded."""
    runs, excluded = [], []
    if not (out / "runs.parquet").exists():
        return runs, ["no run"]
    for row in pd.read_parquet(out / "runs.parquet").sort_values("run_order").to_dict("records"):
        values = {str(k): v for k, v in row.items()}
        bundle = Bundle.open(out / "runs" / str(row["run_id"]))
        if not row["valid"]:
            excluded.append(f"{row['run_id']} ({row['setting']}): {row['reason']}")
        if row["valid"] or (invalid and bundle.manifest["exit_status"] == 0):
            runs.append(read(bundle, values))
    return runs, excluded


def job_runs(out: Path, *, invalid: bool) -> tuple[list[Run], list[str]]:
    """The runs of the map-reduce job."""
    return _runs(out, invalid, _job)


def terasort_runs(out: Path, *, invalid: bool) -> tuple[list[Run], list[str]]:
    """The runs of TeraSort."""
    return _runs(out, invalid, _terasort)


def _job(bundle: Bundle, row: dict[str, Any]) -> Run:
    report = json.loads((bundle.path / "workload" / "job.json").read_text())
    setting = str(row["setting"])
    slowest = needed(
        bundle.table("device_requests").to_pandas(),
        report["stages"],
        lambda node: limit_bps(setting, node),
    )
    times: dict[str, float] = {}
    for node, seconds in slowest.values():
        times[node] = times.get(node, 0.0) + seconds
    return Run(
        run_id=str(row["run_id"]),
        storage=str(row["storage"]),
        setting=str(row["setting"]),
        replicate=int(row["replicate"]),
        valid=bool(row["valid"]),
        time_s=float(report["seconds"]),
        last_reducer=report["last_reducer"],
        checksum=report["checksum"],
        straggler=max(times, key=lambda n: times[n]),
        predicted_s=sum(times.values()),
        slowest=slowest,
    )


def needed(
    requests: pd.DataFrame, stages: dict[str, list[int]], limit: Callable[[str], float]
) -> dict[str, tuple[str, float]]:
    """For each stage, the node whose disk needs longest for the bytes that it served at its limit.

    `requests`: the table device_requests; `stages`: start and end (CLOCK_MONOTONIC, ns); `limit` of a node's
    reads, and of its writes [B/s]. A task reads before it writes, so the times of both directions add up. A
    request counts where it was answered.
    """
    data_requests = requests[requests["op"].astype(str) != "flush"]
    node = data_requests["disk_id"].astype(str).str.split(".").str[0]
    done = data_requests["done_ns"].to_numpy()
    by_stage = {}
    for stage, (begin, end) in stages.items():
        in_stage = (done > begin) & (done <= end)
        size = data_requests["size_bytes"][in_stage].groupby(node[in_stage]).sum()
        times = {str(n): float(b) / limit(str(n)) for n, b in size.items()}
        by_stage[stage] = max(times.items(), key=lambda item: item[1]) if times else ("", 0.0)
    return by_stage


def _terasort(bundle: Bundle, row: dict[str, Any]) -> Run:
    report = json.loads((bundle.path / "workload" / "terasort.json").read_text())
    return Run(
        run_id=str(row["run_id"]),
        storage="flash",
        setting=str(row["setting"]),
        replicate=int(row["replicate"]),
        valid=bool(row["valid"]),
        time_s=float(report["seconds"]),
        last_reducer=report["last_reduce"],
        checksum=report["checksum"],
        straggler=busiest(bundle.table("device_requests").to_pandas(), report),
    )


def busiest(requests: pd.DataFrame, report: dict[str, Any]) -> str:
    """The node whose disk had outstanding requests for longest during the job."""
    in_job = requests[
        (requests["done_ns"] > report["began_ns"]) & (requests["t_ns"] < report["ended_ns"])
    ]
    served = (in_job["service_ns"] + in_job["wait_ns"]).groupby(in_job["disk_id"].astype(str)).sum()
    return str(served.idxmax()).split(".")[0]
