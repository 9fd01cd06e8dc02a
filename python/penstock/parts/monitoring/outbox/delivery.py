"""Delivery of the recording of a command to its experiment, also if the server is unreachable."""

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
from penstock.parts.monitoring.outbox.client import (
    Client,
    Remote,
    Unreachable,
    error_text,
    patiently,
)
from penstock.parts.monitoring.outbox.unsent import Unsent

#: longest wait for an unreachable server after the end of the command [s]
PATIENCE_S = 20.0


class Delivery:
    """Calls of one started experiment; with a client of None they do nothing.

    Calls wait at most `PATIENCE_S` for an unreachable server, and not at all if `impatient()` is true. A call
    that fails, and all later ones, are written to a directory, `unsent`; `report` gets the command that sends
    it. If the store fails otherwise, or the directory cannot be written, `report` gets the message that the
    rest is lost. The command itself is not affected.
    """

    def __init__(
        self,
        client: Client | None,
        experiment: str,
        report: Callable[[str], Any],
        impatient: Callable[[], bool] = lambda: False,
    ) -> None:
        self._client, self._experiment = client, experiment
        self._report, self._impatient = report, impatient
        self._unsent: Unsent | None = None
        self._offset_ns = 0
        #: time of the first late call [ns since 1970 UTC]
        self._late_ns: int | None = None
        #: True once the store failed: nothing more is recorded
        self.failed = False

    @property
    def unsent(self) -> Path | None:
        """Directory of the calls that were not sent."""
        return None if self._unsent is None else self._unsent.place

    def spool(self) -> Path | None:
        """As `Client.spool`."""
        if self._client is None:
            return None
        try:
            return self._client.spool(self._experiment)
        except Exception as error:
            self._fail(error)
            return None

    def clock(self) -> Offset | None:
        """As `Client.clock`; None also if the server is unreachable."""
        try:
            offset = None if self._client is None or self._unsent else self._client.clock()
        except Unreachable:
            return None
        except PenstockError as error:
            self._fail(error)
            return None
        self._offset_ns = self._offset_ns if offset is None else offset.offset_ns
        return offset

    def write_now(self, batch: Batch) -> None:
        """Write a batch without retries. Raises as `Client.write`."""
        if self._client is not None:
            self._client.write(self._experiment, batch)

    def write(self, batch: Batch) -> None:
        """Write a batch after the end of the command."""
        if not self._try(lambda: self.write_now(batch)):
            self._store(lambda unsent: unsent.write(batch))

    def note(self, text: str) -> None:
        """Store a note with the current time."""
        at_ns = time.time_ns() + self._offset_ns
        if self._client is None:
            return
        mark = functools.partial(self._client.mark, self._experiment, "note", text)
        if not self._try(mark):
            self._store(lambda unsent: unsent.add("mark", kind="note", words=text, at_ns=at_ns))

    def stop(self, **options: Any) -> None:
        """Stop the experiment at the end of the command, even if the call is late."""
        if self._client is None:
            return
        stop: Callable[..., Any] = functools.partial(self._client.stop, self._experiment, **options)
        tried = False

        def end() -> None:
            nonlocal tried
            retry, tried = tried, True
            try:
                stop(**self._end_time())
            except BadInput:
                if not retry:  # the response to the first attempt was lost
                    raise

        if not self._try(end):
            self._store(lambda unsent: unsent.add("stop", **options, **self._end_time()))
        if self._unsent is not None and not self.failed:
            name, place = shlex.quote(self._experiment), shlex.quote(str(self._unsent.place))
            remote = self._client if isinstance(self._client, Remote) else None
            store = "the catalogue" if remote is None else remote.url
            to = "" if remote is None else f" --server {remote.url}"
            self._report(
                f"data that {store} did not accept are stored; send them with: penstock monitor push {name} "
                f"{place}{to}"
            )

    def _end_time(self) -> dict[str, int]:
        return {} if self._late_ns is None else {"at_ns": self._late_ns + self._offset_ns}

    def _try(self, call: Callable[[], Any]) -> bool:
        """True if a call succeeded; otherwise create a directory for it and for later ones."""
        if self._unsent is not None or self._client is None:
            return False
        began_ns = time.time_ns()

        def report_late(message: str) -> None:
            if self._late_ns is None:
                self._late_ns = began_ns
                self._report(message)

        try:
            patiently(call, PATIENCE_S, report_late, self._impatient)
            return True
        except Away as error:
            report_late(str(error))
            try:
                self._unsent = Unsent.create(self._experiment)
            except (PenstockError, OSError) as failure:
                self._fail(failure)
        except Exception as error:
            self._fail(error)
        return False

    def _store(self, write: Callable[[Unsent], Any]) -> None:
        """Write a call to the directory of unsent calls, if it exists."""
        if self._unsent is None or self.failed:
            return
        try:
            write(self._unsent)
        except (PenstockError, OSError) as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Stop recording and report the error."""
        self._client, self.failed = None, True
        reason = str(error) if isinstance(error, PenstockError) else error_text(error)
        self._report(f"{reason}; the rest of {self._experiment} is not recorded")
