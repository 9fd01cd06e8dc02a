"""How long a plan will take."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.spec.study import Study

if TYPE_CHECKING:
    from penstock.design.plan import PlannedRun

#: what a run costs besides its workload: settling, observers, collecting (seconds, a guess)
PER_RUN_S = 1.0


def run_seconds(study: Study) -> float:
    """What each run takes, changes of factors not counted [s]."""
    work = study.workload
    each = work.expected_s if work.expected_s is not None else work.timeout_s
    return each + study.settle.idle_s + PER_RUN_S


def estimate(study: Study, rows: Sequence[PlannedRun]) -> tuple[float, str]:
    """Seconds for all runs, and what that rests on: declared or guessed run time, changes of factors."""
    work = study.workload
    each = work.expected_s if work.expected_s is not None else work.timeout_s
    changes = sum(
        factor.change_cost_s
        for factor in study.factors
        if factor.change_cost_s
        for before, row in itertools.pairwise(rows)
        if before.levels[factor.name] != row.levels[factor.name]
    )
    seconds = len(rows) * run_seconds(study) + changes
    basis = (
        "expected"
        if work.expected_s is not None
        else ("the time-out, so at most; `workload.expected` tells it better")
    )
    why = f"{len(rows)} runs of {each:g} s ({basis}) and {PER_RUN_S:g} s around each"
    if study.settle.idle_s:
        why += f", {study.settle.idle_s:g} s idle"
    if changes:
        why += f", {changes:g} s for changes of factors"
    return seconds, why + "; preparing not counted"
