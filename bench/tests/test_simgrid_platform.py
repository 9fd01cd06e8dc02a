"""The platform as SimGrid's file: the place of every number, and the report of omitted properties."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from bench.simulation.simgrid_platform import disk_name, platform_xml


def network() -> dict[str, Any]:
    """Two unlike hosts and a manager, with an odd name."""
    link = {"out_bps": 12.5e6, "in_bps": 25e6, "loopback_bps": 125e6, "latency_s": 2e-4}
    read, write = {"overhead": 0.0, "s_per_byte": 1e-8}, {"overhead": 0.0, "s_per_byte": 4e-8}
    storage = {"read": read, "write": write, "servers": 2, "capacity_bytes": None}
    client = {"slots": 4, "speed": 1.5}
    manager = {"service": {"overhead": 5e-4, "s_per_byte": 0.0}, "servers": 1}
    host = {"group": "nodes", "rack": 0, "network": link, "client": None, "manager": None}
    return {
        "hosts": [
            {**host, "name": 'a<&"', "client": client, "storage": storage},
            {**host, "name": "b", "storage": None, "manager": manager},
        ],
        "fabric": {"latency_s": 1e-3, "capacity_bps": None, "rack_uplink_bps": None},
    }


def parsed(platform: dict[str, Any]) -> ElementTree.Element:
    zone = ElementTree.fromstring(platform_xml(platform).xml.encode()).find("zone")
    assert zone is not None
    return zone


def rate(value: str | None) -> float:
    assert value is not None
    assert value.endswith("Bps")
    return float(value[:-3])


def test_links_have_the_host_s_own_rates_and_latency() -> None:
    zone = parsed(network())
    links = {link.get("id"): link for link in zone.findall("link")}
    assert rate(links['a<&"/out'].get("bandwidth")) == 12.5e6
    assert rate(links['a<&"/in'].get("bandwidth")) == 25e6
    assert rate(links["b/loopback"].get("bandwidth")) == 125e6
    assert links["b/out"].get("latency") == "0.0002s"
    assert links["b/loopback"].get("latency") == "0.0s"


def test_every_host_is_joined_by_its_own_links_and_loopback() -> None:
    zone = parsed(network())
    joined = {e.get("id"): (e.get("up"), e.get("down")) for e in zone.findall("host_link")}
    assert joined == {name: (f"{name}/out", f"{name}/in") for name in ('a<&"', "b")}
    for route in zone.findall("route"):
        inner = route.find("link_ctn")
        assert inner is not None
        assert route.get("src") == route.get("dst")
        assert inner.get("id") == f"{route.get('src')}/loopback"
    assert len(zone.findall("route")) == 2


def test_a_disk_s_rate_is_that_of_all_its_servers() -> None:
    disk = parsed(network()).find("host/disk")
    assert disk is not None
    assert disk.get("id") == disk_name('a<&"')
    assert rate(disk.get("read_bw")) == pytest.approx(2e8)
    assert rate(disk.get("write_bw")) == pytest.approx(5e7)


def test_hosts_have_speed_and_slots() -> None:
    hosts = {h.get("id"): h for h in parsed(network()).findall("host")}
    assert (hosts['a<&"'].get("speed"), hosts['a<&"'].get("core")) == ("1.5f", "4")
    assert hosts["b"].find("disk") is None


def test_the_fabric_is_the_backbone() -> None:
    platform = network()
    backbone = parsed(platform).find("backbone")
    assert backbone is not None
    assert backbone.get("latency") == "0.001s"
    assert rate(backbone.get("bandwidth")) > 1e15
    platform["fabric"]["capacity_bps"] = 1e9
    limited = parsed(platform).find("backbone")
    assert limited is not None
    assert rate(limited.get("bandwidth")) == 1e9


def test_nothing_is_omitted_from_a_supported_platform() -> None:
    assert platform_xml(network()).omitted == ()


@pytest.mark.parametrize("feature", ["overhead", "profile", "racks", "client"])
def test_unsupported_features_are_named(feature: str) -> None:
    platform = network()
    host = platform["hosts"][0]
    if feature == "overhead":
        host["storage"]["write"]["overhead"] = {"kind": "exponential", "mean_s": 1e-3}
    elif feature == "profile":
        host["storage"] = {"profile": {}, "capacity_bytes": None}
    elif feature == "racks":
        platform["fabric"]["rack_uplink_bps"] = 1e9
    else:
        host["client"]["service"] = {"overhead": 1e-4}
    export = platform_xml(platform)
    assert len(export.omitted) == 1
    ElementTree.fromstring(export.xml.encode())
