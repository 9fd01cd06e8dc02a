"""Prediction of every treatment of a study from the trace of one of them and the disk profiles."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from penstock.analyse.statistics.prediction_intervals import LEVEL, order_statistics
from penstock.archive.bundle import Bundle, write_parquet
from penstock.archive.runs import bundles, validity_of
from penstock.archive.schemas import described
from penstock.design.plan import make_plan
from penstock.design.planned import Plan, plan_from_json
from penstock.errors import BadInput, PenstockError
from penstock.profile.model import native
from penstock.spec.study import Response, Study
from penstock.spec.units import convert
from penstock.study.load import load_study
from penstock.study.resolve import ResolvedRun, example_command, resolve
from penstock.study_prediction.disk_workload import (
    ClosedLoop,
    beyond_model,
    closed_loop_of,
    disk_of,
)
from penstock.study_prediction.replay import Traced, traced
from penstock.study_prediction.residuals import calibrated_by_others, write_pairs
from penstock.study_prediction.think_times import BOTH, ClientCosts, client_costs, disk_events
from penstock.study_prediction.thread_groups import Part, parts_of
from penstock.workload.parsers import parser

SEEDS = 21
#: maximum number of runs of the basis treatment to replay
MOST_RUNS = 4
#: omissions of a replay of traced operations
REPLAY_NOTE = (
    "replay of the traced calls above a model of the page cache, with flushes, write-back and locks; left "
    "out: threads that wait for a processor, mapped files, asynchronous I/O, swapping"
)
_PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}


@dataclass(frozen=True)
class Score:
    """The number of treatments other than the basis with a prediction within a share of the measured mean."""

    within: float
    treatments: int
    hits: int
    worst: float

    @property
    def share(self) -> float:
        """Hits over treatments."""
        return self.hits / self.treatments if self.treatments else float("nan")


@dataclass(frozen=True)
class _Draws:
    """A response of one treatment: its predicted mean, and the values of single simulated runs."""

    predicted: float
    singles: Sequence[float]
    note: str = ""


@dataclass
class _Basis:
    """A treatment that predictions start from: its traced runs, the most informative first."""

    bundles: list[Bundle]
    run: ResolvedRun
    _traced: list[Traced] | None = None
    _own: list[list[dict[str, Any]]] = field(default_factory=list)

    @property
    def treatment_id(self) -> str:
        return str(self.bundles[0].manifest["treatment_id"])

    @property
    def traced(self) -> list[Traced]:
        """Each run as a program for replay."""
        if self._traced is None:
            self._traced = [traced(b, self.run) for b in self.bundles[:MOST_RUNS]]
        return self._traced


@dataclass
class _Bases:
    """Treatments that predictions start from, the primary one first."""

    each: list[_Basis]
    study: Study
    measured: dict[tuple[str, str], list[float]]
    _parts: dict[tuple[str, int], dict[str, Part]] = field(default_factory=dict)

    def parts(self, basis: _Basis, number: int) -> dict[str, Part]:
        """The responses' parts in one traced run of a basis."""
        key = (basis.treatment_id, number)
        if key not in self._parts:
            others = [b.traced[0] for b in self.each if b is not basis]
            self._parts[key] = parts_of(basis.traced[number], self.study.responses, others)
        return self._parts[key]

    def own(self, basis: _Basis, seeds: int) -> list[list[dict[str, Any]]]:
        """Outcomes on the basis's own disk, by traced run."""
        if not basis._own:
            basis._own = self.outcomes(basis, basis.run, seeds, first=10_001)
        return basis._own

    def outcomes(
        self, basis: _Basis, run: ResolvedRun, seeds: int, first: int = 1
    ) -> list[list[dict[str, Any]]]:
        """Outcomes of a basis with the disk and memory of `run`, by traced run, which divide the seeds."""
        outcomes = []
        disk = disk_of(run, None)
        for number, one in enumerate(basis.traced):
            bounds = {p.bound for p in self.parts(basis, number).values() if p.bound is not None}
            ordered = sorted(bounds, key=lambda b: b.tids)
            own_seeds = range(first + number, first + max(seeds, number + 1), len(basis.traced))
            outcomes.append(one.outcomes(run, disk, ordered, own_seeds))
        return outcomes

    def nearest(self, run: ResolvedRun) -> _Basis | None:
        """The basis that differs least in the properties that a replay can change; None if there is none."""
        able = [
            (sum(run.treatment[k] != v for k, v in basis.run.treatment.items()), n)
            for n, basis in enumerate(self.each)
            if _same_program(basis.run, run)
        ]
        return self.each[min(able)[1]] if able else None


def predict_study(
    out_dir: Path, basis_treatment: str | Sequence[str] | None = None, seeds: int = SEEDS
) -> pd.DataFrame:
    """Predictions and measured means; written to `predictions.parquet` of the study's directory.

    One row per treatment and response: `treatment_id`, factors, `response`, `unit`, `predicted` (mean over
    seeds), `ci_low`, `ci_high` (90 % of single runs), `measured_mean`, `measured_n`, `ratio`, `source`,
    `note`, `basis_treatment`, `is_basis`. With several bases a treatment is predicted from the nearest.
    Pairs of predictions and measurements are stored in `calibration.parquet` and widen the intervals of
    further predictions once there are enough pairs. PenstockError if no valid run was traced, BadInput for
    an unknown basis.
    """
    out_dir = Path(out_dir)
    study = load_study(out_dir / "study.yaml")
    plan = plan_from_json(json.loads((out_dir / "plan.json").read_text()))
    valid = [b for b in bundles(out_dir) if validity_of(b.manifest) == "valid"]
    requested: list[str | None] = [None]
    if basis_treatment:
        requested = [basis_treatment] if isinstance(basis_treatment, str) else [*basis_treatment]
    treatment_ids = {row.treatment_id for row in plan.rows}
    chosen = [_basis(study, valid, one, treatment_ids) for one in requested]
    costs = client_costs(chosen[0].bundles[0], _directions(chosen[0].run))
    measured = _measured(valid)
    rows = _predict(study, plan, costs, _Bases(chosen, study, measured), seeds)
    frame = _beside_measured(pd.DataFrame(rows), measured)
    frame["basis_treatment"] = frame["basis_treatment"].fillna(chosen[0].treatment_id)
    frame["is_basis"] = frame["treatment_id"].isin([b.treatment_id for b in chosen])
    write_pairs(out_dir, study.name, frame)
    frame = calibrated_by_others(frame)
    table = pa.Table.from_pandas(frame, preserve_index=False)
    write_parquet(out_dir / "predictions.parquet", described("predictions", table))
    return frame


def predict_plan(study: Study, seeds: int = SEEDS) -> pd.DataFrame:
    """Predictions of a study without runs: from its disks, for programs without think time."""
    frame = pd.DataFrame(_predict(study, make_plan(study), ClientCosts(), None, seeds))
    return frame.drop(columns="basis_treatment").assign(
        measured_mean=np.nan, measured_n=0, ratio=np.nan, is_basis=False
    )


def score(predictions: pd.DataFrame, within: float = 0.15) -> Score:
    """The quality of the predictions of all treatments but the basis."""
    judged = predictions[~predictions["is_basis"] & predictions["ratio"].notna()]
    off = (judged["ratio"] - 1).abs()
    worst = float(off.max()) if len(off) else float("nan")
    return Score(within, len(off), int((off <= within).sum()), worst)


def _basis(
    study: Study, valid: Sequence[Bundle], requested: str | None, treatment_ids: set[str]
) -> _Basis:
    """The requested treatment, or the one whose valid traced run best shows the cost of an operation.

    Declared jobs: the fewest threads (least contention), then the most operations. Replays: the most
    operations.
    """
    if requested is not None and requested not in treatment_ids:
        raise BadInput(
            f"no treatment {requested}; the study has {', '.join(sorted(treatment_ids))}"
        )
    candidates = []
    for bundle in valid:
        of_treatment = requested in (None, bundle.manifest["treatment_id"])
        complete = "io_events" in bundle.tables and not bundle.manifest.get("filters")
        if complete and of_treatment:
            events = disk_events(bundle)
            if len(events) > 1:
                jobs = _jobs(resolve(study, bundle.manifest["levels"]))
                threads = -int(events["tid"].nunique()) if jobs else 0
                candidates.append((threads, len(events), bundle))
    if not candidates:
        of = f" of treatment {requested}" if requested else ""
        raise PenstockError(
            f"no valid run{of} was traced; add `trace: {{mode: trace}}` to the study's observers"
        )
    candidates.sort(key=lambda t: (t[0], t[1], t[2].manifest["run_id"]), reverse=True)
    best = candidates[0][2].manifest
    best_bundles = [b for *_, b in candidates if b.manifest["treatment_id"] == best["treatment_id"]]
    return _Basis(best_bundles, resolve(study, best["levels"]))


def _jobs(run: ResolvedRun) -> list[Any]:
    """The jobs that the command declares; empty if it declares none."""
    return parser(run.parser).operations(example_command(run)) or []


def _directions(run: ResolvedRun) -> frozenset[str]:
    """Directions of the jobs that the command declares; both if it declares none, or mixed ones."""
    directions = frozenset(str(job.direction) for job in _jobs(run))
    return directions if directions and "mixed" not in directions else BOTH


def _predict(
    study: Study, plan: Plan, costs: ClientCosts, bases: _Bases | None, seeds: int
) -> list[dict[str, Any]]:
    rows = []
    for treatment_id, levels in sorted({r.treatment_id: r.levels for r in plan.rows}.items()):
        run = resolve(study, levels)
        jobs = _jobs(run)
        draws_by_name: dict[str, _Draws] = {}
        beyond = beyond_model(run, jobs)
        note, basis = beyond or "no operations in the command, and no trace to replay", None
        if jobs and not beyond:
            loop = closed_loop_of(run, jobs, costs)
            note = loop.note or "the station does not give it"
            draws_by_name = _by_station(study.responses, loop, costs, seeds)
        elif bases is not None:
            draws_by_name, note, basis = _replayed(study, run, bases, seeds)
            note = f"{beyond}; {note}" if beyond else note
        for response in study.responses:
            draws = draws_by_name.get(response.name)
            interval = order_statistics(draws.singles, LEVEL) if draws else None
            rows.append(
                {
                    "treatment_id": treatment_id,
                    **levels,
                    "response": response.name,
                    "unit": response.unit,
                    "predicted": draws.predicted if draws else np.nan,
                    "ci_low": interval.low if interval else np.nan,
                    "ci_high": interval.high if interval else np.nan,
                    "source": "station" if jobs and not beyond else "replay",
                    "note": draws.note if draws else note,
                    "basis_treatment": basis,
                }
            )
    return rows


def _by_station(
    responses: Sequence[Response], loop: ClosedLoop, costs: ClientCosts, seeds: int
) -> dict[str, _Draws]:
    outcomes = _outcomes(loop, seeds)
    values = [_responses(responses, o, costs.path_ns, loop.calls_per_read) for o in outcomes]
    draws = {}
    for response in responses:
        singles = [v[response.name] for v in values if response.name in v]
        if singles:
            draws[response.name] = _Draws(float(np.mean(singles)), singles, loop.note)
    return draws


def _outcomes(loop: ClosedLoop, seeds: int) -> list[dict[str, Any]]:
    outcomes = []
    for seed in range(1, seeds + 1):
        spec = loop.spec | {"seed": seed}
        outcomes.append(json.loads(native.simulate_closed(json.dumps(spec))))
    return outcomes


def _replayed(
    study: Study, run: ResolvedRun, bases: _Bases, seeds: int
) -> tuple[dict[str, _Draws], str, str | None]:
    """The basis's responses, scaled by simulated times of their parts: this disk and memory over the
    basis's."""
    basis = bases.nearest(run)
    if basis is None:
        why = "more than disk and memory differs from the basis, and the command does not say what it asks"
        return {}, why, None
    try:
        here = bases.outcomes(basis, run, seeds)
        there = bases.own(basis, seeds)
    except ValueError as error:
        return {}, f"the trace cannot be run again: {error}", basis.treatment_id
    draws = {}
    for response in study.responses:
        measured_values = bases.measured.get((basis.treatment_id, response.name))
        if not measured_values:
            continue
        scales: list[float] = []
        singles: list[float] = []
        why = ""
        for number, (a_run, b_run) in enumerate(zip(here, there, strict=True)):
            part = bases.parts(basis, number).get(response.name)
            if part is None:
                continue
            a, b = (np.array([part.of(o) for o in outcomes]) for outcomes in (a_run, b_run))
            if not (np.isfinite([*a, *b]).all() and min(*a, *b) > 0):
                continue
            as_it_goes = _goes_with(response, part)
            scales.append(float((a.mean() / b.mean()) ** as_it_goes))
            singles += [float(v) for v in (a / b) ** as_it_goes]
            why = why or part.why
        if scales:
            measured = float(np.mean(measured_values))
            note = f"{REPLAY_NOTE}; {response.name} is {why}{_own_memory(basis, run)}"
            if len(run.disks) > 1:
                note += f"; of the disks only {run.disks[0].disk_id} is replayed"
            values = [measured * v for v in singles]
            draws[response.name] = _Draws(measured * float(np.mean(scales)), values, note)
    return draws, "neither a time nor a rate of anything in the trace", basis.treatment_id


def _goes_with(response: Response, part: Part) -> int:
    """1 if the response grows with the part's number, -1 if it falls: a time compared with a rate."""
    is_time = response.better == "lower"
    return 1 if is_time == (part.counts == "time") else -1


def _own_memory(basis: _Basis, run: ResolvedRun) -> str:
    sampled = all(t.own.anonymous_bytes is not None for t in basis.traced)
    if run.memory_bytes == basis.run.memory_bytes or sampled:
        return ""
    return "; the program's own memory was not sampled: the page cache gets the full limit"


def _same_program(one: ResolvedRun, other: ResolvedRun) -> bool:
    """True if two treatments run the same program on the same data."""
    return (one.command, one.prepare, one.env, one.user, one.directory) == (
        other.command,
        other.prepare,
        other.env,
        other.user,
        other.directory,
    )


def _responses(
    responses: Sequence[Response],
    outcome: Mapping[str, Any],
    path_ns: float,
    calls_per_read: float | None,
) -> dict[str, float]:
    """The study's responses that the station determines, each in its unit.

    The path to the disk was simulated as think time (equivalent in a closed loop); it is latency here. Calls
    that the kernel's read-ahead serves have no latency of the station.
    """
    read, write = outcome["read"], outcome["write"]
    available: dict[str, tuple[float, str]] = {
        "wall_s": (outcome["elapsed_s"], "s"),
        "bandwidth": (read["rate_bps"] + write["rate_bps"], "B/s"),
        "bytes": (float(read["bytes"] + write["bytes"]), "B"),
    }
    if calls_per_read is not None:
        available["iops"] = (calls_per_read * read["iops"] + write["iops"], "1/s")
    for name, part in (("read", read), ("write", write)):
        if not part["operations"]:
            continue
        available[f"{name}_bandwidth"] = (part["rate_bps"], "B/s")
        available[f"{name}_bytes"] = (float(part["bytes"]), "B")
        calls = 1.0 if name == "write" else calls_per_read
        if calls is not None:
            available[f"{name}_iops"] = (calls * part["iops"], "1/s")
            available[f"{name}_requests"] = (calls * part["operations"], "requests")
        if calls != 1.0:
            continue
        available[f"{name}_mean_latency"] = (part["latency_mean_ns"] + path_ns, "ns")
        quantiles = dict(part["latency_ns"])
        for label, p in _PERCENTILES.items():
            if p in quantiles:
                available[f"{name}_{label}_latency"] = (quantiles[p] + path_ns, "ns")
    converted = {}
    for response in responses:
        key = response.source.key if response.source.kind == "key" else None
        if key in available:
            value, unit = available[key]
            converted[response.name] = convert(value, unit, response.unit)
    return converted


def _measured(valid: Sequence[Bundle]) -> dict[tuple[str, str], list[float]]:
    """Measured values of all runs by treatment and response."""
    measured: dict[tuple[str, str], list[float]] = {}
    for bundle in valid:
        for name, response in bundle.manifest.get("responses", {}).items():
            if response.get("value") is not None:
                key = (bundle.manifest["treatment_id"], name)
                measured.setdefault(key, []).append(float(response["value"]))
    return measured


def _beside_measured(
    frame: pd.DataFrame, measured: dict[tuple[str, str], list[float]]
) -> pd.DataFrame:
    keys = list(zip(frame["treatment_id"], frame["response"], strict=True))
    frame["measured_mean"] = [
        float(np.mean(measured[k])) if k in measured else np.nan for k in keys
    ]
    frame["measured_n"] = [len(measured.get(k, ())) for k in keys]
    frame["ratio"] = frame["predicted"] / frame["measured_mean"]
    return frame
