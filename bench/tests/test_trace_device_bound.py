"""Verdicts of the device-bound bench: met, missed, and undecided with too wide an interval."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCH = Path(__file__).parents[2] / "bench" / "trace_device_bound.py"


@pytest.fixture(scope="module", name="bench")
def _bench() -> Iterator[Any]:
    before = list(sys.path)
    spec = importlib.util.spec_from_file_location("trace_device_bound", BENCH)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["trace_device_bound"] = module
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path[:] = before
        del sys.modules["trace_device_bound"]


def row(
    bench: Any, added: float, noise: float, ns: float = 150.0, pairs: int = 15
) -> dict[str, Any]:
    draws = np.random.default_rng(7).normal(0.0, noise, pairs)
    receipt = {"kept": 20_000, "lost": 0, "cpu_ns": 10_000_000}
    rounds = [
        {
            "none": bench.Sample(10.0, 1e6, {}),
            "trace": bench.Sample(10.0 * (1 + added + d), 1e6, receipt),
        }
        for d in draws
    ]
    cost = bench.Interval(ns, ns - 20, ns + 20)
    verdict_row: dict[str, Any] = bench.judge("direct", "trace", rounds, cost)
    return verdict_row


def test_met_missed_and_undecided(bench: Any) -> None:
    assert row(bench, 0.001, 0.001)["paired_verdict"] == "met"
    assert row(bench, 0.02, 0.002)["paired_verdict"] == "missed"  # planted: 2 % slower
    assert row(bench, 0.001, 0.05)["paired_verdict"] == "undecided"
    assert (
        row(bench, 0.0, 0.0001, pairs=3)["paired_verdict"] == "undecided"
    )  # no interval from three


def test_computed_is_events_times_cost_over_time(bench: Any) -> None:
    verdict_row = row(bench, 0.0, 0.001)
    assert verdict_row["computed"] == pytest.approx(
        [2000 * 150e-9, 2000 * 130e-9, 2000 * 170e-9], rel=0.01
    )
    assert verdict_row["computed_verdict"] == "met"
    assert row(bench, 0.0, 0.001, ns=8_000.0)["computed_verdict"] == "missed"  # planted cost


def test_every_mode_goes_first_as_often_forwards_as_backwards(bench: Any) -> None:
    modes = ["none", "pattern", "trace"]
    orders = [bench.order(number, modes) for number in range(6)]
    assert all(sorted(o) == sorted(modes) for o in orders)
    for a, b in (("none", "trace"), ("none", "pattern")):
        assert sum(o.index(a) < o.index(b) for o in orders) == 3


def test_the_interval_of_the_median_has_a_coverage_of_95_percent(bench: Any) -> None:
    draws = np.random.default_rng(3).exponential(1.0, (2000, 15))
    inside = [(i := bench.interval(sample)).low <= np.log(2) <= i.high for sample in draws]
    assert 0.945 <= np.mean(inside) <= 0.99
