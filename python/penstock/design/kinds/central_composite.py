"""Face-centred central composite designs: corners, face centres, centre.

Box & Wilson (Journal of the Royal Statistical Society B 13, 1951). Corners are the full design or, for
five or more factors, the smallest regular fraction of resolution V, so that products of two are separable.
"""

from __future__ import annotations

import numpy as np

from penstock.design.generators import choose_generators, largest_fraction
from penstock.design.kinds.base import (
    Asked,
    Claim,
    Numbers,
    no_forbidden,
    numeric,
    whole_number,
)
from penstock.design.matrix import two_level

WHAT = "Quantitative factors of three levels: the complete second-order surface, and curvature at the centre."
OPTIONS = {
    "centre": "number of runs of the centre in each replicate (1); from 2 on, they give pure error"
}
CANNOT = ("Central composite: no third-order terms, and no conclusion beyond the levels.",)
_MOST = 10
_RESOLUTION = 5


def fault(request: Asked) -> str:
    """Fault unless there are a few factors of three equally spaced numbers each."""
    if not 2 <= len(request.factors) <= _MOST:
        return f"2 to {_MOST} factors"
    for factor in request.factors:
        values = numeric(factor)
        steps = np.diff(values) if values is not None else np.zeros(1)
        if len(factor.levels) != 3 or not np.allclose(steps, steps[0], rtol=1e-6) or not steps[0]:
            return f"three equally spaced numbers for {factor.name}; or kind: i-optimal"
    return no_forbidden(request) or whole_number(request, "centre", 1, 100)


def treatments(request: Asked) -> Numbers:
    """Corners, then faces, then the centre."""
    count = len(request.factors)
    added = largest_fraction(count, _RESOLUTION)
    corners = two_level(count, choose_generators(count, added)).astype(np.int64) + 1
    faces = np.ones((2 * count, count), dtype=np.int64)
    for j in range(count):
        faces[2 * j, j], faces[2 * j + 1, j] = 0, 2
    centre = np.ones((request.whole("centre", 1), count), dtype=np.int64)
    rows: Numbers = np.vstack([corners, faces, centre])
    return rows


def claim(request: Asked) -> Claim:
    """Claim an estimate of every second-order coefficient."""
    return Claim(model="quadratic", clear=True, runs=len(treatments(request)), repeated=True)
