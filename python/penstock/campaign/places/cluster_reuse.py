"""Whether a cluster that is up can be made into another one by setting values, and which."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from penstock.emulate.cluster.settings import Change
from penstock.spec.cluster import ClusterSpec, DiskSpec, Limits, LinkSpec, NodeSpec


def changes_between(old: ClusterSpec, new: ClusterSpec) -> list[Change] | None:
    """The changes that make `old` into `new`; None where something differs that is put up, not set.

    A cluster with a schedule is put up anew: where its events have left it is not where it begins.
    """
    if old.events or new.events or replace(_shape(old), name="") != replace(_shape(new), name=""):
        return None
    found: list[Change] = []
    for before, after in zip(old.nodes, new.nodes, strict=True):
        found += _node(before, after)
    return found


def _shape(spec: ClusterSpec) -> ClusterSpec:
    """What cannot be set: nodes, images, disks and where their files are, networks."""
    return replace(spec, nodes=tuple(_node_shape(n) for n in spec.nodes))


def _node_shape(node: NodeSpec) -> NodeSpec:
    return replace(
        node,
        cpus=None,
        cpuset=None,
        cpu_ratio=None,
        memory_bytes=None,
        memory_soft_bytes=None,
        disks=tuple(replace(d, limits=Limits(), seed=0) for d in node.disks),
        links=tuple(LinkSpec(network=k.network, address=k.address) for k in node.links),
    )


def _node(old: NodeSpec, new: NodeSpec) -> list[Change]:
    found: list[Change] = []
    where = (new.name,)
    for resource, pairs in (
        ("cpu", (("cpus", "cpus"), ("cpuset", "cpuset"), ("cpu_ratio", "ratio"))),
        ("memory", (("memory_bytes", "hard"), ("memory_soft_bytes", "soft"))),
    ):
        patch = {
            word: getattr(new, key) for key, word in pairs if getattr(old, key) != getattr(new, key)
        }
        if patch:
            found.append(Change(where, resource, patch))  # type: ignore[arg-type]
    for before, after in zip(old.disks, new.disks, strict=True):
        limits = _limits(before, after)
        if limits:
            found.append(Change(where, "disk", {"limits": limits}, after.name))
    for link, wanted in zip(old.links, new.links, strict=True):
        patch = _differences(asdict(link), asdict(wanted))
        if patch:
            found.append(Change(where, "network", patch, wanted.network))
    return found


def _limits(old: DiskSpec, new: DiskSpec) -> dict[str, Any]:
    return _differences(asdict(old.limits), asdict(new.limits))


def _differences(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in new.items() if old[k] != v}
