"""Candidates near the best: the front, the contenders, equivalent ones, the effect of uncertainty."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.parts.prediction.exploration.common_means import CommonMeans, seeds_of_tables
from penstock.parts.prediction.exploration.compare import Selection, select
from penstock.parts.prediction.exploration.effects import effects
from penstock.parts.prediction.exploration.evaluate import DRAWN
from penstock.parts.prediction.exploration.pareto import near, pareto
from penstock.parts.prediction.exploration.record import Record
from penstock.parts.prediction.exploration.robust import DRAWS, RIVALS, Robust, robust
from penstock.parts.prediction.exploration.score import Yardstick
from penstock.parts.prediction.exploration.space.space import Candidate

#: seeds of a first comparison; configurations for the estimate of noise
_FIRST_SEEDS, _NOISE = 5, 8
#: limits of compared contenders, and of front members with more seeds
_CONTENDERS, _FRONT = 24, 512
#: minimum margin and minimum number of compared candidates, so that there is a second best
_LEAST_MARGIN, _LEAST = 0.02, 3

Stage = Callable[[str, int | None], None]


def twins(record: Record, candidates: Sequence[Candidate]) -> dict[Candidate, list[Candidate]]:
    """Candidates with identical measures on seed 1: the first of each, and the others."""
    groups: dict[tuple[Any, ...], list[Candidate]] = {}
    for c in candidates:
        m = record.measures[c][min(record.measures[c])]
        groups.setdefault((m.makespan_s, m.cost, m.energy_j, m.hosts), []).append(c)
    return {group[0]: group[1:] for group in groups.values()}


def indifferent(
    record: Record, best: Candidate, alike: Sequence[Candidate], most_seeds: int
) -> list[Candidate]:
    """Candidates of `alike` that differ from the best in one axis and have equal measures on several
    seeds."""
    seeds = range(1, min(_FIRST_SEEDS, most_seeds) + 1)
    close = [t for t in alike if sum(a != b for a, b in zip(t, best, strict=True)) == 1]
    record.evaluate([best, *close], seeds)
    own = [record.measures[best][s] for s in seeds]
    return [t for t in close if [record.measures[t][s] for s in seeds] == own]


def point(mean: Mapping[str, float], metrics: Sequence[str]) -> NDArray[np.float64]:
    """The metrics of a candidate."""
    return np.array([mean[m] for m in metrics])


def near_front(
    means: CommonMeans,
    candidates: Sequence[Candidate],
    metrics: Sequence[str],
    most_seeds: int,
    stage: Stage,
) -> list[Candidate]:
    """The front by seed 1 and the candidates within the noise of it, with the seeds of a first comparison.

    `means` are then over these seeds.
    """
    seeds = range(1, min(_FIRST_SEEDS, most_seeds) + 1)
    points = np.array([point(means.of(c), metrics) for c in candidates])
    member = pareto(points)
    front = [c for c, m in zip(candidates, member, strict=True) if m]
    margin = 2 * _relative_noise(means.record, front[:_NOISE], seeds)
    close = near(points, points[member], margin) if margin > 0 else member
    others = [c for c, m in zip(candidates, close & ~member, strict=True) if m]
    chosen = [*front, *others][:_FRONT]
    stage("more seeds for the front", len(chosen) * (len(seeds) - 1))
    means.settle(chosen, seeds)
    return chosen


def front_of(
    means: CommonMeans, candidates: Sequence[Candidate], metrics: Sequence[str]
) -> list[Candidate]:
    """Candidates with all common seeds that no other one of these dominates."""
    exact = [c for c in candidates if means.exact(c)]
    if not exact:
        return []
    member = pareto(np.array([point(means.of(c), metrics) for c in exact]))
    return [c for c, m in zip(exact, member, strict=True) if m]


def _relative_noise(record: Record, some: Sequence[Candidate], seeds: Sequence[int]) -> float:
    """Relative standard deviation of the difference of two makespans on one seed."""
    if len(some) < 2 or len(seeds) < 2:
        return 0.0
    record.evaluate(some, seeds)
    spans = np.array([[record.measures[c][s].makespan_s for s in seeds] for c in some])
    with np.errstate(invalid="ignore"):
        return _spread(spans / spans.mean(axis=1, keepdims=True))


def _spread(values: NDArray[np.float64]) -> float:
    """Pooled standard deviation of the differences of rows to the first."""
    sound = values[np.isfinite(values).all(axis=1)]
    if len(sound) < 2:
        return 0.0
    differences = sound[1:] - sound[0]
    return float(np.sqrt(differences.var(axis=1, ddof=1).mean()))


def compare(
    candidates: Sequence[Candidate],
    by: Yardstick,
    number: Callable[[Candidate], int],
    most_seeds: int,
    level: float,
) -> tuple[Selection, int]:
    """Compare the best of the candidates with those near it; also the number of near ones not compared."""
    losses = {c: by.of(c) for c in candidates}
    ordered = sorted(candidates, key=lambda c: (losses[c], number(c)))
    least = losses[ordered[0]]
    scale = abs(least) if by.relative and least else 1.0
    seeds = range(1, most_seeds + 1)
    some, first = ordered[:_NOISE], seeds[:_FIRST_SEEDS]
    noise = 0.0
    if len(some) > 1 and len(first) > 1:
        with np.errstate(invalid="ignore"):
            noise = _spread(by.on_seeds(some, first) / scale)
    margin = max(_LEAST_MARGIN, 4 * noise) * scale
    close = [c for c in ordered if losses[c] <= least + margin]
    chosen = close[:_CONTENDERS] if len(close) >= _LEAST else ordered[:_LEAST]
    selection = select(
        chosen,
        lambda these, n: by.on_seeds(these, seeds[:n]),
        most_seeds=most_seeds,
        level=level,
        relative=by.relative,
    )
    return selection, max(0, len(close) - len(chosen))


def settle_tables(
    means: CommonMeans,
    front: Sequence[Candidate],
    candidates: Sequence[Candidate],
    metrics: Sequence[str],
    selection: Selection,
    stage: Stage,
) -> tuple[str, ...]:
    """Evaluate what tables and figures show on the seeds of the comparison; the axes of the heat map.

    Shown are candidates near the front, those compared, the best of each level by each metric, and for the
    first metric the best of each pair of levels of the two axes of the heat map.
    """
    space = means.record.space
    first = [means.first(c) for c in candidates]
    values = {m: [mean[m] for mean in first] for m in metrics}
    by_metric = {m: effects(space, candidates, values[m]) for m in metrics}
    axes = tuple(e.axis for e in by_metric[metrics[0]] if len(e.levels) > 1)[:2]
    shown = [*front, *(c.candidate for c in selection.contenders)]
    shown += [level.candidate for of in by_metric.values() for axis in of for level in axis.levels]
    if len(axes) == 2:
        names = [a.name for a in space.axes]
        row, column = (names.index(name) for name in axes)
        best: dict[tuple[int, int], tuple[float, Candidate]] = {}
        for c, value in zip(candidates, values[metrics[0]], strict=True):
            cell = (c[row], c[column])
            if np.isfinite(value):
                best[cell] = min(best.get(cell, (value, c)), (value, c))
        shown += [c for _, c in best.values()]
    shown = list(dict.fromkeys(shown))
    seeds = seeds_of_tables(selection.seeds, len(shown), len(means.seeds))
    stage("more seeds for the tables", None)
    means.settle(shown, seeds)
    return axes


def robustness(
    record: Record,
    selection: Selection,
    candidates: Sequence[Candidate],
    by: Yardstick,
    stage: Stage,
) -> Robust | None:
    """The best and its rivals on platforms sampled from the uncertain values; None without a rival.

    Rivals are the next best, and the best candidate of every level of every axis.
    """
    losses = {c: by.of(c) for c in candidates}
    least = min(losses.values())
    shifted = [losses[c] - least + 1.0 for c in candidates]
    of_levels = [
        level.candidate
        for axis in effects(record.space, candidates, shifted)
        for level in axis.levels
    ]
    named = [c.candidate for c in selection.contenders]
    levels = sorted(of_levels, key=lambda c: (losses[c], c))
    rivals = list(dict.fromkeys([*named[:5], *levels]))[:RIVALS]
    draws = [DRAWN + i for i in range(1, DRAWS + 1)]
    stage("drawing what is not certain", len(rivals) * len(draws))
    record.evaluate(rivals, draws)
    sound = [c for c in rivals if not any(record.measures[c][d].error for d in draws)]
    if named[0] not in sound or len(sound) < 2:
        return None
    return robust(sound, by.on_draws(sound, draws), by.relative)
