"""Interface of the predictor of an exploration: measures of candidates on seeds, infeasibility."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from penstock.parts.prediction.exploration.space.space import Candidate

#: higher seeds denote platforms sampled from the platform's uncertain values
DRAWN = 1_000_000


class Measure(NamedTuple):
    """One candidate predicted with one seed. `cost` and `energy_j` are None without prices or powers.

    `error` is empty, or has the reason why the run ended early (a full store); its time is then infinite.
    """

    makespan_s: float
    cost: float | None
    energy_j: float | None
    hosts: int
    network_bytes: int
    requests: int
    events: int
    bottleneck: str
    error: str = ""


class Evaluator(Protocol):
    """A predictor over the candidates of one space.

    The same candidate and seed give the same measure in any batch, on any number of threads or machines, and
    seed i means the same random numbers for every candidate (common random numbers). Seed DRAWN + i predicts
    the candidate on the i-th platform sampled from the uncertain values, the same for every candidate.
    """

    def reason(self, candidate: Candidate) -> str | None:
        """Reason why the candidate cannot be built (more replicas than storage hosts, …), None if it can."""

    def hosts(self, candidate: Candidate) -> int:
        """Number of hosts of a feasible candidate."""

    def evaluate(
        self, candidates: Sequence[Candidate], seeds: Sequence[int]
    ) -> list[list[Measure]]:
        """Measures by candidate and seed. Called only for feasible candidates."""

    @property
    def uncertain(self) -> bool:
        """True if values of the platform are estimates or assumptions with a range."""

    def judge(self, candidate: Candidate) -> dict[str, Any]:
        """Applicability of the model to the candidate: `verdict` ok, caution or outside, `reasons` (texts).

        Also its `interval` (low, high, level) in seconds, its `idle` hosts and its `bottleneck` as text, if
        known.
        """

    @property
    def objectives(self) -> tuple[str, ...]:
        """Available columns, of makespan_s, cost and energy_j."""

    @property
    def currency(self) -> str:
        """Currency of `cost`, empty without prices."""
