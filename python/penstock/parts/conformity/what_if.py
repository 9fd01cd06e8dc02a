"""Estimate the effect of a planned change from the model's ratio and the measured mean.

A system that is slower than its model is assumed to stay so after the change. The estimate is therefore
measured × predicted with the change / predicted without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.errors import BadInput
from penstock.parts.conformity.comparison import RowResult
from penstock.parts.conformity.expected import Expectation, Expected


@dataclass(frozen=True)
class Gain:
    """The measured mean of one row and the estimated mean with the change, in the unit of the row.

    `low` and `high` scale the measured interval. `share` is the relative reduction of the mean, negative for
    an increase.
    """

    expected: Expected
    measured: float
    mean: float
    low: float
    high: float
    share: float


def what_if(changed: Expectation, results: Sequence[RowResult]) -> list[Gain]:
    """Estimate the rows that the changed prediction has too.

    Raises BadInput if it has none of them, or has another unit for one.
    """
    by_key = {row.key: row for row in changed.rows}
    gains = []
    for result in results:
        expected = result.expected
        row = by_key.get(expected.key)
        if row is None:
            continue
        if row.unit != expected.unit:
            raise BadInput(
                f"{row.label}: found {row.unit} in {changed.name}; expected {expected.unit}"
            )
        ratio = row.predicted / expected.predicted
        half = result.half * expected.predicted
        ends = ((result.mean - half) * ratio, (result.mean + half) * ratio)
        gains.append(Gain(expected, result.mean, result.mean * ratio, *ends, 1 - ratio))
    if not gains:
        raise BadInput(
            f"{changed.name}: found none of the measured rows; expected such as "
            f"{results[0].expected.label}"
        )
    return gains
