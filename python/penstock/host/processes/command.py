"""A command that puts right what other commands did to the host: in the journal before any of those runs.

What a study's own commands change nobody but the study can put back. So its `undo` is written down whole
(line, environment, directory, user, time-out) and is run by whoever puts the host back, once, or again after
it failed. The journal says what is run, so a command is run from none that others may write to.
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
from penstock.host.processes.launch import LAST_WORDS, last_words, launch
from penstock.state import runtime_dir


@dataclass(frozen=True)
class Command:
    """A line for /bin/sh with all that it needs; `env` is added to the environment of who runs it."""

    line: str
    env: dict[str, str]
    cwd: str
    user: str | None
    timeout_s: float

    @classmethod
    def read(cls, value: Any) -> Command:
        """Out of a journal; PenstockError for what is none."""
        try:
            found = cls(**value)
        except TypeError as error:
            raise PenstockError(f"found no command in the journal: {error}") from None
        kinds = (
            isinstance(found.line, str),
            isinstance(found.cwd, str),
            isinstance(found.env, dict)
            and all(isinstance(text, str) for text in (*found.env, *found.env.values())),
            found.user is None or isinstance(found.user, str),
            isinstance(found.timeout_s, int | float) and found.timeout_s > 0,
        )
        if not all(kinds):
            raise PenstockError("found no command in the journal: a value of the wrong kind")
        return found


def plan_command(
    journal: Journal, name: str, command: Command, before: Entry | None = None
) -> Entry:
    """Writes down that `command` puts right what is about to be done; in place of that of `before`.

    Raises JournalFailure where it cannot be, PenstockError where others may write to the journal: nothing
    that it would put right must be done then.
    """
    refuse_shared(journal)
    said = asdict(command)
    if before is None:
        return journal.plan("command", name, new=said)
    if said != before.new:
        journal.alter([(before, {"command": (before.new, said)})])
    return replace(before, new=said)


def run_planned(entry: Entry, journal: Journal) -> tuple[str, str]:
    """Runs the command of an entry to its end or its time-out; outcome and note.

    Raises PenstockError with its last words if it fails: it is then still to be run.
    """
    refuse_shared(journal)
    command = Command.read(entry.values.get("command", (None, entry.new))[1])
    with (
        tempfile.TemporaryFile(dir=runtime_dir()) as said,
        _directory(command.cwd, journal) as cwd,
    ):
        with _group(journal) as cgroup:
            finished = launch(
                command.line,
                cgroup,
                said,
                said,
                extra_env=command.env,
                cwd=cwd,
                timeout_s=command.timeout_s,
                user=command.user,
            )
        words = printable(last_words(said))[:LAST_WORDS] or "it said nothing"
    if finished.exit_status != 0:
        took = finished.timed_out and f"took longer than {command.timeout_s:g} s"
        how = took or f"ended with status {finished.exit_status}"
        raise PenstockError(f"it {how}: {words} (command: {command.line})")
    return "undone", "its command was run"


def _group(journal: Journal) -> contextlib.AbstractContextManager[RunCgroup | None]:
    """A control group for a command; none where the journal cannot take one more line."""
    try:
        return create_run_cgroup("undo", None, journal)
    except JournalFailure:
        return contextlib.nullcontext()


@contextlib.contextmanager
def _directory(wanted: str, journal: Journal) -> Iterator[str]:
    """The directory of a command; an empty one where that went with its campaign."""
    if os.path.isdir(wanted):
        yield wanted
        return
    made = make_directory(runtime_dir() / f"undo-{new_token()}", journal, mode=0o711)
    try:
        yield made.target
    finally:
        remove_directory(made, journal)


def refuse_shared(journal: Journal) -> None:
    """PenstockError where somebody else may write to the journal or put another in its place."""
    for path in (journal.path.parent, journal.path):
        try:
            found = path.lstat()
        except FileNotFoundError:
            continue
        theirs = found.st_uid != os.geteuid() or found.st_mode & 0o022
        if theirs or stat.S_ISLNK(found.st_mode):
            raise PenstockError(
                f"{path}: found user {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}; a command is "
                f"run out of the undo journal only where nobody but user {os.geteuid()} may write to it"
            )
