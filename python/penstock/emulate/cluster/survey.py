"""All clusters on this host, and supervisors that do not respond."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.emulate.cluster.cluster import Cluster, abandoned, registered
from penstock.emulate.failure import Failure


@dataclass(frozen=True)
class Surveyed:
    """A cluster: its description (`Cluster.described`) and status (`Cluster.full_status`)."""

    described: dict[str, Any]
    status: dict[str, Any]


def survey(name: str | None = None) -> tuple[list[Surveyed], list[Failure]]:
    """The clusters that are up, or the one of that name; and supervisors that are dead or do not respond.

    Raises BadInput if there is neither a cluster of that name nor remains of one.
    """
    up, dead = registered(), abandoned()
    if name is None:
        failures = list(dead.values())
        names = list(up)
    else:
        failures = [dead[name]] if name in dead else []
        names = [] if failures else [name]
    surveyed = []
    for one in names:
        fault = up[one].fault() if one in up else ""
        if fault:
            message = f"{one}: its supervisor (process {up[one].pid}) {fault}"
            failures.append(Failure("supervisor", message, up[one].pid))
            continue
        cluster = Cluster.find(one)
        surveyed.append(Surveyed(cluster.described, cluster.full_status()))
    return surveyed, failures
