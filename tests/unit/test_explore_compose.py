"""Networks composed of parts equal those that the platform lowers to, for each candidate."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import BadInput
from penstock.parts.prediction.exploration import candidate_networks as compose
from penstock.parts.prediction.exploration.candidate_networks import Composer
from penstock.parts.prediction.exploration.space.space import make_space, parse_axis
from penstock.platform.hosts import Platform, read_platform

PLATFORM = """
penstock_platform: 1
name: cluster
hosts:
  - {group: app, count: 4, roles: [client], price: 0.1 EUR/h}
  - group: storage
    count: 3
    roles: [storage]
    storage: {read: {overhead: 1ms, rate: 200 MB/s}, write: {overhead: 1ms, rate: 100 MB/s}}
    price: 0.2 EUR/h
  - {group: manager, count: 1, roles: [manager], manager: {service: 0.5ms}}
network: {bandwidth: 125 MB/s, loopback: 1 GB/s}
power:
  idle: 91.6 W
  app: 125.2 W
  states: [{frequency: 1.2 GHz, app: 100 W, speed: 0.5}, {frequency: 2.3 GHz, app: 120 W}]
"""
AXES = (
    "split=app:storage/6,9",
    "store.chunk=256KiB,1MiB",
    "store.replicas=1..3",
    "store.stripe=all,1,4",
    "power.frequency=1.2GHz,2.3GHz",
    "hosts.storage.storage.profile=hdd-7200,sata-ssd",
    "scheduler=workqueue,data_location",
    "network.bandwidth=125 MB/s,1 GB/s",
)


def platform(text: str = PLATFORM) -> Platform:
    return read_platform(text.encode(), Path("platform.yaml"))


def composer(*axes: str, text: str = PLATFORM) -> Composer:
    return Composer(platform(text), make_space([parse_axis(a) for a in axes]))


def differing(composed: Composer, n: int) -> list[Any]:
    """Sampled candidates whose network differs from that of the platform."""
    different = []
    for number in random.Random(1).sample(range(composed.space.size), min(n, composed.space.size)):
        candidate = composed.space.candidate(number)
        reason = composed.reason(candidate)
        try:
            expected = composed.platform.with_values(composed.values(candidate)).lower()
        except BadInput:
            expected = None
        network = json.loads(composed.network(candidate)) if reason is None else None
        if network != (None if expected is None else json.loads(json.dumps(expected))):
            different.append(composed.space.labels(candidate))
    return different


def test_every_candidate_equals_the_platform_s_network() -> None:
    assert differing(composer(*AXES), 60) == []


def test_groups_with_exceptions_racks_and_roles_in_common() -> None:
    text = PLATFORM.replace(
        "{group: app, count: 4, roles: [client], price: 0.1 EUR/h}",
        "{group: app, count: 4, roles: [client, storage], storage: {profile: hdd-7200}, "
        "rack: [0, 1], except: {'0': {speed: 2}}}",
    )
    assert (
        differing(
            composer(
                "hosts.app.count=1..5", "store.replicas=1..9", "hosts.app.slots=1,2", text=text
            ),
            60,
        )
        == []
    )


def test_planted_failure_of_a_part_of_other_candidates_is_detected() -> None:
    broken = composer(*AXES)
    broken._own = lambda part, candidate: ()  # type: ignore[method-assign]
    assert len(differing(broken, 60)) > 20


def test_impossible_candidates_are_no_mistakes() -> None:
    composed = composer("hosts.storage.count=1..4", "store.replicas=1..3", "store.stripe=all,2")
    reasons = {tuple(composed.space.labels(c).values()): composed.reason(c) for c in composed.space}
    assert reasons["1", "2", "all"] == "more replicas than storage hosts"
    assert reasons["1", "1", "2"] == "a stripe wider than the storage hosts"
    assert reasons["2", "2", "2"] is None
    assert sum(r is None for r in reasons.values()) == 1 + 2 * 2 + 3 * 2 + 3 * 2
    impossible = composer("store.replicas=999")
    assert impossible.reason((0,)) == "more replicas than storage hosts"


@pytest.mark.parametrize(
    ("axis", "found", "expected"),
    [
        ("stor.chunk=1MiB", "'stor', which is not in the platform", "did you mean 'store'?"),
        ("store.chnk=1MiB", "'chnk', which is not in store", "did you mean 'chunk'?"),
        ("store.chunk=1MiB,abc", "'abc'", "a size, such as"),
        ("store.stripe=0", "0", "an integer number of storage hosts of at least 1"),
        ("hosts.foo.count=1..3", "'foo', which is not in hosts", "app, storage or manager"),
        ("hosts.app.count=0..3", "0 hosts", "at least 1 host"),
        ("name=a,b", "'name'", "a key below hosts"),
        ("hosts.storage.storage.profile=nope", "the profile 'nope'", "a ready profile"),
        ("power.frequency=9 GHz", "the frequency '9 GHz'", "one of states"),
        ("scheduler=fifo", "fifo", "workqueue or data_location"),
        ("split=app:disks/9", "'disks', which is not in hosts", "app, storage or manager"),
    ],
)
def test_mistakes_of_an_axis(axis: str, found: str, expected: str) -> None:
    with pytest.raises(BadInput) as raised:
        composer(axis)
    mistake = raised.value.mistakes[0]
    assert mistake.file == f"--vary {axis}"
    assert found in mistake.found
    assert expected in mistake.expected


def test_short_names() -> None:
    composed = composer("scheduler=workqueue,data_location")
    assert composed.values((1,)) == {"scheduler.kind": "data_location"}
    assert set(compose.SHORT) == {"scheduler"}


def test_candidates_are_not_validated_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """10^4 candidates must not validate 10^4 platforms, but only as many as there are parts."""
    composed = composer(*AXES)
    calls = 0
    with_values = Platform.with_values

    def counted(self: Platform, values: Any) -> Platform:
        nonlocal calls
        calls += 1
        return with_values(self, values)

    monkeypatch.setattr(Platform, "with_values", counted)
    networks = sum(composed.network(c) != "" for c in composed.space if composed.reason(c) is None)
    assert networks > 2000
    # hosts: 2 frequencies x 2 profiles x 2 bandwidths; store: 2 x 3 x 3; scheduler: 2
    assert calls <= 8 + 18 + 2
