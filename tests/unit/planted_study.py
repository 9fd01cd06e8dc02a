"""Studies with a planted truth: their directory before the analysis."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.archive.bundle import Bundle
from penstock.campaign.frozen import campaign, freeze
from penstock.design.plan import make_plan
from penstock.study.load import load_study

Levels = Mapping[str, str]
SECOND = 1_000_000_000


@dataclass(frozen=True)
class Doings:
    """Contents of the tables of a run of `wall_s`: times in seconds; None or 0: no such table."""

    wall_s: float = 10.0
    processor_s: float | None = None
    flushes: int = 0
    flushes_s: float = 0.0
    #: path, direction, class, calls, bytes of a call, seconds
    calls: tuple[tuple[str, str, str, int, int, float], ...] = ()
    disk_busy_s: float | None = None
    #: sent and received [bytes/s], and bandwidth of the link [bytes/s]
    network: tuple[float, float] | None = None
    traced: bool = True


@dataclass(frozen=True)
class Planted:
    """A study and its program: `truth` returns the true responses of a treatment."""

    question: str
    factors: Mapping[str, Sequence[str | int]]
    truth: Callable[[Levels], Mapping[str, float]]
    responses: Mapping[str, tuple[str, str]] = field(
        default_factory=lambda: {"throughput": ("1/s", "higher")}
    )
    name: str = "planted"
    noise: float = 0.02
    replicates: int = 3
    failed: Callable[[Levels], bool] = lambda _: False
    #: by run order
    failed_order: Callable[[int], bool] = lambda _: False
    doings: Callable[[Levels], Doings] | None = None
    seed: int = 7
    profile: str = "sata-ssd"
    #: time scale of the disk in the manifests; None: not in the manifest
    time_scales: Callable[[Levels], float] | None = None
    #: P of a fraction 2^(K-P); 0: the full design
    fraction: int = 0
    #: kind of the design as in a study file; empty: full, or the fraction
    kind: str = ""
    quick: bool = False

    def text(self) -> str:
        """The study file."""
        options = " ".join(f"--{name} {{{name}}}" for name in self.factors)
        factors = "\n".join(
            f"  {name}: {{levels: {json.dumps(list(levels))}}}"
            for name, levels in self.factors.items()
        )
        responses = "\n".join(
            f"  {name}: {{from: {{regex: '{name}: ([0-9.]+)'}}, unit: {unit}, better: {better}}}"
            for name, (unit, better) in self.responses.items()
        )
        kind = self.kind or (f"{{fraction: {self.fraction}}}" if self.fraction else "full")
        trace = ", trace: {mode: pattern}" if self.doings is not None else ""
        return f"""penstock: 1
name: {self.name}
question: {json.dumps(self.question)}
factors:
{factors}
design: {{kind: {kind}, replicates: {self.replicates}, seed: {self.seed}}}
platform:
  nodes:
    - name: node1
      memory: 512MiB
      disks: [{{name: data, profile: "{self.profile}", time_scale: 4, size: 1GiB}}]
workload:
  command: program --dir {{data}} {options}
  timeout: 60s
responses:
{responses}
observers: {{monitor: {{interval: 1s}}{trace}}}
"""

    def write(self, out: Path) -> Path:
        """Write study, plan, campaign and bundles to `out`."""
        out.parent.mkdir(parents=True, exist_ok=True)
        source = out.parent / f"{self.name}.study.yaml"
        source.write_text(self.text())
        study = load_study(source, [], self.quick)
        plan = make_plan(study)
        freeze(out, study, plan, campaign(study, plan, {}, []))
        draws = np.random.default_rng(self.seed)
        for row in plan.rows:
            levels = dict(row.levels)
            failed = self.failed(levels) or self.failed_order(row.run_order)
            values = {
                name: {
                    "value": value * float(np.exp(draws.normal(0, self.noise))),
                    "unit": self.responses[name][0],
                }
                for name, value in self.truth(levels).items()
            }
            doings = (self.doings or (lambda _: Doings(traced=False)))(levels)
            start = row.run_order * 100 * SECOND
            manifest = {
                "study_id": study.study_id,
                "treatment_id": row.treatment_id,
                "run_id": row.run_id,
                "levels": levels,
                "run_order": row.run_order,
                "standard_order": row.standard_order,
                "replicate": row.replicate,
                "block_id": row.block,
                "state": "failed" if failed else "finished",
                "valid": not failed,
                "reason": "the workload ended with status 1" if failed else "",
                "responses": {} if failed else values,
                "times": {
                    "wall_s": doings.wall_s,
                    "start_ns": start,
                    "end_ns": start + int(doings.wall_s * SECOND),
                },
            }
            if self.time_scales is not None:
                scale = self.time_scales(levels)
                profile = self.profile.format(**levels)
                manifest["disks"] = {"node1.data": {"profile": profile, "time_scale": scale}}
            if doings.processor_s is not None:
                manifest["cpu_ns"] = int(doings.processor_s * SECOND)
            if doings.traced:
                manifest["receipts"] = {"trace": {"mode": "pattern", "seen": 1000, "lost": 0}}
            with Bundle.create(out / "runs" / row.run_id, manifest) as bundle:
                if not failed:
                    _tables(bundle, doings, start)
        return out


def _tables(bundle: Bundle, doings: Doings, start: int) -> None:
    ids: dict[str, int] = {}
    verdicts = []
    for path, direction, kind, calls, nbytes, seconds in doings.calls:
        evidence = {"calls": calls, "time_ns": int(seconds * SECOND)}
        verdicts.append(
            {
                "file_id": ids.setdefault(path, len(ids) + 1),
                "path": path,
                "direction": direction,
                "tid": None,
                "basis": "calls",
                "phase_id": None,
                "class": kind,
                "requests": calls,
                "bytes": calls * nbytes,
                "median_size_bytes": float(nbytes),
                "evidence": json.dumps(evidence),
            }
        )
    if doings.traced:
        schema = pa.schema(
            [
                ("file_id", pa.int64()),
                ("path", pa.string()),
                ("direction", pa.string()),
                ("tid", pa.int64()),
                ("basis", pa.string()),
                ("phase_id", pa.string()),
                ("class", pa.string()),
                ("requests", pa.int64()),
                ("bytes", pa.int64()),
                ("median_size_bytes", pa.float64()),
                ("evidence", pa.string()),
            ]
        )
        bundle.write_table("patterns", pa.Table.from_pylist(verdicts, schema))
        flush = {
            "file_id": 1,
            "op": "fdatasync",
            "calls": doings.flushes,
            "errors": 0,
            "time_ns": int(doings.flushes_s * SECOND),
            "longest_ns": int(doings.flushes_s * SECOND / max(doings.flushes, 1)),
        }
        bundle.write_table(
            "operations",
            pa.Table.from_pylist(
                [flush] if doings.flushes else [],
                pa.schema([(n, pa.string() if n == "op" else pa.int64()) for n in flush]),
            ),
        )
    if doings.disk_busy_s is not None:
        counters = {"busy_ns": doings.disk_busy_s * SECOND, "flushes": float(doings.flushes)}
        rows = [{"disk_id": "data", "metric": m, "value": v} for m, v in counters.items()]
        bundle.write_table("disk_stats", pa.Table.from_pylist(rows))
    if doings.network is not None:
        rate, link = doings.network
        rows = [
            {
                "t_ns": start + second * SECOND,
                "kind": "network",
                "entity": "node1.net",
                "metric": metric,
                "unit": unit,
                "value": value,
                "reset": False,
            }
            for second in range(1, int(doings.wall_s))
            for metric, unit, value in (
                ("used", "%", 100 * rate / link),
                ("send_rate", "B/s", rate),
            )
        ]
        bundle.write_table("utilisation", pa.Table.from_pylist(rows))
