"""Verdicts in device order and reasons for differences, on hand-made requests."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from penstock.observe.trace.capture.events import EVENT, NUMBERS
from penstock.observe.trace.layers.device_order import judge_device, with_reasons
from penstock.observe.trace.verdicts.patterns import judge_events

KIB = 1024


def calls(offsets: np.ndarray, op: str, size: int) -> np.ndarray:
    events = np.zeros(len(offsets), EVENT)
    events["t_ns"] = np.arange(len(offsets)) * 1000
    events["op"], events["file_id"], events["tid"] = NUMBERS[op], 3, 7
    events["offset_bytes"] = offsets
    events["size_bytes"] = events["done_bytes"] = size
    return events


def requests(offsets: np.ndarray, op: str, size: int, named: bool = False) -> pa.Table:
    n = len(offsets)
    t_ns = np.arange(n) * 1000 + 5
    columns = {
        "t_ns": pa.array(t_ns[::-1]),  # rows in reverse order
        "done_ns": pa.array(t_ns[::-1] + 400),
        "op": pa.array([op] * n),
        "offset_bytes": pa.array(offsets[::-1].copy()),
        "size_bytes": pa.array(np.full(n, size)),
        "file": pa.array(["data" if named else None] * n, pa.string()),
        "file_id": pa.array([None if named else 3] * n, pa.int64()),
    }
    return pa.table(columns)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(("op", "reason"), [("read", "readahead"), ("write", "merge")])
def test_small_calls_in_order_become_large_requests(op: str, reason: str, named: bool) -> None:
    of_calls = judge_events(calls(np.arange(6400) * 4 * KIB, f"p{op}64", 4 * KIB))
    of_device = judge_device(
        requests(np.arange(200) * 128 * KIB, op, 128 * KIB, named), {"data": 3}
    )
    (row,) = with_reasons(of_device, of_calls)
    assert (row["file_id"], row["basis"], row["together"]["class"]) == (3, "device", "consecutive")
    evidence = row["together"]["evidence"]
    assert (evidence["reason"], evidence["size_ratio"], evidence["bytes_ratio"]) == (reason, 32, 1)
    assert row["time_ns"] == 200 * 400


def test_reasons_cache_and_reorder() -> None:
    draws = np.random.default_rng(1)
    order = np.arange(1000) * 4 * KIB
    of_calls = judge_events(calls(order, "pread64", 4 * KIB))
    shuffled = requests(draws.permutation(order), "read", 4 * KIB)
    (reordered,) = with_reasons(judge_device(shuffled, {}), of_calls)
    assert reordered["together"]["evidence"]["reason"] == "reorder"
    assert reordered["together"]["evidence"]["of_calls"] == "consecutive"
    cached = requests(draws.permutation(order)[:400], "read", 4 * KIB)
    (saved,) = with_reasons(judge_device(cached, {}), of_calls)
    assert saved["together"]["evidence"]["reason"] == "cache"
    # the same order and size: no reason
    (unchanged,) = with_reasons(judge_device(requests(order, "read", 4 * KIB), {}), of_calls)
    assert "reason" not in unchanged["together"]["evidence"]


def test_flushes_and_unknown_files_are_omitted() -> None:
    assert judge_device(requests(np.arange(50) * 4096, "flush", 1), {}) == []
    assert judge_device(requests(np.arange(50) * 4096, "read", 1, named=True), {"other": 3}) == []
