"""Unsent calls of an experiment: a directory with its batches, notes and stop, until they are sent.

    unsent = Unsent.create("x#1")
    unsent.write(batch)
    unsent.add("stop", exit_status=0)
    send(client, "x#1", unsent.place)     # and the directory is removed

It is a spool (`spool.py`) and a file `told.jsonl` with the calls other than `write`, in order.
"""

from __future__ import annotations

import functools
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from penstock.errors import Away, BadInput, PenstockError
from penstock.parts.monitoring.experiments.points import Batch
from penstock.parts.monitoring.experiments.spool import Spool
from penstock.parts.monitoring.outbox.client import Client, patiently
from penstock.parts.monitoring.outbox.lines import append_line, read_lines
from penstock.parts.monitoring.outbox.pushing import Pushed, push
from penstock.state import state_dir

_RECORDS = "told.jsonl"
#: stored calls of a client
_CALLS = ("mark", "stop")


class Unsent:
    """A directory of unsent calls, in the state directory."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._spool = Spool(place)

    @classmethod
    def create(cls, experiment: str) -> Unsent:
        """Create an empty one for an experiment. PenstockError if that is impossible."""
        home = state_dir() / "unsent"
        try:
            home.mkdir(mode=0o700, exist_ok=True)
            place = home / f"{quote(experiment, safe='')[:100]}-{secrets.token_hex(4)}"
            Spool.create(place)
            append_line(place / _RECORDS, {"experiment": experiment})
        except OSError as error:
            raise PenstockError(f"{home}: {error.strerror}; nothing is stored") from error
        return cls(place)

    def write(self, batch: Batch) -> None:
        """Store a batch on the disk."""
        self._spool.write(batch)

    def add(self, call: str, **arguments: Any) -> None:
        """Store a `mark` or the `stop`, with the arguments of `Client`."""
        append_line(self.place / _RECORDS, {"call": call, **arguments})


def is_unsent(place: Path) -> bool:
    """True if a directory has unsent calls."""
    return (place / _RECORDS).is_file()


def send(
    client: Client,
    experiment: str,
    place: Path,
    *,
    patience_s: float = 60.0,
    report: Callable[[str], None] = lambda _: None,
) -> Pushed:
    """Send the calls of a directory to its experiment, then remove the directory.

    BadInput if it is of another experiment; PenstockError if the server remains unreachable. A retry does not
    duplicate points.
    """
    head, *records = read_lines(place / _RECORDS)
    if head["experiment"] != experiment:
        raise BadInput(f"{place}: found data of {head['experiment']}; expected {experiment}")
    pushed = push(client, experiment, Spool(place).batches(), patience_s=patience_s, report=report)
    for record in records:
        call = record.pop("call")
        if call not in _CALLS:
            raise BadInput(f"{place}: found {call!r}; expected {' or '.join(_CALLS)}")
        arguments = [record.pop(k) for k in ("kind", "words") if k in record]
        request = functools.partial(getattr(client, call), experiment, *arguments, **record)
        try:
            patiently(request, patience_s, report)
        except Away as error:
            raise PenstockError(f"{error}; all points were acknowledged: push again") from None
    shutil.rmtree(place)
    return pushed
