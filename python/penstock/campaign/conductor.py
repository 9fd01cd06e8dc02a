"""The order of effects of a campaign, and nothing else: what is done to a host is behind `Executor`.

A round is a block of the plan. Every run of it is made once; then those that are invalid are made again, as
often as the study says beforehand of their reason (once, unless it says otherwise, for one that may pass).
Degraded runs are used; they are made again only where the study or a resumed campaign asks for it.
What is on disk already is not made again, unless a resumed campaign says by `once_more` that what the host
spoilt may be tried anew.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

#: phases whose time is the user's: what the conductor needs beyond them is its own
USERS_PHASES = frozenset({"change", "hooks", "prepare", "rest", "services", "workload"})


class Run(Protocol):
    """A planned run as the conductor needs it (`design.plan.PlannedRun`)."""

    @property
    def run_id(self) -> str:
        """Name of the run."""

    @property
    def block(self) -> int:
        """The round it belongs to."""


R = TypeVar("R", bound=Run)
R_contra = TypeVar("R_contra", bound=Run, contravariant=True)


@dataclass(frozen=True)
class Outcome:
    """Outcome of one attempt; `repeatable` if it is invalid for a reason that may pass, `again`: number of
    times that the study has such a run repeated (once where the study says nothing and the reason may
    pass).
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
    """One attempt at a run, with the phases it has been through."""

    run: R
    number: int
    phases: list[Phase] = field(default_factory=list)
    #: is told of each phase that begins
    on_phase: Callable[[str], None] = lambda _: None

    @contextlib.contextmanager
    def phase(self, phase_id: str) -> Iterator[None]:
        """Times what is done inside."""
        self.on_phase(phase_id)
        start_ns = time.monotonic_ns()
        try:
            yield
        finally:
            self.phases.append(Phase(phase_id, start_ns, time.monotonic_ns()))

    @property
    def own_s(self) -> float:
        """Time spent so far that is neither workload, preparation nor declared rest."""
        return sum(p.duration_s for p in self.phases if p.phase_id not in USERS_PHASES)


class Executor(Protocol[R]):
    """Actions of a campaign. `open` first and `close` last, once; between them, for every attempt:

    `prepare`, `attach`, `settle`, `arm`, `launch`, `disarm`, `detach`, `collect`, each once and in this
    order. Each times itself by `attempt.phase`. When one raises, those of `disarm` and `detach` that have
    not begun are still called, then `discard`, and not `collect`; they must accept that what they take
    back was never made. `room` is called before every attempt and raises if it must not begin.
    """

    def open(self) -> None:
        """Starts what serves all runs."""

    def room(self, attempt: Attempt[R]) -> None:
        """Raises if there is no room for this attempt."""

    def prepare(self, attempt: Attempt[R]) -> None:
        """The data that the run works on."""

    def attach(self, attempt: Attempt[R]) -> None:
        """Control group and disks."""

    def settle(self, attempt: Attempt[R]) -> None:
        """Brings the host to the declared state and checks it."""

    def arm(self, attempt: Attempt[R]) -> None:
        """Starts the observers."""

    def launch(self, attempt: Attempt[R]) -> None:
        """Runs the workload to its end."""

    def disarm(self, attempt: Attempt[R]) -> None:
        """Stops the observers."""

    def detach(self, attempt: Attempt[R]) -> None:
        """Takes back what `attach` made."""

    def collect(self, attempt: Attempt[R]) -> Outcome:
        """Leaves a finished bundle, and says what became of the run."""

    def discard(self, attempt: Attempt[R]) -> None:
        """Drops an attempt that did not get as far as `collect`."""

    def close(self) -> None:
        """Stops what `open` started."""


class Listener(Protocol[R_contra]):
    """Is told what happens, to show it."""

    def begun(self, run: R_contra, attempt: int) -> None:
        """An attempt begins."""

    def phase(self, run: R_contra, phase_id: str) -> None:
        """A phase of it begins, where it is made by this process."""

    def ended(self, run: R_contra, outcome: Outcome) -> None:
        """An attempt has ended."""


@dataclass(frozen=True)
class PriorAttempts:
    """State of a run on disk before the campaign (re)starts: its last attempt, and the number of attempts."""

    outcome: Outcome
    attempts: int


def rounds(runs: Sequence[R]) -> list[list[R]]:
    """The runs in order, split where the block changes."""
    return [list(group) for _, group in itertools.groupby(runs, key=lambda r: r.block)]


def still_to_make(runs: Sequence[R], prior: Mapping[str, PriorAttempts]) -> list[R]:
    """The runs that have no bundle, and those that would be made once more."""
    return [r for r in runs if r.run_id not in prior or must_repeat(prior[r.run_id])]


def conduct(
    runs: Sequence[R],
    prior: Mapping[str, PriorAttempts],
    interrupted: Mapping[str, int],
    executor: Executor[R],
    listener: Listener[R],
) -> list[Outcome]:
    """Makes what is still to be made of a plan, in its order; gives the outcomes of this call.

    `prior` has the runs that are on disk, `interrupted` the number of the attempt during which an earlier
    conductor was stopped, by run. Raises what the executor raises, with the host put back.
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
    """The attempts as a resumed campaign counts them: a run that the host spoilt counts as made once.

    With `degraded`, each degraded run is made once more.
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
    """Makes one attempt, from `prepare` to `collect`; raises what the executor raises, with all put back."""
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
        with contextlib.ExitStack() as stack:  # all of them, whatever one of them raises
            stack.callback(executor.discard, attempt)
            for step in reversed(undo):
                stack.callback(step, attempt)
        raise
    return outcome
