"""Latin hypercubes over the levels: every level of every factor as often as any other or once more.

McKay, Beckman and Conover (Technometrics 21, 1979); points by pydoe, the most distant of some draws.
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
OPTIONS = {"runs": "how many treatments"}
CANNOT = (
    "Space-filling points: effects are correlated with each other, by how much the plan says.",
)
#: draws until all rows differ and tell main effects apart
_DRAWS = 50


def fault(request: Asked) -> str:
    """So many distinct points, which tell main effects apart."""
    return (
        no_pydoe()
        or runs_fault(request)
        or no_forbidden(request)
        or draw_fault(treatments, request)
    )


def runs_fault(request: Asked) -> str:
    """Fault of the number of runs, which must be said."""
    least = models.coefficients(request.factors, "main")
    most = min(request.combinations, 100_000)
    if "runs" not in request.options:
        return f"runs: how many, at least {least} for the main effects"
    return whole_number(request, "runs", least, most)


def treatments(request: Asked) -> Numbers:
    """The first draw whose rows differ and tell main effects apart, level numbers by rank; BadInput where
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
    """Fault of points that do not tell main effects apart, or are not so many."""
    try:
        draw(request)
    except BadInput as error:
        return str(error).partition("expected ")[2]
    return ""


def too_few(runs: int) -> BadInput:
    """Points that do not tell main effects apart."""
    return BadInput(
        f"found {runs} points that do not separate the main effects; expected more runs, or kind: d-optimal"
    )


def claim(request: Asked) -> Claim:
    """Levels nearly as often, the largest model that the points tell apart."""
    model = models.largest_model(request.factors, treatments(request))
    return Claim(model=model or "main", near=True, runs=request.whole("runs", 0))


def by_value(request: Asked, place: int) -> Numbers:
    """Level numbers in the order of their values."""
    values = numeric(request.factors[place])
    order: Numbers = np.argsort(values) if values else np.arange(request.levels[place])
    return order
