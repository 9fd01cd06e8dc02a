"""Reasons about unequal hosts and links appear only if data are spread over them."""

from __future__ import annotations

import pytest

from penstock.parts.prediction.prediction import Prediction
from penstock.parts.prediction.queue_network.predict import predict, predict_many
from penstock.parts.prediction.workloads.workflow import Workload
from tests.unit.test_predict_network import (
    CLUSTER,
    codes,
    platform,
    read,
    reduction,
    task,
    workload,
    write,
)

HOSTS = "    roles: [client, storage]\n"
SLOW_LINK = "except: {3: {network: {bandwidth: 50 MB/s}}}"
SLOW_OUT = "except: {3: {network: {out: 50 MB/s}}}"
SLOW_STORAGE = "except: {2: {storage: {write: {per_byte: 8 ms/MiB}}}}"
SLIGHTLY = "except: {3: {network: {bandwidth: 113 MB/s}}}"


def predict_with(change: str, work: Workload, *overrides: str) -> Prediction:
    text = CLUSTER.replace(HOSTS, f"{HOSTS}    {change}\n")
    assert text != CLUSTER
    return predict(work, platform(text, *overrides), seeds=3, explained=False)


def unequal(prediction: Prediction) -> dict[str, str]:
    return {c: s for c, s in codes(prediction).items() if c.startswith("unequal")}


def own_files() -> Workload:
    """Each task reads the file that it wrote."""
    return workload([task(f"map{i}", write(f"f{i}"), read(f"f{i}")) for i in range(8)])


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (SLOW_LINK, "unequal-links", "nodes-3 receives at 40 % of what nodes-0 does, 119 MiB/s"),
        (SLOW_LINK, "unequal-links", "nodes-3 sends at 40 %"),
        (SLOW_OUT, "unequal-links", "nodes-3 sends at 40 %"),
        (SLOW_STORAGE, "unequal-storage", "nodes-2 stores at 50 % of what nodes-0 does, 250 MiB/s"),
    ],
)
def test_unequal_hosts_are_named(change: str, code: str, message: str) -> None:
    prediction = predict_with(change, reduction())
    assert unequal(prediction) == {code: "caution"}
    assert prediction.applies.verdict == "caution"
    assert message in next(r.text for r in prediction.applies.reasons if r.code == code)


def test_differences_up_to_a_tenth_are_ignored() -> None:
    assert unequal(predict_with("slots: 1", reduction())) == {}
    assert unequal(predict_with(SLIGHTLY, reduction())) == {}


def test_unused_directions_are_ignored() -> None:
    # without reads the send rate of storage hosts is irrelevant
    writes = workload([task(f"map{i}", write(f"f{i}")) for i in range(8)])
    assert unequal(predict_with(SLOW_OUT, writes)) == {}
    assert "unequal-links" in unequal(predict_with(SLOW_LINK, writes))


def test_local_data_are_not_spread() -> None:
    assert "unequal-links" in unequal(predict_with(SLOW_LINK, own_files()))
    assert unequal(predict_with(SLOW_LINK, own_files(), "store.placement=local")) == {}
    copied = predict_with(SLOW_LINK, own_files(), "store.placement=local", "store.replicas=2")
    assert "unequal-links" in unequal(copied), "replicas are on other hosts"
    # with any placement all hosts send to the single reader
    assert "unequal-links" in unequal(predict_with(SLOW_LINK, reduction(), "store.placement=local"))


def test_capacity_of_device_profiles() -> None:
    slow = "except: {1: {storage: {profile: hdd-7200}}}"
    prediction = predict_with(slow, reduction(), "hosts.nodes.storage.profile=sata-ssd")
    assert "unequal-storage" in unequal(prediction)
    (message,) = (r.text for r in prediction.applies.reasons if r.code == "unequal-storage")
    # capacity of the disk for whole chunks: interface of the SSD 540 MB/s, 1 MiB in 5.343 ms on the disk
    assert "nodes-1 stores at" in message
    assert "nodes-0 does, 515 MiB/s" in message


def test_predict_many_has_the_same_reasons() -> None:
    text = CLUSTER.replace(HOSTS, f"{HOSTS}    {SLOW_LINK}\n")
    equal, slow = predict_many(reduction(), [platform(), platform(text)], seeds=2)
    assert (unequal(equal), unequal(slow)) == ({}, {"unequal-links": "caution"})
