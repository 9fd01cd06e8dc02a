"""What a server did not take of an experiment: a directory with its batches, notes and end, until it is sent.

    kept = Unsent.create("x#1")
    kept.write(batch)
    kept.tell("stop", exit_status=0)
    send(door, "x#1", kept.place)         # and the directory is gone

It is a spool (`spool.py`) with a file `told.jsonl` of what is not points, in its order.
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
from penstock.parts.monitoring.outbox.client import Door, patiently
from penstock.parts.monitoring.outbox.lines import append_line, read_lines
from penstock.parts.monitoring.outbox.pushing import Pushed, push
from penstock.state import state_dir

_TOLD = "told.jsonl"
#: calls of a door that are kept
_CALLS = ("mark", "stop")


class Unsent:
    """One such directory, in the state directory."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._spool = Spool(place)

    @classmethod
    def create(cls, experiment: str) -> Unsent:
        """One without anything, for an experiment. PenstockError where it cannot be made."""
        home = state_dir() / "unsent"
        try:
            home.mkdir(mode=0o700, exist_ok=True)
            place = home / f"{quote(experiment, safe='')[:100]}-{secrets.token_hex(4)}"
            Spool.create(place)
            append_line(place / _TOLD, {"experiment": experiment})
        except OSError as error:
            raise PenstockError(f"{home}: {error.strerror}; nothing is kept") from error
        return cls(place)

    def write(self, batch: Batch) -> None:
        """Keeps a batch; it is on the disk when this returns."""
        self._spool.write(batch)

    def tell(self, call: str, **words: Any) -> None:
        """Keeps a `mark` or the `stop`, with the words of `Door`."""
        append_line(self.place / _TOLD, {"call": call, **words})


def is_unsent(place: Path) -> bool:
    """Whether a directory is one of these."""
    return (place / _TOLD).is_file()


def send(
    door: Door,
    experiment: str,
    place: Path,
    *,
    patience_s: float = 60.0,
    tell: Callable[[str], None] = lambda _: None,
) -> Pushed:
    """Sends what is in a directory to its experiment, and removes it then.

    BadInput where it is of another; PenstockError where the server stays away: what was sent before is not
    doubled by the next time.
    """
    head, *told = read_lines(place / _TOLD)
    if head["experiment"] != experiment:
        raise BadInput(f"{place}: found what is of {head['experiment']}; expected {experiment}")
    done = push(door, experiment, Spool(place).batches(), patience_s=patience_s, tell=tell)
    for said in told:
        call = said.pop("call")
        if call not in _CALLS:
            raise BadInput(f"{place}: found {call!r}; expected {' or '.join(_CALLS)}")
        words = [said.pop(k) for k in ("kind", "words") if k in said]
        act = functools.partial(getattr(door, call), experiment, *words, **said)
        try:
            patiently(act, patience_s, tell)
        except Away as error:
            raise PenstockError(f"{error}; all points were acknowledged: push again") from None
    shutil.rmtree(place)
    return done
