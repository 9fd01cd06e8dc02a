"""A predictor with known true times: a formula and noise by seed, common to all candidates or independent."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.parts.prediction.exploration.evaluate import DRAWN, Measure
from penstock.parts.prediction.exploration.space.space import (
    Candidate,
    Space,
    make_space,
    parse_axis,
)


class Quiet:
    """Progress without output."""

    def stage(self, what: str, total: int | None) -> None:
        pass

    def advanced(self, n: int) -> None:
        pass


class Known:
    """Makespan = truth(values) × (1 + common noise + independent noise); cost = hosts × makespan × price."""

    def __init__(
        self,
        space: Space,
        truth: Callable[[dict[str, Any]], float],
        *,
        common: float = 0.0,
        independent: float = 0.0,
        price: float | None = 1e-4,
        watts: float | None = 100.0,
        verdict: str = "ok",
        drawn: Callable[[dict[str, Any], int], float] | None = None,
    ) -> None:
        self.space, self.truth, self.common, self.independent = space, truth, common, independent
        self.price, self.watts, self.verdict, self.drawn = price, watts, verdict, drawn
        self.evaluations = 0
        self.batches: list[int] = []

    @property
    def objectives(self) -> tuple[str, ...]:
        names = ["makespan_s"]
        names += ["cost"] if self.price is not None else []
        return (*names, "energy_j") if self.watts is not None else tuple(names)

    @property
    def currency(self) -> str:
        return "EUR" if self.price is not None else ""

    @property
    def uncertain(self) -> bool:
        return self.drawn is not None

    def reason(self, candidate: Candidate) -> str | None:
        values = self.space.values(candidate)
        if values.get("store.replicas", 1) > values.get("hosts.storage.count", 99):
            return "more replicas than storage hosts"
        return None

    def hosts(self, candidate: Candidate) -> int:
        counts = [v for k, v in self.space.values(candidate).items() if k.endswith(".count")]
        return sum(counts) + 1

    def evaluate(
        self, candidates: Sequence[Candidate], seeds: Sequence[int]
    ) -> list[list[Measure]]:
        self.evaluations += len(candidates) * len(seeds)
        self.batches.append(len(candidates) * len(seeds))
        return [[self._one(c, s) for s in seeds] for c in candidates]

    def _one(self, candidate: Candidate, seed: int) -> Measure:
        assert self.reason(candidate) is None
        values = self.space.values(candidate)
        if seed > DRAWN and self.drawn is not None:
            span = self.drawn(values, seed - DRAWN)
        else:
            shared = np.random.default_rng([seed]).standard_normal()
            alone = np.random.default_rng([seed, self.space.number(candidate)]).standard_normal()
            span = self.truth(values) * (1 + self.common * shared + self.independent * alone)
        hosts = self.hosts(candidate)
        cost = None if self.price is None else hosts * span * self.price
        energy = None if self.watts is None else hosts * span * self.watts
        return Measure(span, cost, energy, hosts, 1000, 10, 100, "storage")

    def judge(self, candidate: Candidate) -> dict[str, Any]:
        return {"verdict": self.verdict, "reasons": ["the manager is saturated"]}


def blast_like(values: dict[str, Any]) -> float:
    """Makespan with an interior optimum in the split and in the chunk size."""
    app = values.get("hosts.app.count", 8)
    storage = values.get("hosts.storage.count", 8)
    chunk = {"256KiB": 0.0, "1MiB": 0.15, "4MiB": 0.6}[values.get("store.chunk", "1MiB")]
    return 20 + 1400 / app + 400 * (1 + chunk) * values.get("store.replicas", 1) / storage


def space_of(*texts: str) -> Space:
    return make_space([parse_axis(t) for t in texts])


BLAST = (
    "split=app:storage/10,16,19",
    "store.chunk=256KiB,1MiB,4MiB",
    "store.replicas=1,2",
)


def quadratic(values: dict[str, Any]) -> float:
    return 10 + sum((math.log2(float(v)) - 3.3) ** 2 for v in values.values())
