"""Error level of each look of a sequential study.

`spent(t)` is the alpha spent when the share t of all designed rows has been run (Lan & DeMets, Biometrika
70, 1983). The current look may spend the remainder. Holm's procedure over the terms of a look, at that
look's level, bounds its familywise error rate; by Bonferroni's inequality the rate over all looks is at
most alpha, whatever their dependence.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from scipy.special import ndtr, ndtri

if TYPE_CHECKING:
    from penstock.design.planned import Plan

#: maximum number of rows of nested fractions
MOST_ROWS = 64


def spent(alpha: float, share: float, rule: str = "pocock") -> float:
    """Alpha spent after `share` (0 to 1) of the rows: `pocock` spends much early, `obrien-fleming` next to
    nothing before the end. ValueError for another rule."""
    share = min(1.0, max(0.0, share))
    if share == 0:
        return 0.0
    if rule == "pocock":
        return alpha * math.log(1 + (math.e - 1) * share)
    if rule == "obrien-fleming":
        return float(2 * ndtr(float(ndtri(alpha / 2)) / math.sqrt(share)))
    raise ValueError(f"no spending rule {rule}")


def looks(factors: int, rows: int) -> list[int]:
    """Rows at each look: the first fraction, doubled up to the full design or `MOST_ROWS`."""
    most = max(rows, min(1 << factors, MOST_ROWS))
    rows_at = [rows]
    while rows_at[-1] * 2 <= most:
        rows_at.append(rows_at[-1] * 2)
    return rows_at


def level(alpha: float, at: list[int], look: int, rule: str = "pocock") -> float:
    """Error level of look number `look` (from 0) of the looks `at` (rows)."""
    before = spent(alpha, at[look - 1] / at[-1], rule) if look else 0.0
    return spent(alpha, at[look] / at[-1], rule) - before


def analysis_level(plan: Plan, usual: float = 0.05) -> float:
    """Familywise error level of an analysis of all designed runs of a plan.

    `usual`, or in a sequential study the level of the look at these runs, so that all looks and the
    analysis together spend at most alpha. Treatments that are not a look of the plan share the remainder.
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
