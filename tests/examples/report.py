"""A realistic OUT directory, written from the published table formats alone, for the report's tests."""

from __future__ import annotations

import hashlib
import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

from penstock.analyse.statistics.effects import effects
from penstock.analyse.statistics.fit import fitted, usable
from penstock.analyse.statistics.residuals import residual_table
from penstock.design.plan import make_plan
from penstock.design.planned import Plan
from penstock.report import html
from penstock.report.all_figures import plates
from penstock.study.load import load_study

STUDY_TEXT = """penstock: 1
name: access-patterns
question: >
  Does random access cost anything on this disk, and what removes the cost?
factors:
  disk:    {levels: [hdd-7200, sata-ssd]}
  pattern: {levels: {sequential: read, random: randread}}
  block_size: {levels: {4KiB: 4k, 128KiB: 128k}, unit: B}
  jobs:    {levels: [1, 8]}
design:
  kind: full
  replicates: 2
  seed: 20261121
platform:
  nodes:
    - name: node1
      memory: 512MiB
      disks:
        - {name: data, profile: "{disk}", time_scale: 4, size: 1GiB}
workload:
  prepare: fio --name=lay --directory={data}
  command: fio --name=access --directory={data} --rw={pattern} --bs={block_size} --numjobs={jobs}
  timeout: 60s
  parser: fio
responses:
  bandwidth: {from: read_bandwidth, unit: MiB/s, better: higher}
  p99: {from: read_p99_latency, unit: ms, better: lower}
observers:
  monitor: {interval: 1s}
  trace: {mode: trace}
"""
FACTORS = {
    "disk": ["hdd-7200", "sata-ssd"],
    "pattern": ["sequential", "random"],
    "block_size": ["4KiB", "128KiB"],
    "jobs": ["1", "8"],
}
BANDWIDTH = {  # MiB/s, by disk, pattern, block size, jobs: similar to published results
    ("hdd-7200", "sequential", "4KiB", "1"): 38.0,
    ("hdd-7200", "sequential", "4KiB", "8"): 40.0,
    ("hdd-7200", "sequential", "128KiB", "1"): 39.0,
    ("hdd-7200", "sequential", "128KiB", "8"): 37.5,
    ("hdd-7200", "random", "4KiB", "1"): 0.12,
    ("hdd-7200", "random", "4KiB", "8"): 0.13,
    ("hdd-7200", "random", "128KiB", "1"): 3.4,
    ("hdd-7200", "random", "128KiB", "8"): 3.6,
    ("sata-ssd", "sequential", "4KiB", "1"): 61.0,
    ("sata-ssd", "sequential", "4KiB", "8"): 118.0,
    ("sata-ssd", "sequential", "128KiB", "1"): 121.0,
    ("sata-ssd", "sequential", "128KiB", "8"): 124.0,
    ("sata-ssd", "random", "4KiB", "1"): 10.2,
    ("sata-ssd", "random", "4KiB", "8"): 66.0,
    ("sata-ssd", "random", "128KiB", "1"): 84.0,
    ("sata-ssd", "random", "128KiB", "8"): 121.0,
}


@dataclass(frozen=True)
class Shape:
    """A study and the bandwidth of each treatment, by its levels in the order of the factors."""

    text: str
    factors: dict[str, list[str]]
    bandwidth: dict[tuple[str, ...], float]


PUBLISHED = Shape(STUDY_TEXT, FACTORS, BANDWIDTH)
#: three disks, two journals, two replicates: twelve runs, as in a first study
TWELVE = Shape(
    STUDY_TEXT.replace(
        """  disk:    {levels: [hdd-7200, sata-ssd]}
  pattern: {levels: {sequential: read, random: randread}}
  block_size: {levels: {4KiB: 4k, 128KiB: 128k}, unit: B}
  jobs:    {levels: [1, 8]}
""",
        """  disk:    {levels: [hdd-7200, sata-ssd, network-volume]}
  journal: {levels: {WAL: wal, DELETE: delete}}
""",
    )
    .replace(" --rw={pattern} --bs={block_size} --numjobs={jobs}", " --rw={journal}")
    .replace(
        "Does random access cost anything on this disk, and what removes the cost",
        "Which disk, and which journal",
    ),
    {"disk": ["hdd-7200", "sata-ssd", "network-volume"], "journal": ["WAL", "DELETE"]},
    {
        ("hdd-7200", "WAL"): 4.6,
        ("hdd-7200", "DELETE"): 0.5,
        ("sata-ssd", "WAL"): 17.0,
        ("sata-ssd", "DELETE"): 5.2,
        ("network-volume", "WAL"): 12.0,
        ("network-volume", "DELETE"): 4.2,
    },
)


def _terms() -> list[tuple[str, ...]]:
    names = list(FACTORS)
    return [t for k in range(1, 5) for t in itertools.combinations(names, k)]


def effects_of(runs: pd.DataFrame, response: str) -> pd.DataFrame:
    """Least squares on the valid runs, in the format of the effects table."""
    valid_runs = runs[runs["valid"]]
    coded = {f: np.where(valid_runs[f] == levels[1], 1.0, -1.0) for f, levels in FACTORS.items()}
    terms = _terms()
    columns = [np.prod([coded[f] for f in t], axis=0) for t in terms]
    x = np.column_stack([np.ones(len(valid_runs)), *columns])
    y = valid_runs[response].to_numpy(float)
    beta, *_ = np.linalg.lstsq(x, y, rcond=None)
    df = len(y) - x.shape[1]
    sse = float(((y - x @ beta) ** 2).sum())
    sst = float(((y - y.mean()) ** 2).sum())
    covariance = sse / df * np.linalg.inv(x.T @ x)
    rows = []
    for i, term in enumerate(terms, start=1):
        q, s = beta[i], covariance[i, i] ** 0.5
        half_width = stats.t.ppf(0.975, df) * s
        rows.append(
            {
                "response": response,
                "term": ":".join(term),
                "coefficient": q,
                "effect": 2 * q,
                "ci_low": q - half_width,
                "ci_high": q + half_width,
                "effect_ci_low": 2 * (q - half_width),
                "effect_ci_high": 2 * (q + half_width),
                "variation_share": 100 * len(y) * q * q / sst,
                "p_value": 2 * stats.t.sf(abs(q / s), df),
                "aliases": "",
                "df": 1,
            }
        )
    rows.append(
        {
            "response": response,
            "term": "residual",
            "variation_share": 100 * sse / sst,
            "aliases": "",
            "df": df,
        }
    )
    return pd.DataFrame(rows)


def residuals_of(runs: pd.DataFrame, plan: Plan, response: str) -> pd.DataFrame:
    """The residuals table of one response."""
    fit = fitted(runs, plan, response)
    return residual_table(fit, usable(runs, plan, response), response, "linear")


def _write(path: Path, frame: pd.DataFrame) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), path)


def _windows(t0: int, slow_from: int) -> pd.DataFrame:
    """Six seconds of reads at 20 MB/s, then at 5; in the last a tenth is missing."""
    rows = []
    for second in range(6):
        requested_bps = 20e6 if second < slow_from else 5e6
        degraded = second == 5
        rows.append(
            {
                "disk_id": "data",
                "direction": "read",
                "t_ns": t0 + second * 1_000_000_000,
                "window_ns": 1_000_000_000,
                "asked_bps": requested_bps,
                "delivered_bps": requested_bps * (0.9 if degraded else 1.0),
                "ops": 100,
                "bytes": int(requested_bps),
                "verdict": "not-honoured" if degraded else "honoured",
            }
        )
    return pd.DataFrame(rows)


def _utilisation(rng: np.random.Generator, t0: int, busy: float) -> pd.DataFrame:
    seconds = 8
    rows = []
    for second in range(seconds):
        t = t0 + second * 1_000_000_000
        load = 1.0 if 1 <= second <= 6 else 0.05
        rows += [
            (t, "cpu", "all", "utilisation", "%", 22 * load + 6 * rng.random()),
            (
                t,
                "emulated_disk",
                "data",
                "utilisation",
                "%",
                min(100.0, busy * load + rng.random()),
            ),
            (t, "cgroup_cpu", "run", "utilisation", "%", 9 * load + 3 * rng.random()),
            (t, "network", "lo", "utilisation", "%", 0.0),
        ]
    return pd.DataFrame(rows, columns=["t_ns", "kind", "entity", "metric", "unit", "value"])


def _is_random(levels: dict[str, str]) -> bool:
    return "random" in levels.values() or "DELETE" in levels.values()


def _events(rng: np.random.Generator, t0: int, levels: dict[str, str], n: int) -> pd.DataFrame:
    jobs = int(levels.get("jobs", 1))
    size = 4096 if levels.get("block_size", "4KiB") == "4KiB" else 131072
    file_bytes = 64 << 20
    job = rng.integers(0, jobs, n)
    if _is_random(levels):
        offset = rng.integers(0, file_bytes // size, n) * size
    else:
        offset = np.zeros(n, np.int64)
        for j in range(jobs):
            selected = job == j
            offset[selected] = (
                j * file_bytes // jobs + np.arange(selected.sum()) * size
            ) % file_bytes
    return pd.DataFrame(
        {
            "t_ns": t0 + np.sort(rng.integers(0, 6_000_000_000, n)),
            "seq": np.arange(n),
            "op": pd.Categorical(["pread64"] * n),
            "direction": pd.Categorical(np.where(rng.random(n) < 0.02, "write", "read")),
            "file_id": np.zeros(n, np.int32),
            "offset_bytes": offset,
            "size_bytes": np.full(n, size),
            "done_bytes": np.full(n, size),
            "errno": np.zeros(n, np.int32),
            "latency_ns": rng.gamma(4, 200_000, n).astype(np.int64),
            "pid": np.full(n, 100),
            "tid": 100 + job,
        }
    )


def write_page(out: Path) -> Path:
    """Write the report's page with its figures, without separate figure files for publication."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(html, "plates", lambda outcome, _: plates(outcome, None))
        return html.write_report(out)


def write_example(
    out: Path,
    *,
    events: int = 6000,
    invalid: tuple[str, ...] = ("r009",),
    failed: tuple[str, ...] = (),
    lost: int = 0,
    flat: bool = False,
    prediction_error: float = 0.06,
    shape: Shape = PUBLISHED,
) -> Path:
    """Write an OUT directory of 32 runs; `flat`: all treatments are equal; `lost`: number of lost events."""
    rng = np.random.default_rng(7)
    out.mkdir(parents=True, exist_ok=True)
    (out / "study.yaml").write_text(shape.text)
    plan = make_plan(load_study(out / "study.yaml"))
    plan_json = plan.to_json()
    (out / "plan.json").write_text(json.dumps(plan_json, indent=1))
    plan_rows = plan_json["rows"]
    treatments = sorted({r["treatment_id"]: r["levels"] for r in plan_rows}.items())
    run_rows, fidelity_rows = [], []
    for planned in plan_rows:
        run, levels, number = planned["run_id"], planned["levels"], planned["run_order"]
        treatment, replicate = planned["treatment_id"], planned["replicate"]
        mean_bandwidth = 50.0 if flat else shape.bandwidth[tuple(levels.values())]
        bandwidth = mean_bandwidth * float(np.exp(rng.normal(0, 0.015)))
        p99 = (
            40.0
            / mean_bandwidth
            * (6 if levels.get("jobs") == "8" else 1)
            * float(rng.lognormal(0, 0.05))
        )
        valid = run not in invalid and run not in failed
        reason = ""
        if run in invalid:
            reason = "data: p99 lateness 3.1 ms is above 5 % of the service time (host saturated)"
        if run in failed:
            reason = "the workload ended with status 1"
            bandwidth = p99 = float("nan")
        run_rows.append(
            {
                "study_id": plan_json["study_id"],
                "treatment_id": treatment,
                "run_id": run,
                "attempt": 1,
                "run_order": number,
                "replicate": replicate,
                "block_id": replicate,
                **levels,
                "bandwidth": bandwidth,
                "p99": p99,
                "state": "failed" if run in failed else "finished",
                "valid": valid,
                "reason": reason,
            }
        )
        if run not in failed:
            fidelity_rows += _fidelity(rng, run, mean_bandwidth, saturated=run in invalid)
            _bundle(out, rng, planned, run_rows[-1], events, lost)
    runs = pd.DataFrame(run_rows)
    _write(out / "runs.parquet", runs)
    tables = [
        effects_of(runs, response) if shape is PUBLISHED else effects(runs, plan, response)
        for response in ("bandwidth", "p99")
    ]
    _write(out / "effects.parquet", pd.concat(tables))
    _write(
        out / "residuals.parquet",
        pd.concat([residuals_of(runs, plan, response) for response in ("bandwidth", "p99")]),
    )
    _write(out / "fidelity.parquet", pd.DataFrame(fidelity_rows))
    means = runs[runs["valid"]].groupby("treatment_id")["bandwidth"].mean()
    predictions = []
    for treatment, levels in treatments:
        measured = float(means[treatment])
        predicted = measured * float(np.exp(rng.normal(0, prediction_error)))
        if treatment == "t02":
            predicted = measured * 1.31
        if levels.get("journal") == "WAL":  # its command differs from the basis: no prediction
            predicted = float("nan")
        predictions.append(
            {
                "treatment_id": treatment,
                **levels,
                "response": "bandwidth",
                "predicted": predicted,
                "ci_low": predicted * 0.93,
                "ci_high": predicted * 1.07,
                "measured_mean": measured,
                "ratio": predicted / measured,
                "source": "station",
                "basis_treatment": "t01" if shape is PUBLISHED else "t04",
            }
        )
    _write(out / "predictions.parquet", pd.DataFrame(predictions))
    return out


def _fidelity(
    rng: np.random.Generator, run: str, rate: float, *, saturated: bool
) -> list[dict[str, Any]]:
    rows = []
    service = 40_000_000.0 / max(rate, 1.0) / 256
    for metric, requested, unit, n in (
        ("rate", rate * 1048576, "B/s", 4000),
        ("p50", service, "ns", 4000),
        ("p95", service * 2.0, "ns", 4000),
        ("p99", service * 2.5, "ns", 4000),
        ("lateness", service * 0.05, "ns", 4000),
    ):
        ratio = 1 + rng.normal(0, 0.004 if metric == "rate" else 0.02)
        verdict = "honoured"
        if metric == "lateness":
            ratio = 0.3 + rng.random() * 0.2
        if saturated:
            verdict = "host-saturated"
            ratio = 3.4 if metric == "lateness" else ratio * (0.81 if metric == "rate" else 1.4)
        rows.append(
            {
                "run_id": run,
                "disk_id": "data",
                "metric": metric,
                "asked": requested,
                "delivered": requested * ratio,
                "ratio": ratio,
                "unit": unit,
                "n": n,
                "verdict": verdict,
                "valid": not saturated,
                "reason": "answers came late" if saturated else "",
            }
        )
    return rows


def _bundle(
    out: Path,
    rng: np.random.Generator,
    planned: dict[str, Any],
    row: dict[str, Any],
    events: int,
    lost: int,
) -> None:
    folder = out / "runs" / row["run_id"]
    folder.mkdir(parents=True)
    t0 = 1_000_000_000_000 + planned["run_order"] * 10_000_000_000
    levels = planned["levels"]
    trace = _events(rng, t0, levels, events)
    _write(folder / "io_events.parquet", trace)
    _write(
        folder / "files.parquet",
        pd.DataFrame(
            [{"file_id": 0, "path": "access.0.0", "size_bytes": 64 << 20, "disk_id": "data"}]
        ),
    )
    verdict = "random" if _is_random(levels) else "consecutive"
    if verdict == "consecutive" and levels.get("jobs") == "8":
        verdict = "interleaved"
    directions = ("read",) if "pattern" in levels else ("read", "write")
    _write(
        folder / "patterns.parquet",
        pd.DataFrame(
            [
                {
                    "file_id": 0,
                    "path": "access.0.0",
                    "direction": direction,
                    "tid": None,
                    "class": verdict,
                    "k": 8 if verdict == "interleaved" else None,
                    "requests": events,
                    "bytes": events * int(trace["size_bytes"].iloc[0]),
                    "confidence": 0.98,
                    "consecutive_share": 0.0 if verdict == "random" else 0.99,
                    "sentence": f"Reads are {verdict}: larger requests or more jobs would help.",
                }
                for direction in directions
            ]
        ),
    )
    _write(folder / "utilisation.parquet", _utilisation(rng, t0, 97.0))
    _write(folder / "fidelity_windows.parquet", _windows(t0, slow_from=3))
    change = {"resource": "disk", "name": "data", "applied_ns": t0 + 3_000_000_000}
    _write(folder / "events.parquet", pd.DataFrame([change]))
    _write(
        folder / "phases.parquet",
        pd.DataFrame(
            [
                {"phase_id": "settle", "start_ns": t0 - 500_000_000, "end_ns": t0},
                {"phase_id": "workload", "start_ns": t0, "end_ns": t0 + 6_000_000_000},
            ]
        ),
    )
    manifest = {
        "schema": "penstock/bundle/1",
        "versions": {"penstock": "0.1.0", "fio": "3.33", "kernel": "6.18.0"},
        "host": {
            "hostname": "host-a",
            "kernel": "6.18.0",
            "cpus": 2,
            "cpu_model": "Example CPU",
            "memory_bytes": 24 << 30,
        },
        "study_id": row["study_id"],
        "study_hash": hashlib.sha256((out / "study.yaml").read_bytes()).hexdigest(),
        "profiles": {"data": hashlib.sha256(levels["disk"].encode()).hexdigest()},
        "disks": {"data": {"name": "data", "profile": levels["disk"], "time_scale": 4}},
        "treatment_id": row["treatment_id"],
        "run_id": row["run_id"],
        "attempt": 1,
        "levels": levels,
        "seed": 20261121,
        "state": row["state"],
        "valid": row["valid"],
        "reason": row["reason"],
        "losses": {"trace": lost, "monitor": 0},
        "receipts": {
            "trace": {
                "seen": events + 40,
                "kept": events - lost,
                "filtered": 40,
                "lost": lost,
                "cpu_ns": 21_000_000,
            },
            "monitor": {
                "samples": 8,
                "expected": 8,
                "missed": 0,
                "late_p99_ns": 180_000,
                "cpu_ns": 2_400_000,
            },
        },
        "responses": {
            "bandwidth": {"value": row["bandwidth"], "unit": "MiB/s"},
            "p99": {"value": row["p99"], "unit": "ms"},
        },
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1))
