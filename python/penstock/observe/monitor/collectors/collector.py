"""The protocol of collectors, and the way of their points into a sink."""

from __future__ import annotations

import asyncio
import importlib
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from penstock.errors import BadInput
from penstock.observe.monitor.points import POINTS, Accepted, Account, Batch, Event, Held, Sink

native: Any = importlib.import_module("penstock._native")

Columns = Mapping[str, Any]
#: of what was wrong, as much is said
_MOST_TOLD = 20


@dataclass
class Receipt:
    """What a collector did: points received and stored, what was refused and why, batches that were sent once
    more, and what else it counts. `told`: of the first refused points, what was wrong."""

    source: str
    received: int = 0
    stored: int = 0
    batches: int = 0
    repeated: int = 0
    refused: Counter[str] = field(default_factory=Counter)
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


class Collector(Protocol):
    """Brings points into a sink from `start` to `stop`; made once, used once.

    `name` becomes the source of its batches. All three run in one event loop, which others share: nothing
    in them may block. What others send can be anything: it is refused, counted and told, and the collector
    lives. One that waits at a port for what comes says so by a class attribute `listens = True`: it is shared
    by experiments that run at the same time. In a run it is one command's: its static method
    `of_run(settings)` gives them with a free port and a token of the run's own, and `reached()` says, once it
    has started, what that command finds in its environment (`""` is the address, other names are added to
    that of the collector).
    """

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        """BadInput for settings that are wrong, with what was found and what was expected."""

    async def start(self, sink: Sink) -> None:
        """Returns once points can come. PenstockError where that cannot be, as with a port in use."""

    async def stop(self) -> Receipt:
        """Ends it; what was received before is in the sink when this returns."""


def unit_of(metric: str) -> str:
    """The unit that a metric's name ends with, as Prometheus names them (`_seconds`, `_bytes`, `_ratio`)."""
    words = metric.rsplit("_", 2)[1:]
    if len(words) == 2 and words[1] in ("total", "sum", "max", "min"):
        words = words[:1]
    known = {
        "seconds": "s",
        "bytes": "B",
        "ratio": "1",
        "celsius": "°C",
        "joules": "J",
        "watts": "W",
        "volts": "V",
        "amperes": "A",
        "hertz": "Hz",
        "percent": "%",
        "meters": "m",
    }
    return known.get(words[-1], "") if words else ""


def no_unit(metric: str) -> str:
    """Where a protocol says nothing of units."""
    return ""


def table_of(columns: Columns, unit: Callable[[str], str] = no_unit) -> tuple[pa.Table, int]:
    """The columns that a `PointReader` takes as a table of points without those of unprintable names, and how
    many these were."""
    rows = len(columns["kind"])
    metric = np.frombuffer(columns["metric"], np.int32)
    labels = np.frombuffer(columns["labels"], np.int32)
    kind = np.frombuffer(columns["kind"], np.uint8)
    bits = np.frombuffer(columns["bits"], np.int64)
    names, sets = columns["metrics"], columns["label_sets"]
    units = [unit(name) for name in names]
    words = sorted(set(units))
    of_unit = np.array([words.index(u) for u in units], np.int32)
    texts = pa.nulls(rows, pa.string())
    if columns["texts"]:
        place = np.full(rows, -1)
        place[kind == 2] = np.arange(len(columns["texts"]))
        taken = pa.array(place, pa.int64(), mask=kind != 2)
        texts = pa.array(columns["texts"], pa.string()).take(taken)
    table = pa.table(
        [
            _dictionary(metric, names),
            _dictionary(labels, sets),
            pa.array(np.frombuffer(columns["utc_ns"], np.int64)),
            pa.nulls(rows, pa.int64()),
            _values(bits.view(np.float64), kind != 0, pa.float64()),
            _values(bits, kind != 1, pa.int64()),
            texts,
            _values(bits != 0, kind != 3, pa.bool_()),
            _dictionary(of_unit[metric] if rows else metric, words),
        ],
        schema=POINTS,
    )
    odd_names = np.array([not name.isprintable() for name in names], bool)
    odd_sets = np.array([not one.isprintable() for one in sets], bool)
    if odd_names.any() or odd_sets.any():
        odd = odd_names[metric] | odd_sets[labels]
        return table.filter(pa.array(~odd)), int(odd.sum())
    return table, 0


def _values(values: Any, missing: Any, kind: pa.DataType) -> pa.Array:
    if missing.all():
        return pa.nulls(len(missing), kind)
    return pa.array(values, kind, mask=missing if missing.any() else None)


def _dictionary(indices: Any, texts: Sequence[str]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(
        pa.array(indices, pa.int32()), pa.array(texts, pa.string())
    )


async def due(interval_s: float, receipt: Receipt) -> AsyncIterator[int]:
    """When each poll begins [ns since 1970]: poll k at t0 + k x interval, and never made up for.

    Counts in the receipt what was `due`, and `missed` what could not begin as another one went on.
    """
    loop = asyncio.get_running_loop()
    t0, k = loop.time(), 0
    while True:
        await asyncio.sleep(max(0.0, t0 + k * interval_s - loop.time()))
        receipt.counted["due"] += 1
        yield time.time_ns()
        next_k = max(k + 1, int((loop.time() - t0) / interval_s))
        receipt.counted["missed"] += next_k - k - 1
        receipt.counted["due"] += next_k - k - 1
        k = next_k


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
    ) -> None:
        self.receipt = Receipt(source)
        self._sink, self._in_order, self._unit = sink, in_order, unit
        self._lock = threading.Lock()
        self._reader: Any = native.PointReader(in_order=in_order)
        self._number = sink.next_number(source)
        #: whether there was one of its name before, which a crash or a stop ended
        self.began_anew = self._number > 0
        self._told_anew = not self.began_anew

    def read(self, protocol: str, *words: Any) -> dict[str, int]:
        """Reads a message by a method of `PointReader`, keeps its points, gives what was refused, by reason.

        ValueError where the message as a whole is none.
        """
        found = self.read_all([(protocol, *words)])[0]
        if isinstance(found, ValueError):
            raise found
        return found

    def read_all(self, messages: Sequence[tuple[Any, ...]]) -> list[dict[str, int] | ValueError]:
        """Reads messages and keeps their points as one batch. Gives of each what `read` gives, or raises."""
        with self._lock:
            found = [self._message(self._reader, *message) for message in messages]
            table, odd = table_of(self._reader.take(), self._unit)
            self._odd(odd)
            self._keep(table)
            return found

    def read_numbered(self, source: str, number: int, protocol: str, *words: Any) -> Accepted:
        """A message that its sender numbered itself: sent once more it changes nothing.

        Held where its source is a running collector's, as is our own.
        """
        if source == self.receipt.source:
            raise Held(source)
        with self._lock:
            reader = native.PointReader(in_order=False)
            found = self._message(reader, protocol, *words)
            if isinstance(found, ValueError):
                raise found
            table, odd = table_of(reader.take(), self._unit)
            self._odd(odd)
            accepted = self._sink.write(Batch(source, number, table))
            self._count(accepted, 0 if accepted.duplicate else table.num_rows)
            return accepted

    def keep(
        self, table: pa.Table, accounts: Sequence[Account] = (), events: Sequence[Event] = ()
    ) -> None:
        """Keeps points that are in a table already."""
        with self._lock:
            self.receipt.received += table.num_rows
            self._keep(table, accounts, events)

    def refuse(self, reason: str, what: str, count: int = 1) -> None:
        """Counts what was refused before it could be read."""
        with self._lock:
            self.receipt.refused[reason] += count
            self.receipt.tell(what)

    def _message(self, reader: Any, protocol: str, *words: Any) -> dict[str, int] | ValueError:
        try:
            said = getattr(reader, protocol)(*words)
        except ValueError as error:
            self.receipt.refused["malformed"] += 1
            self.receipt.tell(str(error))
            return error
        refused = Counter(dict(said["refused"]))
        self.receipt.received += said["points"] + refused.total()
        self.receipt.refused += refused
        for line, what in said["told"]:
            self.receipt.tell(f"line {line}: found {what}")
        return dict(refused)

    def _odd(self, points: int) -> None:
        if points:
            self.receipt.refused["malformed"] += points

    def _keep(
        self, table: pa.Table, accounts: Sequence[Account] = (), events: Sequence[Event] = ()
    ) -> None:
        if not (table.num_rows or accounts or events):
            return
        if not self._told_anew:
            detail = f"the collector began anew after batch {self._number - 1}"
            events = [*events, Event("restart", time.time_ns(), detail=detail)]
        batch = Batch(self.receipt.source, self._number, table, accounts, events)
        try:
            accepted = self._sink.write(batch)
        except BaseException:
            # what is sent again is not to be taken for a second value of its time
            self._reader = native.PointReader(in_order=self._in_order)
            self.receipt.received -= table.num_rows
            raise
        self._number += 1
        self._told_anew = True
        self._count(accepted, table.num_rows)

    def _count(self, accepted: Accepted, rows: int) -> None:
        self.receipt.batches += 1
        self.receipt.repeated += accepted.duplicate
        self.receipt.stored += 0 if accepted.duplicate else rows


#: a message, its bytes, and who waits for it
_Waiting = tuple[tuple[Any, ...], int, asyncio.Future[dict[str, int]]]
#: bytes of messages that are kept together: at six a point, no more points than a batch may have
TOGETHER_BYTES = 8 << 20


class Together:
    """Messages of many connections into one intake, from one event loop: those that come during a write share
    the next, and its sync."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._waiting: deque[_Waiting] = deque()
        self._at_work: asyncio.Task[None] | None = None

    async def read(self, protocol: str, message: bytes, *words: Any) -> dict[str, int]:
        """As `Intake.read`."""
        done: asyncio.Future[dict[str, int]] = asyncio.get_running_loop().create_future()
        self._waiting.append(((protocol, message, *words), len(message), done))
        if self._at_work is None or self._at_work.done():
            self._at_work = asyncio.create_task(self._work())
        return await done

    async def stop(self) -> None:
        """Returns once nothing waits any more."""
        if self._at_work is not None:
            await self._at_work

    async def _work(self) -> None:
        while self._waiting:
            taken: list[_Waiting] = []
            size = 0
            while self._waiting and (not taken or size + self._waiting[0][1] <= TOGETHER_BYTES):
                taken.append(self._waiting.popleft())
                size += taken[-1][1]
            found: Sequence[dict[str, int] | BaseException]
            try:
                messages = [message for message, _, _ in taken]
                found = await asyncio.to_thread(self._intake.read_all, messages)
            except Exception as error:
                found = [error] * len(taken)
            for (_, _, done), what in zip(taken, found, strict=True):
                if done.done():  # its connection is gone
                    continue
                if isinstance(what, BaseException):
                    done.set_exception(what)
                else:
                    done.set_result(what)


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
