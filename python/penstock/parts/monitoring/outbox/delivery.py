"""How what is recorded of a command gets to its experiment, wherever the server is meanwhile."""

from __future__ import annotations

import functools
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.errors import Away, BadInput, PenstockError
from penstock.host.probe.clock_offset import Offset
from penstock.parts.monitoring.experiments.points import Batch
from penstock.parts.monitoring.outbox.client import Door, Remote, Unreachable, described, patiently
from penstock.parts.monitoring.outbox.unsent import Unsent

#: how long a server that is away is waited for once the command has ended [s]
PATIENCE_S = 20.0


class Delivery:
    """Calls of one experiment that was begun; a door of None takes nothing.

    A server that is away is waited for, `PATIENCE_S` at most and not by who is `impatient`. What it does not
    take then, and all that comes after it, is left in a directory, `unsent`; `tell` hears how to send it.
    Where the store fails otherwise, or there is no room for that directory, `tell` hears that the rest is
    lost: what becomes of a command does not depend on it.
    """

    def __init__(
        self,
        door: Door | None,
        experiment: str,
        tell: Callable[[str], Any],
        impatient: Callable[[], bool] = lambda: False,
    ) -> None:
        self._door, self._experiment = door, experiment
        self._tell, self._impatient = tell, impatient
        self._unsent: Unsent | None = None
        self._offset_ns = 0
        #: when the first call was late [ns since 1970 UTC]
        self._late_ns: int | None = None
        #: True once the store failed: nothing more is recorded
        self.failed = False

    @property
    def unsent(self) -> Path | None:
        """Where that lies which was not sent."""
        return None if self._unsent is None else self._unsent.place

    def spool(self) -> Path | None:
        """As `Door.spool`."""
        if self._door is None:
            return None
        try:
            return self._door.spool(self._experiment)
        except Exception as error:
            self._fail(error)
            return None

    def clock(self) -> Offset | None:
        """As `Door.clock`; None where the server is away, too."""
        try:
            found = None if self._door is None or self._unsent else self._door.clock()
        except Unreachable:
            return None
        except PenstockError as error:
            self._fail(error)
            return None
        self._offset_ns = self._offset_ns if found is None else found.offset_ns
        return found

    def write_now(self, batch: Batch) -> None:
        """A batch, without patience. Raises as `Door.write`."""
        if self._door is not None:
            self._door.write(self._experiment, batch)

    def write(self, batch: Batch) -> None:
        """A batch, once the command has ended."""
        if not self._sent(lambda: self.write_now(batch)):
            self._keep(lambda unsent: unsent.write(batch))

    def note(self, words: str) -> None:
        """A note of now."""
        at_ns = time.time_ns() + self._offset_ns
        if self._door is None:
            return
        mark = functools.partial(self._door.mark, self._experiment, "note", words)
        if not self._sent(mark):
            self._keep(lambda unsent: unsent.tell("mark", kind="note", words=words, at_ns=at_ns))

    def stop(self, **options: Any) -> None:
        """The experiment's end, which is that of the command however late it gets there."""
        if self._door is None:
            return
        stop: Callable[..., Any] = functools.partial(self._door.stop, self._experiment, **options)
        asked = False

        def end() -> None:
            nonlocal asked
            again, asked = asked, True
            try:
                stop(**self._ended())
            except BadInput:
                if not again:  # its answer was lost
                    raise

        if not self._sent(end):
            self._keep(lambda unsent: unsent.tell("stop", **options, **self._ended()))
        if self._unsent is not None and not self.failed:
            name, place = shlex.quote(self._experiment), shlex.quote(str(self._unsent.place))
            remote = self._door if isinstance(self._door, Remote) else None
            store = "the catalogue" if remote is None else remote.url
            to = "" if remote is None else f" --server {remote.url}"
            self._tell(
                f"what {store} did not take is kept; it is sent by: penstock monitor push {name} {place}{to}"
            )

    def _ended(self) -> dict[str, int]:
        return {} if self._late_ns is None else {"at_ns": self._late_ns + self._offset_ns}

    def _sent(self, call: Callable[[], Any]) -> bool:
        """Whether it was; else there is a directory for it, and for what comes after it."""
        if self._unsent is not None or self._door is None:
            return False
        began_ns = time.time_ns()

        def late(words: str) -> None:
            if self._late_ns is None:
                self._late_ns = began_ns
                self._tell(words)

        try:
            patiently(call, PATIENCE_S, late, self._impatient)
            return True
        except Away as error:
            late(str(error))
            try:
                self._unsent = Unsent.create(self._experiment)
            except (PenstockError, OSError) as why:
                self._fail(why)
        except Exception as error:
            self._fail(error)
        return False

    def _keep(self, keep: Callable[[Unsent], Any]) -> None:
        """Leaves something in the directory of what was not sent, if there is one."""
        if self._unsent is None or self.failed:
            return
        try:
            keep(self._unsent)
        except (PenstockError, OSError) as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Records nothing more, and tells why."""
        self._door, self.failed = None, True
        reason = str(error) if isinstance(error, PenstockError) else described(error)
        self._tell(f"{reason}; the rest of {self._experiment} is not recorded")
