"""Tasks in waves: number of waves of a stage on its slots, and the cost of slower I/O in each.

A stage of n tasks on s slots runs in ceil(n / s) waves. Latency added to each wave lengthens the run by that
amount per wave, if no task is a straggler (IOStack, deliverable 2.1, section 3.3).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.errors import BadInput

CAVEAT = "no stragglers: a task that is slower than its wave hides the latency of the others"
#: multiple of the stage's median above which a task is a straggler
STRAGGLER = 1.5


@dataclass(frozen=True)
class Executor:
    """A process with `cores` that ran tasks of a resource profile from `start_ns` to `end_ns` (None: to the
    end)."""

    name: str
    cores: int
    start_ns: int
    end_ns: int | None = None
    profile: int = 0


@dataclass(frozen=True)
class Sensitivity:
    """Effect of latency added to each wave on a run of `waves` in `run_time_s`."""

    waves: int
    run_time_s: float

    @property
    def mean_wave_s(self) -> float:
        """Run time over waves; NaN without one."""
        return self.run_time_s / self.waves if self.waves else math.nan

    def longer_s(self, added_ms: float = 1.0) -> float:
        """Increase of the run time [s] if each wave takes `added_ms` longer."""
        return self.waves * added_ms / 1000

    def longer_percent(self, added_ms: float = 1.0) -> float:
        """The same in per cent of the run time."""
        return 100 * self.longer_s(added_ms) / self.run_time_s if self.run_time_s > 0 else math.nan


def waves(tasks: int, slots: int) -> int:
    """Number of waves of `tasks` on `slots`. BadInput for tasks without a slot."""
    if tasks < 0 or slots < 0 or (tasks and not slots):
        raise BadInput(f"found {tasks} tasks on {slots} slots; expected a slot at least")
    return -(-tasks // slots) if tasks else 0


def sensitivity(stages: Iterable[tuple[int, int]], run_time_s: float) -> Sensitivity:
    """Sensitivity of stages, as (tasks, slots), with the sum of their waves."""
    return Sensitivity(sum(waves(tasks, slots) for tasks, slots in stages), run_time_s)


def slots_at(executors: Sequence[Executor], at_ns: int, task_cpus: int = 1) -> int:
    """Concurrent tasks: over the live executors, the integer multiples of a task's cores."""
    if task_cpus < 1:
        raise BadInput(f"found {task_cpus} cores for each task; expected 1 at least")
    return sum(
        e.cores // task_cpus
        for e in executors
        if e.start_ns <= at_ns and (e.end_ns is None or at_ns < e.end_ns)
    )


def stragglers(times: Sequence[float]) -> int:
    """Number of tasks of a stage that take more than 1.5 times the median."""
    array = np.asarray(times, float)
    return int((array > STRAGGLER * np.median(array)).sum()) if len(array) else 0
