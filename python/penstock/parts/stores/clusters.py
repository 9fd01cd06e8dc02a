"""Clusters that may carry a store: those of this host, and those on several hosts that were started here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from penstock.emulate.cluster.cluster import Cluster, incomplete, registered
from penstock.emulate.cluster.running_cluster import RunningCluster
from penstock.emulate.cluster.wire import to_json
from penstock.errors import BadInput
from penstock.platform.hosts import Platform
from penstock.plugins import FUNCTIONS
from penstock.spec.cluster import ClusterSpec

#: starts the nodes of a store; they are incomplete until `completed`
Start = Callable[[ClusterSpec], RunningCluster]
_NAMES, _CLUSTER, _START = "names-on-hosts", "cluster-on-hosts", "start-on-hosts"
#: parts of a cluster's description by their names in messages
_DESCRIBED = {
    "nodes": "limits, disks or links of nodes",
    "networks": "networks",
    "events": "scheduled changes",
}


def live_clusters() -> dict[str, RunningCluster]:
    """Clusters that are up, by name."""
    clusters: dict[str, RunningCluster] = {name: _on_hosts(name) for name in _names_on_hosts()}
    return clusters | {name: Cluster.find(name) for name in registered()}


def live_cluster(name: str) -> RunningCluster | None:
    """The cluster of that name, if it is up."""
    if name in registered():
        return Cluster.find(name)
    return _on_hosts(name) if name in _names_on_hosts() else None


def interrupted() -> list[str]:
    """Clusters whose command died before they were complete, or while it stopped them."""
    return [*incomplete(), *(name for name in _names_on_hosts() if _on_hosts(name).interrupted)]


def require_free(name: str) -> None:
    """Raise BadInput if a cluster of that name is up on several hosts."""
    if name in _names_on_hosts():
        raise BadInput(
            f"a cluster {name} is up on several hosts already; after `penstock hosts down {name}`, "
            "`penstock store up --hosts` starts it with a store"
        )


def digests_of(spec: ClusterSpec) -> dict[str, str]:
    """Digests of a cluster's nodes, networks and schedule, which tell whether a later description differs."""
    texts = {part: json.dumps(to_json(getattr(spec, part)), sort_keys=True) for part in _DESCRIBED}
    return {part: hashlib.sha256(text.encode()).hexdigest() for part, text in texts.items()}


def differences(spec: ClusterSpec, digests: Mapping[str, str]) -> list[str]:
    """Names of the parts of a description that are not those of earlier digests; none without digests."""
    now = digests_of(spec) if digests else {}
    return [_DESCRIBED[part] for part, digest in now.items() if digests.get(part) != digest]


def require_one_host(cluster: RunningCluster) -> None:
    """Raise BadInput for a cluster on several hosts."""
    if not isinstance(cluster, Cluster):
        raise BadInput(f"{cluster.name}: found nodes on several hosts; expected all on this host")


def _names_on_hosts() -> Sequence[str]:
    """Names of the clusters on several hosts; none without the part `remote`."""
    names: Sequence[str] = FUNCTIONS.load(_NAMES)() if _NAMES in FUNCTIONS else ()
    return names


def _on_hosts(name: str) -> RunningCluster:
    """A cluster on several hosts, from its record."""
    cluster: RunningCluster = FUNCTIONS.load(_CLUSTER).find(name)
    return cluster


def start_on_hosts(
    platform: Platform,
    hosts: Path,
    engine: str,
    say: Callable[[str], None],
    *,
    allow_overcommit: bool = False,
) -> Start:
    """A function that starts the nodes of a platform on the hosts of a hosts file, for a store."""
    if _START not in FUNCTIONS:
        raise BadInput("--hosts: found it without the part `remote`, which starts nodes on hosts")
    return partial(
        FUNCTIONS.load(_START),
        platform=platform,
        hosts=hosts,
        say=say,
        engine=engine,
        allow_overcommit=allow_overcommit,
    )
