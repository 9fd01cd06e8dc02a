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

#: assumed duration of a change if the study declares only its kind [s]
CHANGE_S = {"none": 0.0, "remount": 1.0, "restart": 5.0, "reformat": 15.0, "redeploy": 60.0}
#: assumed duration of a run without its workload: settling, observers, collection [s]
PER_RUN_S = 1.0


def change_s(factor: Factor) -> float:
    """Duration of a change of a factor [s]: declared, or assumed from the kind of change."""
    declared = factor.change_cost_s
    return CHANGE_S[factor.change] if declared is None else declared


def run_seconds(study: Study) -> float:
    """Duration of each run without changes of factors [s]."""
    work = study.workload
    each = work.expected_s if work.expected_s is not None else work.timeout_s
    return each + study.settle.idle_s + PER_RUN_S


def estimate(study: Study, runs: int, changes: float) -> tuple[float, str]:
    """Duration of N runs [s] and its basis: declared or assumed run time; `changes`: time for changes of
    factors [s]."""
    work = study.workload
    each = work.expected_s if work.expected_s is not None else work.timeout_s
    seconds = runs * run_seconds(study) + changes
    basis = (
        "workload.expected"
        if work.expected_s is not None
        else "the time-out (set `workload.expected` for a better estimate)"
    )
    why = f"{runs} runs of {each:g} s, {basis}, and {PER_RUN_S:g} s around each"
    if study.settle.idle_s:
        why += f", {study.settle.idle_s:g} s idle"
    if changes:
        why += f", {changes:g} s for changes of factors"
    return seconds, why + "; without `prepare`"


def drawn_changes_s(study: Study) -> float:
    """Time for changes of factors before each run [s], averaged over random orders of all treatments."""
    return sum(change_s(f) * (1 - 1 / len(f.levels)) for f in study.factors)


def over_budget(design: DesignSpec, runs: int, seconds: float) -> str:
    """Excess of N runs over the budget; empty if there is none."""
    if design.budget_runs is not None and runs > design.budget_runs:
        return f"over {design.budget_runs} runs"
    if design.budget_s is not None and seconds > design.budget_s:
        return f"over {design.budget_s / 3600:g} h"
    return ""


def changes_s(
    study: Study, levels: NDArray[np.integer[Any]], places: Sequence[Place], strips: Sequence[str]
) -> float:
    """Time for changes of factors in an order [s]; strips are set up once per pass."""
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
    """Time for changes of factors from each run to the next [s], without strips."""
    return sum(
        change_s(factor)
        for factor in study.factors
        for before, row in itertools.pairwise(rows)
        if before.levels[factor.name] != row.levels[factor.name]
    )
