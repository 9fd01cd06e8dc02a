"""Demands above what hosts sustain: reports, and messages of refusals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.parts.remote.cluster.demand import LINK_IN, LINK_OUT, RESOURCES, Demand, Floats, Ints
from penstock.parts.remote.cluster.packing import Problem
from penstock.parts.remote.cluster.physical import PhysicalHost
from penstock.text import counted, percentage

_ALLOW = "`--allow-overcommit` accepts it"
#: tolerated excess over the supply: rounding
_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Overcommitment:
    """A resource of a host of which its nodes may use more than the host sustains."""

    host: str
    resource: str
    demand: float
    supply: float
    text: str

    @property
    def share(self) -> float:
        """Demand over supply."""
        return self.demand / self.supply if self.supply else float("inf")


def overcommitments(
    hosts: Sequence[PhysicalHost], used: Floats, supply: Floats
) -> list[Overcommitment]:
    """Overcommitments of a placement; columns are `RESOURCES`, traffic out, traffic in."""
    kinds = (*RESOURCES, LINK_OUT, LINK_IN)
    over = []
    for i, j in np.argwhere(used > supply * (1 + _TOLERANCE)):
        kind, demand, limit = kinds[j], float(used[i, j]), float(supply[i, j])
        share = f" ({percentage(kind.share)} of its own)" if kind.share < 1 else ""
        text = (
            f"host {hosts[i].name}: {kind.name}: found {kind.text(demand)} for its nodes; "
            f"expected at most {kind.text(limit)}{share}"
        )
        over.append(Overcommitment(hosts[i].name, kind.name, demand, limit, text))
    return over


def refusal(over: Sequence[Overcommitment]) -> str:
    """Message that refuses these overcommitments, the largest first."""
    largest = sorted(over, key=lambda o: -o.share)
    lines = [o.text for o in largest[:8]]
    if len(over) > 8:
        lines.append(f"{len(over) - 8} more overcommitments")
    return "\n".join([*lines[:-1], f"{lines[-1]}; {_ALLOW}"])


def why_not(problem: Problem, demand: Demand, host_of: Ints, failed: int) -> str:
    """Message for a node without a host: resource, demand and supply."""
    if _lacks_ports(problem, host_of, failed):
        return (
            f"node {demand.nodes[failed]}: found no host with a free port for its networks; expected at "
            f"most {problem.ports} nodes of a network on a host, the ports of a Linux bridge"
        )
    totals = list(_totals(problem, demand))
    if totals:
        return "\n".join([*totals[:-1], f"{totals[-1]}; {_ALLOW}"])
    placed = host_of >= 0
    name, permitted = demand.nodes[failed], problem.permitted[problem.permission[failed]]
    used = np.zeros_like(problem.supply)
    np.add.at(used, host_of[placed], problem.amounts[placed])
    free = np.maximum(problem.supply - used, 0.0)[permitted]
    amounts = problem.amounts[failed]
    short = (amounts > free * (1 + _TOLERANCE)).sum(axis=0)
    column = int(short.argmax())
    kind = (*RESOURCES, LINK_OUT, LINK_IN)[column]
    where = f" that {demand.pins[failed]} permits" if demand.pins[failed] else ""
    most = float(free[:, column].max())
    short_text = f"found {kind.text(float(amounts[column]))} of {kind.name}"
    if most < amounts[column]:
        return (
            f"node {name}: {short_text}; expected at most {kind.text(most)}, the most that is free on a "
            f"host{where}; {_ALLOW}"
        )
    return (
        f"node {name}: {short_text}; expected a host{where} on which that and its other demands are free "
        f"at once; {_ALLOW}"
    )


def _lacks_ports(problem: Problem, host_of: Ints, failed: int) -> bool:
    """True if the bridges of all permitted hosts are full."""
    ports = np.zeros((len(problem.supply), problem.network_count), dtype=np.intp)
    for node in np.flatnonzero(host_of >= 0).tolist():
        ports[host_of[node], problem.networks[node]] += 1
    free = (ports[:, problem.networks[failed]] < problem.ports).all(axis=1)
    return not (free & problem.permitted[problem.permission[failed]]).any()


def _totals(problem: Problem, demand: Demand) -> Iterator[str]:
    """Resources of which the nodes of all hosts, or of a pin, need more than these hosts have."""
    masks = np.unique(np.vstack([np.ones_like(problem.permitted[:1]), problem.permitted]), axis=0)
    for mask in sorted(masks, key=lambda m: -int(m.sum())):
        inside = ~(problem.permitted & ~mask).any(
            axis=1
        )  # classes of nodes confined to these hosts
        chosen = inside[problem.permission]
        need = problem.amounts[chosen].sum(axis=0)
        supply = problem.supply[mask].sum(axis=0)
        for column, kind in enumerate(RESOURCES):
            if need[column] > supply[column] * (1 + _TOLERANCE):
                pins = sorted({demand.pins[i] for i in np.flatnonzero(chosen)} - {""})
                only = f" of {', '.join(pins[:3])}" if not mask.all() and pins else ""
                share = f" ({percentage(kind.share)} of their own)" if kind.share < 1 else ""
                yield (
                    f"{kind.name}: found {kind.text(float(need[column]))} for "
                    f"{counted(int(chosen.sum()), 'node')}; expected at most "
                    f"{kind.text(float(supply[column]))} on {counted(int(mask.sum()), 'host')}{only}{share}"
                )
