"""The newest number of each series of experiments while they run; each call reads only new batches.

newest = Newest()
newest.of(experiment.live)[Name("scraper", "disk_busy", '{"node":"n1"}')].value
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.parts.monitoring.experiments.points import Batch, numbers_of
from penstock.parts.monitoring.experiments.spool import Spool

#: bytes of a source that one call reads at most, series of an experiment that are kept at most
MOST_READ, MOST_SERIES = 16 << 20, 20_000


class Name(NamedTuple):
    """Identity of a series."""

    source: str
    metric: str
    labels: str


class Value(NamedTuple):
    """The newest number of a series and its time [ns since 1970 UTC]."""

    utc_ns: int
    value: float


class Newest:
    """Newest values of running experiments, by their live directory. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[Path, dict[Path, int]] = {}
        self._values: dict[Path, dict[Name, Value]] = {}

    def of(self, live: Path) -> Mapping[Name, Value]:
        """Newest values by series; texts, and points without a time, are skipped."""
        with self._lock:
            values = self._values.setdefault(live, {})
            # it may end meanwhile
            with contextlib.suppress(OSError):
                for batch in Spool(live).newer(self._seen.setdefault(live, {}), MOST_READ):
                    _take(values, batch)
            return dict(values)

    def keep(self, living: Iterable[Path]) -> None:
        """Forget all other experiments."""
        there = set(living)
        with self._lock:
            for gone in self._values.keys() - there:
                del self._values[gone]
                self._seen.pop(gone, None)


def _take(values: dict[Name, Value], batch: Batch) -> None:
    numbers = numbers_of(batch.points)
    use = np.asarray(numbers.is_valid()) & np.asarray(batch.points["utc_ns"].is_valid())
    table = batch.points.filter(pa.array(use)).combine_chunks()
    if not table.num_rows:
        return
    metric, labels = (table[n].combine_chunks() for n in ("metric", "labels"))
    of = np.asarray(metric.indices, np.int64) * len(labels.dictionary) + np.asarray(labels.indices)
    utc_ns = np.asarray(table["utc_ns"], np.int64)
    order = np.lexsort((utc_ns, of))
    last = order[np.append(of[order][1:] != of[order][:-1], True)]
    valid = np.asarray(numbers.filter(pa.array(use)), np.float64)
    for row in last.tolist():
        name = Name(batch.source, metric[row].as_py(), labels[row].as_py())
        newest = Value(int(utc_ns[row]), float(valid[row]))
        previous = values.get(name)
        if previous is None and len(values) >= MOST_SERIES:
            continue
        if previous is None or previous.utc_ns <= newest.utc_ns:
            values[name] = newest
