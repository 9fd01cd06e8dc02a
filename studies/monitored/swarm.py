"""Checks of the series of a swarm: each rises to 100 % without a missing scrape."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd


def incomplete(progress: pd.DataFrame) -> list[str]:
    """Series [%] that decrease, or do not end at 100."""
    names = []
    for name, column in progress.items():
        values = column.dropna().to_numpy()
        if not len(values) or (np.diff(values) < 0).any() or values[-1] != 100:
            names.append(str(name))
    return names


def missing(progress: pd.DataFrame, end_ns: int, interval_s: float = 1.0) -> dict[str, int]:
    """Series with a wrong number of stored scrapes from their first one to the end; the difference."""
    differences = {}
    for name, column in progress.items():
        scrapes = column.dropna()
        if scrapes.empty:
            differences[str(name)] = 0
            continue
        life_s = (end_ns - int(scrapes.index[0].value)) / 1e9
        expected = math.floor(life_s / interval_s) + 1
        if abs(len(scrapes) - expected) > 1:
            differences[str(name)] = len(scrapes) - expected
    return differences


def earliest_s(size_bytes: int, rate_bps: float, burst_bytes: int) -> float:
    """Earliest time at which a file can have left its only source, by the rate of its link."""
    return (size_bytes - burst_bytes) / rate_bps
