"""A study's nodes as a platform for predictions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.errors import BadInput
from penstock.platform.hosts import Platform, platform_from
from penstock.spec.cluster import ClusterSpec, DiskSpec, LinkSpec, NodeSpec
from penstock.spec.source import Source
from penstock.spec.study import Study
from penstock.study.resolve import ResolvedDisk, ResolvedNode, resolve

#: defaults for values that a study lacks; each is listed as assumed
_BANDWIDTH, _LOOPBACK = "10 Gbit/s", "4 GB/s"


def platform_of(study: Study, levels: Mapping[str, str], disk: str | None = None) -> Platform:
    """Nodes of a study in the treatment `levels` (factor → level) as a platform; each stores on its disk
    `disk`, by default its first with a profile. BadInput if none has one."""
    source = Source(str(study.source_path), study_document(study, levels, disk))
    return platform_from(source, study.base_dir, study.profiles, frozenset())


def study_document(study: Study, levels: Mapping[str, str], disk: str | None) -> dict[str, Any]:
    """Platform file of the nodes of `study` in the treatment `levels` (factor → level).

    Each node is a host that runs tasks and stores complete files on its disk `disk` (by default its first
    emulated one), without a manager, like a local file system. BadInput for a missing factor, or if no node
    has such a disk.
    """
    missing = [f.name for f in study.factors if f.name not in levels]
    if missing:
        raise BadInput(f"no level for the factor {missing[0]} of the study {study.name}")
    try:
        run = resolve(study, levels)
    except KeyError as error:
        raise BadInput(str(error.args[0])) from None
    put_up = {n.name: n for n in run.cluster.nodes} if run.cluster is not None else {}
    groups = [_group(node, disk, put_up.get(node.name)) for node in run.nodes]
    if not any("storage" in g["roles"] for g in groups):
        expectation = f"a disk called '{disk}' with a profile" if disk else "a disk with a profile"
        raise BadInput(
            f"the study {study.name} has no node with {expectation}; "
            "a plain directory cannot be predicted, `penstock profile` fits its profile"
        )
    unknown = "a study does not specify the network"
    assumed: list[dict[str, Any]] = [
        {"path": "network.loopback", "low": "1 GB/s", "high": "10 GB/s", "note": unknown},
        {
            "path": "store.chunk",
            "low": "128KiB",
            "high": "4MiB",
            "note": "requests of the file system's readahead and write-back",
        },
    ]
    limited = all(link.out_bps and link.in_bps for n in put_up.values() for link in n.links[:1])
    if len(groups) > 1 and not (put_up and limited):
        low = {"path": "network.bandwidth", "low": "1 Gbit/s", "high": "40 Gbit/s", "note": unknown}
        assumed.append(low)
    return {
        "penstock_platform": 1,
        "name": study.name[:32].replace(".", "-"),
        "description": f"Nodes of the study {study.name}: "
        + ", ".join(f"{k} = {v}" for k, v in levels.items()),
        "hosts": groups,
        "network": {"bandwidth": _BANDWIDTH, "loopback": _LOOPBACK, **_network(run.cluster)},
        "store": {"chunk": "1MiB", "stripe": 1, "placement": "local", "allocation": "none"},
        "assumed": assumed,
    }


def _network(cluster: ClusterSpec | None) -> dict[str, Any]:
    """Latency and matrix of the first network; hosts of a platform have names such as NODE-0."""
    if cluster is None or not cluster.networks:
        return {}
    network = cluster.networks[0]
    section: dict[str, Any] = {}
    if network.delay_s:
        section["latency"] = f"{network.delay_s} s"
    if network.delays:
        matrix: dict[str, dict[str, str]] = {}
        for (a, b), delay_s in network.delays.items():
            more_s = max(0.0, round(delay_s - network.delay_s, 12))
            matrix.setdefault(f"{a}-0", {})[f"{b}-0"] = f"{more_s} s"
        section["matrix"] = matrix
    return section


def _link(link: LinkSpec) -> dict[str, Any]:
    """A node's own link: its bandwidth in each direction, if known, and its latency."""
    section = {}
    if link.out_bps is not None:
        section["out"] = f"{link.out_bps} B/s"
    if link.in_bps is not None:
        section["in"] = f"{link.in_bps} B/s"
    if link.in_delay.mean_s:
        section["latency"] = f"{link.in_delay.mean_s} s"
    return section


def _limits(spec: DiskSpec) -> dict[str, str]:
    units = {"read_bps": "B/s", "write_bps": "B/s", "read_iops": "IOPS", "write_iops": "IOPS"}
    values = {k: getattr(spec.limits, k) for k in units}
    return {k.removesuffix("_bps"): f"{v} {units[k]}" for k, v in values.items() if v is not None}


def _group(node: ResolvedNode, disk: str | None, put_up: NodeSpec | None) -> dict[str, Any]:
    section: dict[str, Any] = {"group": node.name, "count": 1, "roles": ["client"]}
    if node.cpus is not None:
        section["slots"] = max(1, int(node.cpus))
        section["cpus"] = node.cpus
    if node.memory_bytes is not None:
        section["memory"] = f"{node.memory_bytes} B"
    if node.disks:
        section["disks"] = [_disk(d) for d in node.disks]
    chosen = [d.name for d in node.disks if d.emulated and disk in (None, d.name)]
    if chosen:
        section["roles"] = ["client", "storage"]
        section["storage"] = {"disk": chosen[0]}
    if put_up is not None:
        link = _link(put_up.links[0]) if put_up.links else {}
        section |= {"network": link} if link else {}
        for disk_section, spec in zip(section.get("disks", []), put_up.disks, strict=True):
            limits = _limits(spec)
            disk_section |= {"limits": limits} if limits else {}
    return section


def _disk(disk: ResolvedDisk) -> dict[str, Any]:
    section: dict[str, Any] = {"name": disk.name}
    if disk.directory is not None:
        return {**section, "directory": str(disk.directory)}
    section |= {"profile": disk.profile_name, "time_scale": disk.time_scale}
    if disk.size_bytes is not None:
        section["size"] = f"{disk.size_bytes} B"
    return section | ({"mount": disk.mount} if disk.mount is not None else {})
