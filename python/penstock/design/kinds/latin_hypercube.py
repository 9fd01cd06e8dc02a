"""Latin hypercubes over the levels: counts of a factor's levels differ by at most one.

McKay, Beckman and Conover (Technometrics 21, 1979); points by pydoe, by maximin distance of several draws.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from penstock.design import model as models
from penstock.design.kinds.base import (
    Asked,
    Claim,
    Numbers,
    no_forbidden,
    no_pydoe,
    numeric,
    whole_number,
)
from penstock.errors import BadInput

WHAT = "Points that fill the space of many levels, for simulators and response surfaces."
OPTIONS = {"runs": "number of treatments"}
CANNOT = (
    "Space-filling points: effects are correlated with each other; the plan shows the correlations.",
)
#: maximum number of draws until all rows differ and separate main effects
_DRAWS = 50


def fault(request: Asked) -> str:
    """Fault unless N distinct points separate the main effects."""
    return (
        no_pydoe()
        or runs_fault(request)
        or no_forbidden(request)
        or draw_fault(treatments, request)
    )


def runs_fault(request: Asked) -> str:
    """Fault of the number of runs, which is required."""
    least = models.coefficients(request.factors, "main")
    most = min(request.combinations, 100_000)
    if "runs" not in request.options:
        return f"runs: how many, at least {least} for the main effects"
    return whole_number(request, "runs", least, most)


def treatments(request: Asked) -> Numbers:
    """The first draw of distinct rows that separate main effects, as level numbers by rank; BadInput if
    there is none."""
    from pydoe import lhs

    runs = request.whole("runs", 0)
    for draw in range(_DRAWS):
        seed = np.random.default_rng([request.seed & 0xFFFFFFFF, request.seed >> 32, draw])
        criterion = "maximin" if runs <= 200 else None
        points = np.asarray(lhs(len(request.factors), samples=runs, criterion=criterion, seed=seed))
        ranks = np.argsort(np.argsort(points, axis=0), axis=0)
        rows: Numbers = np.column_stack(
            [
                by_value(request, j)[(2 * ranks[:, j] + 1) * count // (2 * runs)]
                for j, count in enumerate(request.levels)
            ]
        )
        if len(np.unique(rows, axis=0)) == runs and models.largest_model(request.factors, rows):
            return rows
    raise too_few(runs)


def draw_fault(draw: Callable[[Asked], Numbers], request: Asked) -> str:
    """Fault of points that are too few or do not separate main effects."""
    try:
        draw(request)
    except BadInput as error:
        return str(error).partition("expected ")[2]
    return ""


def too_few(runs: int) -> BadInput:
    """Error for points that do not separate main effects."""
    return BadInput(
        f"found {runs} points that do not separate the main effects; expected more runs, or kind: d-optimal"
    )


def claim(request: Asked) -> Claim:
    """Claim nearly equal counts of levels, and the largest model that the points estimate."""
    model = models.largest_model(request.factors, treatments(request))
    return Claim(model=model or "main", near=True, runs=request.whole("runs", 0))


def by_value(request: Asked, place: int) -> Numbers:
    """Level numbers in the order of their values."""
    values = numeric(request.factors[place])
    order: Numbers = np.argsort(values) if values else np.arange(request.levels[place])
    return order
