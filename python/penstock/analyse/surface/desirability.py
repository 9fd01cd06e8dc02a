"""Desirability: trade-off between several responses (Derringer & Suich, Journal of Quality Technology 12,
1980).

The desirability of a response is 0 at `worst` and beyond, 1 at `best` and beyond, in between ((y − worst)
/ (best − worst)) to the power of `weight`; with a `target` it is 1 there and falls to 0 at `low` and
`high`. The overall desirability is the geometric mean, weighted by `importance`: it is 0 if that of any
response is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.spec.study import Desire

Values = NDArray[np.floating[Any]]


def worth(value: float | Values, desire: Desire) -> Values:
    """Desirability of a value of a response, 0 to 1; 0 for NaN."""
    y = np.asarray(value, dtype=float)
    if desire.target is not None:
        assert desire.low is not None
        assert desire.high is not None
        below = (y - desire.low) / (desire.target - desire.low)
        above = (desire.high - y) / (desire.high - desire.target)
        share = np.where(y <= desire.target, below, above)
    else:
        assert desire.worst is not None
        assert desire.best is not None
        share = (y - desire.worst) / (desire.best - desire.worst)
    clipped = np.clip(np.nan_to_num(share, nan=0.0), 0.0, 1.0)
    return np.asarray(clipped**desire.weight)


def overall(values: Sequence[float | Values], desires: Sequence[Desire]) -> Values:
    """The geometric mean of the desirabilities, weighted by importance."""
    total = sum(d.importance for d in desires)
    with np.errstate(divide="ignore"):
        logs = [d.importance * np.log(worth(v, d)) for v, d in zip(values, desires, strict=True)]
    return np.asarray(np.exp(np.sum(logs, axis=0) / total))
