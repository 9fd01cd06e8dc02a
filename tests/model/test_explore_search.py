"""Search engines on a grid of simulated results."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from penstock.parts.prediction.exploration.record import Record
from penstock.parts.prediction.exploration.run import Question, Settings, explore
from penstock.parts.prediction.exploration.search import (
    ENGINES,
    Engine,
    drive,
    genetic,
    random_search,
    recursive_random,
)
from penstock.parts.prediction.exploration.simulate import Simulated
from penstock.parts.prediction.exploration.space.expression import parse_objective
from penstock.parts.prediction.exploration.space.space import (
    Candidate,
    Space,
    make_space,
    parse_axis,
)
from penstock.parts.prediction.workloads.synthetic import Shape, reduce
from penstock.platform.hosts import read_platform
from tests.examples.explore import Quiet
from tests.model.explore_files import PLATFORM

AXES = (
    "split=app:storage/19",
    "store.chunk=64KiB..1MiB*2",
    "store.replicas=1..3",
    "store.stripe=1,2,3,4,6,8",
    "store.window=1,2,4,unlimited",
    "network.bandwidth=1 Gbit/s,2 Gbit/s",
)
#: time and cost are both minimised: cost x time is the product of hosts and squared time
OBJECTIVE = "min cost * makespan_s"
SHARE, SEEDS = 0.02, 10
Start = Callable[[Space, np.random.Generator], Engine]


@pytest.fixture(scope="module")
def record() -> Record:
    """Every configuration simulated once."""
    space = make_space([parse_axis(a) for a in AXES])
    platform = read_platform(PLATFORM.encode(), Path("platform.yaml"))
    workload = reduce(Shape(width=12, file_bytes=1 << 20, compute_s=0.05))
    grid = Record(space, Simulated(workload, platform, space))
    grid.evaluate(list(space), [1])
    return grid


@pytest.fixture(scope="module")
def losses(record: Record) -> dict[Candidate, float]:
    objective = parse_objective(OBJECTIVE)
    return {c: objective.loss(record.mean(c, [1])) for c in record.measures}


def regrets(start: Start, record: Record, losses: dict[Candidate, float]) -> list[float]:
    """Loss over the exhaustive optimum after 2 % of the evaluations, for each of ten seeds."""
    best, budget = min(losses.values()), round(SHARE * len(losses))
    losses_over_best = []
    for seed in range(SEEDS):
        answers: list[float] = []

        def answer(batch: list[Candidate], answers: list[float] = answers) -> list[float]:
            values = [losses.get(c, math.inf) for c in batch]
            answers += values
            return values

        assert (
            drive(start(record.space, np.random.default_rng(seed)), answer, set(), budget) <= budget
        )
        losses_over_best.append(min(answers) / best - 1)
    return losses_over_best


def test_the_grid_is_large_and_its_optimum_rare(
    record: Record, losses: dict[Candidate, float]
) -> None:
    assert len(losses) >= 10_000
    assert record.space.size == len(losses) + sum(record.reasons().values())
    limit = 1.05 * min(losses.values())
    near = sum(v <= limit for v in losses.values())
    assert near / len(losses) < 0.005


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_searches_reach_5_percent_with_2_percent_of_the_evaluations(
    engine: str, record: Record, losses: dict[Candidate, float]
) -> None:
    assert max(regrets(ENGINES[engine], record, losses)) <= 0.05


def uncentred(space: Space, rng: np.random.Generator) -> Engine:
    """Recursive random search that never moves its centre to a better sample."""
    inner = recursive_random(space, rng)
    batch = next(inner)
    values = yield batch
    worst = max(v for v in values if math.isfinite(v))
    while True:
        batch = inner.send(values)
        yield batch
        values = [worst * 2] * len(batch)


def eager(space: Space, rng: np.random.Generator) -> Engine:
    """A genetic algorithm that keeps the worst."""
    inner = genetic(space, rng)
    batch = next(inner)
    while True:
        values = yield batch
        batch = inner.send([-v if math.isfinite(v) else v for v in values])


@pytest.mark.parametrize("broken", [random_search, uncentred, eager])
def test_planted_failures_are_detected(
    broken: Start, record: Record, losses: dict[Candidate, float]
) -> None:
    assert max(regrets(broken, record, losses)) > 0.05


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_an_exploration_finds_the_optimum_within_its_budget(
    engine: str, record: Record, losses: dict[Candidate, float]
) -> None:
    budget = round(SHARE * len(losses))
    searched = Record(record.space, record.evaluator)
    settings = Settings(engine=engine, budget=budget, most_seeds=5)
    exploration = explore(searched, Question(parse_objective(OBJECTIVE)), settings, Quiet())
    assert len(searched.measures) <= budget
    assert exploration.selection is not None
    assert losses[exploration.selection.best.candidate] <= 1.05 * min(losses.values())
