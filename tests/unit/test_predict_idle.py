"""Idle hosts of a prediction are named with a remedy."""

from __future__ import annotations

import pytest

from penstock.parts.prediction.prediction import Prediction
from penstock.parts.prediction.queue_network.predict import predict
from penstock.parts.prediction.report import prediction_text
from tests.unit.test_predict_network import (
    compute,
    platform,
    read,
    reduction,
    task,
    workload,
    write,
)

#: 8 hosts of 4 slots; data stays where it is written
HOSTS = """\
penstock_platform: 1
name: cluster
hosts:
  - group: nodes
    count: 8
    roles: [client, storage]
    slots: 4
    storage: {read: {per_byte: 2 ms/MiB}, write: {per_byte: 4 ms/MiB}}
  - {group: meta, count: 1, roles: [manager], manager: {service: 0.5ms}}
network: {bandwidth: 125 MB/s, loopback: 1 GB/s}
store: {placement: local}
"""


def predicted(count: int, *overrides: str) -> Prediction:
    load = workload([task(f"t{i}", compute(1), write(f"f{i}")) for i in range(count)])
    return predict(load, platform(HOSTS, *overrides), seeds=5)


@pytest.mark.parametrize(
    ("count", "overrides", "idle", "remedy"),
    [
        (16, ["scheduler.fill=pack"], [4, 5, 6, 7], "`scheduler.fill: spread`"),
        (5, [], [5, 6, 7], "more tasks at the same time"),
        (5, ["scheduler.kind=data_location"], [5, 6, 7], "`scheduler.kind: workqueue`"),
        (8, [], [], ""),
        (16, [], [], ""),
    ],
)
def test_hosts_without_task_and_data_are_idle(
    count: int, overrides: list[str], idle: list[int], remedy: str
) -> None:
    prediction = predicted(count, *overrides)
    assert prediction.idle is not None
    assert list(prediction.idle.hosts) == [f"nodes-{i}" for i in idle]
    assert prediction.idle.of == 8  # the manager does not count
    points = dict(prediction_text.answer(prediction).points)
    assert ("Idle hosts" in points) == bool(idle)
    if idle:
        text = points["Idle hosts"]
        assert text.startswith(f"{len(idle)} of 8 hosts were idle (nodes-{idle[0]}, ")
        assert remedy in text
        assert "or reduce hosts.nodes.count" in text
    assert prediction.to_dict()["idle"]["hosts"] == list(prediction.idle.hosts)


def test_a_host_with_data_only_is_not_idle() -> None:
    assert predicted(1, "store.placement=striped").idle == predicted(8).idle


def test_storage_hosts_without_data_are_idle() -> None:
    """A file of one chunk uses one of four storage hosts."""
    split = """\
penstock_platform: 1
name: split
hosts:
  - {group: app, count: 1, roles: [client]}
  - {group: disks, count: 4, roles: [storage], storage: {read: 1ms, write: 1ms}}
  - {group: meta, count: 1, roles: [manager], manager: {service: 0.5ms}}
network: {bandwidth: 125 MB/s, loopback: 1 GB/s}
store: {chunk: 1MiB, stripe: 1}
"""
    load = workload([task("t", write("f", 1 << 20), read("f", 1 << 20))])
    idle = predict(load, platform(split), seeds=[1]).idle
    assert idle is not None
    assert (len(idle.hosts), idle.of) == (3, 5)
    assert idle.remedy.startswith("wider stripes")
    assert "task" not in idle.remedy
    assert idle.remedy.endswith("or reduce hosts.disks.count")


def test_no_idle_hosts_if_all_have_data() -> None:
    prediction = predict(reduction(), platform(), seeds=3)
    assert prediction.idle is not None
    assert prediction.idle.hosts == ()
    assert prediction.idle.text == ""
