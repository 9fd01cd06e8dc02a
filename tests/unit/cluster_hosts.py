"""Physical hosts, nodes and files of clusters for tests of their plans."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from penstock.parts.remote.cluster.physical import Inventory, PathRule, PhysicalHost, RealPath
from penstock.spec.cluster import ClusterSpec, LinkSpec, NetworkSpec, NodeSpec
from penstock.version import version

GIB = 1 << 30
FEATURES = dict.fromkeys(
    ("root", "namespaces", "veth", "node limits", "tbf", "netem", "fuse", "sshd", "vxlan"),
    "supported",
)


def host(name: str, number: int = 1, **changes: object) -> PhysicalHost:
    """A server of 16 processors, 64 GiB and 10 Gbit/s."""
    values: dict[str, object] = {
        "name": name,
        "address": f"192.0.2.{number}" if number < 256 else f"198.51.{number >> 8}.{number & 255}",
        "processors": 16,
        "memory_bytes": 64.0 * GIB,
        "link_bps": 1.25e9,
        "mtu": 1500,
        "version": version(),
        "read_bps": 2e9,
        "write_bps": 1e9,
        "iops": 50_000.0,
        "service_floor_s": 50e-6,
        "disk_bytes": 1000.0 * GIB,
        "clock_offset_s": 0.0002,
        "clock_bound_s": 0.0001,
        "features": FEATURES,
        **changes,
    }
    return PhysicalHost(**values)  # type: ignore[arg-type]


def rack(count: int, prefix: str = "h", **changes: object) -> tuple[PhysicalHost, ...]:
    """Identical hosts `h0`, `h1`, …"""
    return tuple(host(f"{prefix}{i}", i + 1, **changes) for i in range(count))


def inventory(
    hosts: tuple[PhysicalHost, ...], delay_s: float = 40e-6, loss: float = 0.0
) -> Inventory:
    """These hosts with one path between any two."""
    return Inventory(hosts, (PathRule("*", "*", RealPath(delay_s, loss)),))


def cluster(*nodes: NodeSpec, networks: tuple[NetworkSpec, ...] = (NetworkSpec(),)) -> ClusterSpec:
    """A cluster called lab."""
    return ClusterSpec("lab", nodes, networks)


def node(name: str, cpus: float | None = 1, gib: float = 1, *links: LinkSpec) -> NodeSpec:
    """A node with limits of processors and memory."""
    return NodeSpec(name, cpus=cpus, memory_bytes=int(gib * GIB), links=links or (LinkSpec(),))


def facts(**changes: Mapping[str, object] | list[object] | None) -> dict[str, object]:
    """Facts of a host, as `penstock hosts facts --json` writes them."""
    return {
        "host": {
            "penstock": version(),
            "cpus": 16,
            "memory_bytes": 64 * GIB,
            "storage": {"free_bytes": 1000 * GIB},
        },
        "features": [{"name": n, "verdict": v, "group": "kernel"} for n, v in FEATURES.items()],
        "floors": {
            "read_bps": 2e9,
            "write_bps": 1e9,
            "iops": 5e4,
            "service_floor_ns": 5e4,
        },
        "link": {"mtu": 1500, "rate_bps": 1.25e9},
        "clock": {"offset_ns": 200_000, "bound_ns": 100_000},
        **changes,
    }


def write_hosts(folder: Path, text: str, facts_of: Mapping[str, Mapping[str, object]]) -> Path:
    """A hosts file with facts."""
    (folder / "facts").mkdir(exist_ok=True)
    for name, values in facts_of.items():
        (folder / "facts" / f"{name}.json").write_text(json.dumps(values))
    path = folder / "hosts.yaml"
    path.write_text(text)
    return path
