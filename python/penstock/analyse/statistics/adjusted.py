"""Adjusted p-values of several tests, in the order of the tests."""

from __future__ import annotations

from collections.abc import Sequence


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values (Scandinavian Journal of Statistics 6, 1979)."""
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for step, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - step) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """p-values by the false discovery rate (Journal of the Royal Statistical Society B 57, 1995)."""
    adjusted = [0.0] * len(p_values)
    smallest, m = 1.0, len(p_values)
    for step, i in enumerate(sorted(range(m), key=lambda i: -p_values[i])):
        smallest = min(smallest, p_values[i] * m / (m - step))
        adjusted[i] = smallest
    return adjusted
