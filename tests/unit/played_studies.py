"""Sequential studies simulated with a model of their response."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd

from penstock.analyse.outcome import Outcome
from penstock.analyse.sequential.adaptive import next_stage
from penstock.design.additions.stages import with_stages
from penstock.design.plan import make_plan
from penstock.design.planned import Plan
from penstock.spec.study import Study
from penstock.study.load import read_study

NAMES = list("ABCDE")


def study_of(
    sequential: str,
    names: list[str] = NAMES,
    fraction: int = 2,
    design: str = "",
    scale: str = "auto",
) -> Study:
    factors = "\n".join(f'  "{n}": {{levels: [low, high]}}' for n in names)
    kind = f"{{fraction: {fraction}}}" if fraction else "full"
    text = f"""penstock: 1
name: plain
question: Which?
factors:
{factors}
design: {{kind: {kind}, seed: 9, sequential: {sequential}{design}}}
platform: {{nodes: [{{name: n}}]}}
workload: {{command: 'echo {" ".join(f"{{{n}}}" for n in names)}'}}
responses: {{took: {{from: wall_s, unit: s, better: lower, scale: {scale}}}}}
"""
    return read_study(text.encode(), Path("plain.study.yaml"))


def table_of(plan: Plan, took: dict[str, float]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "run_id": r.run_id,
                "treatment_id": r.treatment_id,
                "replicate": r.replicate,
                **r.levels,
                "took": took[r.run_id],
                "wall_s": 1.0,
                "valid": True,
            }
            for r in plan.rows
        ]
    )


def played(study: Study, model, noise: float = 0.5, seed: int = 1) -> tuple[Plan, pd.DataFrame]:
    """A complete study, with responses from a model."""
    random = np.random.default_rng(seed)
    first, stages, took = make_plan(study), [], {}
    while True:
        plan = with_stages(first, study, stages)
        for r in plan.rows:
            if r.run_id not in took:
                took[r.run_id] = model(r.coded) + noise * random.normal()
        runs = table_of(plan, took)
        stage = next_stage(plan, study, runs)
        if stage is None:
            return plan, runs
        stages.append(stage)


def outcome_of(tmp_path: Path, study: Study, plan: Plan, runs: pd.DataFrame) -> Outcome:
    (tmp_path / "study.yaml").write_text(study.source_text)
    (tmp_path / "plan.json").write_text(json.dumps(plan.to_json()))
    runs.to_parquet(tmp_path / "runs.parquet")
    return Outcome.read(tmp_path)
