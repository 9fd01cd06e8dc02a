"""A second source for what a disk did: the tracer's events, or the workload's own numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from penstock.analyse.fidelity_log import frame as _frame
from penstock.archive.schemas import TABLES

#: above this disagreement of two witnesses both are doubted
CONFIRM_LIMIT = 0.05
#: the same of a 99th percentile: it does not void a run, but is none that the disk vouches for
TAIL_LIMIT = 0.15
#: fewest requests by which a witness is believed, and by which its 99th percentile is
FEWEST, FEWEST_TAIL = 20, 500


def confirm(
    io_events: pa.Table | pd.DataFrame,
    device_requests: pa.Table | pd.DataFrame,
    *,
    direct: bool,
) -> pa.Table:
    """Second witness: the tracer's bytes and times against the disk's own, per file and direction.

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


#: what voids a run, in words
_WHAT = {"time": "mean time", "bytes": "bytes", "ops": "requests"}


def doubts(rows: Iterable[Mapping[str, Any]], witness: str) -> list[str]:
    """In words, the largest disagreement of a witness with the disks' logs; empty if there is none.

    `rows`: of `confirm` or `confirm_fio`; `witness`: whose column stands beside `disk`.
    """
    apart = [r for r in rows if not r["agrees"] and r["n"] >= FEWEST and r["metric"] in _WHAT]
    if not apart:
        return []
    row = max(apart, key=lambda r: abs(r["ratio"] - 1) if math.isfinite(r["ratio"]) else math.inf)
    what = _WHAT[row["metric"]]
    theirs, ours = (_amount(row[side], row["unit"]) for side in (witness, "disk"))
    teller = {"traced": "the tracer", "fio": "fio"}[witness]
    return [
        f"{what} of {row['direction']}s is {theirs} by {teller} and {ours} by the disk's log "
        f"(limit {100 * CONFIRM_LIMIT:.0f} %)"
    ]


def _amount(value: float, unit: str) -> str:
    return f"{value / 1e3:.0f} us" if unit == "ns" else f"{value:,.0f}"


#: rows of `confirm_fio`
FIO_SCHEMA = TABLES["second_source"].arrow


def confirm_fio(
    output: Mapping[str, Any],
    served: Mapping[str, Mapping[str, float]],
    *,
    direct: bool,
) -> pa.Table:
    """fio's own numbers beside the disk's, per direction; `agrees` is false where they are more than
    CONFIRM_LIMIT apart (TAIL_LIMIT for `p99`).

    `output`: fio's JSON; `served`: what the disk says, by direction: `bytes`, `ops` and, where they are
    known, `time_ns` (mean time in the disk) and `p99_ns`; fio's p99 is there where one group reports.
    Buffered jobs (`direct` false) are compared by bytes alone, and not their reads, which the page cache may
    serve; jobs with a ramp, which fio does not count, by their times alone. `ratio` is disk / fio.
    """
    options = [output.get("global options", {})]
    options += [job.get("job options", {}) for job in output.get("jobs", [])]
    counted_whole = not any(str(o.get("ramp_time", "0")) not in ("0", "") for o in options)
    rows: list[dict[str, Any]] = []
    for direction in ("read", "write"):
        sides = [job[direction] for job in output.get("jobs", []) if direction in job]
        amount = float(sum(side.get("io_bytes", 0) for side in sides))
        count = int(sum(side.get("total_ios", 0) for side in sides))
        mine = served.get(direction, {})
        if count == 0 or (direction == "read" and not direct):
            continue
        pairs = []
        if counted_whole:
            pairs.append(("bytes", amount, float(mine.get("bytes", 0.0)), "B"))
        if direct:
            if counted_whole:
                pairs.append(("ops", float(count), float(mine.get("ops", 0.0)), "1"))
            if "time_ns" in mine:
                mean = sum(side["clat_ns"]["mean"] * side["total_ios"] for side in sides) / count
                pairs.append(("time", mean, float(mine["time_ns"]), "ns"))
            tails = [side["clat_ns"].get("percentile", {}).get("99.000000") for side in sides]
            if "p99_ns" in mine and len(tails) == 1 and tails[0] and count >= FEWEST_TAIL:
                pairs.append(("p99", float(tails[0]), float(mine["p99_ns"]), "ns"))
        for metric, theirs, ours, unit in pairs:
            ratio = ours / theirs if theirs else float("nan")
            rows.append(
                {
                    "direction": direction,
                    "metric": metric,
                    "fio": theirs,
                    "disk": ours,
                    "ratio": ratio,
                    "unit": unit,
                    "n": count,
                    "agrees": bool(
                        abs(ratio - 1) <= (TAIL_LIMIT if metric == "p99" else CONFIRM_LIMIT)
                    ),
                }
            )
    return pa.Table.from_pylist(rows, schema=FIO_SCHEMA)


def served_by_log(device_requests: pa.Table | pd.DataFrame) -> dict[str, dict[str, float]]:
    """What a disk's log says it served, as `confirm_fio` takes it: bytes, ops, mean time
    and 99th percentile by direction."""
    table = _frame(device_requests)
    took = table["done_ns"] - table["t_ns"] + table.get("compensation_ns", 0)
    out = {}
    for direction in ("read", "write"):
        mine = table["op"].astype(str) == direction
        if mine.any():
            out[direction] = {
                "bytes": float(table.loc[mine, "size_bytes"].sum()),
                "ops": float(mine.sum()),
                "time_ns": float(took[mine].mean()),
                "p99_ns": float(took[mine].quantile(0.99)),
            }
    return out
