"""Definitive screening designs: linear effects clear of all second-order terms, squares estimated.

Jones and Nachtsheim (Journal of Quality Technology 43, 2011; with two-level factors 45, 2013); matrices by
pydoe. Linear and quadratic contrasts are separate terms, so that linear effects are unbiased. The two
steps of their analysis (Technometrics 59, 2017), an error estimate free of second-order terms and a search
for products of two, are not implemented.
"""

from __future__ import annotations

import numpy as np

from penstock.design.kinds.base import Asked, Claim, Numbers, no_forbidden, no_pydoe, numeric

WHAT = "Quantitative factors of three levels (and two-level ones): main effects and curvature, 2K+1 runs."
OPTIONS: dict[str, str] = {}
CANNOT = (
    "Definitive screening: straight lines (and effects of two levels) are free of curvature and of products "
    "of two, and are tested by themselves. Squares are mixed in part with products of two: one that shows "
    "may be a product. No product of two is looked for, and those that are active widen the error.",
)


def fault(request: Asked) -> str:
    """Fault unless levels are two, or three numbers in ascending or descending order."""
    three = [f for f in request.factors if len(f.levels) != 2]
    for factor in three:
        values = numeric(factor)
        if len(factor.levels) != 3 or values is None or not _equal_steps(values):
            return f"three equally spaced numbers, or two levels, for {factor.name}; or kind: d-optimal"
    if len(three) < 2:
        return "at least two factors of three levels, or a fraction"
    return no_pydoe() or no_forbidden(request)


def treatments(request: Asked) -> Numbers:
    """Fold-over pairs and centre runs, columns in the study's order."""
    from pydoe import definitive_screening_design

    three = [j for j, n in enumerate(request.levels) if n == 3]
    two = [j for j, n in enumerate(request.levels) if n == 2]
    theirs = np.asarray(definitive_screening_design(len(three), len(two)))
    rows: Numbers = np.empty(theirs.shape, dtype=np.int64)
    rows[:, three] = np.rint(theirs[:, : len(three)]).astype(np.int64) + 1
    rows[:, two] = (np.rint(theirs[:, len(three) :]).astype(np.int64) + 1) // 2
    return rows


def claim(request: Asked) -> Claim:
    """Claim linear effects clear of second-order terms."""
    return Claim(model="squares", clear=True)


def _equal_steps(values: list[float]) -> bool:
    steps = np.diff(values)
    return bool(np.allclose(steps, steps[0], rtol=1e-6)) and bool(steps[0])
