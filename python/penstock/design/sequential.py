"""Error level of each look at a study that looks at its runs several times.

`spent(t)` is the part of alpha that has been spent when the share t of all designed rows has been run (Lan &
DeMets, Biometrika 70, 1983). The look at hand may spend what was not spent before. Holm's procedure over
the terms of a look, at the level of that look, keeps the chance of any false term at this look at most
there; by Bonferroni's inequality that of any at any look is at most alpha, whatever looks have in common.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from scipy.special import ndtr, ndtri

if TYPE_CHECKING:
    from penstock.design.planned import Plan

#: rows to which nested fractions grow, at most
MOST_ROWS = 64


def spent(alpha: float, share: float, rule: str = "pocock") -> float:
    """Alpha spent when `share` (0 to 1) of the rows are run: `pocock` spends much early, `obrien-fleming`
    next to nothing before the end. ValueError for another rule."""
    share = min(1.0, max(0.0, share))
    if share == 0:
        return 0.0
    if rule == "pocock":
        return alpha * math.log(1 + (math.e - 1) * share)
    if rule == "obrien-fleming":
        return float(2 * ndtr(float(ndtri(alpha / 2)) / math.sqrt(share)))
    raise ValueError(f"no spending rule {rule}")


def looks(factors: int, rows: int) -> list[int]:
    """Rows at each look: those of the first fraction, doubled up to the full design or `MOST_ROWS`."""
    most = max(rows, min(1 << factors, MOST_ROWS))
    rows_at = [rows]
    while rows_at[-1] * 2 <= most:
        rows_at.append(rows_at[-1] * 2)
    return rows_at


def level(alpha: float, at: list[int], look: int, rule: str = "pocock") -> float:
    """The error level that the look number `look` (from 0) of the looks `at` (rows) may spend."""
    before = spent(alpha, at[look - 1] / at[-1], rule) if look else 0.0
    return spent(alpha, at[look] / at[-1], rule) - before


def analysis_level(plan: Plan, usual: float = 0.05) -> float:
    """The chance of any false effect that an analysis of all designed runs of a plan may take.

    That is `usual`; of a sequential study what the look at these runs may spend, so that the looks before it
    and the analysis together take no more than alpha. Treatments that are no look of the plan share the rest.
    """
    spec = plan.sequential
    if spec is None or not plan.two_level:
        spent_before = [float(s.get("spent") or 0) for s in plan.stages]
        return min([usual, *(s for s in spent_before[-1:] if s > 0)])
    alpha, rule = float(spec["alpha"]), str(spec["spending"])
    designed_stages = {
        1,
        *(n for n, s in enumerate(plan.stages, start=2) if s["purpose"] == "augment"),
    }
    first = len({r.treatment_id for r in plan.rows if r.stage == 1})
    rows = len({r.treatment_id for r in plan.rows if r.stage in designed_stages})
    at = looks(len(plan.factors), first)
    if rows in at:
        return min(usual, level(alpha, at, at.index(rows), rule))
    remaining = alpha - sum(float(s.get("spent") or 0) for s in plan.stages)
    return min(usual, max(remaining, 0.0))
