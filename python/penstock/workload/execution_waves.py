"""Tasks in waves: how many rounds a stage takes on its slots, and what each of them costs when I/O is slower.

A stage of n tasks on s slots runs in ceil(n / s) waves. Latency that is added to each wave lengthens the run
by as much for each of them, if no task is a straggler (IOStack, deliverable 2.1, section 3.3).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.errors import BadInput

CAVEAT = "no stragglers: a task that is slower than its wave hides the latency of the others"
#: a task longer than so many medians of its stage is a straggler
STRAGGLER = 1.5


@dataclass(frozen=True)
class Executor:
    """A process with `cores` that ran tasks from `start_ns` to `end_ns` (None: to the end)."""

    name: str
    cores: int
    start_ns: int
    end_ns: int | None = None


@dataclass(frozen=True)
class Sensitivity:
    """The loss of a run of `waves` in `run_time_s` by latency that is added to each wave."""

    waves: int
    run_time_s: float

    @property
    def mean_wave_s(self) -> float:
        """Run time over waves; NaN without one."""
        return self.run_time_s / self.waves if self.waves else math.nan

    def longer_s(self, added_ms: float = 1.0) -> float:
        """Seconds that the run takes longer where each wave takes `added_ms` longer."""
        return self.waves * added_ms / 1000

    def longer_percent(self, added_ms: float = 1.0) -> float:
        """The same in per cent of the run time."""
        return 100 * self.longer_s(added_ms) / self.run_time_s if self.run_time_s > 0 else math.nan


def waves(tasks: int, slots: int) -> int:
    """Rounds in which `tasks` run on `slots`. BadInput where there are tasks and no slot."""
    if tasks < 0 or slots < 0 or (tasks and not slots):
        raise BadInput(f"found {tasks} tasks on {slots} slots; expected a slot at least")
    return -(-tasks // slots) if tasks else 0


def sensitivity(stages: Iterable[tuple[int, int]], run_time_s: float) -> Sensitivity:
    """The sensitivity of stages, as (tasks, slots), whose waves add up."""
    return Sensitivity(sum(waves(tasks, slots) for tasks, slots in stages), run_time_s)


def slots_at(executors: Sequence[Executor], at_ns: int, task_cpus: int = 1) -> int:
    """Tasks that run at a time: over the executors that are there, the whole multiples of a task's cores."""
    if task_cpus < 1:
        raise BadInput(f"found {task_cpus} cores for each task; expected 1 at least")
    return sum(
        e.cores // task_cpus
        for e in executors
        if e.start_ns <= at_ns and (e.end_ns is None or at_ns < e.end_ns)
    )


def stragglers(times: Sequence[float]) -> int:
    """The number of tasks of a stage that take more than 1.5 times the median."""
    array = np.asarray(times, float)
    return int((array > STRAGGLER * np.median(array)).sum()) if len(array) else 0
