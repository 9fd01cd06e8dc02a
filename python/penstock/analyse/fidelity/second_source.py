"""Comparison of a disk's log with the tracer's events, and the limits of disagreement."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from penstock.analyse.fidelity.fidelity_log import frame as _frame

#: maximum disagreement of two sources; beyond it both are in doubt
CONFIRM_LIMIT = 0.05
#: the same for a 99th percentile: it does not invalidate a run, but the disk does not confirm it
TAIL_LIMIT = 0.15
#: minimum number of requests for a comparison of means, and of 99th percentiles
FEWEST, FEWEST_TAIL = 20, 500


def confirm(
    io_events: pa.Table | pd.DataFrame,
    device_requests: pa.Table | pd.DataFrame,
    *,
    direct: bool,
) -> pa.Table:
    """The tracer's bytes and times against the disk's, per file and direction.

    Rows: file, direction, metric ('bytes', 'time'), traced, disk, ratio, unit, n, agrees. Times (means of
    one call) are compared for direct I/O only, where one call is one request. `io_events` needs `path`
    relative to the mount (or `file`), `direction`, `done_bytes`, `latency_ns`.
    """
    events = _frame(io_events).rename(columns={"path": "file"})
    requests = _frame(device_requests)
    requests = requests[requests["op"].astype(str) != "flush"].assign(
        direction=lambda t: t["op"].astype(str),
        took_ns=lambda t: t["done_ns"] - t["t_ns"] + t.get("compensation_ns", 0),
    )
    keys = ["file", "direction"]
    for frame in (events, requests):
        for key in keys:
            frame[key] = frame[key].astype(str)
    traced = events.groupby(keys).agg(
        bytes=("done_bytes", "sum"), time=("latency_ns", "mean"), n=("done_bytes", "size")
    )
    served = requests.groupby(keys).agg(
        bytes=("size_bytes", "sum"), time=("took_ns", "mean"), n=("size_bytes", "size")
    )
    both = traced.add_suffix("_traced").join(served.add_suffix("_disk"), how="outer").fillna(0.0)
    rows = []
    for metric, unit in (("bytes", "B"), ("time", "ns")):
        if metric == "time" and not direct:
            continue
        part = both.reset_index()
        ratio = np.where(
            part[f"{metric}_traced"] > 0,
            part[f"{metric}_disk"] / part[f"{metric}_traced"].replace(0, np.nan),
            np.nan,
        )
        rows.append(
            pd.DataFrame(
                {
                    "file": part["file"],
                    "direction": part["direction"],
                    "metric": metric,
                    "traced": part[f"{metric}_traced"].astype(float),
                    "disk": part[f"{metric}_disk"].astype(float),
                    "ratio": ratio,
                    "unit": unit,
                    "n": part["n_traced"].astype("int64"),
                    "agrees": np.abs(ratio - 1.0) <= CONFIRM_LIMIT,
                }
            )
        )
    return pa.Table.from_pandas(pd.concat(rows, ignore_index=True), preserve_index=False)


#: descriptions of the metrics that invalidate a run
_WHAT = {
    "time": "mean time of {direction}s",
    "bytes": "bytes of {direction}s",
    "ops": "requests of {direction}s",
    "synced": "mean time of a {direction} and its sync",
}


def doubts(rows: Iterable[Mapping[str, Any]], witness: str) -> list[str]:
    """Messages: the largest disagreement of a source with the disks' logs; empty if there is none.

    `rows`: of `confirm` or `fio_witness.confirm_fio`; `witness`: the column compared with `disk`.
    """
    apart = [r for r in rows if not r["agrees"] and r["n"] >= FEWEST and r["metric"] in _WHAT]
    if not apart:
        return []
    row = max(apart, key=lambda r: abs(r["ratio"] - 1) if math.isfinite(r["ratio"]) else math.inf)
    what = _WHAT[row["metric"]].format(direction=row["direction"])
    theirs, ours = (_amount(row[side], row["unit"]) for side in (witness, "disk"))
    teller = {"traced": "the tracer", "fio": "fio"}[witness]
    return [
        f"{what} is {theirs} by {teller} and {ours} by the disk's log "
        f"(limit {100 * CONFIRM_LIMIT:.0f} %)"
    ]


def _amount(value: float, unit: str) -> str:
    return f"{value / 1e3:.0f} us" if unit == "ns" else f"{value:,.0f}"
