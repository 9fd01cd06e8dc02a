"""Run a command without sampling it, if penstock's directories are not writable."""

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
from penstock.host.processes.interrupts import Interrupts
from penstock.state import runtime_dir

#: free space to test, more than a recording writes before the start of its command
_SPACE_BYTES = 1 << 16


@dataclass(frozen=True)
class Unobserved:
    """Exit status and duration of the command."""

    exit_status: int
    wall_s: float


def state_error() -> str:
    """Error message if penstock's directories are not writable, else ""."""
    try:
        for folder in (Journal().path.parent, runtime_dir(), Path(tempfile.gettempdir())):
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(bytes(_SPACE_BYTES))
                file.flush()
                os.fsync(file.fileno())
        Journal().open_entries()
    except OSError as error:
        return f"{error.filename or folder}: {error.strerror}"
    except PenstockError as error:
        return str(error)
    return ""


def run_unobserved(argv: Sequence[str], signals: Interrupts, *, quiet: bool = False) -> Unobserved:
    """Run a command and pass signals on to it. With `quiet` its stdout goes to stderr.

    Raises PenstockError if it cannot be started.
    """
    start_s = time.monotonic()
    try:
        child = subprocess.Popen(
            list(argv), stdout=sys.stderr.fileno() if quiet else None, start_new_session=True
        )
    except OSError as error:
        raise PenstockError(f"{argv[0]} cannot be started: {error.strerror}") from error
    signals.begun(child.pid)
    status = child.wait()
    # as in a shell: 128 plus the number of the signal
    return Unobserved(status if status >= 0 else 128 - status, time.monotonic() - start_s)
