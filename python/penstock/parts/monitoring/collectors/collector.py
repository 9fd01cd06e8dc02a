"""The protocol of collectors, and the way of their points into a sink."""

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

#: of what was wrong, as much is said
_MOST_TOLD = 20
#: and of what was refused, with the points themselves: so much, so often [s]
_MOST_SAID, _LONGEST_SAID, _TELL_S = 3, 400, 1.0
_NONE = points(metric=[])


@dataclass
class Receipt:
    """What a collector did: points received and stored, what was refused and why, batches that were sent once
    more, and what else it counts. `received` is `stored` and what was `refused`. `refused_messages`: those of
    which nothing was read, by reason; how many points they had is not known. `told`: of the first that were
    refused, what was wrong."""

    source: str
    received: int = 0
    stored: int = 0
    batches: int = 0
    repeated: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    refused_messages: Counter[str] = field(default_factory=Counter)
    counted: Counter[str] = field(default_factory=Counter)
    told: list[str] = field(default_factory=list)

    def tell(self, what: str) -> None:
        """Says what was wrong, as long as not too much has been said."""
        if len(self.told) < _MOST_TOLD:
            self.told.append(what)

    def failed(self, what: str) -> None:
        """Counts a poll that failed, and says why."""
        self.counted["failed"] += 1
        self.tell(what)

    def copy(self) -> Receipt:
        """As it is now."""
        return replace(
            self,
            refused=self.refused.copy(),
            refused_messages=self.refused_messages.copy(),
            counted=self.counted.copy(),
            told=[*self.told],
        )

    def document(self, before: Receipt | None = None) -> dict[str, Any]:
        """As JSON values: what came since `before`, or in all."""
        first = before or Receipt(self.source)
        numbers = ("received", "stored", "batches", "repeated")
        return {
            **{n: getattr(self, n) - getattr(first, n) for n in numbers},
            "refused": dict(self.refused - first.refused),
            "refused_messages": dict(self.refused_messages - first.refused_messages),
            "counted": {what: n - first.counted[what] for what, n in self.counted.items()},
            "told": self.told[len(first.told) :],
        }


@dataclass
class Read:
    """What became of a message: points that are stored or were stored before, those that were refused by
    reason, and exemplars, of which none is stored."""

    written: int
    refused: Counter[str]
    exemplars: int = 0


class FailedError(Exception):
    """Why a poll gave nothing."""


class Collector(Protocol):
    """Brings points into a sink from `start` to `stop`; made once, used once.

    `name` becomes the source of its batches. All three run in one event loop, which others share: nothing
    in them may block. What others send can be anything: it is refused, counted and told, and the collector
    lives. One that waits at a port for what comes says so by a class attribute `listens = True`: it is shared
    by experiments that run at the same time, and has its `intake`. One that polls tells its intake when it
    `begins` and `ends`, so that what was before and after is no gap. In a run one that listens is one
    command's: its static method `of_run(settings)` gives them with a free port and a token of the run's own,
    and `reached()` says, once it has started, what that command finds in its environment (`""` is the
    address, other names are added to that of the collector).
    """

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        """BadInput for settings that are wrong, with what was found and what was expected."""

    async def start(self, sink: Sink) -> None:
        """Returns once points can come. PenstockError where that cannot be, as with a port in use."""

    async def stop(self) -> Receipt:
        """Ends it; what was received before is in the sink when this returns."""


async def due(interval_s: float, intake: Intake) -> AsyncIterator[int]:
    """When each poll begins [ns since 1970]: poll k at t0 + k x interval, and never made up for.

    Counts in the intake's receipt what was `due`, and `missed` what could not begin as another one went on.
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
    """Polls that were due by now, where one of those `counted` is cut by the end.

    One that lasted less than its interval is not held against the collector.
    """
    return max(counted - 1, int((now - t0) / interval_s))


class Intake:
    """One source's way into a sink: reads its messages, numbers its batches, counts what became of them.

    Its methods block until what they were given is kept; threads may share it. Where the sink fails, they
    raise what it raised, nothing is kept, and the same message may be given again.
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
        """`interval_ns`: how often a point of each series is due that is read here, where that is known.

        `begin_late`: a series that was not in the first message begins when it comes, and misses nothing
        before.
        """
        self.receipt = Receipt(source)
        self._sink, self._in_order, self._unit = sink, in_order, unit
        self._interval_ns, self._begin_late = interval_ns, begin_late
        self._made_ns = time.time_ns()
        #: while a poll goes on, t0 and interval of all of them [s of the event loop]
        self.polling: tuple[float, float] | None = None
        #: when the first poll was due
        self.begun_ns: int | None = None
        #: to be told with the next batch
        self._events: list[Event] = []
        #: series whose interval was told
        self._accounts: dict[tuple[str, str], Account] = {}
        self._known = 0
        #: of what was refused, what was told already, how much had been said, and when
        self._refused_told: Counter[str] = Counter()
        self._messages_told: Counter[str] = Counter()
        self._said = 0
        self._refused_at_s = 0.0
        self._lock = threading.Lock()
        self._reader: Any = native.PointReader(in_order=in_order)
        self._number = sink.next_number(source)
        #: whether there was one of its name before, which a crash or a stop ended
        self.began_anew = self._number > 0
        self._told_anew = not self.began_anew

    def read(self, protocol: str, *words: Any) -> Read:
        """Reads a message by a method of `PointReader`, keeps its points, gives what became of them.

        ValueError where the message as a whole is none.
        """
        found = self.read_all([(protocol, *words)])[0]
        if isinstance(found, ValueError):
            raise found
        return found

    def read_all(self, messages: Sequence[tuple[Any, ...]]) -> list[Read | ValueError]:
        """Reads messages and keeps their points as one batch. Gives of each what `read` gives, or raises."""
        with self._lock:
            found = [self._message(self._reader, *message) for message in messages]
            table, odd = table_of(self._reader.take(), self._unit)
            self._odd(odd, found)
            self._keep(table, self._new_accounts())
            return [one if isinstance(one, ValueError) else one[0] for one in found]

    def read_numbered(self, source: str, number: int, protocol: str, *words: Any) -> Read:
        """A message that its sender numbered itself: sent once more it changes nothing.

        Held where its source is a running collector's, as is our own.
        """
        if source == self.receipt.source:
            raise Held(source)
        with self._lock:
            self._keep(_NONE, at_once=True)  # what was refused before is no matter of this one
            reader = native.PointReader(in_order=False)
            found = self._message(reader, protocol, *words)
            if isinstance(found, ValueError):
                raise found
            table, odd = table_of(reader.take(), self._unit)
            self._odd(odd, [found])
            accounts = self._of_series(reader.known_from(0))
            # told where its points are, and not once more by our own batches
            events = self._refusals()
            try:
                accepted = self._sink.write(Batch(source, number, table, accounts, events))
            except BaseException as error:
                self._dropped(table, error)
                raise
            self._told()
            self._count(accepted, 0 if accepted.duplicate else _valued(table))
            return found[0]

    def keep(
        self, table: pa.Table, accounts: Sequence[Account] = (), events: Sequence[Event] = ()
    ) -> None:
        """Keeps points that are in a table already."""
        with self._lock:
            self.receipt.received += _valued(table)
            self._keep(table, accounts, events)

    def begins(self, utc_ns: int) -> None:
        """The first poll is due at `utc_ns`: the collector had not begun before. Told with the next batch."""
        with self._lock:
            self.begun_ns = utc_ns
            detail = "the collector starting"
            self._events.append(Event("starting", self._made_ns, utc_ns, detail=detail))

    def due(self) -> int:
        """How many polls were due by now, but for one that the end cuts; in the collector's event loop."""
        counted = self.receipt.counted["due"]
        if self.polling is None:
            return counted
        return due_at_the_end(counted, *self.polling, asyncio.get_running_loop().time())

    def ends(self, accounts: Sequence[Account] = (), utc_ns: int | None = None) -> None:
        """Keeps the last accounts, and what is still to be told: it stopped at `utc_ns`, by default now."""
        with self._lock:
            stopped_ns = time.time_ns() if utc_ns is None else utc_ns
            event = Event("ending", stopped_ns, detail="the collector was stopped")
            self._keep(_NONE, accounts, [event], at_once=True)

    def tell(self) -> None:
        """Keeps what is still to be told: intervals of series, and what was refused."""
        with self._lock:
            self._keep(_NONE, list(self._accounts.values()), at_once=True)

    def refuse(self, reason: str, what: str, count: int = 1) -> None:
        """Counts points that were refused before they could be read."""
        with self._lock:
            self.receipt.received += count
            self.receipt.refused[reason] += count
            self.receipt.tell(what)

    def refuse_message(self, reason: str, what: str) -> None:
        """Counts a message that was refused as a whole: nobody knows how many points it had."""
        with self._lock:
            self._refuse_message(reason, what)

    def _refuse_message(self, reason: str, what: str) -> None:
        self.receipt.refused_messages[reason] += 1
        self.receipt.tell(what)

    def _message(self, reader: Any, protocol: str, *words: Any) -> tuple[Read, int] | ValueError:
        """What became of a message, and how many rows it has in what the reader took."""
        try:
            said = getattr(reader, protocol)(*words)
        except ValueError as error:
            self._refuse_message("malformed", str(error))
            return error
        refused = Counter(dict(said["refused"]))
        self.receipt.received += said["points"] + refused.total()
        self.receipt.refused += refused
        for line, what in said["told"]:
            self.receipt.tell(f"line {line}: found {what}")
        written = said["points"] + said["valueless"] + refused["duplicate"]
        read = Read(written, refused, said["exemplars"])
        if said["exemplars"]:
            self.receipt.counted["exemplars"] += said["exemplars"]
        return read, said["points"] + said["valueless"]

    def _odd(
        self, odd: npt.NDArray[np.bool_], found: Sequence[tuple[Read, int] | ValueError]
    ) -> None:
        """Counts rows of unprintable names as refused, each with the message that it came in."""
        if not odd.any():
            return
        self.receipt.refused["malformed"] += int(odd.sum())
        self.receipt.tell("found a name or label that cannot be printed")
        at = 0
        for one in found:
            if not isinstance(one, ValueError):
                read, rows = one
                number = int(odd[at : at + rows].sum())
                at += rows
                if number:
                    read.refused["malformed"] += number
                    read.written -= number

    def _dropped(self, table: pa.Table, error: BaseException) -> None:
        """Counts points that a sink did not take: refused where it never will, else as if they had not
        come."""
        number = _valued(table)
        if isinstance(error, Closed):
            self.receipt.refused["no room" if isinstance(error, Full) else "after the end"] += (
                number
            )
            self.receipt.tell(str(error))
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
        """Of series that came for the first time."""
        if self._reader.known == self._known:
            return []
        late = self._begin_late and self._known > 0
        since_ns = time.time_ns() if late else None
        new = self._of_series(self._reader.known_from(self._known), since_ns)
        self._known = self._reader.known
        self._accounts |= {(a.metric, a.labels): a for a in new}
        return new

    def _refusals(self) -> list[Event]:
        """What was refused since it was told last. A point that was there already is no loss."""
        now = time.time_ns()
        said = "; ".join(self.receipt.told[self._said : self._said + _MOST_SAID])
        detail = f": {said}"[:_LONGEST_SAID] if said else ""
        points = self.receipt.refused - self._refused_told
        messages = self.receipt.refused_messages - self._messages_told
        kinds: dict[EventKind, Counter[str]] = {"refused": points, "refused-messages": messages}
        return [
            Event(kind, now, now, detail=why + detail, count=n)
            for kind, new in kinds.items()
            for why, n in sorted(new.items())
            if why != "duplicate"
        ]

    def _told(self) -> None:
        self._refused_told = self.receipt.refused.copy()
        self._messages_told = self.receipt.refused_messages.copy()
        self._said = len(self.receipt.told)
        self._refused_at_s = time.monotonic()

    def _keep(
        self,
        table: pa.Table,
        accounts: Sequence[Account] = (),
        events: Sequence[Event] = (),
        *,
        at_once: bool = False,
    ) -> None:
        refusals: list[Event] = []
        if at_once or time.monotonic() - self._refused_at_s >= _TELL_S:
            refusals = self._refusals()
        if not (table.num_rows or accounts or events or refusals):
            return
        waiting = len(self._events)
        events = [*self._events, *events, *refusals]
        if not self._told_anew:
            detail = f"the collector began anew after batch {self._number - 1}"
            events = [*events, Event("restart", time.time_ns(), detail=detail)]
        batch = Batch(self.receipt.source, self._number, table, accounts, events)
        try:
            accepted = self._sink.write(batch)
        except BaseException as error:
            # what is sent again is not to be taken for a second value of its time
            self._reader = native.PointReader(in_order=self._in_order)
            self._known = 0
            self._dropped(table, error)
            raise
        self._number += 1
        self._told_anew = True
        del self._events[:waiting]
        if refusals:
            self._told()
        self._count(accepted, _valued(table))

    def _count(self, accepted: Accepted, rows: int) -> None:
        self.receipt.batches += 1
        self.receipt.repeated += accepted.duplicate
        self.receipt.stored += 0 if accepted.duplicate else rows


def _valued(table: pa.Table) -> int:
    """How many points of a table have a value; the others are counted as refused."""
    return int(table.num_rows - without_value(table).sum())


def setting(
    name: str, settings: Mapping[str, Any], key: str, kind: type | tuple[type, ...], default: Any
) -> Any:
    """A setting of a collector. BadInput where it is of another kind; without a default it must be there."""
    found = settings.get(key, default)
    if found is None and default is not None:
        found = default
    right = isinstance(found, kind) and not (isinstance(found, bool) and kind is not bool)
    if found is not default and not right:
        one = kind if isinstance(kind, type) else kind[-1]
        raise BadInput(f"{name}: {key}: found {found!r}; expected a value of kind {one.__name__}")
    if found is ...:
        raise BadInput(f"{name}: found no {key}; expected one")
    return found


def interval_of(
    name: str, settings: Mapping[str, Any], default_s: float = 1.0, least_s: float = 0.1
) -> float:
    """The setting `interval_s`, `least_s` to a day. BadInput."""
    interval_s = float(setting(name, settings, "interval_s", (int, float), default_s))
    if not least_s <= interval_s <= 86400:
        raise BadInput(f"{name}: found interval_s {interval_s:g}; expected {least_s:g} to 86400")
    return interval_s


async def ended(task: asyncio.Task[None]) -> None:
    """Ends what a collector does, and waits for its end."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def only(name: str, settings: Mapping[str, Any], known: Sequence[str]) -> None:
    """BadInput for a setting that there is not."""
    strange = [key for key in settings if key not in known]
    if strange:
        raise BadInput(f"{name}: found {', '.join(map(str, strange))}; expected {', '.join(known)}")


def told_interval_ns(name: str, settings: Mapping[str, Any]) -> int | None:
    """The setting `interval_s` of who waits for what comes: how often a point of each series is due [ns]."""
    found: float | None = setting(name, settings, "interval_s", (int, float), None)
    if found is None:
        return None
    if not 0.001 <= found <= 86400:
        raise BadInput(f"{name}: found interval_s {found:g}; expected 0.001 to 86400")
    return round(found * 1e9)
