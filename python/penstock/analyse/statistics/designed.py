"""The designed part of a study that went on: its stages whose treatments were chosen beforehand.

Runs that were chosen by what others gave, and the confirmation of a choice, are left out.
"""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from penstock.design.planned import Plan
from penstock.design.stages import DESIGNED


def designed_stages(plan: Plan) -> set[int]:
    """The numbers of the stages whose treatments were chosen beforehand."""
    added = {n for n, s in enumerate(plan.stages, start=2) if s["purpose"] in DESIGNED}
    return {1} | added


def designed_part(runs: pd.DataFrame, plan: Plan) -> tuple[pd.DataFrame, Plan]:
    """The runs and the rows of the designed stages, with `replicate` as the block that each was made in."""
    part = designed_plan(plan)
    block = {r.run_id: r.block for r in part.rows}
    data = runs[runs["run_id"].isin(list(block))].copy()
    data["replicate"] = data["run_id"].map(block).astype("int64")
    return data, part


def designed_plan(plan: Plan) -> Plan:
    """The plan of the designed stages alone, each block a pass."""
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
