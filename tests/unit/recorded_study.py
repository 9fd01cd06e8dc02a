"""A study with specified responses: its directory before the analysis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from penstock.analyse.statistics.fit import Fit, by_terms
from penstock.analyse.statistics.terms import Values
from penstock.archive.bundle import Bundle
from penstock.campaign.frozen import campaign, freeze
from penstock.design.plan import make_plan
from penstock.design.planned import Plan, PlannedRun
from penstock.study.load import load_study

SECOND = 1_000_000_000


def study_text(
    factors: Mapping[str, str],
    design: str,
    responses: Mapping[str, str] | None = None,
    name: str = "recorded",
) -> str:
    """A study file: factors as written (`{levels: [a, b], change: redeploy}`), and the design."""
    placeholders = " ".join(f"{{{factor}}}" for factor in factors)
    factor_lines = "\n".join(f'  "{factor}": {text}' for factor, text in factors.items())
    response_lines = "\n".join(
        f"  {n}: {text}"
        for n, text in (
            responses or {"y": "{from: {regex: 'y: ([0-9.]+)'}, unit: s, better: lower}"}
        ).items()
    )
    return f"""penstock: 1
name: {name}
question: Which?
factors:
{factor_lines}
design: {design}
platform: {{nodes: [{{name: n}}]}}
workload: {{command: 'echo {placeholders}', expected: 2s}}
responses:
{response_lines}
"""


def refitted(fit: Fit, y: Values, plan: Plan) -> Fit:
    """The fit for other values of the same runs, for simulations that compute the design once."""
    return by_terms(replace(fit, y=y), fit.design.terms, plan)


def plan_of_text(text: str, place: Path) -> Plan:
    """The plan of a study file."""
    source = place / "recorded.study.yaml"
    source.write_text(text)
    return make_plan(load_study(source, [], False))


def record(
    place: Path,
    text: str,
    value: Callable[[PlannedRun], Mapping[str, float]],
    *,
    lost: Sequence[str] = (),
    start_s: Callable[[PlannedRun], float] | None = None,
) -> Path:
    """Write study, plan, campaign and bundles to `place/out`; `lost` runs are invalid."""
    source = place / "recorded.study.yaml"
    source.write_text(text)
    study = load_study(source, [], False)
    plan = make_plan(study)
    out = place / "out"
    freeze(out, study, plan, campaign(study, plan, {}, []))
    units = {r.name: r.unit for r in study.responses}
    for row in plan.rows:
        start = int((start_s(row) if start_s else row.run_order * 100) * SECOND)
        manifest = {
            "study_id": study.study_id,
            "treatment_id": row.treatment_id,
            "run_id": row.run_id,
            "levels": dict(row.levels),
            "run_order": row.run_order,
            "standard_order": row.standard_order,
            "replicate": row.replicate,
            "block_id": row.block,
            "state": "finished",
            "valid": row.run_id not in lost,
            "reason": "planted" if row.run_id in lost else "",
            "responses": {n: {"value": v, "unit": units[n]} for n, v in value(row).items()},
            "times": {
                "wall_s": 2.0,
                "start_ns": start,
                "end_ns": start + 2 * SECOND,
                "start_realtime_ns": start,
            },
        }
        with Bundle.create(out / "runs" / row.run_id, manifest):
            pass
    return out
