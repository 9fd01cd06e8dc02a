"""All combinations of the levels, the first factor slowest."""

from __future__ import annotations

import math

import numpy as np

from penstock.design import model as models
from penstock.design.kinds.base import Asked, Claim, Numbers

WHAT = "Every combination of levels; forbidden ones are left out."
OPTIONS: dict[str, str] = {}
CANNOT: tuple[str, ...] = ()
#: maximum number of treatments
MOST = 1 << 16


def fault(request: Asked) -> str:
    """Fault if there are too many treatments."""
    return f"at most {MOST} treatments" if request.combinations > MOST else ""


def treatments(request: Asked) -> Numbers:
    """All allowed combinations."""
    levels = request.levels
    rows: Numbers = np.empty((request.combinations, len(levels)), dtype=np.int64)
    index = np.arange(len(rows))
    for j, count in enumerate(levels):
        rows[:, j] = index // math.prod(levels[j + 1 :]) % count
    allowed: Numbers = rows[request.allowed(rows)]
    return allowed


def claim(request: Asked) -> Claim:
    """Claim orthogonality if no combination is left out."""
    if not request.forbidden:
        return Claim(strength=2, runs=request.combinations)
    return Claim(model=models.largest_model(request.factors, treatments(request)) or "main")
