"""Similarity of two profiles."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from penstock.profile.model import StorageProfile

SIZES_BYTES = (4096, 65536, 1 << 20)
_P = [i / 100 for i in range(1, 100)]


def likeness(a: StorageProfile, b: StorageProfile) -> list[dict[str, Any]]:
    """One row per operation, class and size: ratios b/a of mean, p50, p99 and capacity, and a distance.

    `ks` is the Kolmogorov-Smirnov distance of the two service times, on 99 quantiles.
    """
    rows = []
    for op, sequential, size in product(("read", "write"), (True, False), SIZES_BYTES):
        one, two = (p.moments(op, sequential, size) for p in (a, b))
        qa, qb = (np.array(p.quantiles_s(op, sequential, size, _P)) for p in (a, b))
        rows.append(
            {
                "op": op,
                "class": "sequential" if sequential else "random",
                "size_bytes": size,
                "mean_ratio": _ratio(two.mean, one.mean),
                "p50_ratio": _ratio(two.p50, one.p50),
                "p99_ratio": _ratio(two.p99, one.p99),
                "capacity_ratio": _ratio(two.capacity_iops, one.capacity_iops),
                "ks": _distance(qa, qb),
            }
        )
    return rows


def _ratio(b: float, a: float) -> float:
    if a == b:
        return 1.0
    return b / a if a > 0 else float("inf")


def _distance(qa: np.ndarray[Any, Any], qb: np.ndarray[Any, Any]) -> float:
    """Largest difference of the step functions through the quantiles, between values at least 0.1 % apart."""
    places = np.sort(np.concatenate([qa, qb]))
    wide = places[1:] > places[:-1] * 1.001
    middles = ((places[1:] + places[:-1]) / 2)[wide]
    if not len(middles):
        return 0.0
    apart = np.abs(np.searchsorted(qa, middles) - np.searchsorted(qb, middles))
    return float(apart.max() / len(qa))
