"""fio's own numbers beside what was due from the disk, directly and through the page cache."""

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


def log(**asked: tuple[int, float]) -> dict[str, dict[str, float]]:
    """So many requests of each operation, each due after so many microseconds."""
    return {
        name: {"bytes": n * PAGE, "ops": n, "time_ns": 1e3 * due_us, "p99_ns": 2e3 * due_us}
        for name, (n, due_us) in asked.items()
    }


def rows(output: dict[str, Any], served: Any, *, direct: bool = False) -> dict[str, bool]:
    table = confirm_fio(output, served, direct=direct).to_pylist()
    return {f"{row['direction']} {row['metric']}": row["agrees"] for row in table}


@pytest.mark.parametrize(("sync_us", "agrees"), [(1000, True), (1100, False)])
def test_a_write_with_its_sync_takes_what_write_and_flush_take(
    sync_us: float, agrees: bool
) -> None:
    output = report(write=side(1000, 4), syncs=1000, sync_us=sync_us)
    found = confirm_fio(output, log(write=(1000, 200), flush=(1000, 800)), direct=False)
    assert [(r["metric"], r["agrees"]) for r in found.to_pylist()] == [("synced", agrees)]
    words = "mean time of a write and its sync is 1104 us by fio and 1000 us by the disk's log (limit 5 %)"
    assert doubts(found.to_pylist(), "fio") == ([] if agrees else [words])


def test_a_mapped_page_is_read_before_it_is_written() -> None:
    output = report(write=side(1000, 300), syncs=1000, sync_us=1000)
    flushed = {"write": (1000, 200), "flush": (1000, 800)}
    assert rows(output, log(**flushed)) == {"write synced": False}
    assert rows(output, log(**flushed, read=(1000, 300))) == {"write synced": True}
    assert rows(output, log(**flushed, read=(500, 300))) == {}  # who waited for those is not known


@pytest.mark.parametrize(
    "served",
    [
        {"write": (1000, 200), "flush": (500, 800)},  # some syncs found nothing to do
        {"write": (300, 200), "flush": (1000, 800)},  # pages were joined
        {"flush": (1000, 800)},
        {"write": (1000, 200)},
    ],
)
def test_what_was_not_one_request_each_is_not_compared(served: Any) -> None:
    output = report(write=side(1000, 4), syncs=1000, sync_us=5000)
    assert rows(output, log(**served)) == {}


def test_several_writes_to_a_sync_are_compared_where_no_page_cache_joins_them() -> None:
    served = log(write=(1000, 200), flush=(100, 800))
    output = report(write=side(1000, 200), syncs=100, sync_us=800)
    assert rows(output, served) == {}
    assert rows(output, served, direct=True)["write synced"]
    waited = report(write=side(1000, 200), syncs=100, sync_us=8000)
    assert not rows(waited, served, direct=True)["write synced"]
    few = report(write=side(1000, 200), syncs=10, sync_us=8000)
    few_served = log(write=(1000, 200), flush=(10, 800))
    assert "write synced" not in rows(few, few_served, direct=True)


def test_writes_that_flush_themselves_take_both() -> None:
    served = log(write=(1000, 200), flush=(1000, 800))
    assert rows(report(write=side(1000, 1010)), served, direct=True)["write time"]
    assert not rows(report(write=side(1000, 1100)), served, direct=True)["write time"]
    assert not rows(report(write=side(1000, 1010)), log(write=(1000, 200)), direct=True)[
        "write time"
    ]


def test_cold_reads_through_the_page_cache_are_compared_one_by_one() -> None:
    served = log(read=(1000, 100))
    assert rows(report(read=side(1000, 103, 210)), served) == {"read time": True, "read p99": True}
    assert rows(report(read=side(1000, 110, 210)), served) == {"read time": False, "read p99": True}
    assert rows(report(read=side(1000, 103, 240)), served) == {"read time": True, "read p99": False}
    # read ahead: sooner than the disk is the page cache's doing
    assert rows(report(read=side(1000, 40, 90)), served) == {"read time": True, "read p99": True}
    assert rows(report(read=side(2000, 40, 90)), served) == {}  # half of it was there


def test_what_counts_is_what_was_due_from_when_the_program_asked() -> None:
    one = {"t_ns": 1_000, "due_ns": 4_000, "done_ns": 9_000, "compensation_ns": 500}
    table = pd.DataFrame([{**one, "op": "read", "size_bytes": PAGE}])
    assert served_by_log(table)["read"]["time_ns"] == 3_500
    assert (
        served_by_log(table.assign(due_ns=None, compensation_ns=None))["read"]["time_ns"] == 8_000
    )
