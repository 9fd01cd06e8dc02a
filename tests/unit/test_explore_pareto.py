"""The Pareto set compared with its definition, and the knee."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.parts.prediction.exploration.pareto import knee, near, pareto

VECTOR = {"A": (10, 50), "B": (12, 40), "C": (11, 60), "D": (20, 20), "E": (20, 25), "F": (9, 80)}


def test_vector() -> None:
    member = pareto(list(VECTOR.values()))
    assert {n for n, m in zip(VECTOR, member, strict=True) if m} == {"F", "A", "B", "D"}


def by_definition(points: list[tuple[float, ...]]) -> list[bool]:
    """By definition: no other point is nowhere larger and somewhere smaller."""

    def dominated(p: tuple[float, ...]) -> bool:
        return any(
            all(a <= b for a, b in zip(q, p, strict=True))
            and any(a < b for a, b in zip(q, p, strict=True))
            for q in points
            if all(np.isfinite(q))
        )

    return [bool(np.isfinite(p).all()) and not dominated(p) for p in points]


# few distinct values, so that ties and equal points are frequent; some are not finite
numbers = st.integers(0, 6).map(float) | st.sampled_from([0.5, 2.5, float("inf"), float("nan")])


def clouds(k: int) -> st.SearchStrategy[list[tuple[float, ...]]]:
    return st.lists(st.tuples(*[numbers] * k), min_size=1, max_size=40)


def agrees(function: Callable[[list[tuple[float, ...]]], np.ndarray]) -> None:
    @settings(max_examples=300, derandomize=True, database=None)
    @given(st.integers(1, 3).flatmap(clouds))
    def check(points: list[tuple[float, ...]]) -> None:
        assert list(function(points)) == by_definition(points)

    check()


def test_pareto_set_agrees_with_its_definition() -> None:
    agrees(pareto)


def test_planted_failures_of_the_set_are_detected() -> None:
    def strict_only(points: list[tuple[float, ...]]) -> np.ndarray:
        p = np.array(points)
        return np.array([not ((p < q).all(axis=1)).any() and np.isfinite(q).all() for q in p])

    def two_columns(points: list[tuple[float, ...]]) -> np.ndarray:
        return pareto(np.array(points)[:, :2])

    for broken in (strict_only, two_columns):
        with pytest.raises(AssertionError):
            agrees(broken)


def test_the_knee_compares_ratios_independent_of_units() -> None:
    points = np.array([(10.0, 100.0), (11.0, 50.0), (30.0, 45.0)])
    assert knee(points) == 1
    assert knee(points * [1e-3, 1e6]) == 1
    # 3 % slower and 40 % cheaper than the fastest beats both ends
    assert knee([(100, 10), (103, 6), (180, 5.5)]) == 1
    assert knee([(5.0, 5.0)]) == 0
    with pytest.raises(ValueError, match="positive"):
        knee([(0.0, 1.0)])


def test_near_front() -> None:
    values = np.array([(10.0, 10.0), (10.2, 10.2), (10.2, 9.0), (12.0, 12.0), (np.nan, 1.0)])
    front = values[pareto(values)]
    assert list(near(values, front, 0.03)) == [True, True, True, False, False]
    assert list(near(values, front, 0.01)) == [True, False, True, False, False]
