"""Rules for tasks that fail, and a record of what failed during a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from penstock.parts.stores.workflow.running.journal import Row, RunJournal


@dataclass(frozen=True)
class Recovery:
    """`retries`: further attempts of a task that fails, the first `delay_s` later, each next one after twice
    the time, at most `most_delay_s`. `keep_going`: tasks that need no result of a failed one still run.

    A task that ran on a node that died, or while a server died, has a further attempt in any case.
    """

    retries: int = 0
    delay_s: float = 1.0
    most_delay_s: float = 60.0
    keep_going: bool = False

    def wait_s(self, failures: int) -> float:
        """Time until the next attempt after this number of failures."""
        return min(self.most_delay_s, self.delay_s * 2.0 ** min(failures - 1, 60))


@dataclass(frozen=True)
class RunRecord:
    """Durable record of a run: its journal, and the directory for the outputs of programs.

    `checksums`: record the SHA-256 of each output in the journal. A resumed run compares sizes and times of
    modification.
    """

    journal: RunJournal | None = None
    logs: Path | None = None
    checksums: bool = False


@dataclass
class Troubles:
    """Failures of a run: rows of failed attempts, tasks that did not run and why, lost files, servers and
    nodes that died."""

    attempts: list[Row] = field(default_factory=list)
    not_run: dict[str, str] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    died: list[str] = field(default_factory=list)
