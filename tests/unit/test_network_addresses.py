"""Subnets, addresses and patches of networks: allocation and errors."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest

from penstock.emulate.network.addresses import Allotment, subnets
from penstock.emulate.network.patch import patched
from penstock.emulate.network.qdisc import FRAME_BYTES, burst_bytes, queue_bytes
from penstock.errors import BadInput
from penstock.spec.cluster import Delay, LinkSpec, NetworkSpec


def test_allocated_subnets_are_disjoint_and_large_enough() -> None:
    specs = [NetworkSpec("given", "10.88.1.0/24"), NetworkSpec("a"), NetworkSpec("b")]
    allocated = subnets(specs, {"a": 10, "b": 1000})
    assert list(allocated) == ["given", "a", "b"]
    assert allocated["b"].num_addresses >= 1003
    nets = list(allocated.values())
    assert not any(x.overlaps(y) for i, x in enumerate(nets) for y in nets[:i])
    assert all(n.subnet_of(ipaddress.IPv4Network("10.88.0.0/16")) for n in nets)


@pytest.mark.parametrize(
    ("specs", "nodes", "message"),
    [
        (
            [("a", "10.88.0.0/16"), ("b", "10.88.3.0/24")],
            {},
            "10.88.3.0/24 overlaps 10.88.0.0/16 of a",
        ),
        ([("a", "10.88.1.5/24")], {}, "host bits set"),
        ([("a", "nonsense")], {}, "'nonsense'"),
        ([("a", "10.88.0.0/30")], {}, "/29 or larger"),
        ([("a", "10.88.0.0/29")], {"a": 6}, "5 addresses for 6 nodes"),
        ([("a", None), ("a", None)], {}, "two networks called a"),
        ([("a", None)], {"a": 2000}, "ports of a Linux bridge"),
        ([("a", "10.88.0.0/16"), ("b", None)], {}, "no free /24"),
    ],
)
def test_bad_networks_are_refused(
    specs: list[tuple[str, str | None]], nodes: dict[str, int], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        subnets([NetworkSpec(n, s) for n, s in specs], nodes)


def test_conflicting_host_route_is_named() -> None:
    taken = {"the host's route 10.88.0.0/16 by cni0": ipaddress.IPv4Network("10.88.0.0/16")}
    spec = NetworkSpec("a", "10.88.1.0/24", host=True)
    with pytest.raises(BadInput, match="cni0"):
        subnets([spec], {}, taken)


def test_reserved_addresses_are_not_allocated() -> None:
    addresses = Allotment("net", ipaddress.IPv4Network("10.88.0.0/29"))
    addresses.reserve({"b": "10.88.0.1"})
    assert addresses.give("a", None) == "10.88.0.2"
    assert addresses.give("b", "10.88.0.1") == "10.88.0.1"
    for text, message in (
        ("10.88.0.2", "that of a"),
        ("10.88.0.6", "that of the host"),
        ("10.88.0.7", "not a host's"),
        ("10.88.0.0", "not a host's"),
        ("10.99.0.1", "not a host's"),
        ("::1", "expected IPv4"),
    ):
        with pytest.raises(BadInput, match=message):
            addresses.give("c", text)
    assert [addresses.give(n, None) for n in "cde"] == ["10.88.0.3", "10.88.0.4", "10.88.0.5"]
    with pytest.raises(BadInput, match="no address left"):
        addresses.give("f", None)
    addresses.take_back("10.88.0.3")
    assert addresses.give("f", None) == "10.88.0.3"


def test_patch_changes_only_its_keys() -> None:
    link = LinkSpec(out_bps=1e6, in_bps=2e6, delay=Delay(0.01, 0.002, "normal"), loss=0.1)
    assert patched(link, {"in_bps": 3e6}) == LinkSpec(
        out_bps=1e6, in_bps=3e6, delay=Delay(0.01, 0.002, "normal"), loss=0.1
    )
    assert patched(link, {"delay": 0.02}).delay == Delay(0.02, 0.002, "normal")
    assert patched(link, {"delay": {"jitter_s": 0.001}}).delay == Delay(0.01, 0.001, "normal")
    assert patched(link, {"delay": "max", "loss": None, "out_bps": "max"}) == LinkSpec(in_bps=2e6)


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ({"bandwidth": 1e6}, "no 'bandwidth'"),
        ({"out_bps": -1}, "1 B/s to"),
        ({"out_bps": 0}, "1 B/s to"),
        ({"out_bps": 1e12}, "what a veth pair carries"),
        ({"out_bps": float("nan")}, "expected a number"),
        ({"out_bps": "fast"}, "expected a number"),
        ({"out_bps": True}, "expected a number"),
        ({"loss": 1.5}, "a share of packets"),
        ({"delay": -0.1}, "expected 0 to 60 s"),
        ({"delay": {"mean": 1}}, "expected mean_s"),
        ({"delay": {"mean_s": 0.01, "jitter_s": 0.001}}, "without the name"),
        (
            {"delay": {"mean_s": 0.01, "jitter_s": 0.02, "distribution": "uniform"}},
            "at most the mean",
        ),
        ({"delay": {"mean_s": 0.01, "distribution": "gauss"}}, "expected constant, uniform"),
        ({"reorder": 0.1}, "reorder without delay"),
    ],
)
def test_bad_patches_are_refused(patch: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        patched(LinkSpec(), patch)


def test_burst_and_queue_follow_the_rate() -> None:
    for bps in (1e3, 125e3, 125e6):
        assert burst_bytes(bps) >= 2 * FRAME_BYTES
        assert queue_bytes(bps) >= 10 * FRAME_BYTES
    # TCP's minimum retransmission timeout is 0.2 s; a full queue must drain before
    assert queue_bytes(125e3) / 125e3 < 0.2
    assert burst_bytes(125e6) < 0.01 * 125e6
