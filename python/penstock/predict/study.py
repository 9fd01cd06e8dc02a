"""Every treatment of a study, predicted from the trace of one of them and the disk profiles alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from penstock.archive.bundle import Bundle, write_parquet
from penstock.archive.runs import bundles
from penstock.archive.schemas import described
from penstock.design.plan import Plan, make_plan, plan_from_json
from penstock.errors import BadInput, PenstockError
from penstock.predict.clients import BOTH, ClientCosts, client_costs, disk_events
from penstock.predict.workload import Asked, asked_by_jobs, asked_by_trace
from penstock.profile.model import native
from penstock.study.load import load_study
from penstock.study.model import Response, Study
from penstock.study.resolve import ResolvedRun, example_command, resolve
from penstock.study.units import convert
from penstock.workload.parsers import parser

SEEDS = 21
_LOW, _HIGH = 0.05, 0.95
_PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}


@dataclass(frozen=True)
class Score:
    """How many treatments other than the basis were predicted within a share of what was measured."""

    within: float
    treatments: int
    hits: int
    worst: float

    @property
    def share(self) -> float:
        """Hits over treatments."""
        return self.hits / self.treatments if self.treatments else float("nan")


def predict_study(
    out_dir: Path, basis_treatment: str | None = None, seeds: int = SEEDS
) -> pd.DataFrame:
    """Predictions beside the measured means; written to `predictions.parquet` of the study's directory.

    One row per treatment and response: `treatment_id`, factors, `response`, `unit`, `predicted` (mean over
    seeds), `ci_low`, `ci_high` (90 % of single runs), `measured_mean`, `measured_n`, `ratio`, `source`,
    `note`, `basis_treatment`, `is_basis`. Raises PenstockError if no valid run was traced, BadInput for an
    unknown basis.
    """
    out_dir = Path(out_dir)
    study = load_study(out_dir / "study.yaml")
    plan = plan_from_json(json.loads((out_dir / "plan.json").read_text()))
    made = [b for b in bundles(out_dir) if b.manifest.get("valid")]
    basis = _basis(made, basis_treatment, {row.treatment_id for row in plan.rows})
    costs = client_costs(basis, _directions(resolve(study, basis.manifest["levels"])))
    rows = _predict(study, plan, costs, basis, seeds)
    frame = _beside_measured(pd.DataFrame(rows), made)
    frame["basis_treatment"] = basis.manifest["treatment_id"]
    frame["is_basis"] = frame["treatment_id"] == basis.manifest["treatment_id"]
    table = pa.Table.from_pandas(frame, preserve_index=False)
    write_parquet(out_dir / "predictions.parquet", described("predictions", table))
    return frame


def predict_plan(study: Study, seeds: int = SEEDS) -> pd.DataFrame:
    """Predictions of a study that was not run: its disks alone, programs that never think."""
    frame = pd.DataFrame(_predict(study, make_plan(study), ClientCosts(), None, seeds))
    return frame.assign(measured_mean=np.nan, measured_n=0, ratio=np.nan, is_basis=False)


def score(predictions: pd.DataFrame, within: float = 0.15) -> Score:
    """How good the predictions of all treatments but the basis are."""
    judged = predictions[~predictions["is_basis"] & predictions["ratio"].notna()]
    off = (judged["ratio"] - 1).abs()
    worst = float(off.max()) if len(off) else float("nan")
    return Score(within, len(off), int((off <= within).sum()), worst)


def _basis(made: Sequence[Bundle], asked: str | None, known: set[str]) -> Bundle:
    """The valid traced run, of the treatment asked for if one is, that shows best what an operation costs:
    the fewest threads (they hold each other up least), then the most operations."""
    if asked is not None and asked not in known:
        raise BadInput(f"no treatment {asked}; the study has {', '.join(sorted(known))}")
    traced = []
    for bundle in made:
        if "io_events" in bundle.tables and asked in (None, bundle.manifest["treatment_id"]):
            events = disk_events(bundle)
            if len(events) > 1:
                traced.append((-int(events["tid"].nunique()), len(events), bundle))
    if not traced:
        of = f" of treatment {asked}" if asked else ""
        raise PenstockError(
            f"no valid run{of} was traced; add `trace: {{mode: trace}}` to the study's observers"
        )
    return max(traced, key=lambda t: (t[0], t[1], t[2].manifest["run_id"]))[2]


def _directions(run: ResolvedRun) -> frozenset[str]:
    """Directions that the command asks for; both if it does not say (or asks for both)."""
    jobs = parser(run.parser).operations(example_command(run)) or []
    asked = frozenset(str(job.direction) for job in jobs)
    return asked if asked and "mixed" not in asked else BOTH


def _predict(
    study: Study, plan: Plan, costs: ClientCosts, basis: Bundle | None, seeds: int
) -> list[dict[str, Any]]:
    rows = []
    for treatment_id, levels in sorted({r.treatment_id: r.levels for r in plan.rows}.items()):
        run = resolve(study, levels)
        jobs = parser(run.parser).operations(example_command(run))
        values: list[dict[str, float]] = []
        note = "no operations in the command, and no trace to replay"
        if jobs:
            asked = asked_by_jobs(run, jobs, costs)
            note = asked.note
            values = [
                _responses(study.responses, outcome, costs.path_ns)
                for outcome in _outcomes(asked, seeds)
            ]
        elif basis is not None:
            values, note = _replayed(study, run, basis, seeds)
        for response in study.responses:
            found = np.array([v[response.name] for v in values if response.name in v])
            known = len(found) > 0
            rows.append(
                {
                    "treatment_id": treatment_id,
                    **levels,
                    "response": response.name,
                    "unit": response.unit,
                    "predicted": float(found.mean()) if known else np.nan,
                    "ci_low": float(np.quantile(found, _LOW)) if known else np.nan,
                    "ci_high": float(np.quantile(found, _HIGH)) if known else np.nan,
                    "source": "station",
                    "note": note if known or not values else "the station does not give it",
                }
            )
    return rows


def _outcomes(asked: Asked, seeds: int) -> list[dict[str, Any]]:
    found = []
    for seed in range(1, seeds + 1):
        spec = asked.spec | {"seed": seed}
        found.append(json.loads(native.simulate_closed(json.dumps(spec))))
    return found


def _replayed(
    study: Study, run: ResolvedRun, basis: Bundle, seeds: int
) -> tuple[list[dict[str, float]], str]:
    """The basis run's responses, scaled by what the replay takes on this treatment's disk and on its own."""
    own = resolve(study, basis.manifest["levels"])
    same = (run.command, run.memory_bytes, run.prepare) == (
        own.command,
        own.memory_bytes,
        own.prepare,
    )
    if not same:
        return (
            [],
            "more than the disk differs from the basis, and the command does not say what it asks",
        )
    events = disk_events(basis)
    here = asked_by_trace(run.disks[0], own.disks[0], events)
    there = asked_by_trace(own.disks[0], own.disks[0], events)
    if not there.spec["clients"]:
        return [], "the page cache answered everything"
    values = []
    for a, b in zip(_outcomes(here, seeds), _outcomes(there, seeds), strict=True):
        slower = a["elapsed_s"] / b["elapsed_s"]
        one = {}
        for response in study.responses:
            measured = basis.manifest["responses"].get(response.name, {}).get("value")
            if measured is not None:
                faster_is_higher = response.better == "higher"
                one[response.name] = measured / slower if faster_is_higher else measured * slower
        values.append(one)
    return values, here.note


def _responses(
    responses: Sequence[Response], outcome: dict[str, Any], path_ns: float
) -> dict[str, float]:
    """The study's responses, as far as the station gives them, each in its unit.

    The path to the disk was simulated as thinking (a closed loop cannot tell); a program sees it as latency.
    """
    read, write = outcome["read"], outcome["write"]
    given: dict[str, tuple[float, str]] = {
        "wall_s": (outcome["elapsed_s"], "s"),
        "bandwidth": (read["rate_bps"] + write["rate_bps"], "B/s"),
        "iops": (read["iops"] + write["iops"], "1/s"),
        "bytes": (float(read["bytes"] + write["bytes"]), "B"),
    }
    for name, part in (("read", read), ("write", write)):
        if not part["operations"]:
            continue
        given[f"{name}_bandwidth"] = (part["rate_bps"], "B/s")
        given[f"{name}_iops"] = (part["iops"], "1/s")
        given[f"{name}_bytes"] = (float(part["bytes"]), "B")
        given[f"{name}_requests"] = (float(part["operations"]), "requests")
        given[f"{name}_mean_latency"] = (part["latency_mean_ns"] + path_ns, "ns")
        quantiles = dict(part["latency_ns"])
        for label, p in _PERCENTILES.items():
            if p in quantiles:
                given[f"{name}_{label}_latency"] = (quantiles[p] + path_ns, "ns")
    found = {}
    for response in responses:
        key = response.source.key if response.source.kind == "key" else None
        if key in given:
            value, unit = given[key]
            found[response.name] = convert(value, unit, response.unit)
    return found


def _beside_measured(frame: pd.DataFrame, made: Sequence[Bundle]) -> pd.DataFrame:
    measured: dict[tuple[str, str], list[float]] = {}
    for bundle in made:
        for name, response in bundle.manifest.get("responses", {}).items():
            if response.get("value") is not None:
                key = (bundle.manifest["treatment_id"], name)
                measured.setdefault(key, []).append(float(response["value"]))
    keys = list(zip(frame["treatment_id"], frame["response"], strict=True))
    frame["measured_mean"] = [
        float(np.mean(measured[k])) if k in measured else np.nan for k in keys
    ]
    frame["measured_n"] = [len(measured.get(k, ())) for k in keys]
    frame["ratio"] = frame["predicted"] / frame["measured_mean"]
    return frame
