"""The study's own commands before a run: those required by changes of factors, `apply`, `verify`."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.campaign.evidence.attempt_work import AttemptWork
from penstock.errors import PenstockError
from penstock.host.processes.launch import last_line


def run_hooks(work: AttemptWork, names: Sequence[str]) -> None:
    """Run these hooks of the study; PenstockError with the last output of one that fails."""
    for name in names:
        fault = hook_fault(work, name)
        if fault:
            raise PenstockError(f"run {work.run_id}: {fault}")


def hook_fault(work: AttemptWork, name: str) -> str:
    """Run a hook; returns its failure, empty if it succeeds or does not exist."""
    command = work.resolved.hooks.get(name)
    if command is None:
        return ""
    assert work.stage is not None
    line = work.line(command, f"hook-{name}")
    done = work.stage.after(line)
    if done.exit_status == 0:
        return ""
    output = last_line(line.stderr) or last_line(line.stdout) or "it printed nothing"
    how = "took too long" if done.timed_out else f"ended with status {done.exit_status}"
    return f"the command of hooks.{name} {how}: {output} (command: {command})"
