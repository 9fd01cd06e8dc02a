"""The exploration: search, front, comparison of near-optimal candidates, recommendation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.errors import BadInput
from penstock.parts.prediction.exploration.calibrated import Calibration, Overlap, overlapping
from penstock.parts.prediction.exploration.common_means import CommonMeans
from penstock.parts.prediction.exploration.compare import Selection
from penstock.parts.prediction.exploration.confirmation.confirmed import Confirmation
from penstock.parts.prediction.exploration.effects import AxisEffect, effects
from penstock.parts.prediction.exploration.evaluate import Evaluator
from penstock.parts.prediction.exploration.near_optimal import (
    compare,
    front_of,
    indifferent,
    near_front,
    point,
    robustness,
    settle_tables,
    twins,
)
from penstock.parts.prediction.exploration.record import Record
from penstock.parts.prediction.exploration.robust import Robust
from penstock.parts.prediction.exploration.score import ByKnee, ByObjective, Yardstick
from penstock.parts.prediction.exploration.search import ENGINES, drive, grid
from penstock.parts.prediction.exploration.space.expression import Expression, Objective
from penstock.parts.prediction.exploration.space.space import Candidate, Space

#: limits of points and time for an evaluation of the full grid
GRID_POINTS, GRID_S = 100_000, 600.0
#: configurations of a search without a budget: 2 % of the space, minimum and maximum
SEARCH_SHARE, SEARCH_LEAST, SEARCH_MOST = 0.02, 400, 5000
#: configurations for the estimate of a grid's duration
_PILOT = 24

Losses = Callable[[list[Candidate]], list[float]]


class Progress(Protocol):
    """Progress reports of an exploration."""

    def stage(self, what: str, total: int | None) -> None:
        """Start a stage of `total` evaluations, None if unknown."""

    def advanced(self, n: int) -> None:
        """Advance by `n` evaluations."""


@dataclass(frozen=True)
class Question:
    """Question of an exploration: an objective, or None for the Pareto set; constraints."""

    objective: Objective | None = None
    constraints: tuple[Expression, ...] = ()

    def holds(self, values: dict[str, float]) -> bool:
        """True if all constraints hold."""
        return all(c.holds(values) for c in self.constraints)


@dataclass(frozen=True)
class Settings:
    """Settings of the search. `most_seeds` limits the seeds of near-optimal candidates; `seed` is for the
    search."""

    engine: str = "auto"
    budget: int | None = None
    most_seeds: int = 20
    seed: int = 1
    level: float = 0.9


@dataclass
class Exploration:
    """Result of an exploration. Candidates are of `record.space`; `front` is sorted by time.

    `means` has the numbers of tables and figures, over the same seeds; `heat_axes` are the axes of the heat
    map, empty until those seeds are evaluated. `selection` compares candidates near the best (objective), or
    near the knee of the front; None if none was admissible or the exploration was stopped. `indifferent`
    differ from the best in one axis and have identical results. `calibration` is that by measured runs,
    `overlap` the candidates it cannot separate; `confirmation` has measured runs.
    """

    question: Question
    settings: Settings
    record: Record
    engine: str
    engine_reason: str
    metrics: tuple[str, ...]
    means: CommonMeans
    heat_axes: tuple[str, ...] = ()
    admissible: list[Candidate] = field(default_factory=list)
    front: list[Candidate] = field(default_factory=list)
    selection: Selection | None = None
    indifferent: list[Candidate] = field(default_factory=list)
    uncompared: int = 0
    broken: int = 0
    failed: dict[str, int] = field(default_factory=dict)
    robust: Robust | None = None
    judgement: dict[str, Any] | None = None
    calibration: Calibration | None = None
    overlap: Overlap | None = None
    confirmation: Confirmation | None = None
    stopped: bool = False
    resumed: int = 0
    wall_s: float = 0.0

    @property
    def space(self) -> Space:
        return self.record.space

    @property
    def complete(self) -> bool:
        """True if every combination was evaluated, infeasible or not allowed."""
        return self.engine == "grid" and not self.stopped

    @cached_property
    def effects(self) -> dict[str, list[AxisEffect]]:
        """Effects of the axes on each metric: the best of each level by `means`, the rest by seed 1."""
        first = [self.means.first(c) for c in self.admissible]
        exact = {c: self.means.of(c) for c in self.admissible if self.means.exact(c)}
        return {
            metric: effects(
                self.space,
                self.admissible,
                [mean[metric] for mean in first],
                {c: mean[metric] for c, mean in exact.items()},
            )
            for metric in self.metrics
        }

    @property
    def main_metric(self) -> str:
        """Metric of the level tables and the heat map: the objective's, if it is one of them; else time."""
        return main_metric(self.question, self.metrics)

    def tie(self, candidate: Candidate) -> bool:
        """True if it ties with the best: by their comparison, else in every metric over the common seeds."""
        if self.selection is None or candidate == self.selection.best.candidate:
            return False
        for contender in self.selection.contenders:
            if contender.candidate == candidate:
                return contender.tie
        best, level = self.selection.best.candidate, self.settings.level
        return self.means.tied(candidate, best, self.metrics, level)

    @property
    def ties(self) -> list[Candidate]:
        """Compared candidates that tie with the best, and those with identical results in another level."""
        if self.selection is None:
            return []
        return [*(c.candidate for c in self.selection.contenders if c.tie), *self.indifferent]


def main_metric(question: Question, metrics: Sequence[str]) -> str:
    """The objective's metric, if it is one of these; else time."""
    objective = question.objective
    if objective is not None and len(objective.expression.needs) == 1:
        need = next(iter(objective.expression.needs))
        if need in metrics:
            return need
    return "makespan_s"


class _Explorer:
    def __init__(
        self, record: Record, question: Question, settings: Settings, progress: Progress
    ) -> None:
        self.record, self.question, self.settings = record, question, settings
        self.space, self.evaluator = record.space, record.evaluator
        self.progress = progress
        self.metrics = self.evaluator.objectives
        self.means = CommonMeans(record)
        #: constraints that need no evaluation
        early = {"hosts"} | {key for axis in self.space.axes for key in (axis.name, *axis.keys)}
        self.early = [c for c in question.constraints if c.needs <= early]
        self.refused: set[Candidate] = set()

    def allowed(self, candidate: Candidate) -> bool:
        """True if it can be built and violates no constraint known in advance."""
        if candidate in self.refused:
            return False
        if not self.record.feasible(candidate):
            return False
        if self.early:
            values = self.record.magnitudes(candidate) | {
                "hosts": float(self.evaluator.hosts(candidate))
            }
            if not all(c.holds(values) for c in self.early):
                self.refused.add(candidate)
                return False
        return True

    def values(self, candidate: Candidate) -> dict[str, float]:
        return self.means.of(candidate) | self.record.magnitudes(candidate)

    def admissible(self, candidate: Candidate) -> bool:
        if self.record.error(candidate):
            return False
        return not self.question.constraints or self.question.holds(self.values(candidate))

    def losses(self, of: Callable[[Candidate], float]) -> Losses:
        """Losses of a batch: evaluated on the first seed; infinity for inadmissible candidates."""

        def measured(batch: list[Candidate]) -> list[float]:
            allowed = [c for c in batch if self.allowed(c)]
            self.progress.advanced(len(batch) - len(allowed))
            self.record.evaluate(allowed, [1])
            ready = set(allowed)
            return [of(c) if c in ready and self.admissible(c) else math.inf for c in batch]

        return measured

    # ------------------------------------------------------------ search

    def choose(self) -> tuple[str, str, int]:
        """Engine, reason for it, and its budget of configurations."""
        size, budget = self.space.size, self.settings.budget
        requested = self.settings.engine
        searching = budget or min(max(SEARCH_LEAST, round(SEARCH_SHARE * size)), SEARCH_MOST)
        if requested == "grid":
            return "grid", "asked for", size
        if requested != "auto":
            return requested, "asked for", min(searching, size)
        if budget is not None and size > budget:
            return "rrs", f"{size:,} configurations are more than the budget of {budget:,}", budget
        if size > GRID_POINTS:
            reason = f"{size:,} configurations are more than {GRID_POINTS:,}"
            return "rrs", reason, min(searching, size)
        estimate = self.estimate()
        if estimate is not None and estimate > GRID_S:
            return (
                "rrs",
                f"all {size:,} configurations would take about {estimate:,.0f} s",
                searching,
            )
        return "grid", f"all {size:,} configurations are cheap enough", size

    def estimate(self) -> float | None:
        """Seconds for the full grid, from a sample of its points; None for a grid hardly larger than the
        sample."""
        if self.space.size <= 4 * _PILOT:
            return None
        rng = np.random.default_rng([self.settings.seed, 7])
        numbers = rng.choice(self.space.size, size=min(4 * _PILOT, self.space.size), replace=False)
        drawn = [self.space.candidate(int(n)) for n in sorted(numbers)]
        allowed = [c for c in drawn if self.allowed(c)]
        some = allowed[:: max(1, len(allowed) // _PILOT)][:_PILOT]
        existing = {c for c in some if c in self.record.measures}
        began = time.monotonic()
        self.progress.stage("estimating", len(some))
        self.record.evaluate(some, [1])
        fresh = len(some) - len(existing)
        if not fresh:
            return None
        each = (time.monotonic() - began) / fresh
        return each * self.space.size * len(allowed) / len(drawn)

    def search(self, engine: str, budget: int) -> None:
        if engine == "grid":
            self.progress.stage("grid", self.space.size)
            drive(grid(self.space), self.losses(lambda _: 0.0), set(), budget)
            return
        self.progress.stage({"rrs": "random search", "ga": "genetic algorithm"}[engine], budget)
        # infeasible candidates are free: an engine may consider more than the budget
        seen: set[Candidate] = set()
        targets = self.targets()
        for i, target in enumerate(targets):
            remaining = budget - len(self.record.measures)
            share = math.ceil(remaining / (len(targets) - i))
            if share <= 0:
                break
            rng = np.random.default_rng([self.settings.seed, i])
            self.spend(ENGINES[engine](self.space, rng), self.losses(target), seen, share)

    def spend(
        self,
        engine: Any,
        losses: Losses,
        seen: set[Candidate],
        share: int,
    ) -> None:
        """Run an engine until it has spent its share of real evaluations."""
        before = len(self.record.measures)
        until = before + share

        def counted(batch: list[Candidate]) -> list[float]:
            remaining = until - len(self.record.measures)
            fresh = [
                c for c in dict.fromkeys(batch) if c not in self.record.measures and self.allowed(c)
            ]
            dropped = set(fresh[remaining:]) if remaining < len(fresh) else set()
            values = iter(losses([c for c in batch if c not in dropped]))
            losses_of_batch = [math.inf if c in dropped else next(values) for c in batch]
            if len(self.record.measures) >= until:
                raise _Spent
            return losses_of_batch

        try:
            drive(engine, counted, seen, 50 * share + 1000)
        except _Spent:
            return

    def targets(self) -> list[Callable[[Candidate], float]]:
        """Quantities to minimise in turn: the objective; else each metric, then the knee."""
        objective = self.question.objective
        if objective is not None:
            return [lambda c: objective.loss(self.values(c))]

        def of(metric: str) -> Callable[[Candidate], float]:
            return lambda c: self.means.of(c)[metric]

        single = [of(m) for m in self.metrics]
        return single if len(single) == 1 else [*single, self.distance]

    def distance(self, candidate: Candidate) -> float:
        """Log distance to the best of every metric seen so far."""
        for c in list(self.record.measures)[self._ideal_upto :]:
            if self.admissible(c):
                here = point(self.means.of(c), self.metrics)
                self._ideal = here if self._ideal is None else np.minimum(self._ideal, here)
        self._ideal_upto = len(self.record.measures)
        if self._ideal is None:
            return math.inf
        ratios = point(self.means.of(candidate), self.metrics) / self._ideal
        return float(np.sqrt((np.log(ratios) ** 2).sum()))

    _ideal: NDArray[np.float64] | None = None
    _ideal_upto = 0

    def admissible_candidates(self) -> list[Candidate]:
        admissible = [c for c in self.record.measures if self.allowed(c) and self.admissible(c)]
        return sorted(admissible, key=self.space.number)


class _Spent(Exception):  # noqa: N818 - a signal, not an error
    """The budget is spent."""


def explore(
    record: Record,
    question: Question,
    settings: Settings,
    progress: Progress,
    calibration: Calibration | None = None,
) -> Exploration:
    """Explore the space of `record`. Ctrl-C ends it early with the evaluations until then.

    With a `calibration`, candidates that overlap the best remain undecided (`Exploration.overlap`). BadInput
    as `check`.
    """
    began = time.monotonic()
    check(question, settings, record.space, record.evaluator)
    explorer = _Explorer(record, question, settings, progress)
    exploration = Exploration(question, settings, record, "", "", explorer.metrics, explorer.means)
    exploration.calibration = calibration
    try:
        exploration.engine, exploration.engine_reason, budget = explorer.choose()
        explorer.search(exploration.engine, budget)
        _conclude(explorer, exploration)
    except KeyboardInterrupt:
        exploration.stopped = True
        exploration.selection = None
    _summarise(explorer, exploration)
    exploration.wall_s = time.monotonic() - began
    return exploration


def _conclude(explorer: _Explorer, exploration: Exploration) -> None:
    """Front, selection, applicability, robustness of the search's evaluations."""
    record, settings, means = explorer.record, explorer.settings, explorer.means
    candidates = explorer.admissible_candidates()
    if not candidates:
        return
    stage, seeds = explorer.progress.stage, settings.most_seeds
    alike = twins(record, candidates)
    near = near_front(means, list(alike), explorer.metrics, seeds, stage)
    single = [c for c in alike if explorer.admissible(c)]
    if not single:
        return
    stage("comparing the best", None)
    exploration.selection, exploration.uncompared = compare(
        single, _yardstick(explorer, single), explorer.space.number, seeds, settings.level
    )
    main = main_metric(explorer.question, explorer.metrics)
    metrics = [main, *(m for m in explorer.metrics if m != main)]
    exploration.heat_axes = settle_tables(
        means, near, candidates, metrics, exploration.selection, stage
    )
    single = [c for c in single if explorer.admissible(c)]
    by = _yardstick(explorer, single)
    best = exploration.selection.best.candidate
    if record.error(best):
        exploration.selection = None
        return
    exploration.indifferent = indifferent(record, best, alike[best], seeds)
    exploration.judgement = explorer.evaluator.judge(best)
    if exploration.calibration is not None:
        exploration.overlap = overlapping(
            exploration.calibration, best, single, by, explorer.space.number
        )
    if explorer.evaluator.uncertain:
        exploration.robust = robustness(record, exploration.selection, single, by, stage)


def _yardstick(explorer: _Explorer, candidates: Sequence[Candidate]) -> Yardstick:
    """The loss of candidates by their common means."""
    record, means, objective = explorer.record, explorer.means, explorer.question.objective
    if objective is not None:
        return ByObjective(record, means.of, objective)
    front = front_of(means, candidates, explorer.metrics)
    if not all((point(means.of(c), explorer.metrics) > 0).all() for c in front):
        raise BadInput("a time, cost or energy of 0 has no knee; give --objective")
    return ByKnee(record, means.of, explorer.metrics, front)


def _summarise(explorer: _Explorer, exploration: Exploration) -> None:
    """Front and counts of the evaluations so far."""
    record = explorer.record
    exploration.admissible = explorer.admissible_candidates()
    for candidate in record.measures:
        error = record.error(candidate)
        if error:
            exploration.failed[error] = exploration.failed.get(error, 0) + 1
    exploration.broken = len(explorer.refused) + sum(
        1
        for c in record.measures
        if c not in explorer.refused and not record.error(c) and not explorer.admissible(c)
    )
    if exploration.admissible:
        single = list(twins(record, exploration.admissible))
        front = front_of(explorer.means, single, exploration.metrics)
        exploration.front = sorted(front, key=lambda c: explorer.means.of(c)["makespan_s"])


def check(question: Question, settings: Settings, space: Space, evaluator: Evaluator) -> None:
    """BadInput for quantities that the platform lacks, or a grid that is too large."""
    if settings.engine == "grid" and settings.budget is not None and space.size > settings.budget:
        raise BadInput(
            f"the grid has {space.size:,} configurations, the budget is {settings.budget:,}; "
            "expected --engine rrs or ga, or a larger budget"
        )
    expressions = list(question.constraints)
    if question.objective is not None:
        expressions.append(question.objective.expression)
    missing = {"cost": "prices (price.per_host)", "energy_j": "powers (power.idle, …)"}
    for expression in expressions:
        for name, what in missing.items():
            if name in expression.needs and name not in evaluator.objectives:
                raise BadInput(f"'{expression.text}' needs {what}; the platform has none")
        other = expression.currencies - {evaluator.currency}
        if other and evaluator.currency:
            amount = f"'{expression.text}' with an amount in {min(other)}"
            raise BadInput(
                f"found {amount}; expected {evaluator.currency}, the platform's currency"
            )
