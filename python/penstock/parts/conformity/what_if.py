"""What a change that is not made yet would bring: the model's ratio, on what was measured.

A system that takes longer than its model says will do so after the change too. So what is predicted of the
change is not its time but its share: measured × predicted with it / predicted as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.errors import BadInput
from penstock.parts.conformity.comparison import Judged
from penstock.parts.conformity.expected import Expectation, Expected


@dataclass(frozen=True)
class Gain:
    """One measured row, and its mean with the change, with the measured interval; in the row's unit.

    `share` is what the change takes away of the mean: positive where there is less of it.
    """

    row: Expected
    measured: float
    mean: float
    low: float
    high: float
    share: float


def what_if(changed: Expectation, rows: Sequence[Judged]) -> list[Gain]:
    """The rows that the changed prediction has too. BadInput where there is none, or a unit is another."""
    known = {row.key: row for row in changed.rows}
    found = []
    for judged in rows:
        row = known.get(judged.row.key)
        if row is None:
            continue
        if row.unit != judged.row.unit:
            raise BadInput(
                f"{row.words}: found {row.unit} in {changed.name}; expected {judged.row.unit}"
            )
        ratio = row.predicted / judged.row.predicted
        half = judged.half * judged.row.predicted
        ends = ((judged.mean - half) * ratio, (judged.mean + half) * ratio)
        found.append(Gain(judged.row, judged.mean, judged.mean * ratio, *ends, 1 - ratio))
    if not found:
        raise BadInput(
            f"{changed.name}: found none of the measured rows; expected such as {rows[0].row.words}"
        )
    return found
