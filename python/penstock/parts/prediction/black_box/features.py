"""Points as numeric features of a tree, and splits as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.parts.prediction.black_box.space import (
    CATEGORIES,
    DIMENSIONS,
    Point,
    Space,
    shown_bytes,
)

_WORDS = {"request_bytes": "request", "data_bytes": "data", "clients": "other clients"}


@dataclass(frozen=True)
class Feature:
    """One column: a number's own value, or an indicator of a category's `value`."""

    dimension: str
    value: str | None = None

    def of(self, point: Point) -> float:
        """Its value at a point."""
        value_at = getattr(point, self.dimension)
        return float(value_at) if self.value is None else float(value_at == self.value)

    def split(self, threshold: float, other: str | None = None) -> tuple[str, str]:
        """The two sides of `x ≤ threshold` as text; `other` is the other value of a two-valued category."""
        if self.value is not None:
            return (other or f"{self.dimension} not {self.value}"), f"{self.dimension} {self.value}"
        word = _WORDS.get(self.dimension, self.dimension)
        if self.dimension in ("clients", "nodes"):
            bound = int(np.floor(threshold))
            return f"{word} ≤ {bound}", f"{word} > {bound}"
        shown = shown_bytes(threshold)
        return f"{word} ≤ {shown}", f"{word} > {shown}"


def features(space: Space) -> list[Feature]:
    """Columns of a space: none for a constant, one for a two-valued category, else one per value."""
    columns: list[Feature] = []
    for dimension in DIMENSIONS:
        values = space.values(dimension)
        if len(values) < 2:
            continue
        if dimension not in CATEGORIES:
            columns.append(Feature(dimension))
        elif len(values) == 2:
            columns.append(Feature(dimension, values[1]))
        else:
            columns += [Feature(dimension, v) for v in values]
    return columns or [Feature("clients")]


def remaining(space: Space, feature: Feature) -> str | None:
    """The other value of a two-valued category; None for a number or more values."""
    values = space.values(feature.dimension)
    if feature.value is None or len(values) != 2:
        return None
    other = next(v for v in values if v != feature.value)
    return f"{feature.dimension} {other}"


def matrix(columns: Sequence[Feature], points: Sequence[Point]) -> NDArray[np.float64]:
    """Points × columns."""
    return np.array([[c.of(p) for c in columns] for p in points], dtype=float).reshape(
        len(points), len(columns)
    )


def spread(space: Space, points: Sequence[Point]) -> NDArray[np.float64]:
    """Points × columns with sizes as powers of two, so that ratios are distances: for the choice of
    points."""
    columns = features(space)
    values = matrix(columns, points)
    for place, column in enumerate(columns):
        if column.dimension in ("request_bytes", "data_bytes"):
            values[:, place] = np.log2(values[:, place])
        elif column.value is None:
            values[:, place] = np.log2(1 + values[:, place])
    return values


def to_rows(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Points as plain values."""
    return [dict(vars(p)) for p in points]
