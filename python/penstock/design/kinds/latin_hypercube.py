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


def fault(asked: Asked) -> str:
    """So many distinct points, which tell main effects apart."""
    return no_pydoe() or whole_runs(asked) or no_forbidden(asked) or untold(treatments, asked)


def whole_runs(asked: Asked) -> str:
    """Fault of the number of runs, which must be said."""
    least = models.coefficients(asked.factors, "main")
    most = min(asked.combinations, 100_000)
    if "runs" not in asked.options:
        return f"runs: how many, at least {least} for the main effects"
    return whole_number(asked, "runs", least, most)


def treatments(asked: Asked) -> Numbers:
    """The first draw whose rows differ and tell main effects apart, level numbers by rank; BadInput where
    there is none."""
    from pydoe import lhs

    runs = asked.whole("runs", 0)
    for draw in range(_DRAWS):
        seed = np.random.default_rng([asked.seed & 0xFFFFFFFF, asked.seed >> 32, draw])
        criterion = "maximin" if runs <= 200 else None
        points = np.asarray(lhs(len(asked.factors), samples=runs, criterion=criterion, seed=seed))
        ranks = np.argsort(np.argsort(points, axis=0), axis=0)
        found: Numbers = np.column_stack(
            [
                by_value(asked, j)[(2 * ranks[:, j] + 1) * count // (2 * runs)]
                for j, count in enumerate(asked.levels)
            ]
        )
        if len(np.unique(found, axis=0)) == runs and models.largest_model(asked.factors, found):
            return found
    raise too_few(runs)


def untold(draw: Callable[[Asked], Numbers], asked: Asked) -> str:
    """Fault of points that do not tell main effects apart, or are not so many."""
    try:
        draw(asked)
    except BadInput as error:
        return str(error).partition("expected ")[2]
    return ""


def too_few(runs: int) -> BadInput:
    """Points that do not tell main effects apart."""
    return BadInput(
        f"found {runs} points that do not tell the main effects apart; expected more runs, or kind: d-optimal"
    )


def claim(asked: Asked) -> Claim:
    """Levels nearly as often, the largest model that the points tell apart."""
    model = models.largest_model(asked.factors, treatments(asked))
    return Claim(model=model or "main", near=True, runs=asked.whole("runs", 0))


def by_value(asked: Asked, place: int) -> Numbers:
    """Level numbers in the order of their values."""
    values = numeric(asked.factors[place])
    order: Numbers = np.argsort(values) if values else np.arange(asked.levels[place])
    return order
