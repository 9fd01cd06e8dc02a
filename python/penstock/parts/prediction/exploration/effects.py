"""Effects of decisions: main effects of the axes, and the best configuration of each level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.parts.prediction.exploration.space.space import Candidate, Space


@dataclass(frozen=True)
class LevelEffect:
    """One level of one axis: mean and best of the quantity among the candidates with it.

    `candidate` is the one with the best value. `loss` is the cost of requiring that level: its best over the
    best of all, minus 1 (0 at the level of the best candidate). `mean` is geometric.
    """

    axis: str
    label: str
    n: int
    mean: float
    best: float
    loss: float
    candidate: Candidate

    def to_dict(self) -> dict[str, Any]:
        """As in `penstock/exploration/1`."""
        return {k: v for k, v in vars(self).items() if k != "candidate"}


@dataclass(frozen=True)
class AxisEffect:
    """One axis: its share of the variation of the quantity's logarithm, and the cost of its worst level.

    `share` is the main effect, sum of squares between levels over the total; `worst_loss` the largest `loss`
    of its levels, with all other axes at their best.
    """

    axis: str
    share: float
    worst_loss: float
    levels: tuple[LevelEffect, ...]

    def to_dict(self) -> dict[str, Any]:
        """As in `penstock/exploration/1`."""
        return {
            "axis": self.axis,
            "share": self.share,
            "worst_loss": self.worst_loss,
            "levels": [level.to_dict() for level in self.levels],
        }


def effects(
    space: Space,
    candidates: Sequence[Candidate],
    values: Sequence[float],
    exact: Mapping[Candidate, float] | None = None,
) -> list[AxisEffect]:
    """Effects of every axis with two levels or more on a positive quantity, strongest first.

    The strongest is the one whose worst level costs most. Over a full grid the shares are those of an
    analysis of variance; over a search they describe the evaluated candidates. `values` are of the same seeds
    for all; with `exact`, means over more seeds of some candidates, the best of a level is one of these.
    """
    if not candidates:
        return []
    codes = np.array(candidates, int)
    quantity = np.asarray(values, float)
    best = quantity if exact is None else np.array([exact.get(c, np.inf) for c in candidates])
    use = np.isfinite(quantity) & (quantity > 0)
    codes, logs = codes[use], np.log(quantity[use])
    with np.errstate(invalid="ignore", divide="ignore"):
        of_best = np.where(best[use] > 0, np.log(best[use]), np.inf)
    chosen = [c for c, keep in zip(candidates, use, strict=True) if keep]
    if not np.isfinite(of_best).any():
        return []
    of_axes = [
        _axis(space, k, codes, (logs, of_best), chosen)
        for k, axis in enumerate(space.axes)
        if len(axis.levels) > 1
    ]
    return sorted(of_axes, key=lambda e: (-e.worst_loss, -e.share))


def _axis(
    space: Space,
    k: int,
    codes: NDArray[np.int_],
    of_all_and_best: tuple[NDArray[np.float64], NDArray[np.float64]],
    chosen: Sequence[Candidate],
) -> AxisEffect:
    axis = space.axes[k]
    logs, of_best = of_all_and_best
    total = float(((logs - logs.mean()) ** 2).sum())
    between = 0.0
    levels = []
    for i, level in enumerate(axis.levels):
        of_level = np.flatnonzero(codes[:, k] == i)
        if not len(of_level):
            continue
        here = logs[of_level]
        between += len(of_level) * float(here.mean() - logs.mean()) ** 2
        best = int(of_level[int(np.argmin(of_best[of_level]))])
        if not np.isfinite(of_best[best]):
            continue
        loss = float(np.expm1(of_best[best] - of_best.min()))
        levels.append(
            LevelEffect(
                axis.name,
                level.label,
                len(of_level),
                float(np.exp(here.mean())),
                float(np.exp(of_best[best])),
                loss,
                chosen[best],
            )
        )
    share = between / total if total > 0 else 0.0
    worst = max((level.loss for level in levels), default=0.0)
    return AxisEffect(axis.name, share, worst, tuple(levels))


def best_over(
    space: Space,
    candidates: Sequence[Candidate],
    values: Sequence[float],
    row: int,
    column: int,
) -> NDArray[np.float64]:
    """The best value for each pair of levels of two axes, (levels of row, levels of column).

    NaN if no candidate with that pair was feasible or evaluated.
    """
    shape = (len(space.axes[row].levels), len(space.axes[column].levels))
    table = np.full(shape, np.inf)
    for candidate, value in zip(candidates, values, strict=True):
        if value == value and value < table[candidate[row], candidate[column]]:
            table[candidate[row], candidate[column]] = value
    table[np.isinf(table)] = np.nan
    return table


def regret(predicted: Sequence[float], actual: Sequence[float]) -> float:
    """actual(predicted best) / actual(best) - 1 of the same configurations; 0 is the optimal choice.

    Ties of the prediction go to the first. Raises ValueError without a value to compare.
    """
    if len(predicted) != len(actual) or not len(predicted):
        raise ValueError("regret needs one predicted and one actual value per configuration")
    chosen = int(np.argmin(np.asarray(predicted, float)))
    return float(actual[chosen]) / float(np.min(np.asarray(actual, float))) - 1
