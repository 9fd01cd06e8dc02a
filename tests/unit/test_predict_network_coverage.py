"""Coverage of the 90 % interval of a single run on simulated platforms: exact binomial test, n = 750.

Each trial samples the uncertain values of a platform and takes one run on it as the measurement. The
interval comes from other sampled platforms and seeds, as in `predict`. An interval of half the width must
fail, and so must one without the uncertainty of the platform.
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
    """Three tasks write 3 MiB each; a fourth task reads all of it."""
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
    """Per trial: the measured makespan, and the makespans for its interval."""

    measured: list[float]
    draws: list[list[float]]
    certain: list[list[float]]


@cache
def truth() -> Truth:
    """Simulate the trials. Measurements and predictions sample the same pool of platforms."""
    platform = read_platform(PLATFORM.encode(), Path("p.yaml"))
    rng = np.random.default_rng(2024)
    simulator = Simulator(workload())
    count = TRIALS * (DRAWS + 1)
    chosen = rng.integers(0, POOL, count)
    seeds = rng.permutation(1 << 24)[:count]
    rngs = [np.random.default_rng([STREAM, i]) for i in chosen]
    platforms = platform.sample(rngs, assumptions=True)
    outcomes = simulator.drawn(platforms, [int(s) for s in seeds])
    rows = np.array([makespan(o) for o in outcomes]).reshape(TRIALS, DRAWS + 1)
    nominal = simulator.runs(platform.lower(), [int(s) for s in seeds[: 40 * DRAWS]])
    certain = np.array([makespan(o) for o in nominal]).reshape(40, DRAWS)
    return Truth(
        [float(r[0]) for r in rows],
        [[float(v) for v in r[1:]] for r in rows],
        [[float(v) for v in certain[i % 40]] for i in range(TRIALS)],
    )


def inside(measured: list[float], draws: list[list[float]], spread: float = 1.0) -> int:
    count = 0
    for y, makespans in zip(measured, draws, strict=True):
        interval = order_statistics(makespans)
        assert interval.attained == 0.9
        middle, half = (interval.low + interval.high) / 2, spread * interval.width / 2
        count += middle - half <= y <= middle + half
    return count


@pytest.mark.long
def test_interval_covers_90_percent_of_runs() -> None:
    trials = truth()
    hits = inside(trials.measured, trials.draws)
    assert binomtest(hits, TRIALS, 0.9).pvalue > 0.01, f"{hits} of {TRIALS}"


def test_predict_computes_this_interval() -> None:
    platform = read_platform(PLATFORM.encode(), Path("p.yaml"))
    simulator, seeds = Simulator(workload()), range(1, 20)
    outcomes = simulator.drawn(sampled(platform, 19), seeds)
    expected = order_statistics([makespan(o) for o in outcomes])
    interval = predict(workload(), platform, seeds=19).interval
    assert (interval.low, interval.high, interval.method) == (
        expected.low,
        expected.high,
        expected.method,
    )


def test_half_of_the_interval_is_rejected() -> None:
    trials = truth()
    assert binomtest(inside(trials.measured, trials.draws, 0.5), TRIALS, 0.9).pvalue < 1e-6


def test_interval_without_platform_uncertainty_is_rejected() -> None:
    trials = truth()
    assert binomtest(inside(trials.measured, trials.certain), TRIALS, 0.9).pvalue < 1e-6
