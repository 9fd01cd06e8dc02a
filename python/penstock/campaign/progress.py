"""Progress of the runs: a bar on a terminal, plain lines elsewhere; always on stderr."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress

from penstock.campaign.conductor import Outcome
from penstock.console import Console, TextColumn
from penstock.text import duration, first_reason

if TYPE_CHECKING:
    from penstock.design.planned import PlannedRun


class RunProgress:
    """Show the start and end of each run, and the remaining time by the runs made so far."""

    def __init__(self, to_make: int, estimated_s: float, quiet: bool = False) -> None:
        self._to_make = to_make
        self._per_run_s = estimated_s / to_make if to_make else 0.0
        self._quiet = quiet
        self._ended = 0
        self._began = time.monotonic()
        self._bar: Progress | None = None
        if sys.stderr.isatty() and not quiet:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[left]}"),
                console=Console(stderr=True),
            )
            self._task = self._bar.add_task("starting", total=to_make, left=self.remaining_text())

    def __enter__(self) -> RunProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    @property
    def remaining_runs(self) -> int:
        """Number of remaining runs."""
        return max(0, self._to_make - self._ended)

    def remaining_s(self) -> int:
        """Remaining time [s]."""
        per_run_s = self._per_run_s
        if self._ended:
            per_run_s = (time.monotonic() - self._began) / self._ended
        return round(per_run_s * max(0, self._to_make - self._ended))

    def remaining_text(self) -> str:
        """Remaining time as text."""
        seconds = self.remaining_s()
        minutes, rest = divmod(seconds, 60)
        return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d} left" if seconds else ""

    def say(self, line: str) -> None:
        """Print a separate line above the bar."""
        if self._quiet:
            return
        if self._bar is not None:
            self._bar.console.print(line, soft_wrap=True)
        else:
            print(line, file=sys.stderr, flush=True)

    def begun(self, run: PlannedRun, attempt: int) -> None:
        attempts = f" (attempt {attempt})" if attempt > 1 else ""
        treatment = ", ".join(f"{name} {level}" for name, level in run.levels.items())
        if self._bar is not None:
            self._bar.update(self._task, description=f"{run.run_id}{attempts} {treatment}"[:64])

    def ended(self, run: PlannedRun, outcome: Outcome) -> None:
        """Show the end of a run."""
        self._ended += 1
        if outcome.attempt <= outcome.repeats:
            self._to_make += 1
        if self._bar is not None:
            self._bar.update(
                self._task, completed=self._ended, total=self._to_make, left=self.remaining_text()
            )
        treatment = " ".join(f"{name}={level}" for name, level in run.levels.items())
        attempts = f" (attempt {outcome.attempt})" if outcome.attempt > 1 else ""
        line = f"{self._ended}/{self._to_make} {run.run_id}{attempts} {treatment}"
        if not outcome.valid or outcome.degraded:
            word = "invalid" if outcome.state == "finished" else outcome.state
            word = "degraded" if outcome.degraded else word
            more = "; will be repeated" if outcome.attempt <= outcome.repeats else ""
            self.say(f"{line}: {word}: {first_reason(outcome.reason)}{more}")
        elif self._bar is None:
            self.say(
                f"{line} {duration(outcome.wall_s * 1e9)}, {self.remaining_text()}".rstrip(", ")
            )
