"""Estimated duration of a plan."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.design.order import Place
from penstock.design.planned import PlannedRun
from penstock.spec.study import DesignSpec, Factor, Study

#: what a change costs where the study says only what it does [s], a guess
CHANGE_S = {"none": 0.0, "remount": 1.0, "restart": 5.0, "reformat": 15.0, "redeploy": 60.0}
#: what a run costs besides its workload: settling, observers, collecting (seconds, a guess)
PER_RUN_S = 1.0


def change_s(factor: Factor) -> float:
    """Time that a change of a factor takes [s]: as declared, else a guess by the kind of change."""
    declared = factor.change_cost_s
    return CHANGE_S[factor.change] if declared is None else declared


def run_seconds(study: Study) -> float:
    """Duration of each run without changes of factors [s]."""
    work = study.workload
    each = work.expected_s if work.expected_s is not None else work.timeout_s
    return each + study.settle.idle_s + PER_RUN_S


def estimate(study: Study, runs: int, changes: float) -> tuple[float, str]:
    """Seconds for so many runs, and what that rests on: declared or guessed run time, time for changes of
    factors [s]."""
    work = study.workload
    each = work.expected_s if work.expected_s is not None else work.timeout_s
    seconds = runs * run_seconds(study) + changes
    basis = (
        "workload.expected"
        if work.expected_s is not None
        else "their timeout; set `workload.expected` for a better estimate"
    )
    why = f"{runs} runs of {each:g} s ({basis}) and {PER_RUN_S:g} s around each"
    if study.settle.idle_s:
        why += f", {study.settle.idle_s:g} s idle"
    if changes:
        why += f", {changes:g} s for changes of factors"
    return seconds, why + "; preparing not counted"


def drawn_changes_s(study: Study) -> float:
    """Seconds for changes of factors before each run, on average over random orders of all treatments."""
    return sum(change_s(f) * (1 - 1 / len(f.levels)) for f in study.factors)


def over_budget(design: DesignSpec, runs: int, seconds: float) -> str:
    """By what so many runs are more than the budget has room for; empty where they are not."""
    if design.budget_runs is not None and runs > design.budget_runs:
        return f"over {design.budget_runs} runs"
    if design.budget_s is not None and seconds > design.budget_s:
        return f"over {design.budget_s / 3600:g} h"
    return ""


def changes_s(
    study: Study, levels: NDArray[np.integer[Any]], places: Sequence[Place], strips: Sequence[str]
) -> float:
    """Seconds for changes of factors in an order; what strips keep is made once in each pass."""
    rows = np.array([levels[p.treatment] for p in places])
    total = 0.0
    for j, factor in enumerate(study.factors):
        if factor.name in strips:
            settings = {(p.replicate, int(levels[p.treatment, j])) for p in places}
            changed = len(settings) - 1
        else:
            changed = int(np.count_nonzero(np.diff(rows[:, j])))
        total += change_s(factor) * changed
    return total


def changed_s(study: Study, rows: Sequence[PlannedRun]) -> float:
    """Seconds for changes of factors from each run to the next, where nothing is kept in strips."""
    return sum(
        change_s(factor)
        for factor in study.factors
        for before, row in itertools.pairwise(rows)
        if before.levels[factor.name] != row.levels[factor.name]
    )
