"""Every cluster that is up on this host, and the supervisors that do not answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.emulate.cluster.cluster import Cluster, abandoned, registered
from penstock.emulate.failure import Failure


@dataclass(frozen=True)
class Surveyed:
    """A cluster: what it is (`Cluster.described`) and what it does (`Cluster.full_status`)."""

    described: dict[str, Any]
    status: dict[str, Any]


def survey(name: str | None = None) -> tuple[list[Surveyed], list[Failure]]:
    """The clusters that are up, or the one of that name; and supervisors that have died or do not answer.

    Raises BadInput where there is no cluster of that name, nor what is left of one.
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
