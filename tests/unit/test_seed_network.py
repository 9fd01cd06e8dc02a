"""Seeding leaves the links of a platform unchanged: only the model has their measured payload rate."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from penstock.host.network.loopback import Measured as Interval
from penstock.parts.prediction.queue_network.identify import Identified, Linear, Measured
from penstock.parts.stores.calibration.deploy import seeding_platform
from penstock.parts.stores.calibration.seed import (
    Measurements,
    NetworkValues,
    _cautions,
    _document,
    _facts,
    _insert_distributions,
    _window,
    identified,
    network_values,
    read_ahead_of,
)
from penstock.parts.stores.calibration.trials import SIZES, Trials
from penstock.parts.stores.calibration.window import DelayedReads
from penstock.platform.cluster import cluster_spec
from penstock.platform.hosts import Platform
from penstock.spec.store import StoreSpec

NOMINAL_BPS = 12.5e6
CLUSTER: dict[str, Any] = {
    "penstock_platform": 1,
    "name": "trial",
    "hosts": [
        {"group": "head", "count": 1, "roles": ["manager"], "manager": {"service": "0.5ms"}},
        {
            "group": "node",
            "count": 4,
            "roles": ["storage", "client"],
            "storage": {"read": "0.2ms", "write": "0.2ms"},
        },
    ],
    "network": {"bandwidth": "100 Mbit/s", "loopback": "1 GB/s", "latency": "100 us"},
    "store": {"engine": "moosefs"},
}


def near(mean: float) -> Interval:
    return Interval(mean, 0.99 * mean, 1.01 * mean, 12, True)


def measured(network_bps: float = 0.955 * NOMINAL_BPS, latency_s: float = 2.5e-4) -> Measurements:
    """A store whose operations take 1 ms plus the transfer time; rate and latency of the network."""
    seconds = {}
    for local in (False, True):
        for op in ("read", "write"):
            for size in SIZES:
                operation_s = 1e-3 + size / (1e8 if local else network_bps)
                seconds[Measured(op, size, local)] = [
                    operation_s,
                    1.01 * operation_s,
                    0.99 * operation_s,
                ]
    seconds[Measured("write", 0)] = [1e-3, 1.01e-3, 0.99e-3]
    trials = Trials(seconds, [0.01, 0.011], [0.02, 0.021], [0.01, 0.012], rounds=3)
    return Measurements("moosefs", trials, near(network_bps), near(1e9), near(latency_s))


def changed(**network: Any) -> Platform:
    document = copy.deepcopy(CLUSTER)
    document["network"] |= network
    return Platform.from_dict(
        {**document, "network": {k: v for k, v in document["network"].items() if v is not None}}
    )


def test_a_seeded_platform_starts_like_the_measured_one() -> None:
    platform, measurements = changed(), measured()
    linear = Linear(1e-3, 1e-8)
    services = Identified(1e-4, linear, linear)
    network = network_values(platform, measurements)
    document = _document(platform, measurements, network, services, [services] * 2)
    seeded = Platform.from_dict(document)
    assert document["network"]["bandwidth"] == "100 Mbit/s"
    assert document["network"]["latency"] == "100 us"
    assert document["network"]["payload"]["value"] == pytest.approx(0.955, rel=1e-5)
    assert cluster_spec(seeded).nodes == cluster_spec(platform).nodes
    assert cluster_spec(seeded).networks == cluster_spec(platform).networks
    lowered = seeded.lower()
    assert lowered["hosts"][1]["network"]["out_bps"] == pytest.approx(measurements.network_bps.mean)
    assert lowered["fabric"]["latency_s"] == pytest.approx(measurements.latency_s.mean)
    # seeding again from the same measurements gives the same values
    second = network_values(seeded, measurements)
    assert second.plain() == network_values(platform, measurements).plain()


@pytest.mark.parametrize("seconds", [0.0, 0.04])
def test_contention_of_writers_is_in_the_platform(seconds: float) -> None:
    platform, measurements = changed(), measured()
    for clients in (2, 3):
        measurements.trials.seconds[Measured("write", SIZES[-1], clients=clients)] = [0.4, 0.5, 0.6]
    linear = Linear(1e-3, 1e-8)
    services = Identified(1e-4, linear, linear, contention_s=seconds)
    ends = [Identified(1e-4, linear, linear, contention_s=seconds * x) for x in (0.5, 1.5)]
    document = _document(
        platform, measurements, network_values(platform, measurements), services, ends
    )
    (estimate,) = [
        e for e in Platform.from_dict(document).estimates if e.path == "store.write_contention"
    ]
    assert (estimate.low, estimate.value, estimate.high) == pytest.approx(
        (5e5 * seconds, 1e6 * seconds, 1.5e6 * seconds)
    )
    # no contention is a result, not a negative time
    assert not estimate.clamped


def test_distributions_have_the_means_that_they_replace() -> None:
    platform, measurements = changed(), measured()
    services = Identified(1e-4, Linear(1e-3, 1e-8), Linear(2e-3, 1e-8))
    network = network_values(platform, measurements)
    document = _document(platform, measurements, network, services, [services] * 2)
    _insert_distributions(document, measurements.trials, services)
    Platform.from_dict(document).lower()
    for direction, mean_s in (("write", 1e-3), ("read", 2e-3)):
        overhead = document["hosts"][1]["storage"][direction]["overhead"]
        assert mean_of(overhead) == pytest.approx(mean_s)
        # spread of the smallest local operation: 1 % below and above
        assert overhead["quantiles"][-1][1] - mean_s == pytest.approx(1.01e-5, rel=0.02)
    assert mean_of(document["launch"]["tag"]) == pytest.approx(0.0205)


def mean_of(distribution: dict[str, Any]) -> float:
    """Mean of an empirical distribution with linear interpolation."""
    pairs = pairwise(distribution["quantiles"])
    return math.fsum((q - p) * (low + high) / 2 for (p, low), (q, high) in pairs)


def test_the_read_ahead_of_the_measured_clients_is_recorded() -> None:
    assert read_ahead_of(StoreSpec("moosefs")) is None
    assert read_ahead_of(StoreSpec("cephfs", {"cache": 0})) == 2**19
    assert read_ahead_of(StoreSpec("cephfs", {"cache": 2**24, "prefetch": 2})) == 2**23
    platform, measurements = changed(), replace(measured(), read_ahead_bytes=2**19)
    services = Identified(1e-4, Linear(1e-3, 1e-8), Linear(1e-3, 1e-8))
    network = network_values(platform, measurements)
    document = _document(platform, measurements, network, services, [services] * 2)
    assert document["facts"]["seeding"]["read_ahead_bytes"] == 2**19


def test_a_throttled_node_and_two_modes_are_cautions() -> None:
    measurements = measured()
    services = Identified(1e-4, Linear(1e-3, 1e-8), Linear(1e-3, 1e-8))
    assert _cautions(measurements.trials, services, None) == []
    key = Measured("read", SIZES[1], True)
    slow = [0.016 + 1e-4 * i for i in range(12)]
    measurements.trials.seconds[key] = [*(0.002 + 1e-5 * i for i in range(24)), *slow]
    measurements.trials.limited = {"storage-0": [52, 44], "client-0": [100, 1], "manager-0": [0, 0]}
    cautions = _cautions(measurements.trials, services, None)
    (throttled,) = [c for c in cautions if "throttled" in c]
    assert throttled.startswith("storage-0: throttled in 85 %")
    (bimodal,) = [c for c in cautions if "bimodal" in c]
    assert bimodal.startswith(
        f"{key}: bimodal, 67 % of the times around 2.11 ms and 33 % around 16.5"
    )
    facts: Any = _facts("moosefs", measurements.trials)
    assert facts["throttled"] == {"storage-0": 0.8462, "client-0": 0.01}
    times = [t for _, t in facts["operations"][str(key)]["quantiles"]]
    assert times == sorted(times)
    assert (times[0], times[-1]) == (0.002, pytest.approx(slow[-1]))


def test_the_window_of_delayed_reads_is_in_the_platform() -> None:
    chunk, delay_s = 2**18, 0.05
    wire_s = chunk / (0.955 * NOMINAL_BPS)
    for window, each_s in ((2, (2 * delay_s + wire_s) / 2), ("unlimited", wire_s)):
        reads = DelayedReads(delay_s, 8, chunk, [0.2, 0.2], [0.2 + 7 * each_s] * 2)
        seeded = identified(changed(), replace(measured(), delayed=reads))
        assert seeded.document["store"]["window"] == window
        lowered = Platform.from_dict(seeded.document).lower()["store"]["window"]
        assert lowered == (None if window == "unlimited" else window)


@pytest.mark.parametrize(
    ("delayed", "caution"),
    [
        ("this kernel has no relay", "store.window: not measured: this kernel has no relay"),
        (DelayedReads(0.05, 8, 2**18, [0.2], [9.0]), "store.window: not determined: "),
        (DelayedReads(0.05, 8, 2**18, [0.2], [0.2]), "store.window: 8 chunks took no longer"),
    ],
)
def test_an_unmeasured_window_is_unchanged(delayed: DelayedReads | str, caution: str) -> None:
    services = Identified(1e-4, Linear(1e-3, 1e-8), Linear(1e-3, 1e-8))
    window, (text,) = _window(seeding_platform(changed()), services, delayed)
    assert window is None
    assert text.startswith(caution)


def values(platform: Platform, **measurements: float) -> NetworkValues:
    return network_values(platform, measured(**measurements))


def test_seeded_values_stay_within_the_limits_of_the_link() -> None:
    clamped = values(changed(), network_bps=1.02 * NOMINAL_BPS, latency_s=8e-5)
    assert (clamped.payload.mean, clamped.payload.high, clamped.latency_s.mean) == (1.0, 1.0, 0.0)
    asymmetric = values(changed(out="50 Mbit/s"), network_bps=0.95 * NOMINAL_BPS / 2)
    assert asymmetric.payload.mean == pytest.approx(0.95)
