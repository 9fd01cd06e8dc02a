"""Send samples from a spool to an experiment while the command runs.

    sending = Sending(write, interval_ns, shift_ns)
    sending.follow(spool)              # start to send about every second
    sending.end()
    for batch in sending.rest(tables, due):
        …

In total, the points that `sampled` computes from the tables are sent. Therefore only samples that are stored
for a run of any length are sent early. Utilisation of the beginning of a run is deferred until the beginning
is over, because a shorter run computes it from samples at shorter intervals.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import PenstockError
from penstock.observe.sampler.monitor import BEGINNING_NS, CLOSE_NS, link_capacities
from penstock.observe.sampler.spool_reader import Follower, Ints, Values
from penstock.parts.monitoring.experiments.entities import labels_of_entity
from penstock.parts.monitoring.experiments.points import Account, Batch, points
from penstock.parts.monitoring.outbox.sampled import SOURCES, Sent, first_account, numbered, sampled
from penstock.spec.alert import METRICS

#: default interval between batches [s]
EVERY_S = 1.0
#: longest pause after a failed batch [s]
_LONGEST_PAUSE_S = 8.0
#: number of past samples to which records may be added late
_RECENT_SAMPLES = 64


class Sending:
    """Thread that sends the records of a spool, with retries.

    `write` sends one batch and raises PenstockError if it was not stored; `report` is called with the first
    such error. Unsent records stay in the spool, not in memory. If `every_s` is 0, everything is sent by
    `rest`.
    """

    def __init__(
        self,
        write: Callable[[Batch], Any],
        interval_ns: int,
        shift_ns: int,
        every_s: float = EVERY_S,
        report: Callable[[str], Any] = lambda _: None,
    ) -> None:
        self._write, self._report = write, report
        self._interval_ns, self._shift_ns, self._every_s = interval_ns, shift_ns, every_s
        self._sent = {source: _Source(interval_ns) for source in SOURCES}
        self._waiting: list[Batch] = []
        self._series_codes: list[int] = []
        self._start_ns: int | None = None
        self._seen_ns = self._used_ns = -1
        self._sample_times = np.zeros(0, np.int64)
        self._deferred: list[Values] | None = [] if interval_ns > CLOSE_NS else None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def follow(self, spool: Path) -> None:
        """Start to send."""
        if not self._every_s:
            return
        self._follower = Follower(spool, link_capacities())
        self._thread = threading.Thread(target=self._run, name="sending", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop sending, without waiting for a batch that is being sent."""
        self._over.set()

    def rest(self, tables: Mapping[str, pa.Table], due: int) -> Sequence[Batch]:
        """Unsent batches of a monitor's tables, with all accounts; `due`: number of samples due."""
        self.end()
        if self._thread is not None:
            self._thread.join()
        sent = {name: source.sent for name, source in self._sent.items()}
        return [*self._waiting, *sampled(tables, due, self._shift_ns, sent)]

    def _run(self) -> None:
        pause_s, reported = self._every_s, False
        while not self._over.wait(pause_s):
            try:
                self._send()
                pause_s = self._every_s
            except PenstockError as error:
                pause_s = max(pause_s, min(2 * pause_s, _LONGEST_PAUSE_S))
                if not reported:
                    reported = True
                    self._report(f"{error}; samples are stored locally and sent later")
            except Exception as error:  # the command continues; `rest` sends everything
                if not self._over.is_set():  # the spool is removed with the command
                    self._report(f"samples are sent at the end: {error}")
                return

    def _send(self) -> None:
        while True:
            while self._waiting:
                self._write(self._waiting[0])
                del self._waiting[0]
            if self._over.is_set():
                return
            records = self._follower.growing.piece()
            if not len(records):
                return
            retained = self._retained(records)
            from_commands = np.isin(records["series"], self._numbers("command"))
            self._waiting += self._samples(records[retained | from_commands])
            self._waiting += self._utilisation(records[retained & ~from_commands])

    def _retained(self, records: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Mask of the records that are stored for a run of any length, as `monitor._of_use`."""
        times = records["t_ns"]
        if self._start_ns is None:
            late = records[np.isin(records["series"], self._numbers("sampler", "lateness"))][0]
            self._start_ns = int(late["t_ns"]) - int(late["value"])
        new = np.unique(times)
        new = new[new > self._seen_ns]
        number = (new - self._start_ns) // self._interval_ns
        last = (self._seen_ns - self._start_ns) // self._interval_ns
        _, first = np.unique(number, return_index=True)
        fresh = new[first[number[first] > last]] if self._seen_ns >= 0 else new[first]
        self._seen_ns = int(new[-1]) if len(new) else self._seen_ns
        sample_times = np.concatenate([self._sample_times, fresh])
        self._sample_times = sample_times[-_RECENT_SAMPLES:]
        retained: npt.NDArray[np.bool_] = np.isin(times, sample_times)
        return retained

    def _numbers(self, source: str, metric: str | None = None) -> list[int]:
        numbered_series = enumerate(self._follower.growing.series)
        return [n for n, s in numbered_series if s.source == source and metric in (None, s.metric)]

    def _samples(self, records: npt.NDArray[Any]) -> list[Batch]:
        if not len(records):
            return []
        source, utc_ns = self._sent["samples"], records["t_ns"] + self._shift_ns
        for number in range(len(self._series_codes), len(self._follower.growing.series)):
            series = self._follower.growing.series[number]
            metric = f"{series.source}_{series.metric}"
            code = source.code(metric, series.entity, series.unit, series.cumulative)
            self._series_codes.append(code)
        codes = np.array(self._series_codes, np.int64)[records["series"].astype(np.int64)]
        return [source.batch("samples", utc_ns, codes, records["value"])]

    def _utilisation(self, records: npt.NDArray[Any]) -> list[Batch]:
        parts = self._follower.utilisation(records)
        assert self._start_ns is not None
        if self._deferred is not None:
            self._deferred += parts
            if self._seen_ns - self._start_ns <= BEGINNING_NS:
                return []
            parts, self._deferred = self._deferred, None
        source, rows = self._sent["utilisation"], []
        for part in parts:
            unsent = ~np.isnan(part.values) & (part.t_ns > self._used_ns)
            code = source.code(part.metric, part.entity, METRICS[part.metric], False)
            rows.append((part.t_ns[unsent], np.full(int(unsent.sum()), code), part.values[unsent]))
        if not any(len(t) for t, _, _ in rows):
            return []
        t_ns, codes, values = map(np.concatenate, zip(*rows, strict=True))
        self._used_ns = int(t_ns.max())
        return [source.batch("utilisation", t_ns + self._shift_ns, codes, values)]


class _Source:
    """Series of one source, in order of appearance, and their points that were sent."""

    def __init__(self, interval_ns: int) -> None:
        self.sent = Sent()
        self._interval_ns = interval_ns
        #: by number: metric, labels, unit, entity, True for a counter
        self._series: list[tuple[str, str, str, str, bool]] = []
        self._announced: set[int] = set()

    def code(self, metric: str, entity: str, unit: str, counter: bool) -> int:
        """Number of a series, assigned at the first call."""
        labels = labels_of_entity(entity)
        code = self.sent.code(metric, labels)
        if code == len(self._series):
            self._series.append((metric, labels, unit, entity, counter))
        return code

    def batch(self, name: str, utc_ns: Ints, codes: Ints, values: npt.NDArray[np.float64]) -> Batch:
        """The next batch, with accounts of new series."""
        used, index = numbered(codes)
        columns = {}
        for field, column in enumerate(("metric", "labels", "unit")):
            texts = pa.array([self._series[n][field] for n in used], pa.string())
            coded = texts.dictionary_encode()
            columns[column] = pa.DictionaryArray.from_arrays(
                coded.indices.take(pa.array(index)), coded.dictionary
            )
        accounts: list[Account] = []
        for code in set(used.tolist()) - self._announced:
            metric, labels, _, entity, counter = self._series[code]
            since_ns = int(utc_ns[codes == code].min())
            accounts.append(
                first_account(metric, labels, entity, counter, self._interval_ns, since_ns)
            )
            self._announced.add(code)
        table = points(utc_ns=utc_ns, float=values, **columns)
        number = self.sent.number
        self.sent.add(utc_ns, codes)
        return Batch(name, number, table, accounts)
