"""Order of effects of a campaign; `Executor` has the actions on the host.

A round is a block of the plan. Each of its runs is made once; then invalid ones are repeated as often as the
study declares in advance for their reason (by default once for a transient one). Degraded runs are used; they
are repeated only if the study or a resumed campaign requests it. Runs on disk are not repeated, unless a
resumed campaign permits by `once_more` to repeat those that the host disturbed.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

#: phases of the user's work; all other time of the conductor is overhead
USERS_PHASES = frozenset({"change", "hooks", "prepare", "rest", "services", "workload"})


class Run(Protocol):
    """A planned run, as used by the conductor (`design.plan.PlannedRun`)."""

    @property
    def run_id(self) -> str:
        """Name of the run."""

    @property
    def block(self) -> int:
        """Round of the run."""


R = TypeVar("R", bound=Run)
R_contra = TypeVar("R_contra", bound=Run, contravariant=True)


@dataclass(frozen=True)
class Outcome:
    """Outcome of one attempt; `repeatable` if it is invalid for a transient reason, `again`: number of
    repetitions that the study permits (default: one for a transient reason).
    """

    run_id: str
    attempt: int
    state: str
    valid: bool
    reason: str = ""
    repeatable: bool = False
    wall_s: float = 0.0
    own_s: float = 0.0
    size_bytes: int = 0
    again: int | None = None
    degraded: bool = False

    @property
    def repeats(self) -> int:
        """Number of times that the run may be repeated for its reason."""
        if self.valid and not self.degraded:
            return 0
        return int(self.repeatable) if self.again is None else self.again


@dataclass(frozen=True)
class Phase:
    """A phase of a run [ns, CLOCK_MONOTONIC]."""

    phase_id: str
    start_ns: int
    end_ns: int

    @property
    def duration_s(self) -> float:
        """Duration [s]."""
        return (self.end_ns - self.start_ns) / 1e9


@dataclass
class Attempt(Generic[R]):
    """One attempt at a run, with its phases so far."""

    run: R
    number: int
    phases: list[Phase] = field(default_factory=list)
    #: called with each phase that starts
    on_phase: Callable[[str], None] = lambda _: None

    @contextlib.contextmanager
    def phase(self, phase_id: str) -> Iterator[None]:
        """Time the enclosed block."""
        self.on_phase(phase_id)
        start_ns = time.monotonic_ns()
        try:
            yield
        finally:
            self.phases.append(Phase(phase_id, start_ns, time.monotonic_ns()))

    @property
    def own_s(self) -> float:
        """Time so far outside workload, preparation and declared rest."""
        return sum(p.duration_s for p in self.phases if p.phase_id not in USERS_PHASES)


class Executor(Protocol[R]):
    """Actions of a campaign. `open` first and `close` last, once; between them, for every attempt:

    `prepare`, `attach`, `settle`, `arm`, `launch`, `disarm`, `detach`, `collect`, each once and in this
    order. Each is timed by `attempt.phase`. If one raises, those of `disarm` and `detach` that have not
    started are still called, then `discard`, and not `collect`; they must accept that there is nothing to
    reverse. `room` is called before every attempt and raises if it must not start.
    """

    def open(self) -> None:
        """Start the services of all runs."""

    def room(self, attempt: Attempt[R]) -> None:
        """Raises if there is no free space for this attempt."""

    def prepare(self, attempt: Attempt[R]) -> None:
        """Provide the data of the run."""

    def attach(self, attempt: Attempt[R]) -> None:
        """Create control group and disks."""

    def settle(self, attempt: Attempt[R]) -> None:
        """Bring the host to the declared state and check it."""

    def arm(self, attempt: Attempt[R]) -> None:
        """Start the observers."""

    def launch(self, attempt: Attempt[R]) -> None:
        """Run the workload to its end."""

    def disarm(self, attempt: Attempt[R]) -> None:
        """Stop the observers."""

    def detach(self, attempt: Attempt[R]) -> None:
        """Reverse `attach`."""

    def collect(self, attempt: Attempt[R]) -> Outcome:
        """Finish the bundle; returns the outcome of the run."""

    def discard(self, attempt: Attempt[R]) -> None:
        """Drop an attempt that did not reach `collect`."""

    def close(self) -> None:
        """Stop the services of `open`."""


class Listener(Protocol[R_contra]):
    """Receiver of events, for display."""

    def begun(self, run: R_contra, attempt: int) -> None:
        """An attempt starts."""

    def phase(self, run: R_contra, phase_id: str) -> None:
        """One of its phases starts, if made by this process."""

    def ended(self, run: R_contra, outcome: Outcome) -> None:
        """An attempt has ended."""


@dataclass(frozen=True)
class PriorAttempts:
    """State of a run on disk before the campaign (re)starts: its last attempt, and the number of attempts."""

    outcome: Outcome
    attempts: int


def rounds(runs: Sequence[R]) -> list[list[R]]:
    """Runs in order, split where the block changes."""
    return [list(group) for _, group in itertools.groupby(runs, key=lambda r: r.block)]


def still_to_make(runs: Sequence[R], prior: Mapping[str, PriorAttempts]) -> list[R]:
    """Runs without a bundle, and those to be repeated."""
    return [r for r in runs if r.run_id not in prior or must_repeat(prior[r.run_id])]


def conduct(
    runs: Sequence[R],
    prior: Mapping[str, PriorAttempts],
    interrupted: Mapping[str, int],
    executor: Executor[R],
    listener: Listener[R],
) -> list[Outcome]:
    """Make the remaining runs of a plan in order; returns the outcomes of this call.

    `prior` has the runs on disk, `interrupted` the number of the attempt during which an earlier conductor
    was stopped, by run. Exceptions of the executor propagate after the host is restored.
    """
    if not still_to_make(runs, prior):
        return []
    attempts = dict(prior)
    outcomes = []
    try:
        executor.open()
        for one_round in rounds(runs):
            for run in one_round:
                if run.run_id in attempts:
                    continue
                number = interrupted.get(run.run_id, 0) + 1
                outcome = _make(executor, listener, Attempt(run, number))
                attempts[run.run_id] = PriorAttempts(outcome, 1)
                outcomes.append(outcome)
            while repeated := [r for r in one_round if must_repeat(attempts[r.run_id])]:
                for run in repeated:
                    before = attempts[run.run_id]
                    number = max(before.outcome.attempt, interrupted.get(run.run_id, 0)) + 1
                    outcome = _make(executor, listener, Attempt(run, number))
                    attempts[run.run_id] = PriorAttempts(outcome, before.attempts + 1)
                    outcomes.append(outcome)
    finally:
        executor.close()
    return outcomes


def must_repeat(prior: PriorAttempts) -> bool:
    """True if a run is to be repeated: invalid, and repeated less often than its reason allows."""
    return prior.attempts <= prior.outcome.repeats


def once_more(
    prior: Mapping[str, PriorAttempts], degraded: bool = False
) -> dict[str, PriorAttempts]:
    """Attempts as counted by a resumed campaign: a run that the host disturbed counts as one attempt.

    With `degraded`, each degraded run is repeated once more.
    """

    def counted(m: PriorAttempts) -> PriorAttempts:
        if degraded and m.outcome.degraded:
            return PriorAttempts(replace(m.outcome, again=1), 1)
        return replace(m, attempts=1) if m.outcome.repeatable else m

    return {run_id: counted(m) for run_id, m in prior.items()}


def _make(executor: Executor[R], listener: Listener[R], attempt: Attempt[R]) -> Outcome:
    executor.room(attempt)
    listener.begun(attempt.run, attempt.number)
    attempt.on_phase = lambda phase_id: listener.phase(attempt.run, phase_id)
    outcome = make_one(executor, attempt)
    listener.ended(attempt.run, outcome)
    return outcome


def make_one(executor: Executor[R], attempt: Attempt[R]) -> Outcome:
    """Make one attempt, from `prepare` to `collect`; exceptions propagate after everything is restored."""
    undo = [executor.disarm, executor.detach]
    try:
        executor.prepare(attempt)
        executor.attach(attempt)
        executor.settle(attempt)
        executor.arm(attempt)
        executor.launch(attempt)
        while undo:
            undo.pop(0)(attempt)
        outcome = executor.collect(attempt)
    except BaseException:
        with contextlib.ExitStack() as stack:  # run all of them, even if one raises
            stack.callback(executor.discard, attempt)
            for step in reversed(undo):
                stack.callback(step, attempt)
        raise
    return outcome
