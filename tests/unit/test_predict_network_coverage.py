"""On simulated truth the 90 % interval of a single run holds: exact binomial test, n = 750.

A platform is drawn from what is uncertain, one run on it is the measurement, and the interval comes from
other platforms and seeds, as `predict` makes it. Half the spread is the planted failure, and so is an
interval that leaves out what is uncertain of the platform.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from penstock.analyse.statistics.prediction_intervals import order_statistics
from penstock.parts.prediction.queue_network.predict import predict
from penstock.parts.prediction.queue_network.simulate import Simulator, makespan
from penstock.parts.prediction.queue_network.uncertainty import STREAM, sampled
from penstock.parts.prediction.workloads.formats.native_format import workload_from_dict
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.platform.hosts import read_platform

TRIALS, DRAWS, POOL = 750, 19, 400

PLATFORM = """\
penstock_platform: 1
name: unsure
hosts:
  - group: nodes
    count: 3
    roles: [client, storage]
    storage:
      read: {per_byte: 40 ms/MiB}
      write:
        overhead: {kind: exponential, mean_s: 0.02}
        per_byte: {value: 80 ms/MiB, low: 60 ms/MiB, high: 110 ms/MiB, n: 12}
  - {group: meta, count: 1, roles: [manager], manager: {service: 0.5ms}}
network: {bandwidth: 125 MB/s, loopback: 1 GB/s}
launch: {overhead: {kind: uniform, low_s: 0.02, high_s: 0.06}}
assumed:
  - {path: hosts.nodes.storage.read.per_byte, within: 50%}
  - {path: network.bandwidth, low: 60 MB/s, high: 125 MB/s}
"""


def workload() -> Workload:
    """Three tasks write 3 MiB each, a fourth reads them."""
    size = 3 << 20
    tasks: list[dict[str, Any]] = [
        {
            "name": f"w{i}",
            "stage": "w",
            "operations": [
                {"op": "compute", "seconds": 0.05},
                {"op": "write", "file": f"f{i}", "offset_bytes": 0, "size_bytes": size},
            ],
        }
        for i in range(3)
    ]
    reads = [
        {"op": "read", "file": f"f{i}", "offset_bytes": 0, "size_bytes": size} for i in range(3)
    ]
    tasks.append({"name": "r", "stage": "r", "operations": reads})
    return workload_from_dict(
        {"schema": "penstock/workload/1", "name": "w", "files": [], "tasks": tasks}
    )


@dataclass(frozen=True)
class Truth:
    """Per trial one measured run, and the makespans that its interval is made of."""

    measured: list[float]
    draws: list[list[float]]
    certain: list[list[float]]


@cache
def truth() -> Truth:
    """Platforms from a pool, which is what they are drawn from: measured and predicted ones alike."""
    platform = read_platform(PLATFORM.encode(), Path("p.yaml"))
    rng = np.random.default_rng(2024)
    simulator = Simulator(workload())
    count = TRIALS * (DRAWS + 1)
    chosen = rng.integers(0, POOL, count)
    seeds = rng.permutation(1 << 24)[:count]
    rngs = [np.random.default_rng([STREAM, i]) for i in chosen]
    drawn = platform.sample(rngs, assumptions=True)
    outcomes = simulator.drawn(drawn, [int(s) for s in seeds])
    rows = np.array([makespan(o) for o in outcomes]).reshape(TRIALS, DRAWS + 1)
    nominal = simulator.runs(platform.lower(), [int(s) for s in seeds[: 40 * DRAWS]])
    certain = np.array([makespan(o) for o in nominal]).reshape(40, DRAWS)
    return Truth(
        [float(r[0]) for r in rows],
        [[float(v) for v in r[1:]] for r in rows],
        [[float(v) for v in certain[i % 40]] for i in range(TRIALS)],
    )


def inside(measured: list[float], draws: list[list[float]], spread: float = 1.0) -> int:
    found = 0
    for y, of_one in zip(measured, draws, strict=True):
        interval = order_statistics(of_one)
        assert interval.attained == 0.9
        middle, half = (interval.low + interval.high) / 2, spread * interval.width / 2
        found += middle - half <= y <= middle + half
    return found


@pytest.mark.long
def test_nine_of_ten_runs_lie_inside() -> None:
    known = truth()
    hits = inside(known.measured, known.draws)
    assert binomtest(hits, TRIALS, 0.9).pvalue > 0.01, f"{hits} of {TRIALS}"


def test_predict_makes_its_interval_so() -> None:
    platform = read_platform(PLATFORM.encode(), Path("p.yaml"))
    simulator, seeds = Simulator(workload()), range(1, 20)
    outcomes = simulator.drawn(sampled(platform, 19), seeds)
    expected = order_statistics([makespan(o) for o in outcomes])
    made = predict(workload(), platform, seeds=19).interval
    assert (made.low, made.high, made.method) == (expected.low, expected.high, expected.method)


def test_half_the_spread_is_rejected() -> None:
    known = truth()
    assert binomtest(inside(known.measured, known.draws, 0.5), TRIALS, 0.9).pvalue < 1e-6


def test_leaving_out_what_is_uncertain_is_rejected() -> None:
    known = truth()
    assert binomtest(inside(known.measured, known.certain), TRIALS, 0.9).pvalue < 1e-6
