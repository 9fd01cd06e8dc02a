"""Checks that a host can carry a cluster: sums of the nodes' limits, compared with the host."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator

from penstock.errors import BadInput, PenstockError
from penstock.host.journal.journal import Journal
from penstock.host.network.neighbour_table import lacks_room, needed
from penstock.profile.honour import HostLimits, check_honourable, too_fast_when_loaded
from penstock.profile.model import StorageProfile
from penstock.spec.cluster import ClusterSpec
from penstock.text import percentage

#: share of a capability up to which limits are delivered; above it the device is the bottleneck
HONEST_SHARE = 0.8


def warnings(spec: ClusterSpec, floor: HostLimits | None = None) -> list[str]:
    """Messages where the sums of the nodes' limits exceed the host; empty if nowhere."""
    return [
        *_memory(spec),
        *_processors(spec),
        *_disks(spec, floor),
        *_shared(spec),
        *_neighbours(spec),
    ]


def _neighbours(spec: ClusterSpec) -> Iterator[str]:
    on_each = Counter(link.network for node in spec.nodes for link in node.links)
    entries = needed(on_each.values())
    if lacks_room(entries):
        yield (
            f"nodes that all talk to each other need {entries} entries in the kernel's table of neighbours, "
            "whose limit (net.ipv4.neigh.default.gc_thresh3) cannot be raised here: some may not reach others"
        )


def _shared(spec: ClusterSpec) -> Iterator[str]:
    users: dict[str, list[str]] = {}
    for node in spec.nodes:
        for disk in node.disks:
            if disk.directory is not None:
                at = os.path.realpath(disk.directory)
                users.setdefault(at, []).append(f"{disk.name} of {node.name}")
    for at, disks in users.items():
        if len(disks) > 1:
            yield (
                f"{len(disks)} disks keep their files in {at} ({disks[0]}, {disks[1]}, …): what one "
                "writes the others may not see"
            )


def _memory(spec: ClusterSpec) -> Iterator[str]:
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    total = sum(node.memory_bytes or 0 for node in spec.nodes)
    if total > HONEST_SHARE * there:
        yield (
            f"memory limits of the nodes are {total / 2**30:.1f} GiB together, more than "
            f"{percentage(HONEST_SHARE)} of the host's {there / 2**30:.1f} GiB"
        )


def _processors(spec: ClusterSpec) -> Iterator[str]:
    there = len(os.sched_getaffinity(0))
    shares = [
        (node.cpus or len(node.cpuset or range(there))) * (node.cpu_ratio or 1.0)
        for node in spec.nodes
        if node.cpus is not None or node.cpu_ratio is not None
    ]
    if sum(shares) > there:
        yield (
            f"the limits of the nodes add up to {sum(shares):g} processors, and the host has {there}: busy "
            "nodes share them; `penstock nodes status` shows the fairness"
        )


def _disks(spec: ClusterSpec, floor: HostLimits | None) -> Iterator[str]:
    limits = [disk.limits for node in spec.nodes for disk in node.disks]
    for name, capable in (
        ("read_bps", "read_bps"),
        ("write_bps", "write_bps"),
        ("read_iops", "iops"),
        ("write_iops", "iops"),
    ):
        total = sum(getattr(one, name) or 0.0 for one in limits)
        if not total:
            continue
        if floor is None:
            floor = _measured()
            if floor is None:
                return
        there = getattr(floor, capable)
        if total > HONEST_SHARE * there:
            scale, unit = (2**20, "MiB/s") if name.endswith("bps") else (1.0, "requests/s")
            yield (
                f"{name} limits of the disks are {total / scale:.0f} {unit} together, more than "
                f"{percentage(HONEST_SHARE)} of the {there / scale:.0f} {unit} that emulated disks can do "
                "here: not all can be delivered at once"
            )


def _measured() -> HostLimits | None:
    from penstock.emulate.disks.measure_floor import host_floor

    try:
        return host_floor()
    except PenstockError:
        return None


def refuse_too_fast(
    profiles: Iterable[StorageProfile], journal: Journal | None = None
) -> list[str]:
    """Raises BadInput, with the nearest sustainable time scale, if a profile is faster than the host.

    Returns a warning for each profile that is too fast only while programs keep it fully busy; none if the
    floors were measured on a busy host, where they are unreliable. The floors are measured again before a
    refusal.
    """
    from penstock.emulate.disks.measure_floor import host_floor

    warnings = []
    for profile in profiles:
        floor = host_floor(journal)
        try:
            check_honourable(profile, floor)
        except BadInput:
            floor = host_floor(journal, refresh=True)
            check_honourable(profile, floor)
        if floor.quiet:
            warnings.append(too_fast_when_loaded(profile, floor))
    return list(filter(None, warnings))
