"""The certificate of a disk, by its log of requests or by the kernel's counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.emulate.backends.fuse import INSTANT_PROFILE
from penstock.spec.cluster import ClusterSpec

if TYPE_CHECKING:
    from penstock.analyse.fidelity import Certificate


def certified(
    disk_id: str,
    one: Mapping[str, Any],
    tables: Mapping[str, pa.Table],
    profile: Mapping[str, Any],
    changes: Sequence[Mapping[str, Any]],
    *,
    utilisation: pa.Table | None,
    run_cpu_ns: int | None = None,
) -> Certificate | None:
    """What a disk delivered in a run; None where nothing was recorded.

    `one`: its `stats`, of a throttled disk its `backend` and `facts`, too (as `Cluster.end` has them);
    `tables`: what its back end recorded; `profile`: what it had at the beginning; `changes`: what was changed
    on it since; the rest as of `analyse.fidelity.certificate`.
    """
    if "throttle_counters" in tables:
        return counted(tables["throttle_counters"], disk_id, one, utilisation)
    if "device_requests" not in tables:
        return None
    from penstock.analyse.fidelity import certificate  # pandas: not before the first run has ended

    return certificate(
        tables["device_requests"],
        one["stats"],
        profile,
        disk_id=disk_id,
        utilisation=utilisation,
        run_cpu_ns=run_cpu_ns,
        events=changes,
        host_waits=tables.get("host_waits"),
    )


def counted(
    counters: pa.Table, disk_id: str, about: Mapping[str, Any], utilisation: pa.Table | None
) -> Certificate:
    """The certificate of a disk that the kernel throttled; `about`: its `backend` and `facts`."""
    from penstock.analyse.fidelity_counters import fidelity_of_counters

    facts = about.get("facts") or {}
    return fidelity_of_counters(
        counters,
        disk_id=disk_id,
        backend=about["backend"],
        capability=facts.get("capability_bps"),
        unsupported=facts.get("unhonoured"),
        utilisation=utilisation,
    )


def put_up_with(spec: ClusterSpec, disk_id: str) -> dict[str, Any]:
    """The profile that a disk had when its cluster came up."""
    node, _, name = disk_id.partition(".")
    (disk,) = (d for n in spec.nodes if n.name == node for d in n.disks if d.name == name)
    return disk.profile or INSTANT_PROFILE


def changes_of(changes: Sequence[Mapping[str, Any]], disk_id: str) -> list[Mapping[str, Any]]:
    """Those of a cluster's changes that were made on one disk."""
    node, _, name = disk_id.partition(".")
    wanted = (node, "disk", name)
    return [e for e in changes if (e["node"], e["resource"], e.get("name")) == wanted]
