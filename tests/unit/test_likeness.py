"""Distance of two traces compared with its definition."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ks_2samp

from penstock.analyse.traces.likeness import Requests, distance, kolmogorov_smirnov, total_variation
from penstock.archive.traces.trace_tables import TraceTables
from penstock.observe.trace.replay import requests_of
from tests.examples.trace import event, random_rows, write_bundle


def generated(n: int, batches: int, *, seed: int = 0, random: bool = False) -> Requests:
    rng = np.random.default_rng(seed)
    requests = Requests()
    ones = np.ones(n, np.int64)
    offset = rng.integers(0, 1 << 20, n) * 4096 if random else np.arange(n) * 4096
    tid = np.arange(n, dtype=np.int64) % 2 if random else ones
    parts = np.array_split(np.arange(n), batches)
    for part in parts:
        requests.add(ones[part], 0 * ones[part], tid[part], offset[part], 4096 * ones[part])
    requests.classes["random" if random else "consecutive"] = n
    return requests


def test_batches_make_no_difference() -> None:
    single, batched = generated(1000, 1, random=True), generated(1000, 37, random=True)
    assert single.steps == batched.steps
    assert single.sizes == batched.sizes
    assert single.steps.total() == 998  # the first request of each of two threads has no step


def test_kolmogorov_smirnov_equals_scipy() -> None:
    draw = np.random.default_rng(3)
    a, b = draw.integers(0, 50, 300), draw.integers(5, 60, 200)
    counts = [dict(zip(*np.unique(x, return_counts=True), strict=True)) for x in (a, b)]
    assert kolmogorov_smirnov(*counts) == pytest.approx(ks_2samp(a, b).statistic, abs=1e-12)


def test_total_variation() -> None:
    assert total_variation({"a": 3, "b": 1}, {"a": 1, "b": 3}) == pytest.approx(0.5)
    assert total_variation({"a": 1}, {"b": 5}) == 1
    assert total_variation({}, {}) == 0


def test_equal_orders_are_close_and_different_ones_are_not() -> None:
    assert distance(generated(2000, 3), generated(2000, 5)).mean == 0
    shuffled = distance(generated(5000, 1, random=True), generated(5000, 1, seed=9, random=True))
    assert shuffled.mean <= 0.05
    assert distance(generated(2000, 1), generated(2000, 1, random=True)).mean >= 0.3


def test_distance_to_an_empty_trace_is_one() -> None:
    assert distance(Requests(), generated(10, 1)).mean == 1
    assert distance(Requests(), Requests()).mean == 0


def test_requests_of_a_bundle(tmp_path: Path) -> None:
    rows = [*random_rows(211), event(10**9, "fault_read", file_id=1)]
    write_bundle(tmp_path / "t", rows)
    every = requests_of(TraceTables(tmp_path / "t"))
    calls = requests_of(TraceTables(tmp_path / "t"), replayable=True)
    one_file = requests_of(TraceTables(tmp_path / "t"), {1: 1}, replayable=True)
    successful = [r for r in rows if r["direction"] in ("read", "write") and r["done_bytes"] > 0]
    assert every.requests == len(successful) == calls.requests + 1
    assert one_file.requests == sum(r["file_id"] == 1 for r in successful) - 1
    assert every.reads == sum(r["direction"] == "read" for r in successful)
