"""Status of a cluster's nodes: states, processors, memory, disks, links, fairness."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError
from penstock.host.cgroups.cgroup import members

if TYPE_CHECKING:
    from penstock.emulate.cluster.running import LiveCluster, LiveNode

#: share of a processor below which a node counts as idle
_IDLE_SHARE = 0.01


def jain_index(shares: Sequence[float]) -> float | None:
    """Jain's fairness index (sum x)^2 / (n sum x^2): 1 for equal shares, 1/n if one node has everything.

    None without a share above 0 (Jain, Chiu, Hawe: A Quantitative Measure of Fairness, 1984).
    """
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares > 0 else None


def cluster_status(cluster: LiveCluster) -> dict[str, Any]:
    """Status of a cluster in JSON values; shares of processors are means since each node started."""
    failures = cluster.failures()
    served = not any(failure.part == "disk server" for failure in failures)
    nodes = [_node(cluster, node, served) for node in cluster.nodes.values()]
    shares = [n["cpu_share"] for n in nodes if n["cpu_share"] and n["cpu_share"] >= _IDLE_SHARE]
    return {
        "cluster": cluster.spec.name,
        "runtime": cluster.runtime,
        "t_ns": time.monotonic_ns(),
        "nodes": nodes,
        "jain_index": jain_index(shares),
        "jain_nodes": len(shares),
        "failures": [asdict(failure) for failure in failures],
    }


def _node(cluster: LiveCluster, node: LiveNode, served: bool) -> dict[str, Any]:
    status: dict[str, Any] = {
        "name": node.name,
        "state": node.state,
        "failure": node.failure,
        "pid": node.pid,
        "addresses": node.addresses,
        "cpu_share": None,
    }
    group, settings = node.group, node.settings
    if group is None or settings is None:
        return status
    with contextlib.suppress(OSError, PenstockError, ValueError):
        cpu_ns = group.cpu_ns()
        up_ns = time.monotonic_ns() - node.since_ns
        if cpu_ns is not None and node.since_ns and up_ns > 0:
            status["cpu_share"] = max(0, cpu_ns - node.cpu_at_start_ns) / up_ns
        memory = group.memory_stat()
        status |= {
            "cpu": settings.in_force("cpu")
            | {"used_ns": cpu_ns, "throttled_ns": group.throttled_ns()},
            "memory": settings.in_force("memory") | memory,
            "oom_kills": memory.get("oom_kills", 0),
            "processes": len(members(group.directories[-1:])),
        }
    status["disks"] = cluster.disks.status(node.name, counted=served)
    status["links"] = {name: cluster.links.status(node.name, name) for name in node.addresses}
    return status
