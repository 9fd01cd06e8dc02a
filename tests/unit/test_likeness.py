"""The distance of two traces against its definition."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ks_2samp

from penstock.analyse.traces.likeness import Requests, distance, kolmogorov_smirnov, total_variation
from penstock.archive.traces.trace_tables import TraceTables
from penstock.observe.trace.replay import requests_of
from tests.examples.trace import event, random_rows, write_bundle


def gathered(n: int, batches: int, *, seed: int = 0, random: bool = False) -> Requests:
    draw = np.random.default_rng(seed)
    made = Requests()
    one = np.ones(n, np.int64)
    offset = draw.integers(0, 1 << 20, n) * 4096 if random else np.arange(n) * 4096
    tid = np.arange(n, dtype=np.int64) % 2 if random else one
    parts = np.array_split(np.arange(n), batches)
    for part in parts:
        made.add(one[part], 0 * one[part], tid[part], offset[part], 4096 * one[part])
    made.classes["random" if random else "consecutive"] = n
    return made


def test_batches_make_no_difference() -> None:
    whole, parts = gathered(1000, 1, random=True), gathered(1000, 37, random=True)
    assert whole.steps == parts.steps
    assert whole.sizes == parts.sizes
    assert whole.steps.total() == 998  # the first request of each of two threads has no step


def test_kolmogorov_smirnov_is_scipys() -> None:
    draw = np.random.default_rng(3)
    a, b = draw.integers(0, 50, 300), draw.integers(5, 60, 200)
    counts = [dict(zip(*np.unique(x, return_counts=True), strict=True)) for x in (a, b)]
    assert kolmogorov_smirnov(*counts) == pytest.approx(ks_2samp(a, b).statistic, abs=1e-12)


def test_total_variation() -> None:
    assert total_variation({"a": 3, "b": 1}, {"a": 1, "b": 3}) == pytest.approx(0.5)
    assert total_variation({"a": 1}, {"b": 5}) == 1
    assert total_variation({}, {}) == 0


def test_equal_orders_are_near_and_others_far() -> None:
    assert distance(gathered(2000, 3), gathered(2000, 5)).mean == 0
    shuffled = distance(gathered(5000, 1, random=True), gathered(5000, 1, seed=9, random=True))
    assert shuffled.mean <= 0.05
    assert distance(gathered(2000, 1), gathered(2000, 1, random=True)).mean >= 0.3


def test_nothing_against_something_is_far() -> None:
    assert distance(Requests(), gathered(10, 1)).mean == 1
    assert distance(Requests(), Requests()).mean == 0


def test_of_a_bundle(tmp_path: Path) -> None:
    rows = [*random_rows(211), event(10**9, "fault_read", file_id=1)]
    write_bundle(tmp_path / "t", rows)
    every = requests_of(TraceTables(tmp_path / "t"))
    calls = requests_of(TraceTables(tmp_path / "t"), replayable=True)
    one = requests_of(TraceTables(tmp_path / "t"), {1: 1}, replayable=True)
    good = [r for r in rows if r["direction"] in ("read", "write") and r["done_bytes"] > 0]
    assert every.requests == len(good) == calls.requests + 1
    assert one.requests == sum(r["file_id"] == 1 for r in good) - 1
    assert every.reads == sum(r["direction"] == "read" for r in good)
