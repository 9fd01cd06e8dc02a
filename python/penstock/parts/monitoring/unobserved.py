"""A command that runs without being sampled, as penstock's directories take no writes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import PenstockError
from penstock.host.journal.journal import Journal
from penstock.parts.monitoring.session import Signals
from penstock.state import runtime_dir

#: more than a recording writes before its command begins
_ROOM_BYTES = 1 << 16


@dataclass(frozen=True)
class Unobserved:
    """How the command ended."""

    exit_status: int
    wall_s: float


def state_trouble() -> str:
    """Why the directories of penstock cannot take what a recording writes; empty where they can."""
    try:
        for place in (Journal().path.parent, runtime_dir(), Path(tempfile.gettempdir())):
            with tempfile.TemporaryFile(dir=place) as file:
                file.write(bytes(_ROOM_BYTES))
                file.flush()
                os.fsync(file.fileno())
        Journal().open_entries()
    except OSError as error:
        return f"{error.filename or place}: {error.strerror}"
    except PenstockError as error:
        return str(error)
    return ""


def run_unobserved(words: Sequence[str], signals: Signals, *, quiet: bool = False) -> Unobserved:
    """Runs a command; signals are passed on to it. With `quiet` its stdout goes to stderr.

    Raises PenstockError where it cannot be started.
    """
    began = time.monotonic()
    try:
        child = subprocess.Popen(
            list(words), stdout=sys.stderr.fileno() if quiet else None, start_new_session=True
        )
    except OSError as error:
        raise PenstockError(f"{words[0]} cannot be started: {error.strerror}") from error
    signals.begun(child.pid)
    status = child.wait()
    # as a shell has it: 128 and the signal that ended it
    return Unobserved(status if status >= 0 else 128 - status, time.monotonic() - began)
