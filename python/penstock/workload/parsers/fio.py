"""fio 2 and 3: its JSON report (`--output-format=json+`, on stdout or in a file in {run_dir}) and options."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.workload.measured import Measured, Report
from penstock.workload.parsers.fio_command import operations
from penstock.workload.parsers.fio_report import DIRECTIONS, read_report
from penstock.workload.parsers.fio_times import Times

__all__ = ["RESPONSES", "operations", "parse"]

_PERCENTILES = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p999": 99.9, "p9999": 99.99}
_LATENCIES = [f"{name}_latency" for name in ("mean", "min", "max", *_PERCENTILES)]
_DIRECTION = {
    "bandwidth": "B/s",
    "iops": "1/s",
    "bytes": "B",
    "requests": "requests",
    **dict.fromkeys(_LATENCIES, "ns"),
}

#: latency is fio's completion latency (clat); bandwidth and iops are relative to the jobs' run time; totals
#: are of reads, writes and trims; `mixed` is for `unified_rw_reporting`, which has no directions
RESPONSES: dict[str, str] = {
    **{f"{d}_{name}": unit for d in DIRECTIONS for name, unit in _DIRECTION.items()},
    **{name: _DIRECTION[name] for name in ("bandwidth", "iops", "bytes", "requests")},
    "sync_requests": "requests",
    **{f"sync_{name}": "ns" for name in _LATENCIES},
    "user_cpu": "%",
    "system_cpu": "%",
}


def parse(run_dir: Path, stdout: str, stderr: str, wall_s: float) -> Report:
    """fio's totals over all jobs; a direction without requests gives no latencies.

    Percentiles come from the merged bins of `json+` by fio's method: the middle of the first bin whose
    cumulative count reaches the share. Without bins, several jobs have no percentile. Times of sequential
    jobs (`stonewall`) are added (`fio_times`). PenstockError if fio reported an error, or without a report of
    a supported version.
    """
    report = read_report(run_dir, stdout)
    try:
        totals = _Totals(report["jobs"], report.get("global options") or {})
    except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError) as error:
        raise PenstockError(f"fio's report is not as fio writes it: {error}") from error
    values = {name: Measured(value, RESPONSES[name]) for name, value in totals.values.items()}
    return Report({**values, "wall_s": Measured(wall_s, "s")}, totals.missing)


class _Totals:
    """Values over all jobs of a report, and reasons for missing ones."""

    def __init__(self, jobs: Sequence[dict[str, Any]], shared: dict[str, Any]) -> None:
        failed = [j for j in jobs if j.get("error")]
        if failed:
            raise PenstockError(
                f"fio's job {failed[0].get('jobname')} ended with error {failed[0]['error']}"
            )
        self.values: dict[str, float] = {}
        self.missing: dict[str, str] = {}
        times = Times(jobs, shared)
        unified = ["mixed" in j and "read" not in j for j in jobs]
        for direction in DIRECTIONS:
            if any(direction in job for job in jobs):
                self._add(jobs, (direction,), times, f"{direction}_")
                self._add_latencies(
                    [j[direction] for j in jobs if direction in j], "clat_ns", direction
                )
        if any(unified):
            for name in (f"{d}_{key}" for d in ("read", "write", "trim") for key in _DIRECTION):
                self.values.pop(name, None)
                self.missing[name] = "with unified_rw_reporting=mixed fio reports mixed_… alone"
        self._add(jobs, ("read", "write", "trim"), times, "")
        syncs = [j["sync"] for j in jobs if j.get("sync")]
        counts = [s.get("total_ios", s["lat_ns"].get("N", 0)) for s in syncs]
        if sum(counts):
            self.values["sync_requests"] = sum(counts)
            self._add_latencies(syncs, "lat_ns", "sync")
        for name, key in (("user_cpu", "usr_cpu"), ("system_cpu", "sys_cpu")):
            share = times.processor_percent(key)
            if share is None:
                self.missing[name] = times.unknown
            else:
                self.values[name] = share
        odd = [name for name, value in self.values.items() if not math.isfinite(value)]
        if odd:
            raise ValueError(f"{odd[0]} is {self.values[odd[0]]}")
        self.values = {name: float(value) for name, value in self.values.items()}

    def _add(
        self, jobs: Sequence[dict[str, Any]], directions: Sequence[str], times: Times, prefix: str
    ) -> None:
        """Bytes, requests and rates of these directions in total; all those of a unified job."""
        parts = [side for job in jobs for side in _sides(job, directions)]
        self.values[f"{prefix}bytes"] = sum(p.get("io_bytes", 0) for p in parts)
        # fio before 2.2 has no count
        counted = all("total_ios" in p for p in parts if p.get("io_bytes"))
        if counted:
            self.values[f"{prefix}requests"] = sum(p.get("total_ios", 0) for p in parts)
        seconds = times.seconds([_sides(job, directions) for job in jobs])
        for name, amount, own in (
            ("bandwidth", f"{prefix}bytes", "bw_bytes"),
            ("iops", f"{prefix}requests", "iops"),
        ):
            if seconds is None:
                self.missing[prefix + name] = times.unknown
            elif amount not in self.values:
                self.missing[prefix + name] = "this version of fio counts no requests"
            elif seconds:
                self.values[prefix + name] = self.values[amount] / seconds
            else:  # fio's own figures for times below its resolution of 1 ms
                self.values[prefix + name] = sum(p.get(own, 0) for p in parts)

    def _add_latencies(self, parts: list[dict[str, Any]], key: str, prefix: str) -> None:
        counted = [(_count(p, key), p[key]) for p in parts if p.get(key)]
        counted = [(n, c) for n, c in counted if n]
        if not counted:
            return
        requests = sum(n for n, _ in counted)
        summary = {
            "mean": sum(n * float(c["mean"]) for n, c in counted) / requests,
            "min": min(c["min"] for _, c in counted),
            "max": max(c["max"] for _, c in counted),
            **_percentiles([c for _, c in counted]),
        }
        self.values |= {f"{prefix}_{name}_latency": value for name, value in summary.items()}
        if len(counted) > 1 and "p50" not in summary:
            reason = "fio gave percentiles of each job alone; add --output-format=json+"
            self.missing |= {f"{prefix}_{name}_latency": reason for name in _PERCENTILES}


def _sides(job: Mapping[str, Any], directions: Sequence[str]) -> list[dict[str, Any]]:
    """Results of a job by direction; a unified job, which has only `mixed`, counts as all of them."""
    if "mixed" in job and "read" not in job and len(directions) > 1:
        return [job["mixed"]]
    return [job[d] for d in directions if d in job]


def _count(part: Mapping[str, Any], key: str) -> float:
    """Requests with a latency; fio before 3.18 has no count, and writes a mean of 0 without requests."""
    latency = part[key]
    if "N" in latency:
        return float(latency["N"])
    return float(part.get("total_ios", 0)) if latency.get("mean") else 0.0


def _percentiles(latencies: list[dict[str, Any]]) -> dict[str, float]:
    if all(c.get("bins") for c in latencies):
        bins = np.concatenate([np.array(list(c["bins"]), dtype=np.int64) for c in latencies])
        counts = np.concatenate([np.array(list(c["bins"].values()), np.int64) for c in latencies])
        order = np.argsort(bins, kind="stable")
        cumulated = np.cumsum(counts[order])
        shares = np.array(list(_PERCENTILES.values())) / 100
        places = np.searchsorted(cumulated, np.ceil(shares * cumulated[-1] - 1e-9))
        return dict(zip(_PERCENTILES, bins[order][places].astype(float).tolist(), strict=True))
    if len(latencies) > 1:
        return {}
    by_percent = {float(k): float(v) for k, v in latencies[0].get("percentile", {}).items()}
    return {name: by_percent[p] for name, p in _PERCENTILES.items() if p in by_percent}
