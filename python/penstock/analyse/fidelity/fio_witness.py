"""Comparison of fio's own results with the specified service of the run's disks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from penstock.analyse.fidelity.fidelity_log import frame as _frame
from penstock.analyse.fidelity.second_source import CONFIRM_LIMIT, FEWEST, FEWEST_TAIL, TAIL_LIMIT
from penstock.archive.schemas import TABLES

#: rows of `confirm_fio`
FIO_SCHEMA = TABLES["second_source"].arrow


@dataclass(frozen=True)
class _Side:
    """fio's counts of one direction, over all jobs; `tail_ns`: p99, of one reporting group."""

    bytes: float
    count: int
    total_ns: float
    tail_ns: float | None


def confirm_fio(
    output: Mapping[str, Any],
    served: Mapping[str, Mapping[str, float]],
    *,
    direct: bool,
) -> pa.Table:
    """Comparison of fio's results with the disk's, per direction; `agrees` is false if they differ by more
    than CONFIRM_LIMIT (TAIL_LIMIT for `p99`).

    `output`: fio's JSON; `served`: the disk's values by operation: `bytes`, `ops` and, if known, `time_ns`
    (mean due time) and `p99_ns`; fio's p99 requires a single reporting group. Jobs with a ramp, which fio
    does not count, are compared by their times only. Through the page cache (`direct` false) times are
    compared if each of the program's operations was one request, and writes with their syncs; the cache
    may serve a program sooner than the disk, so that only later replies are a disagreement. `ratio` is
    disk / fio.
    """
    sides = {name: side for name in ("read", "write") if (side := _side(output, name)) is not None}
    rows: list[dict[str, Any]] = []
    for direction, side in sides.items():
        disk = _with_own_flushes(output, direction, side, served)
        pairs = list(
            _direct(side, disk, _no_ramp(output)) if direct else _cached(direction, side, disk)
        )
        if direction == "write" and (both := _synced(output, sides, served, direct=direct)):
            pairs.append(("synced", *both, "ns"))
        for metric, theirs, ours, unit in pairs:
            ratio = ours / theirs if theirs else float("nan")
            limit = TAIL_LIMIT if metric == "p99" else CONFIRM_LIMIT
            rows.append(
                {
                    "direction": direction,
                    "metric": metric,
                    "fio": theirs,
                    "disk": ours,
                    "ratio": ratio,
                    "unit": unit,
                    "n": side.count,
                    "agrees": bool(abs(ratio - 1) <= limit or (not direct and ratio > 1)),
                }
            )
    return pa.Table.from_pylist(rows, schema=FIO_SCHEMA)


def _side(output: Mapping[str, Any], direction: str) -> _Side | None:
    sides = [job[direction] for job in output.get("jobs", []) if direction in job]
    count = int(sum(side.get("total_ios", 0) for side in sides))
    if count == 0:
        return None
    amount = float(sum(side.get("io_bytes", 0) for side in sides))
    total_ns = sum(side["clat_ns"]["mean"] * side["total_ios"] for side in sides)
    tails = [side["clat_ns"].get("percentile", {}).get("99.000000") for side in sides]
    tail = float(tails[0]) if len(tails) == 1 and tails[0] and count >= FEWEST_TAIL else None
    return _Side(amount, count, float(total_ns), tail)


def _no_ramp(output: Mapping[str, Any]) -> bool:
    """True if no job has a ramp."""
    options = [output.get("global options", {})]
    options += [job.get("job options", {}) for job in output.get("jobs", [])]
    return not any(str(o.get("ramp_time", "0")) not in ("0", "") for o in options)


_Pair = tuple[str, float, float, str]


def _direct(side: _Side, disk: Mapping[str, float], no_ramp: bool) -> Iterator[_Pair]:
    """Metric, fio's value, the disk's value and unit, for a program that bypasses the page cache."""
    if no_ramp:
        yield "bytes", side.bytes, float(disk.get("bytes", 0.0)), "B"
        yield "ops", float(side.count), float(disk.get("ops", 0.0)), "1"
    if "time_ns" in disk:
        yield "time", side.total_ns / side.count, float(disk["time_ns"]), "ns"
    if "p99_ns" in disk and side.tail_ns is not None:
        yield "p99", side.tail_ns, float(disk["p99_ns"]), "ns"


def _cached(direction: str, side: _Side, disk: Mapping[str, float]) -> Iterator[_Pair]:
    """The same for reads through the page cache, if each was one request of the disk."""
    alike = _near(disk.get("ops"), side.count) and _near(disk.get("bytes"), side.bytes)
    if direction == "write" or not alike or "time_ns" not in disk:
        return
    yield "time", side.total_ns / side.count, disk["time_ns"] * disk["ops"] / side.count, "ns"
    if "p99_ns" in disk and side.tail_ns is not None:
        yield "p99", side.tail_ns, float(disk["p99_ns"]), "ns"


def _synced(
    output: Mapping[str, Any],
    sides: Mapping[str, _Side],
    served: Mapping[str, Mapping[str, float]],
    *,
    direct: bool,
) -> tuple[float, float] | None:
    """Time of a write including its syncs [ns], by fio and by the disk; None if the page cache hides the
    requests.

    For mapped files the page is read first: fio's write is that read.
    """
    writes, flushes = served.get("write", {}), served.get("flush", {})
    latencies = [(job.get("sync") or {}).get("lat_ns") for job in output.get("jobs", [])]
    syncs = [lat for lat in latencies if lat]
    count = int(sum(lat.get("N", 0) for lat in syncs))
    side = sides["write"]
    timed = "time_ns" in writes and "time_ns" in flushes
    if not timed or count < FEWEST or not _near(flushes["ops"], count):
        return None
    if not (_near(writes["ops"], side.count) and (direct or _near(count, side.count))):
        return None
    theirs = side.total_ns + sum(float(lat["mean"]) * lat["N"] for lat in syncs)
    ours = writes["time_ns"] * writes["ops"] + flushes["time_ns"] * flushes["ops"]
    reads = served.get("read", {})
    if "read" not in sides and reads.get("ops"):
        if not _near(reads["ops"], side.count):
            return None
        ours += reads["time_ns"] * reads["ops"]
    return theirs / side.count, ours / side.count


def _with_own_flushes(
    output: Mapping[str, Any],
    direction: str,
    side: _Side,
    served: Mapping[str, Mapping[str, float]],
) -> Mapping[str, float]:
    """The disk's values of a direction; those of synchronous writes (`sync=`) include the flush."""
    disk, flushes = served.get(direction, {}), served.get("flush", {})
    synced = any((job.get("sync") or {}).get("total_ios") for job in output.get("jobs", []))
    if (
        direction == "read"
        or synced
        or "time_ns" not in disk
        or not _near(flushes.get("ops"), side.count)
    ):
        return disk
    both = {**disk, "time_ns": disk["time_ns"] + flushes["time_ns"]}
    both.pop("p99_ns", None)  # the p99 of a sum is unknown
    return both


def _near(one: float | None, other: float) -> bool:
    return one is not None and other > 0 and abs(one / other - 1) <= CONFIRM_LIMIT


def served_by_log(device_requests: pa.Table | pd.DataFrame) -> dict[str, dict[str, float]]:
    """Due times from a disk's log for `confirm_fio`, by operation (`read`, `write`, `flush`).

    Each has bytes, ops, and mean and 99th percentile of the due time, from the program's request on. Due
    times are used, not delivered ones: a late reply is late for the program as well, and of two delays in
    one direction, the disk's and the path's, the program observes the sum.
    """
    table = _frame(device_requests)
    until = np.where(table["due_ns"] > 0, table["due_ns"], table["done_ns"])
    due = pd.Series(until - table["t_ns"], table.index)
    if "compensation_ns" in table:
        due += table["compensation_ns"].fillna(0)
    out = {}
    for operation in ("read", "write", "flush"):
        matches = table["op"].astype(str) == operation
        if matches.any():
            out[operation] = {
                "bytes": float(table.loc[matches, "size_bytes"].sum()),
                "ops": float(matches.sum()),
                "time_ns": float(due[matches].mean()),
                "p99_ns": float(due[matches].quantile(0.99)),
            }
    return out
