"""Samples of a monitored command as points of its experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.archive.series.entities import PROCESS, bucket_of
from penstock.parts.monitoring.experiments.entities import labels_of_entity
from penstock.parts.monitoring.experiments.points import (
    MOST_POINTS,
    Account,
    Batch,
    points,
    series_of,
)

#: polled sources, whose values may be missing: each poll has a value of `up`
_POLLED = ("file", "command")
#: prefixes of metrics that a sample may lack
_OPTIONAL = ("process_", "command_", "sampler_source_")
SOURCES = ("samples", "utilisation")

Ints = npt.NDArray[np.int64]


class Sent:
    """Bitmap of the points of a source that were sent before, and the number of its next batch."""

    def __init__(self) -> None:
        self.number = 0
        self._codes: dict[tuple[str, str], int] = {}
        #: by batch: times, series, and bitmap of times x series
        self._sent: list[tuple[Ints, Ints, npt.NDArray[np.uint8]]] = []

    def code(self, metric: str, labels: str) -> int:
        """Number of a series in this source."""
        return self._codes.setdefault((metric, labels), len(self._codes))

    def add(self, utc_ns: Ints, codes: Ints) -> None:
        """Add the points of one batch, by their times and series."""
        times, row = np.unique(utc_ns, return_inverse=True)
        series, column = numbered(codes)
        present = np.zeros((len(times), len(series)), bool)
        present[row, column] = True
        if self._sent and np.array_equal(self._sent[-1][1], series):
            series = self._sent[-1][1]  # share equal arrays
        self._sent.append((times, series, np.packbits(present)))
        self.number += 1

    def unsent(self, columns: pa.Table) -> npt.NDArray[np.bool_]:
        """Mask of the rows of a table of points that were not sent."""
        if not self._sent:
            return np.ones(len(columns), bool)
        names, of_row = series_of(columns)
        codes = np.array([self._codes.get(n, -1) for n in names], np.int64)[of_row]
        times = np.unique(np.concatenate([t for t, _, _ in self._sent]))
        most = len(self._codes)
        keys = []
        for batch_times, series, bits in self._sent:
            shape = len(batch_times), len(series)
            present = np.unpackbits(bits, count=shape[0] * shape[1]).reshape(shape[0], -1)
            row, column = np.nonzero(present)
            keys.append(np.searchsorted(times, batch_times)[row] * most + series[column])
        utc_ns = columns["utc_ns"].to_numpy()
        index = np.minimum(np.searchsorted(times, utc_ns), len(times) - 1)
        candidate = (times[index] == utc_ns) & (codes >= 0)
        unsent: npt.NDArray[np.bool_] = ~(
            candidate & np.isin(index * most + codes, np.concatenate(keys))
        )
        return unsent


def numbered(codes: Ints) -> tuple[Ints, Ints]:
    """Sorted unique codes, and their index for each code, as `np.unique` but without sorting."""
    used = np.flatnonzero(np.bincount(codes))
    index = np.zeros(int(used[-1]) + 1 if len(used) else 0, np.int64)
    index[used] = np.arange(len(used))
    return used, index[codes]


def first_account(
    metric: str, labels: str, entity: str, counter: bool, interval_ns: int, since_ns: int
) -> Account:
    """Account of a series at its first point; `sampled` writes the final one."""
    if metric.startswith((*_OPTIONAL, "file_value", "block_latency_")) or PROCESS.fullmatch(entity):
        return Account(metric, labels, counter=counter, free=True)
    return Account(metric, labels, interval_ns=interval_ns, since_ns=since_ns, counter=counter)


def sampled(
    tables: Mapping[str, pa.Table],
    expected: int,
    shift_ns: int,
    sent: Mapping[str, Sent] | None = None,
) -> Sequence[Batch]:
    """Tables of a monitored command as batches of two sources: `samples`, and the derived `utilisation`.

    A metric is `SOURCE_METRIC` or `KIND_METRIC`; its entity becomes labels by `labels_of_entity`. `expected`:
    number of samples due; `shift_ns`: UTC minus CLOCK_MONOTONIC. Points that were `sent` before, by source,
    are omitted; the accounts count all points.
    """
    batches = []
    missed = max(0, expected - len(tables["samples"]["t_ns"].unique()))
    for source, kind in zip(SOURCES, ("source", "kind"), strict=True):
        table = tables[source]
        table = table.filter(table["value"].is_valid())
        metric = pc.binary_join_element_wise(
            table[kind].cast(pa.string()), table["metric"].cast(pa.string()), "_"
        )
        coded = table["entity"].cast(pa.string()).combine_chunks().dictionary_encode()
        entities = coded.dictionary.to_pylist()
        label_sets = [labels_of_entity(e) for e in entities]
        labels = pa.DictionaryArray.from_arrays(coded.indices, pa.array(label_sets, pa.string()))
        columns = points(
            metric=metric,
            labels=labels,
            utc_ns=pc.add(table["t_ns"], shift_ns),
            float=table["value"],
            unit=table["unit"],
        )
        text = labels.cast(pa.string())
        counter = table["cumulative"] if source == "samples" else pa.repeat(False, len(text))
        rows = (
            pa.table({"metric": metric, "labels": text, "counter": counter})
            .group_by(["metric", "labels", "counter"])
            .aggregate([("metric", "count")])
            .to_pylist()
        )
        polls = _polls_due(table) if source == "samples" else {}
        # a bucket begins with its first request, and processes start and exit
        buckets = {text for text, e in zip(label_sets, entities, strict=True) if bucket_of(e)}
        processes = {
            text for text, e in zip(label_sets, entities, strict=True) if PROCESS.fullmatch(e)
        }
        accounts = []
        for r in rows:
            name, present = (r["metric"], r["labels"]), r["metric_count"]
            if name in polls:
                due = polls[name]
            elif name[1] in processes or name[0].startswith(_OPTIONAL):
                due = present
            elif source == "samples" and name[1] not in buckets:
                due = expected
            else:  # points present, plus missed samples
                due = present + missed
            accounts.append(Account(*name, expected=due, counter=r["counter"]))
        earlier = (sent or {}).get(source, Sent())
        columns = columns.filter(pa.array(earlier.unsent(columns)))
        starts = range(0, max(1, len(columns)), MOST_POINTS)
        for number, first in enumerate(starts, earlier.number):
            part = columns.slice(first, MOST_POINTS)
            batches.append(Batch(source, number, part, accounts if first == starts[-1] else ()))
    return batches


def _polls_due(table: pa.Table) -> dict[tuple[str, str], int]:
    """Number of values due for each file and command, from its first to its last value."""
    counts = {}
    for source in _POLLED:
        subset = table.filter(pc.equal(table["source"], source))
        frame = subset.select(["t_ns", "entity", "metric"]).to_pandas()
        for entity, rows in frame.groupby("entity", observed=True):
            values = rows.loc[rows["metric"] == "value", "t_ns"]
            polls = rows.loc[rows["metric"] == "up", "t_ns"]
            if len(values):
                due = int(polls.between(values.min(), values.max()).sum())
                counts[f"{source}_value", labels_of_entity(str(entity))] = due
    return counts
