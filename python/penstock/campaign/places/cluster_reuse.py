"""Changes that turn a running cluster into another one without a restart, if possible."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from penstock.emulate.cluster.settings import Change
from penstock.spec.cluster import ClusterSpec, DiskSpec, Limits, LinkSpec, NodeSpec


def changes_between(old: ClusterSpec, new: ClusterSpec) -> list[Change] | None:
    """Changes that make `old` into `new`; None if a difference requires a restart.

    A cluster with a schedule is always restarted: its events have changed its initial state.
    """
    if old.events or new.events or replace(_shape(old), name="") != replace(_shape(new), name=""):
        return None
    changes: list[Change] = []
    for before, after in zip(old.nodes, new.nodes, strict=True):
        changes += _node(before, after)
    return changes


def _shape(spec: ClusterSpec) -> ClusterSpec:
    """Parts that cannot be changed live: nodes, images, disks and their file locations, networks."""
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
    changes: list[Change] = []
    where = (new.name,)
    for resource, pairs in (
        ("cpu", (("cpus", "cpus"), ("cpuset", "cpuset"), ("cpu_ratio", "ratio"))),
        ("memory", (("memory_bytes", "hard"), ("memory_soft_bytes", "soft"))),
    ):
        patch = {
            word: getattr(new, key) for key, word in pairs if getattr(old, key) != getattr(new, key)
        }
        if patch:
            changes.append(Change(where, resource, patch))  # type: ignore[arg-type]
    for before, after in zip(old.disks, new.disks, strict=True):
        limits = _limits(before, after)
        if limits:
            changes.append(Change(where, "disk", {"limits": limits}, after.name))
    for link, new_link in zip(old.links, new.links, strict=True):
        patch = _differences(asdict(link), asdict(new_link))
        if patch:
            changes.append(Change(where, "network", patch, new_link.network))
    return changes


def _limits(old: DiskSpec, new: DiskSpec) -> dict[str, Any]:
    return _differences(asdict(old.limits), asdict(new.limits))


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in new.items() if old[k] != v}
