"""Bounds on the bias of degraded runs, for statistics.

The undisturbed value of a degraded run lies between `RESPONSE:low` and `RESPONSE:high` of the table `runs`
(`fidelity/validity.py`). If one of them is null there is no bound, and the response does not use the run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from penstock.archive.runs import ENDS

Values = NDArray[np.floating[Any]]


def used(runs: pd.DataFrame, response: str) -> pd.Series[bool]:
    """The runs used for a response: with a finite value, valid or with a bound."""
    good = np.isfinite(_numbers(runs, response))
    if "valid" in runs.columns:
        good &= runs["valid"].eq(True).to_numpy()
    for end in ENDS:
        if f"{response}:{end}" in runs.columns:
            good &= np.isfinite(_numbers(runs, f"{response}:{end}"))
    return pd.Series(good, index=runs.index, dtype=bool)


def ends(runs: pd.DataFrame, response: str) -> tuple[Values, Values] | None:
    """Lower and upper ends of the undisturbed values of runs; None if no run is degraded."""
    names = [f"{response}:{end}" for end in ENDS]
    if not set(names) <= set(runs.columns):
        return None
    values = _numbers(runs, response)
    low, high = (_numbers(runs, name) for name in names)
    low, high = np.minimum(low, values), np.maximum(high, values)
    return None if (low == high).all() else (low, high)


def reach(weights: Values, below: Values, above: Values) -> tuple[Values, Values]:
    """Maximum over- and underestimate of weighted sums of runs (sums × runs) by the worst corrections."""
    up, down = np.maximum(weights, 0.0), np.maximum(-weights, 0.0)
    return up @ below + down @ above, up @ above + down @ below


def valid_only(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs without degraded ones, for statistics that cannot use a bound."""
    if "validity" not in runs.columns:
        return runs
    return runs[~runs["validity"].eq("degraded")]


def degraded_count(runs: pd.DataFrame) -> int:
    """The number of degraded runs."""
    return len(runs) - len(valid_only(runs))


def _numbers(runs: pd.DataFrame, name: str) -> Values:
    return np.asarray(pd.to_numeric(runs[name], errors="coerce").astype(float))
