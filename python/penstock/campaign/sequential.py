"""A sequential study: consecutive stages, each chosen by the results of the earlier ones.

A stage is frozen before its first run, and the choice is a function of the frozen plan and the runs, so a
killed study continues as it would have without the kill.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Unpack

import pandas as pd

from penstock.analyse.sequential.adaptive import next_stage
from penstock.campaign.analysis import analyse, frozen_study
from penstock.campaign.campaign import CampaignResult, RunOptions, run_loaded
from penstock.design.additions.stages import Stage
from penstock.errors import PenstockError
from penstock.spec.study import Study


def run_sequential(
    study: Study,
    out: Path,
    *,
    resume: bool = False,
    repeat: str = "",
    **options: Unpack[RunOptions],
) -> CampaignResult:
    """Make all remaining stages, then the analysis of all. Raises as `run_loaded`."""
    began = time.monotonic()
    outcomes = []
    stage: Stage | None = None
    while True:
        result = run_loaded(
            study, out, resume=resume, full=False, add=stage, repeat=repeat, **options
        )
        resume, repeat = True, ""
        outcomes += result.outcomes
        note = ""
        if result.interrupted or result.failed or result.limited:
            break
        stage, note = _next(study, out)
        if stage is None:
            break
    if not result.interrupted and not result.failed:
        result.analysis = analyse(out, report=options.get("report", True))
        if note:
            result.analysis.notes.append(note)
    result.outcomes = outcomes
    result.seconds = time.monotonic() - began
    return result


def _next(study: Study, out: Path) -> tuple[Stage | None, str]:
    _, plan = frozen_study(out)
    try:
        return next_stage(plan, study, pd.read_parquet(out / "runs.parquet")), ""
    except PenstockError as error:
        return None, f"no further stage: {error}"
