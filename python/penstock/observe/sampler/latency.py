"""Block latency from the monitor's samples: missing first buckets, and quantiles of each interval."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.archive.schemas import TABLES
from penstock.archive.series.entities import bucket_of
from penstock.archive.series.histogram import Array, quantiles

if TYPE_CHECKING:
    import pandas as pd

SOURCE = "block_latency"
OPERATIONS = ("read", "write", "flush", "discard")
#: values of each interval: counter of requests in buckets, sum of their times, quantiles
_COUNTERS: tuple[tuple[str, str, str, tuple[float, ...]], ...] = (
    ("requests", "time", "", (0.5, 0.99)),
    ("queued", "queue_time", "queue_", (0.99,)),
)


def with_beginnings(samples: pa.Table) -> pa.Table:
    """Samples with a 0 for each counter of block latency, at the sample before its first one.

    The sampler omits counters of 0; without them a difference would lack the first requests.
    """
    latency_rows = samples.filter(
        pc.and_(pc.equal(samples["source"], SOURCE), samples["cumulative"])
    )
    if not latency_rows.num_rows:
        return samples
    frame = latency_rows.to_pandas()
    times = np.sort(frame["t_ns"].unique())
    first = frame.loc[frame.groupby(["entity", "metric"], observed=True)["t_ns"].idxmin()]
    at = np.searchsorted(times, first["t_ns"].to_numpy()) - 1
    zeros = first[at >= 0].assign(t_ns=times[at[at >= 0]], value=0.0)
    schema = TABLES["samples"].arrow
    return pa.concat_tables(
        [samples, pa.Table.from_pandas(zeros, schema=schema, preserve_index=False)]
    )


@dataclass(frozen=True)
class Latency:
    """One metric of a device's latency [s] at the ends of intervals [ns]; NaN across a reset."""

    device: str
    metric: str
    t_ns: npt.NDArray[np.int64]
    values: Array
    reset: npt.NDArray[np.bool_]


def latencies(samples: pd.DataFrame) -> Iterator[Latency]:
    """Quantiles and means of each interval with completed requests, by device and operation.

    `OP_p50`, `OP_p99` and `OP_mean` in the device, `OP_queue_p99` and `OP_queue_mean` in the queue before it.
    """
    frame = samples[samples["source"].astype(str) == SOURCE].astype({"metric": str, "entity": str})
    if frame.empty:
        return
    wide = frame.pivot_table(
        index="t_ns", columns=["metric", "entity"], values="value", aggfunc="last"
    )
    numbers: dict[str, dict[str, int]] = {}
    for number, column in enumerate(wide.columns):
        numbers.setdefault(column[0], {})[column[1]] = number
    yield from latencies_of(numbers, wide.index.to_numpy(np.int64), wide.to_numpy(float))


def latencies_of(
    numbers: Mapping[str, Mapping[str, int]], t_ns: npt.NDArray[np.int64], wide: Array
) -> Iterator[Latency]:
    """Latencies from samples as columns (times × series); `numbers`: columns by metric and entity."""
    always = numbers.get("lost", {}).get("all")
    if always is None:
        return
    # an absent bucket had no request
    there = np.isfinite(wide[:, always])
    t_ns, wide = t_ns[there], np.nan_to_num(wide[there])
    if len(t_ns) < 2:
        return
    grown, now = np.diff(wide, axis=0).T, t_ns[1:]
    for operation in OPERATIONS:
        for counter, total, of, levels in _COUNTERS:
            devices: dict[str, list[tuple[float, int]]] = {}
            for entity, number in numbers.get(f"{operation}_{counter}", {}).items():
                if (bucket := bucket_of(entity)) is not None:
                    devices.setdefault(bucket[0], []).append((float(bucket[1]), number))
            sums = numbers.get(f"{operation}_{total}", {})
            for device, buckets in sorted(devices.items()):
                le_s, columns = (np.array(x) for x in zip(*sorted(buckets), strict=True))
                counts = grown[columns]
                spent_s = grown[sums[device]] / 1e9 if device in sums else np.zeros(len(now))
                results = _of_intervals(counts, le_s, spent_s, levels)
                reset: npt.NDArray[np.bool_] = np.any(counts < 0, axis=0)
                use = (counts.sum(axis=0) > 0) | reset
                for which, values in results.items():
                    # the sum of times affects only the mean
                    back = reset | (spent_s < 0) if which == "mean" else reset
                    values = np.where(back, np.nan, values)[use]
                    yield Latency(device, f"{operation}_{of}{which}", now[use], values, back[use])


def _of_intervals(
    counts: Array, le_s: Array, spent_s: Array, levels: Sequence[float]
) -> dict[str, Array]:
    counts = np.maximum(counts, 0.0)
    results = {f"p{100 * q:g}": quantiles(counts, le_s, q) for q in levels}
    with np.errstate(divide="ignore", invalid="ignore"):
        results["mean"] = spent_s / counts.sum(axis=0)
    return results
