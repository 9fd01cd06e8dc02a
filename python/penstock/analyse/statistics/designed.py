"""The designed part of a staged study: stages whose treatments were chosen in advance.

Runs chosen by earlier results, and the confirmation of a choice, are left out.
"""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from penstock.design.additions.stages import DESIGNED
from penstock.design.planned import Plan


def designed_stages(plan: Plan) -> set[int]:
    """Numbers of the stages whose treatments were chosen in advance."""
    added = {n for n, s in enumerate(plan.stages, start=2) if s["purpose"] in DESIGNED}
    return {1} | added


def designed_part(runs: pd.DataFrame, plan: Plan) -> tuple[pd.DataFrame, Plan]:
    """The runs and the rows of the designed stages, with each run's block as `replicate`."""
    part = designed_plan(plan)
    block = {r.run_id: r.block for r in part.rows}
    data = runs[runs["run_id"].isin(list(block))].copy()
    data["replicate"] = data["run_id"].map(block).astype("int64")
    return data, part


def designed_plan(plan: Plan) -> Plan:
    """The plan of the designed stages only, with each block as a pass."""
    included = designed_stages(plan)
    rows = [r for r in plan.rows if r.stage in included]
    several = len({r.block for r in rows}) > 1
    return replace(
        plan,
        rows=rows,
        stages=[],
        order="interleaved" if several else plan.order,
        replicates=2 if several else plan.replicates,
    )
