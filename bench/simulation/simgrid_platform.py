"""A lowered platform as SimGrid's platform file, for cross-validation of the simulator.

SimGrid (version 3.32) shares every resource fairly and uses fluid flows, while penstock serves requests one
after another and forwards frames. `Export.omitted` lists the features without a counterpart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import quoteattr

CONFIGURATION = (
    "network/model:CM02",
    "network/crosstraffic:0",
    "network/latency-factor:1",
    "network/bandwidth-factor:1",
    "network/weight-S:0",
    "network/TCP-gamma:1e18",
)
"""SimGrid's `--cfg` values for flows without correction factors: max-min sharing of
bandwidth, latency added, no share taken by acknowledgements, no window that limits a flow."""

_HEAD = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">"""
_UNLIMITED_BPS = 1e18


@dataclass(frozen=True)
class Export:
    """`xml`: the platform file. `omitted`: features that the file cannot express, one sentence each."""

    xml: str
    omitted: tuple[str, ...]


def disk_name(host: str) -> str:
    """The name of a host's storage in the file."""
    return f"{host}/storage"


def platform_xml(network: Mapping[str, Any]) -> Export:
    """`network`: a `penstock/network/1` dictionary (bytes per second, seconds), as `Platform.lower()`
    gives it.

    One zone; per host a full-duplex pair of links, a loopback, and a disk for its storage whose rates are
    `servers / s_per_byte`. A host's speed is 1 flop/s, so that a flop is a second of computing or of the
    manager. The fabric is the zone's backbone. Raises KeyError for a missing field.
    """
    omitted: list[str] = []
    lines = [_HEAD, '  <zone id="platform" routing="Cluster">']
    hosts: Sequence[Mapping[str, Any]] = network["hosts"]
    for host in hosts:
        lines += _host(host, omitted)
    for host in hosts:
        lines += _links(host)
    for host in hosts:
        name = host["name"]
        lines.append(
            f"    <host_link id={quoteattr(name)} up={quoteattr(name + '/out')} "
            f"down={quoteattr(name + '/in')}/>"
        )
    fabric = network["fabric"]
    capacity_bps = fabric["capacity_bps"] or _UNLIMITED_BPS
    lines.append(f"    {_link('fabric', capacity_bps, fabric['latency_s'], tag='backbone')}")
    for host in hosts:
        name = quoteattr(host["name"])
        lines.append(
            f'    <route src={name} dst={name} symmetrical="NO">'
            f"<link_ctn id={quoteattr(host['name'] + '/loopback')}/></route>"
        )
    if fabric["rack_uplink_bps"] is not None:
        omitted.append("the racks' uplinks: the file has one backbone for all hosts")
    return Export("\n".join([*lines, "  </zone>", "</platform>", ""]), tuple(omitted))


def _host(host: Mapping[str, Any], omitted: list[str]) -> list[str]:
    client, manager = host["client"], host["manager"]
    speed = client["speed"] if client else 1.0
    cores = max(client["slots"] if client else 1, manager["servers"] if manager else 1)
    if client and client.get("service"):
        omitted.append(f"{host['name']}: the client's service time per request")
    line = f'    <host id={quoteattr(host["name"])} speed="{speed!r}f" core="{cores}"'
    disk = _disk(host, omitted)
    return [line + "/>"] if disk is None else [line + ">", disk, "    </host>"]


def _disk(host: Mapping[str, Any], omitted: list[str]) -> str | None:
    storage = host["storage"]
    if storage is None:
        return None
    if "profile" in storage:
        omitted.append(f"{host['name']}: a storage profile; SimGrid's disks have rates only")
        return None
    rates = {}
    for operation in ("read", "write"):
        service = storage[operation]
        service = service if isinstance(service, Mapping) else {"overhead": service}
        if service.get("overhead", 0.0) not in (0.0, {"kind": "constant", "value_s": 0.0}):
            omitted.append(
                f"{host['name']}: the overhead per {operation}; SimGrid's disks have rates only"
            )
        s_per_byte = service.get("s_per_byte", 0.0)
        rates[operation] = storage["servers"] / s_per_byte if s_per_byte > 0 else _UNLIMITED_BPS
    return (
        f"      <disk id={quoteattr(disk_name(host['name']))} "
        f'read_bw="{rates["read"]!r}Bps" write_bw="{rates["write"]!r}Bps"/>'
    )


def _links(host: Mapping[str, Any]) -> list[str]:
    name, link = host["name"], host["network"]
    return [
        "    " + _link(f"{name}/out", link["out_bps"], link["latency_s"]),
        "    " + _link(f"{name}/in", link["in_bps"], link["latency_s"]),
        "    " + _link(f"{name}/loopback", link["loopback_bps"], 0.0),
    ]


def _link(name: str, bandwidth_bps: float, latency_s: float, tag: str = "link") -> str:
    return (
        f'<{tag} id={quoteattr(name)} bandwidth="{float(bandwidth_bps)!r}Bps" '
        f'latency="{float(latency_s)!r}s"/>'
    )
