"""Offsets in the order of their requests: completeness, order, and absence of a pattern."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import PenstockError

Offsets = npt.NDArray[np.int64]


def of_fio_log(path: Path) -> Offsets:
    """Offsets of fio's own log of single requests (`log_offset=1`), in the order of their completion."""
    rows = np.loadtxt(path, delimiter=",", dtype=np.int64, ndmin=2)
    if rows.shape[1] < 5:
        raise PenstockError(f"{path}: found {rows.shape[1]} columns; expected 5 with log_offset=1")
    return rows[:, 4]


def lag_one(offsets: Offsets) -> tuple[float, float, float]:
    """Correlation of each offset with the next, and its 95 % interval (Fisher's transformation)."""
    return correlation(offsets[:-1], offsets[1:])


def correlation(x: Any, y: Any) -> tuple[float, float, float]:
    """Pearson's r with its 95 % interval by Fisher's transformation (Fisher, Biometrika 10, 1915)."""
    r = float(np.corrcoef(x, y)[0, 1])
    if not np.isfinite(r) or len(x) < 4:
        return r, -1.0, 1.0
    z, half = np.arctanh(np.clip(r, -1 + 1e-15, 1 - 1e-15)), 1.959964 / np.sqrt(len(x) - 3)
    return r, float(np.tanh(z - half)), float(np.tanh(z + half))


def successors(offsets: Offsets, block_bytes: int) -> float:
    """Share of requests that begin at the end of the previous one."""
    return float(np.mean(np.diff(offsets) == block_bytes))


def wrong(stored: Offsets, index: Offsets, truth: Offsets) -> list[str]:
    """Deviations from the true offsets as text; empty if all are present and in order."""
    faults = []
    if len(stored) != len(truth):
        faults.append(f"{len(stored)} stored, {len(truth)} requested")
    if not np.array_equal(index, np.arange(len(index))):
        faults.append("the index is not 0, 1, 2, …")
    least = min(len(stored), len(truth))
    differing = np.flatnonzero(stored[:least] != truth[:least])
    if len(differing):
        faults.append(f"request {differing[0]} is the first of {len(differing)} that differ")
    return faults
