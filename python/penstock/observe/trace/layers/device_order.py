"""Verdicts on the order of requests at a device, and reasons for differences from the order of calls."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.observe.trace.capture.events import NUMBERS
from penstock.observe.trace.verdicts.patterns import Row, verdicts

_native: Any = importlib.import_module("penstock._native")

_IN_ORDER = frozenset({"consecutive", "sequential", "interleaved", "reverse", "strided"})
_SAVED = 0.9  # the device transferred less than this share of the requested bytes


def judge_device(requests: pa.Table, number_of: Mapping[str, int]) -> list[Row]:
    """Rows as those of `verdicts`, with `basis` `device`, from the table `device_requests`.

    The file of a request is its `file_id` or, without one, `number_of` of its `file`; requests on unknown
    files and flushes are omitted.
    """
    count = requests.num_rows
    names = requests.column_names
    file_id = np.zeros(count, np.int64)
    if "file_id" in names:
        file_id = _plain(requests["file_id"])
    if "file" in names:
        encoded = requests["file"].cast(pa.string()).combine_chunks().dictionary_encode()
        numbers = [number_of.get(name, 0) for name in encoded.dictionary.to_pylist()] or [0]
        by_name = np.array(numbers, np.int64)[encoded.indices.fill_null(0).to_numpy()]
        by_name[encoded.indices.is_null().to_numpy(zero_copy_only=False)] = 0
        file_id = np.where(file_id > 0, file_id, by_name)
    direction = np.array(requests["op"].cast(pa.string()).to_pylist(), object)
    chosen = np.flatnonzero((file_id > 0) & ((direction == "read") | (direction == "write")))
    t_ns = _plain(requests["t_ns"])
    chosen = chosen[np.argsort(t_ns[chosen], kind="stable")]
    write = direction[chosen] == "write"
    op = np.where(write, NUMBERS["pwrite64"], NUMBERS["pread64"]).astype(np.uint8)
    size = _plain(requests["size_bytes"])[chosen]
    took = _plain(requests["done_ns"])[chosen] - t_ns[chosen]
    none = np.zeros(len(chosen), np.int64)
    judge = _native.Judge()
    judge.feed(
        *(t_ns[chosen], op, file_id[chosen], _plain(requests["offset_bytes"])[chosen], size),
        *(none, np.maximum(took, 0), none, np.zeros(len(chosen), np.uint8)),
    )
    rows = verdicts(judge)
    for row in rows:
        row["basis"] = "device"
        row["threads"] = []
    return rows


def explain(device: Row, calls: Row | None) -> dict[str, Any]:
    """Reason why the device's order differs from the program's, if it does: `reason`, and its ratios.

    `readahead` and `merge`: fewer, larger requests in order; `cache`: part of the bytes never reached the
    device; `reorder`: ordered calls that arrive out of order, or vice versa.
    """
    if calls is None:
        return {}
    got, called = device["together"], calls["together"]
    bytes_ratio = got["bytes"] / max(called["bytes"], 1)
    size_ratio = got["median_size_bytes"] / max(called["median_size_bytes"], 1)
    ratios = {"bytes_ratio": round(bytes_ratio, 4), "size_ratio": round(size_ratio, 4)}
    if "insufficient" in (got["class"], called["class"]):
        return ratios
    if got["class"] == called["class"] and size_ratio < 2 and bytes_ratio >= _SAVED:
        return ratios
    if size_ratio >= 2 and got["class"] in _IN_ORDER:
        reason = "readahead" if device["direction"] == "read" else "merge"
    elif bytes_ratio < _SAVED:
        reason = "cache"
    else:
        reason = "reorder"
    return ratios | {"reason": reason, "of_calls": called["class"]}


def with_reasons(device: list[Row], calls: list[Row]) -> list[Row]:
    """The device's rows, each with `explain` in its evidence."""
    by_file = {(row["file_id"], row["direction"]): row for row in calls if row["basis"] == "calls"}
    for row in device:
        reasons = explain(row, by_file.get((row["file_id"], row["direction"])))
        row["together"]["evidence"] |= reasons
    return device


def _plain(column: pa.ChunkedArray) -> Any:
    return np.ascontiguousarray(column.fill_null(0).to_numpy(), np.int64)
