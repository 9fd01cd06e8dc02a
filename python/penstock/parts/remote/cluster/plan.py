"""The plan of a platform on several hosts. It starts nothing and changes no host."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.errors import BadInput
from penstock.parts.remote.cluster.demand import demand_of
from penstock.parts.remote.cluster.impairments import PathPlan, plan_paths
from penstock.parts.remote.cluster.network_plan import AddressPlan, plan_addresses
from penstock.parts.remote.cluster.physical import Inventory, PhysicalHost, some
from penstock.parts.remote.cluster.placement import Placement, place
from penstock.parts.remote.cluster.verify import check_hosts
from penstock.platform.cluster import cluster_spec
from penstock.platform.hosts import Platform
from penstock.spec.check_cluster import check_cluster, matching
from penstock.spec.cluster import MOST_NODES, ClusterSpec, NodeSpec
from penstock.text import percentage

#: pairs of nodes with a latency of their own; more are not enumerated
_MOST_PAIRS = 2_000_000


@dataclass(frozen=True)
class ClusterPlan:
    """Nodes by host, networks, and the paths between hosts. `notes`: what the plan does not ensure."""

    spec: ClusterSpec
    placement: Placement
    addresses: AddressPlan
    paths: tuple[PathPlan, ...]
    notes: tuple[str, ...]


def plan_platform(
    platform: Platform,
    inventory: Inventory,
    *,
    name: str | None = None,
    spec: ClusterSpec | None = None,
    allow_overcommit: bool = False,
) -> ClusterPlan:
    """Plan the nodes of a platform file; `name`: of the cluster. Raises BadInput with every mistake.

    `spec`: the cluster of the platform, if values of it were changed.
    """
    _check_matrix(platform)
    pins = {h.name: h.part.host for h in platform.hosts if h.part.host is not None}
    spec = spec or cluster_spec(platform)
    spec = replace(spec, name=name or spec.name)
    return plan_cluster(spec, inventory, pins, allow_overcommit=allow_overcommit)


def plan_cluster(
    spec: ClusterSpec,
    inventory: Inventory,
    pins: Mapping[str, str] | None = None,
    *,
    allow_overcommit: bool = False,
) -> ClusterPlan:
    """Plan a cluster; `pins`: patterns of hosts by node. Raises BadInput with every mistake."""
    check_cluster(replace(spec, nodes=tuple(map(_anywhere, spec.nodes))))
    check_hosts(inventory, spec)
    placement = place(demand_of(spec, pins), inventory.hosts, allow_overcommit=allow_overcommit)
    host_of = placement.by_node()
    addresses = plan_addresses(spec, host_of, placement.hosts)
    paths = plan_paths(spec.nodes, spec.networks, host_of, inventory.paths(placement.hosts))
    notes = _notes(spec, placement, addresses, paths)
    return ClusterPlan(spec, placement, addresses, tuple(paths), tuple(notes))


def _anywhere(node: NodeSpec) -> NodeSpec:
    """A node without what depends on its host: paths, and numbers of processors."""
    return replace(
        node,
        image=None,
        cpuset=None,
        disks=tuple(replace(disk, directory=None) for disk in node.disks),
    )


def _check_matrix(platform: Platform) -> None:
    """Raise BadInput for more nodes on one network than pairs of them can be enumerated."""
    names = [h.name for h in platform.hosts]
    if len(names) <= MOST_NODES:
        return
    by_key: dict[str, int] = {}

    def count(pattern: str) -> int:
        if pattern not in by_key:
            try:
                by_key[pattern] = len(matching([pattern], names))
            except BadInput:
                by_key[pattern] = 0
        return by_key[pattern]

    file = platform.file
    for matrix in (file.network.matrix or {}, *(n.matrix or {} for n in file.networks)):
        pairs = sum(count(a) * count(b) for a, peers in matrix.items() for b in peers)
        if pairs > _MOST_PAIRS:
            raise BadInput(
                f"network.matrix: found latencies of {pairs:,} pairs of nodes; expected at most "
                f"{_MOST_PAIRS:,}: `latency` applies to all pairs"
            )


def _notes(
    spec: ClusterSpec, placement: Placement, addresses: AddressPlan, paths: list[PathPlan]
) -> list[str]:
    notes = []
    several = [n for n in addresses.networks if n.vxlan_id is not None]
    for network in several:
        apply = [p for p in paths if p.network == network.name and p.added_delay_s is None]
        if apply and (longest := max(p.real.delay_s for p in apply)) > 0:
            notes.append(
                f"network {network.name}: no latency is requested between {len(apply):,} pairs of hosts; "
                f"that of their paths applies, at most {longest * 1e6:,.1f} us"
            )
        lossy = [
            p.real.loss
            for p in paths
            if p.network == network.name and p.added_loss is None and p.real.loss
        ]
        if lossy:
            notes.append(
                f"network {network.name}: no loss is requested; up to {percentage(max(lossy), 3)} of the "
                "packets between hosts are lost on their paths"
            )
    if placement.slow_disks:
        notes.append(
            f"disks of {some(placement.slow_disks)} have shorter service times than their hosts sustain"
        )
    notes += _unmeasured(placement.hosts)
    local: dict[Path, list[str]] = defaultdict(list)
    for node in spec.nodes:
        for path in (node.image, *(disk.directory for disk in node.disks)):
            if path is not None:
                local[path].append(node.name)
    for path, names in local.items():
        notes.append(f"{path} must exist on each host of {some(names)}")
    return notes


def _unmeasured(hosts: tuple[PhysicalHost, ...]) -> list[str]:
    notes = []
    for missing, what in (
        ([h.name for h in hosts if h.clock_offset_s is None], "the clock was not compared"),
        ([h.name for h in hosts if h.disk_bytes is None], "the free disk space is unknown"),
    ):
        if missing:
            notes.append(f"{what}: {some(missing)}")
    return notes
