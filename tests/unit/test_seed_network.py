"""Seeding leaves a platform's links as they are: what programs get of them is the model's alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from penstock.host.network.loopback import Measured as Interval
from penstock.parts.prediction.queue_network.identify import Identified, Linear, Measured
from penstock.parts.stores.calibration.seed import (
    Measurements,
    NetworkValues,
    _document,
    network_values,
)
from penstock.parts.stores.calibration.trials import SIZES, Trials
from penstock.platform.cluster import cluster_spec
from penstock.platform.hosts import Platform

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
    """A store whose operations take 1 ms, and as long for each byte as the network; what a payload gets."""
    seconds = {}
    for local in (False, True):
        for op in ("read", "write"):
            for size in SIZES:
                took = 1e-3 + size / (1e8 if local else network_bps)
                seconds[Measured(op, size, local)] = [took, 1.01 * took, 0.99 * took]
    seconds[Measured("write", 0)] = [1e-3, 1.01e-3, 0.99e-3]
    trials = Trials(seconds, [0.01, 0.011], [0.02, 0.021], [0.01, 0.012], rounds=3)
    return Measurements("moosefs", trials, near(network_bps), near(1e9), near(latency_s))


def changed(**network: Any) -> Platform:
    document = copy.deepcopy(CLUSTER)
    document["network"] |= network
    return Platform.from_dict(
        {**document, "network": {k: v for k, v in document["network"].items() if v is not None}}
    )


def test_a_seeded_platform_is_put_up_as_the_one_that_was_measured() -> None:
    platform, seen = changed(), measured()
    linear = Linear(1e-3, 1e-8)
    services = Identified(1e-4, linear, linear)
    network = network_values(platform, seen)
    document = _document(platform, seen, network, services, [services] * 2)
    seeded = Platform.from_dict(document)
    assert document["network"]["bandwidth"] == "100 Mbit/s"
    assert document["network"]["latency"] == "100 us"
    assert document["network"]["payload"]["value"] == pytest.approx(0.955, rel=1e-5)
    assert cluster_spec(seeded).nodes == cluster_spec(platform).nodes
    assert cluster_spec(seeded).networks == cluster_spec(platform).networks
    lowered = seeded.lower()
    assert lowered["hosts"][1]["network"]["out_bps"] == pytest.approx(seen.network_bps.mean)
    assert lowered["fabric"]["latency_s"] == pytest.approx(seen.latency_s.mean)
    # what is measured of the seeded platform is the same, and so is what it is seeded with
    again = network_values(seeded, seen)
    assert again.plain() == network_values(platform, seen).plain()


def values(platform: Platform, **seen: float) -> NetworkValues:
    return network_values(platform, measured(**seen))


def test_what_no_link_gives_is_not_asked_of_it() -> None:
    found = values(changed(), network_bps=1.02 * NOMINAL_BPS, latency_s=8e-5)
    assert (found.payload.mean, found.payload.high, found.latency_s.mean) == (1.0, 1.0, 0.0)
    both = values(changed(out="50 Mbit/s"), network_bps=0.95 * NOMINAL_BPS / 2)
    assert both.payload.mean == pytest.approx(0.95)
