#!/usr/bin/env python3
"""Plan of a cluster on several hosts: processor time for 1,000 and 10,000 nodes.

Three clusters of each size, on a hundredth as many hosts (at least ten): `alike`, one group without disks;
`racks`, ten kinds of nodes with disks, pins and two of eleven networks each; `full`, sizes of nodes at random
that fill 90 % of the processors, with a latency of each node's own. Per cluster: median, smallest and largest
processor time of placement, addresses, routes and paths, without reading files, and of the parts that hosts
start. Planted at the end: all nodes on one host, one address for all, and a host without its part, which the
checks must report. Exit status 1 if they do not, or a goal is missed.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import record
from penstock.parts.remote.cluster.host_specs import host_specs
from penstock.parts.remote.cluster.physical import Inventory, PathRule, PhysicalHost, RealPath
from penstock.parts.remote.cluster.plan import ClusterPlan, plan_cluster
from penstock.spec.cluster import (
    ClusterSpec,
    Delay,
    DiskSpec,
    Limits,
    LinkSpec,
    NetworkSpec,
    NodeSpec,
)
from penstock.version import version

GIB = 1 << 30
#: most processor time by number of nodes [s]
BARS = {1000: 1.0, 10_000: 10.0}
FEATURES = dict.fromkeys(
    ("root", "namespaces", "veth", "node limits", "tbf", "netem", "fuse", "vxlan"), "supported"
)


def hosts_of(count: int) -> Inventory:
    """Hosts in ten racks, with 200 processors each."""
    hosts = tuple(
        PhysicalHost(
            name=f"rack{i % 10}-{i // 10}",
            address=f"192.0.2.{i + 1}",
            processors=200,
            memory_bytes=2048.0 * GIB,
            link_bps=1.25e10,
            mtu=9000,
            version=version(),
            read_bps=2e10,
            write_bps=2e10,
            iops=1e6,
            service_floor_s=5e-5,
            disk_bytes=1e14,
            clock_offset_s=0.0,
            features=FEATURES,
        )
        for i in range(count)
    )
    return Inventory(hosts, (PathRule("*", "*", RealPath(40e-6, 1e-6)),))


def alike(count: int) -> tuple[ClusterSpec, dict[str, str]]:
    nodes = tuple(NodeSpec(f"n-{i}", cpus=1.0, memory_bytes=GIB) for i in range(count))
    return ClusterSpec("alike", nodes), {}


def racks(count: int) -> tuple[ClusterSpec, dict[str, str]]:
    names = [f"rack{i}" for i in range(10)]
    disk = DiskSpec(
        "d", size_bytes=GIB, limits=Limits(read_bps=1e7, write_bps=1e7, read_iops=100.0)
    )
    nodes = tuple(
        NodeSpec(
            f"{names[i % 10]}-{i // 10}",
            cpus=0.5 + i % 3 / 4,
            memory_bytes=GIB * (1 + i % 4),
            disks=(disk,),
            links=(
                LinkSpec("net", out_bps=1e6, in_bps=1e6, delay=Delay(1e-3)),
                LinkSpec(names[i % 10], out_bps=1e6, in_bps=1e6),
            ),
        )
        for i in range(count)
    )
    networks = (NetworkSpec("net", host=True), *(NetworkSpec(n, host=True) for n in names))
    pins = {n.name: f"rack{i % 10}-*" for i, n in enumerate(nodes)}
    return ClusterSpec("racks", nodes, networks), pins


def full(count: int) -> tuple[ClusterSpec, dict[str, str]]:
    chance = random.Random(count)
    shares = [chance.uniform(0.2, 3.4) for _ in range(count)]
    total = 0.9 * 200 * (count / 100)
    nodes = tuple(
        NodeSpec(
            f"n-{i}",
            cpus=share * total / sum(shares),
            memory_bytes=int(GIB * chance.uniform(1, 16)),
            links=(LinkSpec(delay=Delay(chance.uniform(1e-3, 2e-3))),),
        )
        for i, share in enumerate(shares)
    )
    return ClusterSpec("full", nodes), {}


def faults(plan: ClusterPlan) -> list[str]:
    """Nodes that are not placed exactly once, duplicate addresses, hosts above their capacity."""
    placement = plan.placement
    times = Counter(n for i in range(len(placement.hosts)) for n in placement.on(i))
    wrong = [name for name in (n.name for n in plan.spec.nodes) if times[name] != 1]
    used = Counter(
        (network, address)
        for by_network in plan.addresses.addresses.values()
        for network, address in by_network.items()
    )
    wrong += [address for (_, address), number in used.items() if number > 1]
    cpus: defaultdict[str, float] = defaultdict(float)
    host_of = placement.by_node()
    for node in plan.spec.nodes:
        cpus[host_of[node.name]] += node.cpus or 0.0
    return [*wrong, *(h.name for h in placement.hosts if cpus[h.name] > h.processors * (1 + 1e-9))]


def unstarted(plan: ClusterPlan, parts: Mapping[str, ClusterSpec]) -> list[str]:
    """Nodes that are missing in the part of their host, or present in another part."""
    started = Counter((node.name, host) for host, part in parts.items() for node in part.nodes)
    expected = Counter(plan.placement.by_node().items())
    return [name for name, _ in (started - expected) + (expected - started)]


def planted(plan: ClusterPlan, parts: Mapping[str, ClusterSpec]) -> dict[str, bool]:
    """True if the checks report faults in copies of a plan and of the parts of its hosts."""
    placement = plan.placement
    host_of = placement.host_of.copy()
    host_of[:] = 0
    twice = replace(plan.addresses, addresses={n: {"net": "10.0.0.1"} for n in placement.nodes})
    return {
        "all nodes on one host": bool(
            faults(replace(plan, placement=replace(placement, host_of=host_of)))
        ),
        "one address for all nodes": bool(faults(replace(plan, addresses=twice))),
        "a host without its part": bool(unstarted(plan, dict(list(parts.items())[1:]))),
        "no fault": not faults(plan) and not unstarted(plan, parts),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=5, help="plans of each cluster [5]")
    parser.add_argument(
        "--nodes", type=int, action="append", help="nodes; repeatable [1000, 10000]"
    )
    parser.add_argument("--quick", action="store_true", help="1,000 nodes, planned once")
    parser.add_argument("--json", action="store_true", help="the rows as JSON")
    record.option(parser)
    options = parser.parse_args()
    if options.quick:
        options.nodes, options.repetitions = [min(BARS)], 1
    rows: list[record.Row] = []
    checks: dict[str, bool] = {}
    for count in options.nodes or BARS:
        inventory = hosts_of(max(10, count // 100))
        clusters = [make(count) for make in (alike, racks, full)]
        times: dict[tuple[str, str], list[float]] = defaultdict(list)
        for _ in range(options.repetitions):
            for spec, pins in clusters:
                begin = time.process_time()
                plan = plan_cluster(spec, inventory, pins)
                planned = time.process_time()
                parts = host_specs(plan, inventory.paths(plan.placement.hosts))
                times[spec.name, "processor time"].append(planned - begin)
                times[spec.name, "processor time of the parts"].append(
                    time.process_time() - planned
                )
                if wrong := [*faults(plan), *unstarted(plan, parts)]:
                    raise SystemExit(f"{spec.name}: {count} nodes: wrong: {wrong[:5]}")
        for (name, measure), seconds in times.items():
            row = record.row(f"{count:,} nodes", name, measure, seconds, "s")
            rows.append(record.at_most(row, BARS[count]) if count in BARS else row)
        checks = planted(plan, parts)
    status = record.report(rows, checks, as_json=options.json)
    record.keep(options.record, rows, checks)
    return status


if __name__ == "__main__":
    sys.exit(main())
