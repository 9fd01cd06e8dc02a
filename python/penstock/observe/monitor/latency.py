"""Block latency among the monitor's samples: buckets that begin late, and quantiles of each interval."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from penstock.archive.histogram import quantiles
from penstock.archive.schemas import TABLES
from penstock.archive.series import Array
from penstock.observe.monitor.points import canonical_labels

SOURCE = "block_latency"
OPERATIONS = ("read", "write", "flush", "discard")
#: what is asked of each interval
QUANTILES = (0.5, 0.99)
_BUCKET = re.compile(r"(\S+) le=(\+Inf|[0-9.]+)")


def bucket_of(entity: str) -> tuple[str, str] | None:
    """Device and edge of the entity of a bucket, `vda le=0.000131072`; None of anything else."""
    found = _BUCKET.fullmatch(entity)
    return None if found is None else (found[1], found[2])


def labels_of_entity(entity: str) -> str:
    """Labels of a sample's entity: a bucket's edge is a label of its own."""
    bucket = bucket_of(entity)
    if bucket is None:
        return canonical_labels({"entity": entity})
    return canonical_labels({"entity": bucket[0], "le": bucket[1]})


def with_beginnings(samples: pa.Table) -> pa.Table:
    """The samples with a 0 of each counter of block latency at the sample before its first one.

    Counters of 0 are left out by the sampler; without that a difference would lack the first requests.
    """
    mine = samples.filter(pc.and_(pc.equal(samples["source"], SOURCE), samples["cumulative"]))
    if not mine.num_rows:
        return samples
    frame = mine.to_pandas()
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
    """Quantiles and means of each interval in which requests ended, by device and operation.

    `OP_p50`, `OP_p99` and `OP_mean` on the device, `OP_queue_p99` and `OP_queue_mean` before that.
    """
    frame = samples[samples["source"].astype(str) == SOURCE]
    if frame.empty:
        return
    times = np.sort(frame["t_ns"].unique()).astype(np.int64)
    buckets = frame["entity"].astype(str).str.extract(r"^(?P<device>\S+) le=(?P<le>\S+)$")
    metric = frame["metric"].astype(str)
    frame = frame.assign(metric=metric, le=buckets["le"].astype(float)).assign(
        device=buckets["device"].fillna(frame["entity"].astype(str))
    )
    for device, mine in frame.groupby("device"):
        for operation in OPERATIONS:
            for counts, total, name, asked in (
                ("requests", "time", operation, QUANTILES),
                ("queued", "queue_time", f"{operation}_queue", QUANTILES[-1:]),
            ):
                rows = mine[mine["metric"] == f"{operation}_{counts}"]
                if rows.empty or len(times) < 2:
                    continue
                wide = _by_time(rows, times)
                le_s, counted = wide.columns.to_numpy(float), np.diff(wide.to_numpy().T, axis=1)
                reset: npt.NDArray[np.bool_] = np.any(counted < 0, axis=0)
                counted = np.maximum(counted, 0.0)
                number = counted.sum(axis=0)
                use = (number > 0) | reset
                found = {f"p{100 * q:g}": quantiles(counted, le_s, q) for q in asked}
                sums = mine[mine["metric"] == f"{operation}_{total}"].assign(le=0.0)
                spent_ns = np.diff(_by_time(sums, times).to_numpy().T, axis=1).sum(axis=0)
                with np.errstate(divide="ignore", invalid="ignore"):
                    found["mean"] = spent_ns / 1e9 / number
                for which, values in found.items():
                    values = np.where(reset, np.nan, values)
                    told = f"{name}_{which}"
                    yield Latency(str(device), told, times[1:][use], values[use], reset[use])


def _by_time(rows: pd.DataFrame, times: npt.NDArray[np.int64]) -> pd.DataFrame:
    """Counters by time and bucket, in the order of the edges; 0 before a bucket was first met."""
    wide = rows.pivot_table(index="t_ns", columns="le", values="value", aggfunc="last")
    return wide.sort_index(axis=1).reindex(times).ffill().fillna(0.0)
