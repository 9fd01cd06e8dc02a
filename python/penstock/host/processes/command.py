"""A command that reverses changes of other commands; in the journal before any of those runs.

Only a study can reverse the changes of its own commands. So its `undo` is recorded completely (line,
environment, directory, user, time-out) and run when the host is restored, once, or again after a failure. As
the journal determines the command, a journal that other users may write to is refused.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from penstock.errors import PenstockError, printable
from penstock.host.cgroups.cgroup import RunCgroup, create_run_cgroup
from penstock.host.journal.directories import make_directory, remove_directory
from penstock.host.journal.journal import Entry, Journal, JournalFailure, new_token
from penstock.host.processes.launch import LAST_LINE_LENGTH, last_line_of, launch
from penstock.state import runtime_dir


@dataclass(frozen=True)
class Command:
    """A line for /bin/sh with its settings; `env` is added to the environment of the caller."""

    line: str
    env: dict[str, str]
    cwd: str
    user: str | None
    timeout_s: float

    @classmethod
    def read(cls, value: Any) -> Command:
        """Parse a journal record; PenstockError if it is malformed."""
        try:
            command = cls(**value)
        except TypeError as error:
            raise PenstockError(f"found no command in the journal: {error}") from None
        kinds = (
            isinstance(command.line, str),
            isinstance(command.cwd, str),
            isinstance(command.env, dict)
            and all(isinstance(text, str) for text in (*command.env, *command.env.values())),
            command.user is None or isinstance(command.user, str),
            isinstance(command.timeout_s, int | float) and command.timeout_s > 0,
        )
        if not all(kinds):
            raise PenstockError("found no command in the journal: a value of the wrong kind")
        return command


def plan_command(
    journal: Journal, name: str, command: Command, before: Entry | None = None
) -> Entry:
    """Record that `command` reverses the next changes; replaces the command of `before`.

    Raises JournalFailure if that fails, PenstockError if others may write to the journal: make no change
    then.
    """
    refuse_shared(journal)
    fields = asdict(command)
    if before is None:
        return journal.plan("command", name, new=fields)
    if fields != before.new:
        journal.alter([(before, {"command": (before.new, fields)})])
    return replace(before, new=fields)


def run_planned(entry: Entry, journal: Journal) -> tuple[str, str]:
    """Run the command of an entry to its end or its time-out; returns outcome and note.

    Raises PenstockError with the last line of its output if it fails; it then remains to be run.
    """
    refuse_shared(journal)
    command = Command.read(entry.values.get("command", (None, entry.new))[1])
    with (
        tempfile.TemporaryFile(dir=runtime_dir()) as output,
        _directory(command.cwd, journal) as cwd,
    ):
        with _group(journal) as cgroup:
            finished = launch(
                command.line,
                cgroup,
                output,
                output,
                extra_env=command.env,
                cwd=cwd,
                timeout_s=command.timeout_s,
                user=command.user,
            )
        message = printable(last_line_of(output))[:LAST_LINE_LENGTH] or "it printed nothing"
    if finished.exit_status != 0:
        took = finished.timed_out and f"took longer than {command.timeout_s:g} s"
        how = took or f"ended with status {finished.exit_status}"
        raise PenstockError(f"it {how}: {message} (command: {command.line})")
    return "undone", "its command was run"


def _group(journal: Journal) -> contextlib.AbstractContextManager[RunCgroup | None]:
    """A control group for a command; none if the journal cannot be written."""
    try:
        return create_run_cgroup("undo", None, journal)
    except JournalFailure:
        return contextlib.nullcontext()


@contextlib.contextmanager
def _directory(path: str, journal: Journal) -> Iterator[str]:
    """Directory of a command; an empty one if it was removed with its campaign."""
    if os.path.isdir(path):
        yield path
        return
    entry = make_directory(runtime_dir() / f"undo-{new_token()}", journal, mode=0o711)
    try:
        yield entry.target
    finally:
        remove_directory(entry, journal)


def refuse_shared(journal: Journal) -> None:
    """PenstockError if others may write to the journal or replace it."""
    for path in (journal.path.parent, journal.path):
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue
        theirs = status.st_uid != os.geteuid() or status.st_mode & 0o022
        if theirs or stat.S_ISLNK(status.st_mode):
            raise PenstockError(
                f"{path}: found user {status.st_uid}, mode {stat.S_IMODE(status.st_mode):04o}; commands of "
                f"an undo journal are run only if no user other than {os.geteuid()} may write to it"
            )
