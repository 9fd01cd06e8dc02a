"""Demands of the nodes and supplies of the hosts, as matrices with one column per resource.

Unlimited resources of a node are no demand, as on one host (`emulate/cluster/capacity.py`): the node gets
what the others do not use.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from penstock.emulate.cluster.capacity import HONEST_SHARE
from penstock.parts.remote.cluster.physical import PhysicalHost
from penstock.parts.remote.cluster.verify import VXLAN_BYTES
from penstock.profile.honour import LARGE_BYTES, SMALL_BYTES
from penstock.profile.model import StorageProfile
from penstock.spec.cluster import ClusterSpec, DiskSpec, NodeSpec

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]


def _number(value: float) -> str:
    return f"{value:,.4g}"


def _gib(value: float) -> str:
    return f"{value / 2**30:,.1f} GiB"


def _mib_s(value: float) -> str:
    return f"{value / 2**20:,.0f} MiB/s"


def _iops(value: float) -> str:
    return f"{value:,.0f} requests/s"


def bit_rate(value: float) -> str:
    """Bytes/s as Mbit/s or Gbit/s."""
    bits = value * 8
    return f"{bits / 1e9:,.2f} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:,.1f} Mbit/s"


@dataclass(frozen=True)
class Resource:
    """One additive resource: name, format of its values, share of the host's that is promised."""

    name: str
    text: Callable[[float], str]
    share: float = 1.0


RESOURCES = (
    Resource("cpu", _number),
    Resource("memory", _gib, HONEST_SHARE),
    Resource("disk space", _gib),
    Resource("disk reads", _mib_s, HONEST_SHARE),
    Resource("disk writes", _mib_s, HONEST_SHARE),
    Resource("read requests", _iops, HONEST_SHARE),
    Resource("write requests", _iops, HONEST_SHARE),
)
#: traffic between hosts, in and out, is not additive: see `traffic.py`
LINK_OUT, LINK_IN = Resource("link out", bit_rate), Resource("link in", bit_rate)


def supply_of(hosts: Sequence[PhysicalHost]) -> Floats:
    """Supply of each host (rows) of each of `RESOURCES`; infinite if it was not measured."""
    rows = [
        (
            float(h.processors),
            h.memory_bytes,
            h.disk_bytes,
            h.read_bps,
            h.write_bps,
            h.iops,
            h.iops,
        )
        for h in hosts
    ]
    shares = [r.share for r in RESOURCES]
    values = [[np.inf if v is None else v for v in row] for row in rows]
    supply: Floats = np.array(values, dtype=np.float64) * np.array(shares)
    return supply


def payload_bps(host: PhysicalHost, *, tunnelled: bool = True) -> float:
    """Rate of the nodes' frames through a host's link: its rate without the headers of the tunnel."""
    if not tunnelled:
        return host.link_bps
    frame = host.mtu - VXLAN_BYTES + 14  # an Ethernet frame of a node, counted by its shaper
    return host.link_bps * frame / (frame + VXLAN_BYTES)


@dataclass(frozen=True)
class Links:
    """Links of all nodes in columns: node, network, rate out and in [bytes/s; NaN without limit]."""

    node: Ints
    network: Ints
    out_bps: Floats
    in_bps: Floats
    networks: tuple[str, ...]


@dataclass(frozen=True)
class Demand:
    """Demands of the nodes of a cluster, in the order of the specification.

    `amounts`: nodes × `RESOURCES`. `pins`: pattern of permitted hosts of each node, empty for all;
    `processor`: highest processor that its cpuset names, −1 without; `service_s`: shortest service time of
    its disks with a profile, infinite without.
    """

    nodes: tuple[str, ...]
    amounts: Floats
    pins: tuple[str, ...]
    processor: Ints
    service_s: Floats
    links: Links

    @cached_property
    def order(self) -> Ints:
        """Nodes by group and number, whatever their order in the specification."""
        keys = [natural(name) for name in self.nodes]
        return np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=np.intp)


def natural(name: str) -> tuple[str, int, str]:
    """Sort key: group and number of `db-12`, then the name itself."""
    match = re.fullmatch(r"(.*?)-?(\d{1,15})", name)
    return (match[1], int(match[2]), name) if match else (name, -1, name)


def demand_of(spec: ClusterSpec, pins: Mapping[str, str] | None = None) -> Demand:
    """Demands of a cluster. `pins`: patterns of hosts by node."""
    profiles: dict[tuple[str, float] | str, tuple[float, ...]] = {}
    rows, services = [], []
    for node in spec.nodes:
        disks = [_disk(disk, profiles) for disk in node.disks]
        sums = np.sum([d[:5] for d in disks], axis=0) if disks else np.zeros(5)
        rows.append((_processors(node), float(node.memory_bytes or 0), *sums))
        services.append(min((d[5] for d in disks), default=np.inf))
    return Demand(
        nodes=tuple(node.name for node in spec.nodes),
        amounts=np.array(rows, dtype=np.float64).reshape(len(spec.nodes), len(RESOURCES)),
        pins=tuple((pins or {}).get(node.name, "") for node in spec.nodes),
        processor=np.array([max(n.cpuset or (-1,)) for n in spec.nodes], dtype=np.intp),
        service_s=np.array(services, dtype=np.float64),
        links=_links(spec),
    )


def _processors(node: NodeSpec) -> float:
    """Processors promised to a node; 0 without a limit."""
    if node.cpus is None and (node.cpu_ratio is None or node.cpuset is None):
        return 0.0
    count = node.cpus if node.cpus is not None else float(len(node.cpuset or ()))
    return count * (node.cpu_ratio or 1.0)


def _disk(
    disk: DiskSpec, profiles: dict[tuple[str, float] | str, tuple[float, ...]]
) -> tuple[float, ...]:
    """Space, rates of reads and writes, of read and write requests, and the shortest service time of a disk.

    A rate is the smaller one of its limit and its profile's.
    """
    limits = disk.limits
    declared = (limits.read_bps, limits.write_bps, limits.read_iops, limits.write_iops)
    space = float(disk.size_bytes or 0)
    if disk.profile is None:
        return (space, *(v or 0.0 for v in declared), np.inf)
    name = disk.profile_name
    key = (name, disk.time_scale) if name else json.dumps(disk.profile, sort_keys=True)
    if key not in profiles:
        profiles[key] = _nominal(StorageProfile.from_dict(disk.profile))
    *nominal, service_s = profiles[key]
    rates = (n if v is None else min(v, n) for v, n in zip(declared, nominal, strict=True))
    return (space, *rates, service_s)


def _nominal(profile: StorageProfile) -> tuple[float, ...]:
    """Largest rates of a profile, sequential or random, and its shortest service time of a small request."""
    rates, requests, services = [], [], []
    for op in ("read", "write"):
        small = profile.moments(op, False, SMALL_BYTES)
        services.append(min(small.mean, small.p50))
        requests.append(small.capacity_iops)
        rates.append(
            max(
                profile.moments(op, sequential, LARGE_BYTES).capacity_iops * LARGE_BYTES
                for sequential in (True, False)
            )
        )
    return (*rates, *requests, min((s for s in services if s > 0), default=np.inf))


def _links(spec: ClusterSpec) -> Links:
    networks = tuple(n.name for n in spec.networks)
    number = {name: i for i, name in enumerate(networks)}
    rows = [
        (i, number[link.network], _rate(link.out_bps), _rate(link.in_bps))
        for i, node in enumerate(spec.nodes)
        for link in node.links
    ]
    columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
    return Links(
        np.array(columns[0], dtype=np.intp),
        np.array(columns[1], dtype=np.intp),
        np.array(columns[2], dtype=np.float64),
        np.array(columns[3], dtype=np.float64),
        networks,
    )


def _rate(bps: float | None) -> float:
    return np.nan if bps is None else bps
