"""A kind of design: treatment i has level i of every factor."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.design.kinds.base import Asked, Claim, whole_number

WHAT = "Level i of every factor together."
OPTIONS = {"runs": "how many treatments"}
CANNOT = ("A diagonal does not tell one factor from another.",)


def fault(request: Asked) -> str:
    return whole_number(request, "runs", max(request.levels), max(request.levels) + 10)


def treatments(request: Asked) -> Any:
    """One treatment for each level of the factor with the most levels, or `runs` treatments."""
    runs = request.whole("runs", max(request.levels))
    return np.array([[i % n for n in request.levels] for i in range(runs)])


def claim(request: Asked) -> Claim:
    return Claim(model=None)
