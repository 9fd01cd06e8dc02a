"""The host of each node."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from penstock.errors import BadInput
from penstock.parts.remote.cluster.demand import (
    Demand,
    Floats,
    Ints,
    natural,
    payload_bps,
    supply_of,
)
from penstock.parts.remote.cluster.overcommitment import (
    Overcommitment,
    overcommitments,
    refusal,
    why_not,
)
from penstock.parts.remote.cluster.packing import (
    Packing,
    Problem,
    enough,
    grouped,
    orders,
    pack,
    ports_suffice,
)
from penstock.parts.remote.cluster.physical import PhysicalHost, some
from penstock.parts.remote.cluster.traffic import Traffic, crossing, traffic_of
from penstock.spec.cluster import MOST_NODES


@dataclass(frozen=True)
class Placement:
    """Hosts of the nodes. `used` and `supply`: hosts × resources (`RESOURCES`, traffic out, traffic in).

    `slow_disks`: nodes whose disks have shorter service times than their host sustains.
    """

    hosts: tuple[PhysicalHost, ...]
    nodes: tuple[str, ...]
    host_of: Ints
    used: Floats
    supply: Floats
    traffic: Traffic
    over: tuple[Overcommitment, ...]
    slow_disks: tuple[str, ...] = ()

    def by_node(self) -> dict[str, str]:
        """Name of the host of each node."""
        return {n: self.hosts[h].name for n, h in zip(self.nodes, self.host_of, strict=True)}

    def on(self, host: int) -> list[str]:
        """Nodes of a host, in the order of the specification."""
        return [self.nodes[i] for i in np.flatnonzero(self.host_of == host)]


def place(
    demand: Demand, hosts: Sequence[PhysicalHost], *, allow_overcommit: bool = False
) -> Placement:
    """Place nodes on hosts. The result does not depend on the order of nodes and hosts.

    Raises BadInput with resource, demand and supply if a limit cannot be met; with `allow_overcommit` only
    for pins, sets of processors and ports that no host has.
    """
    hosts = tuple(sorted(hosts, key=lambda h: natural(h.name)))
    problem = _problem(demand, hosts, allow_overcommit=allow_overcommit)
    packing = _packed(problem, demand, hosts, allow_overcommit=allow_overcommit)
    if packing.failed is not None:
        raise BadInput(why_not(problem, demand, packing.host_of, packing.failed))
    placement = _closer(problem, demand, hosts, packing.host_of)
    if placement.over and not allow_overcommit:
        raise BadInput(refusal(placement.over))
    return placement


def _problem(demand: Demand, hosts: Sequence[PhysicalHost], *, allow_overcommit: bool) -> Problem:
    permitted, permission = _permissions(demand, hosts, allow_overcommit=allow_overcommit)
    links = demand.links
    networks: list[list[int]] = [[] for _ in demand.nodes]
    for node, network in zip(links.node.tolist(), links.network.tolist(), strict=True):
        networks[node].append(network)
    return Problem(
        amounts=demand.amounts,
        supply=supply_of(hosts),
        permitted=permitted,
        permission=permission,
        networks=[np.array(n, dtype=np.intp) for n in networks],
        network_count=max(1, len(links.networks)),
        ports=MOST_NODES - 2 * (len(hosts) > 1),  # two are those of the tunnel and of the router
        processors=np.array([h.processors for h in hosts], dtype=np.float64),
    )


def _permissions(
    demand: Demand, hosts: Sequence[PhysicalHost], *, allow_overcommit: bool
) -> tuple[npt.NDArray[np.bool_], Ints]:
    """Classes of permitted hosts, and the class of each node. Raises BadInput if a class is empty."""
    floors = np.array([h.service_floor_s or 0.0 for h in hosts])
    processors = np.array([h.processors for h in hosts])
    by_class: dict[tuple[str, int, float], int] = {}
    users: dict[int, list[str]] = defaultdict(list)
    permission = np.empty(len(demand.nodes), dtype=np.intp)
    for i, name in enumerate(demand.nodes):
        service_s = np.inf if allow_overcommit else float(demand.service_s[i])
        key = (demand.pins[i], int(demand.processor[i]), service_s)
        permission[i] = by_class.setdefault(key, len(by_class))
        users[int(permission[i])].append(name)
    masks = np.ones((len(by_class), len(hosts)), dtype=np.bool_)
    wrong = []
    for (pin, processor, service_s), number in by_class.items():
        pinned = np.array([not pin or h.matches(pin) for h in hosts])
        wide, fast = processors > processor, floors <= service_s
        masks[number] = pinned & wide & fast
        if masks[number].any():
            continue
        node = f"node{'s' * (len(users[number]) > 1)} {some(users[number])}"
        where = f" of the hosts {pin}" if pin else ""
        if not pinned.any():
            names = some([h.name for h in hosts])
            wrong.append(f"{node}: host: found '{pin}'; expected a pattern of any of {names}")
        elif not (pinned & wide).any():
            most = int(processors[pinned].max()) - 1
            wrong.append(
                f"{node}: cpuset: found processor {processor}; expected at most {most}{where}"
            )
        else:
            floor_s = float(floors[pinned & wide].min())
            wrong.append(
                f"{node}: found a disk with a service time of {service_s * 1e6:.0f} us; expected at least "
                f"{floor_s * 1e6:.0f} us{where}: a larger time_scale; `--allow-overcommit` accepts it"
            )
    if wrong:
        raise BadInput("\n".join(wrong))
    return masks, permission


def _packed(
    problem: Problem, demand: Demand, hosts: Sequence[PhysicalHost], *, allow_overcommit: bool
) -> Packing:
    """The first packing that succeeds: as if all links carried traffic to other hosts, then without links;
    overcommitted if that is allowed and no other one does."""
    for attempt in filter(enough, (_with_links(problem, demand, hosts), problem)):
        for spread in (False, True):
            for order in orders(attempt, demand.order):
                packing = pack(attempt, order, spread=spread)
                if packing.failed is None:
                    return packing
    order = next(orders(problem, demand.order))
    return pack(problem, order, allow_overcommit=allow_overcommit)


def _with_links(problem: Problem, demand: Demand, hosts: Sequence[PhysicalHost]) -> Problem:
    """The problem with the sums of the rates of links as further resources."""
    links, nodes = demand.links, len(demand.nodes)
    rates = [
        np.bincount(links.node, weights=np.nan_to_num(rate), minlength=nodes)
        for rate in (links.out_bps, links.in_bps)
    ]
    capacity = _capacity(hosts)
    return replace(
        problem,
        amounts=np.column_stack([problem.amounts, *rates]),
        supply=np.column_stack([problem.supply, capacity, capacity]),
    )


def _capacity(hosts: Sequence[PhysicalHost]) -> Floats:
    return np.array([payload_bps(h, tunnelled=len(hosts) > 1) for h in hosts])


def _closer(
    problem: Problem, demand: Demand, hosts: tuple[PhysicalHost, ...], host_of: Ints
) -> Placement:
    """The placement, or the one with nodes of the same networks and groups together if that reduces the
    traffic between hosts and overcommits no more links."""
    placement = _evaluated(problem, demand, hosts, host_of)
    exchanged = grouped(_with_links(problem, demand, hosts), host_of, demand.order)
    if not ports_suffice(problem, exchanged):
        return placement
    links, count = demand.links, len(hosts)
    if crossing(links, exchanged, count) > crossing(links, host_of, count):
        return placement
    closer = _evaluated(problem, demand, hosts, exchanged)
    return placement if len(closer.over) > len(placement.over) else closer


def _evaluated(
    problem: Problem, demand: Demand, hosts: tuple[PhysicalHost, ...], host_of: Ints
) -> Placement:
    used = np.zeros_like(problem.supply)
    np.add.at(used, host_of, problem.amounts)
    traffic = traffic_of(demand.links, host_of, len(hosts))
    capacity = _capacity(hosts)
    used = np.column_stack([used, traffic.out_bps, traffic.in_bps])
    supply = np.column_stack([problem.supply, capacity, capacity])
    floors = np.array([h.service_floor_s or 0.0 for h in hosts])
    slow = np.flatnonzero(demand.service_s < floors[host_of])
    over = overcommitments(hosts, used, supply)
    return Placement(
        hosts,
        demand.nodes,
        host_of,
        used,
        supply,
        traffic,
        tuple(over),
        tuple(demand.nodes[i] for i in slow),
    )
