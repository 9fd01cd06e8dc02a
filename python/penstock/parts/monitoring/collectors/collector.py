"""The protocol of collectors, and the intake that writes their points to a sink."""

from __future__ import annotations

import asyncio
import importlib
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import BadInput
from penstock.parts.monitoring.collectors.columns import no_unit, table_of
from penstock.parts.monitoring.experiments.points import (
    Accepted,
    Account,
    Batch,
    Closed,
    Event,
    EventKind,
    Full,
    Held,
    Sink,
    points,
    without_value,
)

native: Any = importlib.import_module("penstock._native")

#: error messages stored in a receipt
_MOST_ERRORS = 20
#: error messages in an event of refused points, its length [characters], pause between such events [s]
_MOST_DETAILS, _LONGEST_DETAIL, _EVENT_PAUSE_S = 3, 400, 1.0
_NONE = points(metric=[])


@dataclass
class Receipt:
    """Counts of a collector: points received and stored, points refused by reason, repeated batches.

    `received` is the sum of `stored` and `refused`. `refused_messages`: messages of which nothing was read,
    by reason; the number of their points is unknown. `errors`: messages of the first errors.
    """

    source: str
    received: int = 0
    stored: int = 0
    batches: int = 0
    repeated: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    refused_messages: Counter[str] = field(default_factory=Counter)
    counted: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)

    def add_error(self, message: str) -> None:
        """Record an error message, up to a maximum number."""
        if len(self.errors) < _MOST_ERRORS:
            self.errors.append(message)

    def failed(self, message: str) -> None:
        """Count a failed poll and record its error message."""
        self.counted["failed"] += 1
        self.add_error(message)

    def copy(self) -> Receipt:
        """A copy of the current counts."""
        return replace(
            self,
            refused=self.refused.copy(),
            refused_messages=self.refused_messages.copy(),
            counted=self.counted.copy(),
            errors=[*self.errors],
        )

    def document(self, before: Receipt | None = None) -> dict[str, Any]:
        """Counts as JSON values: the increase since `before`, or the totals."""
        first = before or Receipt(self.source)
        numbers = ("received", "stored", "batches", "repeated")
        return {
            **{n: getattr(self, n) - getattr(first, n) for n in numbers},
            "refused": dict(self.refused - first.refused),
            "refused_messages": dict(self.refused_messages - first.refused_messages),
            "counted": {name: n - first.counted[name] for name, n in self.counted.items()},
            "told": self.errors[len(first.errors) :],
        }


@dataclass
class Read:
    """Result of a message: points stored now or before, points refused by reason, and exemplars, which are
    not stored."""

    written: int
    refused: Counter[str]
    exemplars: int = 0


class FailedError(Exception):
    """A poll without a result."""


class Collector(Protocol):
    """Writes points to a sink from `start` to `stop`. An instance is used once.

    `name` becomes the source of its batches. All three methods run in an event loop that others share, so
    they must not block. Invalid input is refused, counted and reported; it must not end the collector.

    A collector that listens on a port has the class attribute `listens = True` and an `intake`; experiments
    that run at the same time share it. One that polls calls `begins` and `ends` of its intake, so that the
    time before and after is not a gap.

    In a run, a listening collector belongs to one command: its static method `of_run(settings)` returns
    settings with a free port and a token of its own, and `reached()`, called after `start`, returns values
    for the command's environment (`""` is the address; other keys are appended to the collector's name).
    """

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        """BadInput for invalid settings, with the actual and the expected value."""

    async def start(self, sink: Sink) -> None:
        """Return when points can be received. PenstockError if that is impossible, as with a port in use."""

    async def stop(self) -> Receipt:
        """Stop; all points received before are in the sink when this returns."""


async def due(interval_s: float, intake: Intake) -> AsyncIterator[int]:
    """Yield the time of each poll [ns since 1970]: poll k at t0 + k x interval; missed ones are skipped.

    Counts `due` polls in the intake's receipt, and `missed` ones, which were due during another poll.
    """
    loop = asyncio.get_running_loop()
    counted = intake.receipt.counted
    t0, k = loop.time(), 0
    while True:
        await asyncio.sleep(max(0.0, t0 + k * interval_s - loop.time()))
        counted["due"] += 1
        now = time.time_ns()
        if k == 0:
            intake.begins(now)
        intake.polling = t0, interval_s
        yield now
        intake.polling = None
        next_k = max(k + 1, int((loop.time() - t0) / interval_s))
        counted["missed"] += next_k - k - 1
        counted["due"] += next_k - k - 1
        k = next_k


def due_at_the_end(counted: int, t0: float, interval_s: float, now: float) -> int:
    """Polls due by now if the end interrupts the last of those `counted`.

    A poll in progress for less than its interval does not count as due.
    """
    return max(counted - 1, int((now - t0) / interval_s))


class Intake:
    """Reads the messages of one source, writes them to a sink in numbered batches, and counts the results.

    Methods block until their points are stored; threads may share the object. If the sink fails, they raise
    its error, nothing is stored, and the same message may be passed again.
    """

    def __init__(
        self,
        source: str,
        sink: Sink,
        *,
        in_order: bool = True,
        unit: Callable[[str], str] = no_unit,
        interval_ns: int | None = None,
        begin_late: bool = False,
    ) -> None:
        """`interval_ns`: interval between points of each series that is read here, if declared.

        `begin_late`: a series that was not in the first message begins with its first point and lacks none
        before.
        """
        self.receipt = Receipt(source)
        self._sink, self._in_order, self._unit = sink, in_order, unit
        self._interval_ns, self._begin_late = interval_ns, begin_late
        self._created_ns = time.time_ns()
        #: during a poll: t0 and interval of the polls [s of the event loop]
        self.polling: tuple[float, float] | None = None
        #: when the first poll was due
        self.begun_ns: int | None = None
        #: events of the next batch
        self._events: list[Event] = []
        #: accounts of the series whose interval was written
        self._accounts: dict[tuple[str, str], Account] = {}
        #: number of series of the reader that have an account
        self._accounted = 0
        #: refusals and error messages that were written as events, and when
        self._refused_reported: Counter[str] = Counter()
        self._messages_reported: Counter[str] = Counter()
        self._errors_reported = 0
        #: error messages since then by kind of event and reason
        self._details: dict[tuple[EventKind, str], list[str]] = {}
        self._refused_at_s = 0.0
        self._lock = threading.Lock()
        self._reader: Any = native.PointReader(in_order=in_order)
        self._number = sink.next_number(source)
        #: True if a collector of this name wrote before, and crashed or was stopped
        self.began_anew = self._number > 0
        self._restart_reported = not self.began_anew

    def read(self, protocol: str, *arguments: Any) -> Read:
        """Read a message by a method of `PointReader` and store its points.

        ValueError if the message cannot be read at all.
        """
        result = self.read_all([(protocol, *arguments)])[0]
        if isinstance(result, ValueError):
            raise result
        return result

    def read_all(self, messages: Sequence[tuple[Any, ...]]) -> list[Read | ValueError]:
        """Read messages and store their points as one batch. Returns the result or error of each."""
        with self._lock:
            before = self.receipt.copy()
            results = [self._message(self._reader, *message) for message in messages]
            table, unprintable = table_of(self._reader.take(), self._unit)
            self._refuse_unprintable(unprintable, results)
            try:
                self._write(table, self._new_accounts())
            except Closed:
                raise
            except BaseException:  # the messages are sent, or read, again
                self._restore(before)
                raise
            return [result if isinstance(result, ValueError) else result[0] for result in results]

    def read_numbered(self, source: str, number: int, protocol: str, *arguments: Any) -> Read:
        """Read a message that its sender numbered; a repetition changes nothing.

        Raises Held if a running collector, such as this one, has its source.
        """
        if source == self.receipt.source:
            raise Held(source)
        with self._lock:
            self._write(_NONE, immediately=True)  # earlier refusals are not of this message
            reader = native.PointReader(in_order=False)
            before = self.receipt.copy()
            result = self._message(reader, protocol, *arguments)
            if isinstance(result, ValueError):
                raise result
            table, unprintable = table_of(reader.take(), self._unit)
            self._refuse_unprintable(unprintable, [result])
            accounts = self._of_series(reader.known_from(0))
            # written to its source, and not again with our own batches
            events = self._refusals()
            try:
                accepted = self._sink.write(Batch(source, number, table, accounts, events))
            except BaseException as error:
                self._dropped(table, error)
                if not isinstance(error, Closed):
                    self._restore(before)
                raise
            if accepted.duplicate:  # its points were counted
                self._restore(before)
            self._mark_reported()
            self._count(accepted, 0 if accepted.duplicate else _count_valued(table))
            return result[0]

    def keep(
        self, table: pa.Table, accounts: Sequence[Account] = (), events: Sequence[Event] = ()
    ) -> None:
        """Store the points of a table."""
        with self._lock:
            self.receipt.received += _count_valued(table)
            self._write(table, accounts, events)

    def begins(self, utc_ns: int) -> None:
        """Record that the first poll is due at `utc_ns`. Written with the next batch."""
        with self._lock:
            self.begun_ns = utc_ns
            detail = "the collector starting"
            self._events.append(Event("starting", self._created_ns, utc_ns, detail=detail))

    def due(self) -> int:
        """Number of polls due by now, without an unfinished one; call it in the event loop."""
        counted = self.receipt.counted["due"]
        if self.polling is None:
            return counted
        return due_at_the_end(counted, *self.polling, asyncio.get_running_loop().time())

    def ends(self, accounts: Sequence[Account] = (), utc_ns: int | None = None) -> None:
        """Store the last accounts, pending events, and the stop at `utc_ns` (default: now)."""
        with self._lock:
            stopped_ns = time.time_ns() if utc_ns is None else utc_ns
            event = Event("ending", stopped_ns, detail="the collector was stopped")
            self._write(_NONE, accounts, [event], immediately=True)

    def write_pending(self) -> None:
        """Store pending events and accounts: intervals of series, and refusals."""
        with self._lock:
            self._write(_NONE, list(self._accounts.values()), immediately=True)

    def refuse(self, reason: str, message: str, count: int = 1) -> None:
        """Count points that were refused before they could be read."""
        with self._lock:
            self.receipt.received += count
            self.receipt.refused[reason] += count
            self._add_error("refused", reason, message)

    def refuse_message(self, reason: str, message: str) -> None:
        """Count a message that was refused unread, with an unknown number of points."""
        with self._lock:
            self._refuse_message(reason, message)

    def _refuse_message(self, reason: str, message: str) -> None:
        self.receipt.refused_messages[reason] += 1
        self._add_error("refused-messages", reason, message)

    def _add_error(self, kind: EventKind, reason: str, message: str) -> None:
        self.receipt.add_error(message)
        details = self._details.setdefault((kind, reason), [])
        if len(details) < _MOST_DETAILS and message not in details:
            details.append(message)

    def _message(
        self, reader: Any, protocol: str, *arguments: Any
    ) -> tuple[Read, int] | ValueError:
        """Result of a message, and the number of its rows in the reader."""
        try:
            summary = getattr(reader, protocol)(*arguments)
        except ValueError as error:
            self._refuse_message("malformed", str(error))
            return error
        refused = Counter(dict(summary["refused"]))
        self.receipt.received += summary["points"] + refused.total()
        self.receipt.refused += refused
        for line, problem in summary["told"]:
            message = f"line {line}: found {problem}"
            if len(refused) == 1:
                self._add_error("refused", next(iter(refused)), message)
            else:  # of one of several reasons
                self.receipt.add_error(message)
        written = summary["points"] + summary["valueless"] + refused["duplicate"]
        read = Read(written, refused, summary["exemplars"])
        if summary["exemplars"]:
            self.receipt.counted["exemplars"] += summary["exemplars"]
        return read, summary["points"] + summary["valueless"]

    def _refuse_unprintable(
        self, unprintable: npt.NDArray[np.bool_], results: Sequence[tuple[Read, int] | ValueError]
    ) -> None:
        """Count rows of unprintable names as refused, each in the result of its message."""
        if not unprintable.any():
            return
        self.receipt.refused["malformed"] += int(unprintable.sum())
        self._add_error("refused", "malformed", "found a name or label that cannot be printed")
        first = 0
        for result in results:
            if not isinstance(result, ValueError):
                read, rows = result
                number = int(unprintable[first : first + rows].sum())
                first += rows
                if number:
                    read.refused["malformed"] += number
                    read.written -= number

    def _restore(self, before: Receipt) -> None:
        """Undo the counts of messages that are to be counted when they come again."""
        self.receipt.received = before.received
        self.receipt.refused = before.refused
        self.receipt.refused_messages = before.refused_messages
        self.receipt.errors = before.errors
        if "exemplars" in self.receipt.counted:
            self.receipt.counted["exemplars"] = before.counted["exemplars"]

    def _dropped(self, table: pa.Table, error: BaseException) -> None:
        """Count points that a sink did not accept: as refused if it never will, else as not received."""
        number = _count_valued(table)
        if isinstance(error, Closed):
            reason = "no room" if isinstance(error, Full) else "after the end"
            self.receipt.refused[reason] += number
            self._add_error("refused", reason, str(error))
        else:
            self.receipt.received -= number

    def _of_series(
        self, names: Sequence[tuple[str, str]], since_ns: int | None = None
    ) -> list[Account]:
        if self._interval_ns is None and since_ns is None:
            return []
        printable = [(m, s) for m, s in names if m.isprintable() and s.isprintable()]
        return [Account(m, s, self._interval_ns, since_ns=since_ns) for m, s in printable]

    def _new_accounts(self) -> list[Account]:
        """Accounts of new series."""
        if self._reader.known == self._accounted:
            return []
        late = self._begin_late and self._accounted > 0
        since_ns = time.time_ns() if late else None
        new = self._of_series(self._reader.known_from(self._accounted), since_ns)
        self._accounted = self._reader.known
        self._accounts |= {(a.metric, a.labels): a for a in new}
        return new

    def _refusals(self) -> list[Event]:
        """Events of the refusals since the last such events. A duplicate point is no loss."""
        now = time.time_ns()
        points = self.receipt.refused - self._refused_reported
        messages = self.receipt.refused_messages - self._messages_reported
        kinds: dict[EventKind, Counter[str]] = {"refused": points, "refused-messages": messages}
        return [
            Event(kind, now, now, detail=reason + self._detail(kind, reason), count=n)
            for kind, new in kinds.items()
            for reason, n in sorted(new.items())
            if reason != "duplicate"
        ]

    def _detail(self, kind: EventKind, reason: str) -> str:
        """Error messages of a reason; those of unknown reason if it has none."""
        errors = self._details.get((kind, reason))
        if errors is None:
            attributed = {message for messages in self._details.values() for message in messages}
            new = self.receipt.errors[self._errors_reported :]
            errors = [message for message in new if message not in attributed][:_MOST_DETAILS]
        return f": {'; '.join(errors)}"[:_LONGEST_DETAIL] if errors else ""

    def _mark_reported(self) -> None:
        self._refused_reported = self.receipt.refused.copy()
        self._messages_reported = self.receipt.refused_messages.copy()
        self._errors_reported = len(self.receipt.errors)
        self._details = {}
        self._refused_at_s = time.monotonic()

    def _write(
        self,
        table: pa.Table,
        accounts: Sequence[Account] = (),
        events: Sequence[Event] = (),
        *,
        immediately: bool = False,
    ) -> None:
        refusals: list[Event] = []
        if immediately or time.monotonic() - self._refused_at_s >= _EVENT_PAUSE_S:
            refusals = self._refusals()
        if not (table.num_rows or accounts or events or refusals):
            return
        waiting = len(self._events)
        events = [*self._events, *events, *refusals]
        if not self._restart_reported:
            detail = f"the collector was restarted after batch {self._number - 1}"
            events = [*events, Event("restart", time.time_ns(), detail=detail)]
        batch = Batch(self.receipt.source, self._number, table, accounts, events)
        try:
            accepted = self._sink.write(batch)
        except BaseException as error:
            # points that are sent again must not count as duplicates
            self._reader = native.PointReader(in_order=self._in_order)
            self._accounted = 0
            self._dropped(table, error)
            raise
        self._number += 1
        self._restart_reported = True
        del self._events[:waiting]
        if refusals:
            self._mark_reported()
        self._count(accepted, _count_valued(table))

    def _count(self, accepted: Accepted, rows: int) -> None:
        self.receipt.batches += 1
        self.receipt.repeated += accepted.duplicate
        self.receipt.stored += 0 if accepted.duplicate else rows


def _count_valued(table: pa.Table) -> int:
    """Number of points that have a value; the others are counted as refused."""
    return int(table.num_rows - without_value(table).sum())


def setting(
    name: str, settings: Mapping[str, Any], key: str, kind: type | tuple[type, ...], default: Any
) -> Any:
    """A setting of a collector. BadInput if it has another type, or is missing and has no default (`...`)."""
    value = settings.get(key, default)
    if value is None and default is not None:
        value = default
    valid = isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool)
    if value is not default and not valid:
        expected = kind if isinstance(kind, type) else kind[-1]
        raise BadInput(
            f"{name}: {key}: found {value!r}; expected a value of kind {expected.__name__}"
        )
    if value is ...:
        raise BadInput(f"{name}: found no {key}; expected one")
    return value


def seconds_of(
    name: str, settings: Mapping[str, Any], key: str, default_s: float | None, least_s: float
) -> float | None:
    """A setting in seconds. BadInput unless it is between `least_s` and a day."""
    value = setting(name, settings, key, (int, float), default_s)
    if value is not None and not least_s <= value <= 86400:
        shown = f"{value:g}" if abs(value) < 1e300 else str(value)[:20]
        raise BadInput(f"{name}: found {key} {shown}; expected {least_s:g} to 86400")
    return None if value is None else float(value)


def interval_of(
    name: str, settings: Mapping[str, Any], default_s: float = 1.0, least_s: float = 0.1
) -> float:
    """The setting `interval_s`. BadInput unless it is between `least_s` and a day."""
    return seconds_of(name, settings, "interval_s", default_s, least_s) or default_s


def timeout_of(name: str, settings: Mapping[str, Any], default_s: float) -> float:
    """The setting `timeout_s`. BadInput unless it is between 1 ms and a day."""
    return seconds_of(name, settings, "timeout_s", default_s, 0.001) or default_s


async def ended(task: asyncio.Task[None]) -> None:
    """Cancel a collector's task and wait for its end."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def only(name: str, settings: Mapping[str, Any], allowed: Sequence[str]) -> None:
    """BadInput for a setting that does not exist."""
    unknown = [key for key in settings if key not in allowed]
    if unknown:
        raise BadInput(
            f"{name}: found {', '.join(map(str, unknown))}; expected {', '.join(allowed)}"
        )


def declared_interval_ns(name: str, settings: Mapping[str, Any]) -> int | None:
    """The setting `interval_s` of a listening collector: interval between points of each series [ns]."""
    interval_s = seconds_of(name, settings, "interval_s", None, 0.001)
    return None if interval_s is None else round(interval_s * 1e9)
