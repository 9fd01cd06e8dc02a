"""Buffer of a program's points in memory, which a thread writes in numbered batches.

    buffer = Buffered(write, "python-1f", every_s=2.0)
    buffer.add(Series("queue", "{}", "1", "integer", ("utc_ns",)), values, times)
    buffer.close()                                     # write the rest

The program does not wait for a server: a batch that cannot be written is retried under the same number.
"""

from __future__ import annotations

import contextlib
import math
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import Away, PenstockError
from penstock.parts.monitoring.experiments.points import Account, Batch, checked, points
from penstock.parts.monitoring.outbox.client import patiently
from penstock.parts.monitoring.outbox.pushing import BATCH_POINTS

#: maximum number of buffered points; later ones are lost, and counted
MOST_WAITING = 5_000_000
#: longest wait for an unreachable server at the end [s]
PATIENCE_S = 10.0

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Series:
    """Common attributes of points. `kind`: column of their values; `axes`: `utc_ns`, `index` or both."""

    metric: str
    labels: str
    unit: str
    kind: str
    axes: tuple[str, ...]


class Buffered:
    """Buffer of the points of one source, written every `every_s` seconds, and at the end.

    If `every_s` is infinite, it is written only at the end.
    """

    def __init__(self, write: Callable[[Batch], None], source: str, every_s: float) -> None:
        self._write, self._source = write, source
        self._pause_s = None if math.isinf(every_s) else every_s
        self._buffer: dict[Series, list[tuple[Array, ...]]] = {}
        self._produced: dict[Series, int] = {}
        self._waiting = self._lost = self._number = 0
        self._batches: deque[Batch] = deque()
        self._error: PenstockError | None = None
        self._reported = False
        self._lock, self._closing = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="recording", daemon=True)
        self._thread.start()

    def add(self, series: Series, values: Array, *positions: Array) -> None:
        """Buffer points. BadInput for invalid ones; raises the error of the store for earlier ones."""
        if self._error is not None:
            raise self._error
        if series not in self._produced:
            checked(
                Batch(
                    self._source, 0, table_of(series, [(values[:1], *(p[:1] for p in positions))])
                )
            )
        with self._lock:
            self._produced[series] = self._produced.get(series, 0) + len(values)
            if self._waiting + len(values) > MOST_WAITING:
                self._lost += len(values)
                return
            self._waiting += len(values)
            self._buffer.setdefault(series, []).append((values, *positions))

    def close(self) -> None:
        """Write the buffered points. Raises the error of the store for points that it refused."""
        self._closing.set()
        self._thread.join()
        if lost := self._lost + self._waiting:
            print(f"penstock: {lost} points were not stored", file=sys.stderr)
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        try:
            while not self._closing.wait(self._pause_s):
                self._batches.extend(self._drained())
                try:
                    self._send()
                except Away as error:
                    self._report(f"{error}; trying again")
            self._batches.extend(self._drained(last=True))
            with contextlib.suppress(Away):
                patiently(self._send, PATIENCE_S, self._report)
        except PenstockError as error:
            self._error = error

    def _send(self) -> None:
        """Write all waiting batches. Raises Away for an error that a retry may solve."""
        while self._batches:
            self._write(self._batches[0])
            self._reported = False
            batch = self._batches.popleft()
            with self._lock:
                self._waiting -= batch.points.num_rows

    def _report(self, message: str) -> None:
        """Print a message once, until a batch is written again."""
        if not self._reported:
            print(f"penstock: {message}", file=sys.stderr)
        self._reported = True

    def _drained(self, last: bool = False) -> Iterator[Batch]:
        """Buffered points as batches; the last one has the number of points of each series."""
        with self._lock:
            buffer, self._buffer = self._buffer, {}
        tables = [table_of(series, parts) for series, parts in buffer.items()]
        if not tables and not (last and self._produced):
            return
        table = pa.concat_tables([points(metric=[]), *tables])
        table = table.unify_dictionaries().combine_chunks()
        for low in range(0, max(1, table.num_rows), BATCH_POINTS):
            ends = last and low + BATCH_POINTS >= table.num_rows
            accounts = self._accounts() if ends else ()
            yield Batch(self._source, self._number, table.slice(low, BATCH_POINTS), accounts)
            self._number += 1

    def _accounts(self) -> list[Account]:
        time_series = [(s, n) for s, n in self._produced.items() if "index" not in s.axes]
        return [Account(s.metric, s.labels, produced=n) for s, n in time_series]


def table_of(series: Series, parts: list[tuple[Array, ...]]) -> pa.Table:
    """Points of a series from parts of it: values, and their times or indexes."""
    values, *positions = (np.concatenate(column) for column in zip(*parts, strict=True))
    column: Any = values.tolist() if series.kind == "text" else values
    return points(
        metric=series.metric,
        labels=series.labels,
        unit=series.unit,
        **{series.kind: column},
        **dict(zip(series.axes, positions, strict=True)),
    )
