"""Comparison of fio's report with the disk's log, with direct I/O and through the page cache."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from penstock.analyse.fidelity.fio_witness import confirm_fio, served_by_log
from penstock.analyse.fidelity.second_source import doubts

PAGE = 4096
NONE = {"io_bytes": 0, "total_ios": 0, "clat_ns": {"mean": 0.0}}


def side(count: int, mean_us: float, p99_us: float | None = None) -> dict[str, Any]:
    clat: dict[str, Any] = {"mean": 1e3 * mean_us}
    if p99_us is not None:
        clat["percentile"] = {"99.000000": 1e3 * p99_us}
    return {"io_bytes": count * PAGE, "total_ios": count, "clat_ns": clat}


def report(
    read: dict[str, Any] = NONE, write: dict[str, Any] = NONE, syncs: int = 0, sync_us: float = 0
) -> dict[str, Any]:
    lat = {"N": syncs, "mean": 1e3 * sync_us}
    return {"jobs": [{"read": read, "write": write, "sync": {"lat_ns": lat}}]}


def log(**requests: tuple[int, float]) -> dict[str, dict[str, float]]:
    """Totals of requests: `(count, microseconds)` per operation."""
    return {
        name: {"bytes": n * PAGE, "ops": n, "time_ns": 1e3 * due_us, "p99_ns": 2e3 * due_us}
        for name, (n, due_us) in requests.items()
    }


def rows(output: dict[str, Any], served: Any, *, direct: bool = False) -> dict[str, bool]:
    table = confirm_fio(output, served, direct=direct).to_pylist()
    return {f"{row['direction']} {row['metric']}": row["agrees"] for row in table}


@pytest.mark.parametrize(("sync_us", "agrees"), [(1000, True), (1100, False)])
def test_write_and_sync_equal_write_and_flush(sync_us: float, agrees: bool) -> None:
    output = report(write=side(1000, 4), syncs=1000, sync_us=sync_us)
    table = confirm_fio(output, log(write=(1000, 200), flush=(1000, 800)), direct=False)
    assert [(r["metric"], r["agrees"]) for r in table.to_pylist()] == [("synced", agrees)]
    message = "mean time of a write and its sync is 1104 us by fio and 1000 us by the disk's log (limit 5 %)"
    assert doubts(table.to_pylist(), "fio") == ([] if agrees else [message])


def test_mapped_writes_include_reads() -> None:
    output = report(write=side(1000, 300), syncs=1000, sync_us=1000)
    flushed = {"write": (1000, 200), "flush": (1000, 800)}
    assert rows(output, log(**flushed)) == {"write synced": False}
    assert rows(output, log(**flushed, read=(1000, 300))) == {"write synced": True}
    assert (
        rows(output, log(**flushed, read=(500, 300))) == {}
    )  # it is unknown which writes waited for these reads


@pytest.mark.parametrize(
    "served",
    [
        {"write": (1000, 200), "flush": (500, 800)},  # some syncs had no dirty page
        {"write": (300, 200), "flush": (1000, 800)},  # pages were merged
        {"flush": (1000, 800)},
        {"write": (1000, 200)},
    ],
)
def test_merged_requests_are_not_compared(served: Any) -> None:
    output = report(write=side(1000, 4), syncs=1000, sync_us=5000)
    assert rows(output, log(**served)) == {}


def test_several_writes_per_sync_are_compared_with_direct_io() -> None:
    served = log(write=(1000, 200), flush=(100, 800))
    output = report(write=side(1000, 200), syncs=100, sync_us=800)
    assert rows(output, served) == {}
    assert rows(output, served, direct=True)["write synced"]
    waited = report(write=side(1000, 200), syncs=100, sync_us=8000)
    assert not rows(waited, served, direct=True)["write synced"]
    few = report(write=side(1000, 200), syncs=10, sync_us=8000)
    few_served = log(write=(1000, 200), flush=(10, 800))
    assert "write synced" not in rows(few, few_served, direct=True)


def test_synchronous_writes_include_the_flush() -> None:
    served = log(write=(1000, 200), flush=(1000, 800))
    assert rows(report(write=side(1000, 1010)), served, direct=True)["write time"]
    assert not rows(report(write=side(1000, 1100)), served, direct=True)["write time"]
    assert not rows(report(write=side(1000, 1010)), log(write=(1000, 200)), direct=True)[
        "write time"
    ]


def test_cold_reads_through_the_page_cache() -> None:
    served = log(read=(1000, 100))
    assert rows(report(read=side(1000, 103, 210)), served) == {"read time": True, "read p99": True}
    assert rows(report(read=side(1000, 110, 210)), served) == {"read time": False, "read p99": True}
    assert rows(report(read=side(1000, 103, 240)), served) == {"read time": True, "read p99": False}
    # readahead: replies of the page cache may be faster than the disk
    assert rows(report(read=side(1000, 40, 90)), served) == {"read time": True, "read p99": True}
    assert rows(report(read=side(2000, 40, 90)), served) == {}  # half of the pages were cached


def test_time_is_from_submission_to_the_due_time() -> None:
    times = {"t_ns": 1_000, "due_ns": 4_000, "done_ns": 9_000, "compensation_ns": 500}
    table = pd.DataFrame([{**times, "op": "read", "size_bytes": PAGE}])
    assert served_by_log(table)["read"]["time_ns"] == 3_500
    assert (
        served_by_log(table.assign(due_ns=None, compensation_ns=None))["read"]["time_ns"] == 8_000
    )
