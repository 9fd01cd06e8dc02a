"""The command that runs a study again with changes."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from penstock.analyse.outcome import Outcome
from penstock.design.plan import make_plan
from penstock.errors import PenstockError
from penstock.study.load import load_study


def rerun(outcome: Outcome, suffix: str, changes: Sequence[str]) -> tuple[str, int] | None:
    """The command, with `changes` as for `--set` and an output directory with this suffix, and its number of
    runs; None if the changed study is invalid or has no plan."""
    try:
        runs = len(make_plan(load_study(outcome.path / "study.yaml", list(changes))).rows)
    except (PenstockError, OSError):
        return None
    sets = " ".join(f"--set {shlex.quote(change)}" for change in changes)
    return f"penstock run STUDY -o {shlex.quote(f'{outcome.name}-{suffix}')} {sets}", runs
