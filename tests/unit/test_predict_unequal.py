"""Unequal hosts and links in the verdict: said where data are spread over them, and only there."""

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


def on(change: str, work: Workload, *overrides: str) -> Prediction:
    text = CLUSTER.replace(HOSTS, f"{HOSTS}    {change}\n")
    assert text != CLUSTER
    return predict(work, platform(text, *overrides), seeds=3, explained=False)


def unequal(made: Prediction) -> dict[str, str]:
    return {c: s for c, s in codes(made).items() if c.startswith("unequal")}


def own_files() -> Workload:
    """Every task reads again what it wrote itself."""
    return workload([task(f"map{i}", write(f"f{i}"), read(f"f{i}")) for i in range(8)])


@pytest.mark.parametrize(
    ("change", "code", "told"),
    [
        (SLOW_LINK, "unequal-links", "nodes-3 receives at 40 % of what nodes-0 does, 119 MiB/s"),
        (SLOW_LINK, "unequal-links", "nodes-3 sends at 40 %"),
        (SLOW_OUT, "unequal-links", "nodes-3 sends at 40 %"),
        (SLOW_STORAGE, "unequal-storage", "nodes-2 stores at 50 % of what nodes-0 does, 250 MiB/s"),
    ],
)
def test_hosts_that_differ_are_named(change: str, code: str, told: str) -> None:
    made = on(change, reduction())
    assert unequal(made) == {code: "caution"}
    assert made.applies.verdict == "caution"
    assert told in next(r.text for r in made.applies.reasons if r.code == code)


def test_equal_hosts_and_a_tenth_are_not_told() -> None:
    assert unequal(on("slots: 1", reduction())) == {}
    assert unequal(on(SLIGHTLY, reduction())) == {}


def test_what_the_workload_does_not_do_is_not_told() -> None:
    # nothing is read, so it matters to nobody at which rate a host would send
    writes = workload([task(f"map{i}", write(f"f{i}")) for i in range(8)])
    assert unequal(on(SLOW_OUT, writes)) == {}
    assert "unequal-links" in unequal(on(SLOW_LINK, writes))


def test_data_that_stay_on_their_own_host_are_not_spread() -> None:
    assert "unequal-links" in unequal(on(SLOW_LINK, own_files()))
    assert unequal(on(SLOW_LINK, own_files(), "store.placement=local")) == {}
    copied = on(SLOW_LINK, own_files(), "store.placement=local", "store.replicas=2")
    assert "unequal-links" in unequal(copied), "copies go to other hosts"
    # one reader of all files: their hosts send to it, whatever the placement
    assert "unequal-links" in unequal(on(SLOW_LINK, reduction(), "store.placement=local"))


def test_a_device_profile_counts_with_its_limits() -> None:
    slow = "except: {1: {storage: {profile: hdd-7200}}}"
    made = on(slow, reduction(), "hosts.nodes.storage.profile=sata-ssd")
    assert "unequal-storage" in unequal(made)
    (told,) = (r.text for r in made.applies.reasons if r.code == "unequal-storage")
    # capacity of the disk for whole chunks: interface of the SSD 540 MB/s, 1 MiB in 5.343 ms on the disk
    assert "nodes-1 stores at" in told
    assert "nodes-0 does, 515 MiB/s" in told


def test_predictions_by_the_thousand_are_judged_alike() -> None:
    text = CLUSTER.replace(HOSTS, f"{HOSTS}    {SLOW_LINK}\n")
    equal, slow = predict_many(reduction(), [platform(), platform(text)], seeds=2)
    assert (unequal(equal), unequal(slow)) == ({}, {"unequal-links": "caution"})
