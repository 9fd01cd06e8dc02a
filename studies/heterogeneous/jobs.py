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
    found, left_out = [], []
    if not (out / "runs.parquet").exists():
        return found, ["no run"]
    for row in pd.read_parquet(out / "runs.parquet").sort_values("run_order").to_dict("records"):
        values = {str(k): v for k, v in row.items()}
        bundle = Bundle.open(out / "runs" / str(row["run_id"]))
        if not row["valid"]:
            left_out.append(f"{row['run_id']} ({row['setting']}): {row['reason']}")
        if row["valid"] or (invalid and bundle.manifest["exit_status"] == 0):
            found.append(read(bundle, values))
    return found, left_out


def job_runs(out: Path, *, invalid: bool) -> tuple[list[Run], list[str]]:
    """The runs of the map-reduce job."""
    return _runs(out, invalid, _job)


def terasort_runs(out: Path, *, invalid: bool) -> tuple[list[Run], list[str]]:
    """The runs of TeraSort."""
    return _runs(out, invalid, _terasort)


def _job(bundle: Bundle, row: dict[str, Any]) -> Run:
    said = json.loads((bundle.path / "workload" / "job.json").read_text())
    setting = str(row["setting"])
    slowest = needed(
        bundle.table("device_requests").to_pandas(),
        said["stages"],
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
        time_s=float(said["seconds"]),
        last_reducer=said["last_reducer"],
        checksum=said["checksum"],
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
    asked = requests[requests["op"].astype(str) != "flush"]
    node = asked["disk_id"].astype(str).str.split(".").str[0]
    done = asked["done_ns"].to_numpy()
    found = {}
    for stage, (begin, end) in stages.items():
        mine = (done > begin) & (done <= end)
        size = asked["size_bytes"][mine].groupby(node[mine]).sum()
        times = {str(n): float(b) / limit(str(n)) for n, b in size.items()}
        found[stage] = max(times.items(), key=lambda item: item[1]) if times else ("", 0.0)
    return found


def _terasort(bundle: Bundle, row: dict[str, Any]) -> Run:
    said = json.loads((bundle.path / "workload" / "terasort.json").read_text())
    return Run(
        run_id=str(row["run_id"]),
        storage="flash",
        setting=str(row["setting"]),
        replicate=int(row["replicate"]),
        valid=bool(row["valid"]),
        time_s=float(said["seconds"]),
        last_reducer=said["last_reduce"],
        checksum=said["checksum"],
        straggler=busiest(bundle.table("device_requests").to_pandas(), said),
    )


def busiest(requests: pd.DataFrame, said: dict[str, Any]) -> str:
    """The node whose disk had outstanding requests for longest during the job."""
    mine = requests[
        (requests["done_ns"] > said["began_ns"]) & (requests["t_ns"] < said["ended_ns"])
    ]
    served = (mine["service_ns"] + mine["wait_ns"]).groupby(mine["disk_id"].astype(str)).sum()
    return str(served.idxmax()).split(".")[0]
