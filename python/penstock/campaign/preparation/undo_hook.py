"""The study's `undo`: journalled before its first run, run after the last, or by `penstock undo`."""

from __future__ import annotations

from pathlib import Path

from penstock.host.journal.journal import Entry, Journal
from penstock.host.journal.undo import put_back
from penstock.host.processes.command import Command, plan_command
from penstock.spec.template import names_in
from penstock.study.resolve import ResolvedRun


class UndoHook:
    """Journal entry of `hooks.undo`, for the levels set last, while there are changes to reverse."""

    def __init__(self, journal: Journal, study: str, work_dir: Path) -> None:
        self._journal = journal
        self._study = study
        self._work_dir = work_dir.resolve()
        self._entry: Entry | None = None

    def owe(self, resolved: ResolvedRun) -> None:
        """Record it before any of this run's levels are set. Raises as `plan_command`."""
        line = resolved.hooks.get("undo")
        if line is None:
            return
        filling = resolved.filling({}, self._work_dir)
        defined = {*filling.values}
        command = Command(
            filling.line(line),
            # disks in other variables may be gone when it runs
            filling.texts(
                {n: t for n, t in resolved.env.items() if defined.issuperset(names_in(t))}
            ),
            str(self._work_dir),
            resolved.user,
            resolved.timeout_s,
        )
        self._entry = plan_command(
            self._journal, f"hooks.undo of {self._study}", command, self._entry
        )

    def pay(self) -> str:
        """Run it if any run was started; returns an error message, else empty."""
        entry, self._entry = self._entry, None
        if entry is None:
            return ""
        done = put_back(entry, self._journal)
        if done.outcome != "failed":
            return ""
        return f"hooks.undo is still to be run (`penstock undo` tries again): {done.note}"
