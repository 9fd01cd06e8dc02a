"""Results of the runs of the programs' study: time, bytes and processor time of each task."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from penstock.archive.bundle import Bundle


@dataclass(frozen=True)
class Observed:
    """One run: time of its task [s], bytes by its own count, processor time of its group [s]."""

    disk: str
    program: str
    size: str
    replicate: int
    time_s: float
    moved: dict[str, int]
    cpu_s: float
    delivered_bps: float
    """rate of the disk while it had requests, by its certificate"""


def observed(out: Path) -> tuple[list[Observed], list[str]]:
    """Valid runs of the study in `out`, and reasons why others are excluded."""
    runs = pd.read_parquet(out / "runs.parquet").sort_values("run_id")
    valid, excluded = [], []
    for row in runs.to_dict("records"):
        name = f"{row['disk']} {row['program']} {row['size']} #{row['replicate']}"
        if not row["valid"]:
            excluded.append(f"{name}: {row['reason']}")
            continue
        bundle = Bundle.open(out / "runs" / str(row["run_id"]))
        task = json.loads((bundle.path / "workload" / "task.json").read_text())
        certificate = bundle.table("fidelity").to_pandas().set_index("metric")
        valid.append(
            Observed(
                disk=str(row["disk"]),
                program=str(row["program"]),
                size=str(row["size"]),
                replicate=int(row["replicate"]),
                time_s=float(task["seconds"]),
                moved={k: int(v) for k, v in task["moved"].items()},
                cpu_s=group_cpu_s(bundle, int(task["begin_ns"]), int(task["end_ns"])),
                delivered_bps=float(certificate.loc["rate", "delivered"]),
            )
        )
    return valid, excluded


def group_cpu_s(bundle: Bundle, begin_ns: int, end_ns: int) -> float:
    """Processor time [s] of the run's group between two times [CLOCK_REALTIME ns], by the monitor."""
    clocks = bundle.table("clocks").to_pandas().set_index("point").loc["start"]
    phases = bundle.table("phases").to_pandas().set_index("phase_id")
    samples = bundle.table("samples").to_pandas()
    cpu_time = samples[(samples["source"] == "cgroup") & (samples["metric"] == "cpu_time")]
    t_ns = [*cpu_time["t_ns"], phases.loc["workload", "end_ns"]]
    cpu_ns = [*cpu_time["value"], bundle.manifest["cpu_ns"]]
    cumulative = pd.Series(cpu_ns, index=t_ns).sort_index().cummax()
    shift = int(clocks["monotonic_ns"]) - int(clocks["realtime_ns"])
    at = np.interp(
        [begin_ns + shift, end_ns + shift], cumulative.index, cumulative.to_numpy(dtype=float)
    )
    return float(at[1] - at[0]) / 1e9
