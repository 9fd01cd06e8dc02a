"""Run of a scenario: the controller beside each static configuration and the published controller."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from penstock.parts.dedup.controller.decision import Decision
from penstock.parts.dedup.controller.online import OnlineController
from penstock.parts.dedup.controller.settings import Settings, published
from penstock.parts.dedup.controller.simulation.similarity import process
from penstock.parts.dedup.controller.simulation.store import (
    Draw,
    Scenario,
    SimulatedStore,
    costs,
    record_costs,
)
from penstock.parts.dedup.controller.utility import METRICS, Costs

AUTO, PUBLISHED, ORACLE = "auto", "published", "best of each write"
#: one write of this many is timed
_TIMED = 16
#: a bar, called with the number of completed writes
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Outcome:
    """Means of one contender over all writes.

    `cost` is the weighted sum of its metrics, each over that without deduplication; less is better. `shares`:
    configuration → share of the writes.
    """

    name: str
    time_s: float
    space_bytes: float
    energy_j: float
    cost: float
    shares: dict[str, float]


@dataclass(frozen=True)
class Simulation:
    """Outcomes by name, and the log of the controller. `controller_s` is its time per write."""

    outcomes: dict[str, Outcome]
    static: tuple[str, ...]
    decisions: list[Decision]
    controller_s: float

    @property
    def best_static(self) -> Outcome:
        """The static configuration with the least cost."""
        return min((self.outcomes[name] for name in self.static), key=lambda o: o.cost)

    def excess(self, name: str = AUTO) -> float:
        """Cost of a contender beyond that of the best static configuration, as a share."""
        return self.outcomes[name].cost / self.best_static.cost - 1

    def regret(self, name: str = AUTO) -> float:
        """Mean cost of a contender beyond that of the best configuration of each write.

        By chance, a static configuration can be better than the latter, which is then compared with.
        """
        least = min(self.outcomes[ORACLE].cost, self.best_static.cost)
        return self.outcomes[name].cost - least


def simulate(
    scenario: Scenario,
    settings: Settings,
    *,
    reference: Settings | None = None,
    compare: bool = True,
    progress: Progress | None = None,
) -> Simulation:
    """Run a scenario with `settings`, and with `compare` also the published controller (or `reference`).

    All contenders have the same draws of times and similarities. The best configuration of each write is the
    one with the least cost by the similarity that the process has on average at that write; a change of
    configuration costs it nothing.
    """
    names = scenario.configurations
    weights = settings.utility.weights
    contenders = {AUTO: _Contender(scenario, settings, 1)}
    if compare:
        other = reference or published(settings.utility, power=settings.power)
        contenders[PUBLISHED] = _Contender(scenario, other, 2)
    static = [_Sum() for _ in names]
    oracle = _Sum()
    base, typical = _base(scenario), _typical(scenario)
    expected: tuple[float, ...] = ()
    best = 0
    for i, draw in enumerate(_draws(scenario)):
        at_s = i * scenario.every_s
        for contender in contenders.values():
            contender.write(draw, at_s)
        actual = costs(scenario, draw, draw.similarity)
        if draw.expected != expected:
            expected = draw.expected
            best = _best(scenario, typical, expected, weights)
        oracle.add(actual[best], names[best])
        if i == 0:  # no predecessor
            actual = costs(scenario, draw, (0.0,) * len(draw.similarity))
        for total, cost, name in zip(static, actual, names, strict=True):
            total.add(cost, name)
        if progress is not None and not i % 1000:
            progress("writes", i, scenario.writes)
    totals = {name: contender.total for name, contender in contenders.items()}
    totals |= {f"always {name}": total for name, total in zip(names, static, strict=True)}
    totals[ORACLE] = oracle
    auto = contenders[AUTO]
    return Simulation(
        {name: total.outcome(name, weights, base) for name, total in totals.items()},
        tuple(f"always {name}" for name in names),
        auto.controller.decisions(),
        auto.seconds,
    )


class _Sum:
    """Sums of costs, and writes by configuration."""

    def __init__(self) -> None:
        self.time = self.space = self.energy = 0.0
        self.writes: dict[str, int] = {}

    def add(self, cost: Costs, configuration: str) -> None:
        self.time += cost[0]
        self.space += cost[1]
        self.energy += cost[2]
        self.writes[configuration] = self.writes.get(configuration, 0) + 1

    def outcome(self, name: str, weights: Costs, base: Costs) -> Outcome:
        n = sum(self.writes.values())
        mean = (self.time / n, self.space / n, self.energy / n)
        shares = {configuration: count / n for configuration, count in self.writes.items()}
        return Outcome(name, *mean, _score(weights, mean, base), shares)


class _Contender:
    """A controller with its own store."""

    def __init__(self, scenario: Scenario, settings: Settings, seed: int) -> None:
        self.scenario = scenario
        self.controller = OnlineController(settings, scenario.configurations)
        self.store = SimulatedStore(scenario, scenario.seed * 7919 + seed)
        self.total = _Sum()
        self.count, self.timed_s = 0, 0.0

    @property
    def seconds(self) -> float:
        """Time of the controller per write, of those that are measured."""
        measured = self.count // _TIMED
        return self.timed_s / measured if measured else math.nan

    def write(self, draw: Draw, at_s: float) -> None:
        controller = self.controller
        configuration = controller.choose("f")
        share = controller.sample_share("f")
        record = self.store.write(draw, configuration, share, at_s)
        self.count += 1
        if self.count % _TIMED:
            controller.record(record)
        else:
            start = time.perf_counter()
            controller.record(record)
            self.timed_s += time.perf_counter() - start
        self.total.add(record_costs(self.scenario, record), configuration)


def _typical(scenario: Scenario) -> Draw:
    """A write without noise."""
    send_s = scenario.write_bytes / scenario.send_bps
    hash_s = tuple(r * send_s for r in scenario.ratios.values())
    zero = (0.0,) * len(hash_s)
    return Draw(send_s, hash_s, zero, zero)


def _base(scenario: Scenario) -> Costs:
    """Costs of a write without deduplication and without noise."""
    typical = _typical(scenario)
    return costs(scenario, typical, typical.similarity)[0]


def _best(scenario: Scenario, typical: Draw, z: tuple[float, ...], weights: Costs) -> int:
    """Index of the configuration with the least cost for similarities `z`."""
    rows = costs(scenario, typical, z)
    scores = [_score(weights, cost, rows[0]) for cost in rows]
    return scores.index(min(scores))


def _score(weights: Costs, cost: Costs, base: Costs) -> float:
    return sum(
        -weight * metric / unit
        for weight, metric, unit in zip(weights, cost, base, strict=True)
        if weight
    )


def _draws(scenario: Scenario) -> Iterator[Draw]:
    source = random.Random(scenario.seed)
    gauss, exp = source.gauss, math.exp
    send_s = scenario.write_bytes / scenario.send_bps
    hash_s = [r * send_s for r in scenario.ratios.values()]
    send_sd, hash_sd = scenario.noise
    # noise has mean 1, so that the ratio of mean times is the scenario's
    send_mu, hash_mu = -send_sd * send_sd / 2, -hash_sd * hash_sd / 2
    processes = [
        process(text, scenario.seed + 1000 * i)
        for i, text in enumerate(scenario.similarity.values())
    ]
    for _ in range(scenario.writes):
        points = [next(one) for one in processes]
        yield Draw(
            send_s * exp(gauss(send_mu, send_sd)),
            tuple(h * exp(gauss(hash_mu, hash_sd)) for h in hash_s),
            tuple(point[0] for point in points),
            tuple(point[1] for point in points),
        )


def relative(outcomes: Sequence[Outcome], metric: str) -> dict[str, float]:
    """A metric of each outcome over its least value among them."""
    field = {"time": "time_s", "space": "space_bytes", "energy": "energy_j"}[metric]
    assert metric in METRICS
    values = {outcome.name: float(getattr(outcome, field)) for outcome in outcomes}
    least = min(values.values())
    return {name: value / least if least else math.nan for name, value in values.items()}
