"""Search engines over a space: exhaustive grid, recursive random search, genetic algorithm.

An engine is a generator: it yields a batch of candidates and receives their losses (to be minimised; infinity
for infeasible ones and violated constraints). It does not account for the budget: `drive` counts each
configuration once and stops at the budget. All random numbers come from the generator passed in, so equal
seeds give equal searches on any number of threads.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import numpy as np

from penstock.parts.prediction.exploration.space.space import Axis, Candidate, Space

Engine = Generator[list[Candidate], list[float], None]
Losses = Callable[[list[Candidate]], list[float]]

#: consecutive batches without a new candidate before an engine is stopped
_BARREN = 60


def drive(engine: Engine, losses: Losses, seen: set[Candidate], budget: int) -> int:
    """Run an engine until it ends, has spent `budget` new candidates, or finds no new ones.

    `losses` gives the losses of a batch; `seen` has the candidates evaluated before, which are free, and
    grows. Losses beyond the budget are not requested. Returns the number of new candidates evaluated.
    """
    spent, barren = 0, 0
    try:
        batch = next(engine)
        while True:
            fresh = [c for c in dict.fromkeys(batch) if c not in seen]
            barren = 0 if fresh else barren + 1
            if barren > _BARREN:
                return spent
            over = len(fresh) - (budget - spent)
            if over > 0:
                dropped = set(fresh[len(fresh) - over :])
                within_budget = [c for c in batch if c not in dropped]
                losses(within_budget)
                seen.update(within_budget)
                return budget
            values = losses(batch)
            seen.update(batch)
            spent += len(fresh)
            batch = engine.send(values)
    except StopIteration:
        return spent
    finally:
        engine.close()


def grid(space: Space, block: int = 4096) -> Engine:
    """Every combination, in order, in blocks."""
    everything = iter(space)
    while batch := list(itertools.islice(everything, block)):
        yield batch


def random_search(space: Space, rng: np.random.Generator, block: int = 8) -> Engine:
    """Plain random sampling: the baseline of the other engines."""
    while True:
        yield [_anywhere(space, rng) for _ in range(block)]


def recursive_random(
    space: Space,
    rng: np.random.Generator,
    *,
    confidence: float = 0.99,
    promising: float = 0.1,
    patience: int = 6,
    shrink: float = 0.5,
) -> Engine:
    """Recursive random search after Ye and Kalyanaraman (2003), as in Costa 2014.

    Exploration draws n = ln(1 - confidence) / ln(1 - promising) samples of the complete space (44 by
    default): with that confidence one of them lies in the best `promising` share. Exploitation samples a
    neighbourhood of the best, of `promising` of the volume; a better sample becomes its centre,
    `patience` samples without one halve it, until it contains only its centre. Then exploration
    continues; a sample better than the mean of the starting points so far is exploited at once, else the
    best of n.

    Ordered axes move by neighbouring levels; the others change to any level or none.
    """
    samples = math.ceil(math.log(1 - confidence) / math.log(1 - promising))
    batch = [_anywhere(space, rng) for _ in range(samples)]
    values = yield batch
    start, start_loss = _best(batch, values)
    thresholds = [start_loss]
    while True:
        yield from _exploit(space, rng, start, start_loss, promising, patience, shrink)
        drawn: list[tuple[Candidate, float]] = []
        limit = float(np.mean([t for t in thresholds if math.isfinite(t)] or [math.inf]))
        while len(drawn) < samples:
            batch = [_anywhere(space, rng) for _ in range(4)]
            values = yield batch
            drawn += zip(batch, values, strict=True)
            if min(values) < limit:
                break
        start, start_loss = min(drawn, key=lambda pair: pair[1])
        if len(drawn) >= samples:
            thresholds.append(start_loss)


def _exploit(
    space: Space,
    rng: np.random.Generator,
    centre: Candidate,
    loss: float,
    volume: float,
    patience: int,
    shrink: float,
) -> Engine:
    """Search the neighbourhood of a promising sample."""
    # a neighbourhood spans more than one level of an axis while side × levels > 1
    widest = max(len(axis.levels) for axis in space.axes)
    side = volume ** (1 / len(space.axes))
    tried = {centre}
    while True:
        batch: list[Candidate] = []
        for _ in range(8 * patience):
            sample = _near(space, rng, centre, side)
            if sample not in tried:
                tried.add(sample)
                batch.append(sample)
            if len(batch) == patience:
                break
        better = False
        for some in (batch[i : i + 2] for i in range(0, len(batch), 2)):
            values = yield some
            best, best_loss = _best(some, values)
            if best_loss < loss:
                centre, loss, better = best, best_loss, True
                break
        if better:
            continue
        if side * widest < 1:
            return
        side *= shrink


def genetic(space: Space, rng: np.random.Generator, *, population: int = 12) -> Engine:
    """Genetic algorithm (Costa 2014): Optuna's NSGA-II (Deb et al. 2002) with a single loss.

    Generations of `population` candidates; parents by tournament, uniform crossover. Ordered axes are numeric
    parameters, the others categorical.
    """
    import optuna  # slow import (one second)

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = optuna.samplers.NSGAIISampler(
        population_size=population, seed=int(rng.integers(2**32))
    )
    study = optuna.create_study(sampler=sampler)
    while True:
        trials = [study.ask() for _ in range(population)]
        values = yield [tuple(_genes(trial, space)) for trial in trials]
        for trial, value in zip(trials, values, strict=True):
            study.tell(trial, value)


def _genes(trial: Any, space: Space) -> Iterator[int]:
    for number, axis in enumerate(space.axes):
        name, last = str(number), len(axis.levels) - 1
        if axis.stepwise:
            yield int(trial.suggest_int(name, 0, last))
        else:
            yield int(trial.suggest_categorical(name, range(last + 1)))


ENGINES: dict[str, Callable[[Space, np.random.Generator], Engine]] = {
    "rrs": recursive_random,
    "ga": genetic,
}


def _anywhere(space: Space, rng: np.random.Generator) -> Candidate:
    return tuple(int(rng.integers(len(axis.levels))) for axis in space.axes)


def _near(space: Space, rng: np.random.Generator, centre: Candidate, side: float) -> Candidate:
    """A candidate of the neighbourhood, whose side is that share of each axis; never the centre itself."""
    levels = [_shifted(a, rng, i, side) for a, i in zip(space.axes, centre, strict=True)]
    if tuple(levels) == centre:
        movable = [k for k, axis in enumerate(space.axes) if len(axis.levels) > 1]
        if movable:
            k = movable[int(rng.integers(len(movable)))]
            levels[k] = _step(space.axes[k], rng, centre[k])
    return tuple(levels)


def _shifted(axis: Axis, rng: np.random.Generator, index: int, side: float) -> int:
    levels = len(axis.levels)
    if not axis.stepwise:
        return int(rng.integers(levels)) if rng.random() < side else index
    place = (index + 0.5) / levels + (rng.random() - 0.5) * side
    return min(max(math.floor(place * levels), 0), levels - 1)


def _step(axis: Axis, rng: np.random.Generator, index: int) -> int:
    """Another level: a neighbour on an ordered axis, any other elsewhere. The axis has at least two."""
    levels = len(axis.levels)
    if axis.stepwise:
        if index in (0, levels - 1):
            return 1 if index == 0 else levels - 2
        return index + (1 if rng.random() < 0.5 else -1)
    other = int(rng.integers(levels - 1))
    return other + (other >= index)


def _best(batch: Sequence[Candidate], values: Sequence[float]) -> tuple[Candidate, float]:
    i = min(range(len(values)), key=values.__getitem__)
    return batch[i], values[i]
