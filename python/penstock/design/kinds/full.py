"""All combinations of the levels, the first factor slowest."""

from __future__ import annotations

import math

import numpy as np

from penstock.design import model as models
from penstock.design.kinds.base import Asked, Claim, Numbers

WHAT = "Every combination of levels; forbidden ones are left out."
OPTIONS: dict[str, str] = {}
CANNOT: tuple[str, ...] = ()
#: treatments at most
MOST = 1 << 16


def fault(asked: Asked) -> str:
    """Too many treatments."""
    return f"at most {MOST} treatments" if asked.combinations > MOST else ""


def treatments(asked: Asked) -> Numbers:
    """All allowed combinations."""
    levels = asked.levels
    rows: Numbers = np.empty((asked.combinations, len(levels)), dtype=np.int64)
    index = np.arange(len(rows))
    for j, count in enumerate(levels):
        rows[:, j] = index // math.prod(levels[j + 1 :]) % count
    allowed: Numbers = rows[asked.allowed(rows)]
    return allowed


def claim(asked: Asked) -> Claim:
    """Orthogonal where nothing is left out."""
    if not asked.forbidden:
        return Claim(strength=2, runs=asked.combinations)
    return Claim(model=models.largest_model(asked.factors, treatments(asked)) or "main")
