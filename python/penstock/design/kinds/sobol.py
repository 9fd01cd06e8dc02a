"""Scrambled Sobol points over the levels, skipping forbidden and repeated combinations.

Sobol (USSR Computational Mathematics 7, 1967), scrambled after Owen (1995); points by pydoe.
"""

from __future__ import annotations

import numpy as np

from penstock.design import model as models
from penstock.design.kinds.base import Asked, Claim, Numbers, no_pydoe
from penstock.design.kinds.latin_hypercube import by_value, draw_fault, runs_fault, too_few
from penstock.errors import BadInput

WHAT = "A low-discrepancy sequence over the levels; more runs go on where fewer ended."
OPTIONS = {"runs": "number of treatments"}
CANNOT = (
    "Space-filling points: effects are correlated with each other; the plan shows the correlations.",
)
#: maximum number of points drawn
_MOST = 1 << 20


def fault(request: Asked) -> str:
    """Fault unless N distinct points separate the main effects."""
    return no_pydoe() or runs_fault(request) or draw_fault(treatments, request)


def treatments(request: Asked) -> Numbers:
    """The first distinct, allowed points of the sequence; BadInput if there are too few."""
    from pydoe import sobol_sequence

    runs, factors = request.whole("runs", 0), len(request.factors)
    points = 1 << max(4, (2 * runs - 1).bit_length())
    while True:
        drawn = sobol_sequence(points, factors, scramble=True, seed=request.seed % (1 << 32))
        unit = np.asarray(drawn)[:points]
        rows = np.column_stack(
            [
                by_value(request, j)[np.minimum((unit[:, j] * n).astype(np.int64), n - 1)]
                for j, n in enumerate(request.levels)
            ]
        )
        rows = rows[request.allowed(rows)]
        first: Numbers = np.sort(np.unique(rows, axis=0, return_index=True)[1])
        if len(first) >= runs:
            chosen: Numbers = rows[first[:runs]]
            if models.largest_model(request.factors, chosen) is None:
                raise too_few(runs)
            return chosen
        if points >= _MOST:
            raise BadInput(
                f"found {len(first)} allowed combinations in the sequence; expected {runs}, "
                "the runs of design.kind.sobol: fewer runs, or fewer forbidden combinations"
            )
        points *= 4


def claim(request: Asked) -> Claim:
    """Claim the largest model that the points estimate."""
    model = models.largest_model(request.factors, treatments(request))
    return Claim(model=model or "main", runs=request.whole("runs", 0))
