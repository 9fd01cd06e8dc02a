"""Vector bin packing of nodes onto hosts: best fit decreasing by the dominant share, else worst fit.

Panigrahy, Talwar, Uyeda, Wieder, "Heuristics for vector bin packing", 2011 (best fit weighted by demand);
Ghodsi et al., "Dominant resource fairness", NSDI 2011 (dominant share). A heuristic: where hosts are nearly
full, it may fail although a placement exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from penstock.parts.remote.cluster.demand import Floats, Ints

#: rounding of sums of decimal demands
_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Problem:
    """Nodes and hosts. `amounts`: nodes × resources; `supply`: hosts × resources; `permitted`: classes of
    permitted hosts × hosts, `permission`: class of each node; `networks`: networks of each node; `ports`:
    most nodes of one network on one host; `processors`: of each host."""

    amounts: Floats
    supply: Floats
    permitted: npt.NDArray[np.bool_]
    permission: Ints
    networks: Sequence[Ints]
    network_count: int
    ports: int
    processors: Floats

    @cached_property
    def inverse(self) -> Floats:
        """1 / supply; 0 where it is unlimited."""
        finite = np.isfinite(self.supply) & (self.supply > 0)
        return np.where(finite, 1.0 / np.where(finite, self.supply, 1.0), 0.0)

    @cached_property
    def weights(self) -> Floats:
        """Demand of each node as a share of an average host."""
        shares: Floats = self.amounts * self.inverse.mean(axis=0)
        return shares


@dataclass(frozen=True)
class Packing:
    """Host of each node; −1 for the first `failed` node and those after it."""

    host_of: Ints
    failed: int | None


def pack(
    problem: Problem, order: Ints, *, spread: bool = False, allow_overcommit: bool = False
) -> Packing:
    """Assign nodes to hosts one by one in this order: to the fullest host, in the resources of the node, on
    which it fits; with `spread`, to the emptiest one. Nodes without demands are spread in proportion to the
    processors.

    With `allow_overcommit`, a node that fits nowhere is placed on the host that it overcommits least.
    """
    hosts = len(problem.supply)
    used = np.zeros_like(problem.supply)
    most = problem.supply * (1 + _TOLERANCE)
    ports = np.zeros((hosts, problem.network_count), dtype=np.intp)
    counts = np.zeros(hosts)
    host_of = np.full(len(problem.amounts), -1, dtype=np.intp)
    for node in order:
        amounts, weights = problem.amounts[node], problem.weights[node]
        networks = problem.networks[node]
        free = problem.permitted[problem.permission[node]]
        free = free & (ports[:, networks] < problem.ports).all(axis=1)
        after = used + amounts
        fits = free & (after <= most).all(axis=1)
        if fits.any():
            score = after * problem.inverse @ (-weights if spread else weights)
            score = np.where(fits, score, -np.inf)
            best = np.flatnonzero(score >= score.max() - _TOLERANCE)
        elif allow_overcommit and free.any():
            load = np.where(free, (after * problem.inverse).max(axis=1), np.inf)
            best = np.flatnonzero(load <= load.min() + _TOLERANCE)
        else:
            return Packing(host_of, int(node))
        host = best[np.argmin(counts[best] / problem.processors[best])]
        host_of[node] = host
        used[host] = after[host]
        ports[host, networks] += 1
        counts[host] += 1
    return Packing(host_of, None)


def enough(problem: Problem) -> bool:
    """True unless the nodes together need more of a resource than all hosts have."""
    need, supply = problem.amounts.sum(axis=0), problem.supply.sum(axis=0)
    return bool((need <= supply * (1 + _TOLERANCE)).all())


def orders(problem: Problem, natural: Ints) -> Iterator[Ints]:
    """Orders to try: by decreasing dominant share, then by the decreasing sum of the shares.

    `natural`: order of equal nodes.
    """
    for size in (problem.weights.max(axis=1), problem.weights.sum(axis=1)):
        largest_first = np.argsort(-np.round(size[natural], 12), kind="stable")
        yield natural[largest_first]


def grouped(problem: Problem, packing: Ints, natural: Ints) -> Ints:
    """Exchange nodes with equal demands, so that those with the same networks and group are together.

    The sums of all hosts stay. The caller must check that the ports suffice.
    """
    keys = np.column_stack([problem.permission.astype(np.float64), problem.amounts])
    _, kind = np.unique(keys, axis=0, return_inverse=True)
    rank = np.empty(len(natural), dtype=np.intp)
    rank[natural] = np.arange(len(natural))
    signatures = [tuple(sorted(networks.tolist())) for networks in problem.networks]
    number = {signature: i for i, signature in enumerate(sorted(set(signatures)))}
    networks = np.array([number[signature] for signature in signatures], dtype=np.intp)
    kind = kind.reshape(-1)
    members = np.lexsort((rank, networks, kind))
    slots = np.lexsort((packing, kind))
    exchanged = np.empty_like(packing)
    exchanged[members] = packing[slots]
    return exchanged


def ports_suffice(problem: Problem, host_of: Ints) -> bool:
    """True if no bridge has more nodes than ports."""
    counts = [len(networks) for networks in problem.networks]
    if not sum(counts):
        return True
    at = np.repeat(host_of, counts) * problem.network_count + np.concatenate(problem.networks)
    return bool(np.bincount(at).max() <= problem.ports)
