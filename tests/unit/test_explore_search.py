"""Search engines on a table with a known optimum; that of the simulator is in test_explore."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from penstock.parts.prediction.exploration.search import (
    ENGINES,
    Engine,
    drive,
    genetic,
    grid,
    random_search,
    recursive_random,
)
from penstock.parts.prediction.exploration.space.space import (
    Candidate,
    Space,
    make_space,
    parse_axis,
)

Start = Callable[[Space, np.random.Generator], Engine]

SPACE = make_space(
    [
        parse_axis(text)
        for text in (
            "split=app:storage/19",
            "store.chunk=64KiB..4MiB*2",
            "store.replicas=1,2,3",
            "store.stripe=1..8",
            "store.placement=striped,local,scatter,random",
            "scheduler=workqueue,data_location",
        )
    ]
)


@cache
def table() -> dict[Candidate, float]:
    """24,192 points: split and chunk have inner optima, stripes are no wider than the hosts."""

    def value(c: Candidate) -> float:
        app, chunk, replicas, stripe, place, scheduler = c
        storage = 18 - app
        if stripe + 1 > storage or replicas + 1 > storage:
            return math.inf
        io = (1 + 0.3 * abs(chunk - 2)) * (replicas + 1) / (storage**0.7 * (stripe + 1) ** 0.3)
        local = (0, -12, 18, 9)[place] * scheduler + 5 * place
        return 20 + 600 / (app + 1) + 300 * io + local

    return {c: value(c) for c in SPACE}


def regrets(start: Start, seeds: int = 12, share: float = 0.02) -> list[float]:
    """Relative loss compared with the optimum after that share of the evaluations, by seed."""
    values, budget = table(), round(share * SPACE.size)
    best = min(values.values())
    by_seed = []
    for seed in range(seeds):
        received: list[float] = []
        seen: set[Candidate] = set()

        def losses(batch: list[Candidate], received: list[float] = received) -> list[float]:
            batch_losses = [values[c] for c in batch]
            received += batch_losses
            return batch_losses

        spent = drive(start(SPACE, np.random.default_rng(seed)), losses, seen, budget)
        assert spent <= budget
        assert len(seen) <= budget
        by_seed.append(min(received) / best - 1)
    return by_seed


@pytest.mark.parametrize("engine", ["rrs", pytest.param("ga", marks=pytest.mark.long)])
def test_engines_come_close(engine: str) -> None:
    assert engine in ENGINES
    assert SPACE.size >= 10_000
    limit = 1.05 * min(table().values())
    within = sum(v <= limit for v in table().values())
    assert within < 0.001 * SPACE.size, "the optimum must be hard to hit by chance"
    assert max(regrets(ENGINES[engine])) <= 0.05


def uninformed(start: Start) -> Start:
    """An engine that receives the same loss for each candidate."""

    def engine(space: Space, rng: np.random.Generator) -> Engine:
        informed = start(space, rng)
        batch = next(informed)
        while True:
            yield batch
            batch = informed.send([1.0] * len(batch))

    return engine


@pytest.mark.parametrize(
    "broken",
    [random_search, uninformed(recursive_random), uninformed(genetic)],
    ids=["random", "rrs", "ga"],
)
def test_planted_failures_do_not_come_close(broken: Start) -> None:
    assert max(regrets(broken)) > 0.05


def test_the_grid_has_each_candidate_once() -> None:
    small = make_space([parse_axis("a.b=1..7"), parse_axis("c.d=x,y,z")])
    candidates = list(itertools.chain.from_iterable(grid(small, block=4)))
    assert sorted(candidates) == sorted(small)
    assert len(candidates) == len(set(candidates)) == 21


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_equal_seeds_give_equal_searches(engine: str) -> None:
    def looked(seed: int) -> list[Candidate]:
        order: list[Candidate] = []

        def losses(batch: list[Candidate]) -> list[float]:
            order.extend(batch)
            return [table()[c] for c in batch]

        drive(ENGINES[engine](SPACE, np.random.default_rng(seed)), losses, set(), 150)
        return order

    assert looked(3) == looked(3)
    assert looked(3) != looked(4)


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_a_space_smaller_than_the_budget_ends(engine: str) -> None:
    small = make_space([parse_axis("a.b=1..3"), parse_axis("c.d=x,y"), parse_axis("e.f=1")])
    seen: set[Candidate] = set()
    spent = drive(
        ENGINES[engine](small, np.random.default_rng(1)),
        lambda batch: [float(sum(c)) for c in batch],
        seen,
        1000,
    )
    assert spent == 6
    assert seen == set(small)


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_a_search_without_admissible_candidates_ends(engine: str) -> None:
    small = make_space([parse_axis("a.b=1..30"), parse_axis("c.d=1..30")])
    spent = drive(
        ENGINES[engine](small, np.random.default_rng(1)),
        lambda batch: [math.inf] * len(batch),
        set(),
        300,
    )
    assert 0 < spent <= 300
