"""Delay and loss that links add to those of the real paths between hosts.

The delay and the loss of a platform file are end to end. Between nodes a and b on different hosts, the links
add D − d and 1 − (1 − P) / (1 − p), where D and P are requested and d and p are those of the path between the
hosts. A request of 0 is no request: then delay and loss of the path apply.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.errors import BadInput
from penstock.parts.remote.cluster.demand import Floats, Ints
from penstock.parts.remote.cluster.physical import RealPath
from penstock.spec.cluster import LinkSpec, NetworkSpec, NodeSpec
from penstock.text import percentage

_TOLERANCE = 1e-12
#: messages at most
_SHOWN = 8


@dataclass(frozen=True)
class PathPlan:
    """Traffic of one network from one host to another. `added_*`: the smallest additional delay and loss of
    the pairs of nodes that request any; None if none does."""

    network: str
    source: str
    target: str
    real: RealPath
    added_delay_s: float | None
    added_loss: float | None


def added_delay_s(requested_s: float, real_s: float) -> float:
    """Delay to add to a real one. Raises ValueError if the requested delay is shorter."""
    if requested_s == 0:
        return 0.0
    if requested_s < real_s - _TOLERANCE:
        raise ValueError(f"{requested_s} s is below {real_s} s")
    return max(0.0, requested_s - real_s)


def added_loss(requested: float, real: float) -> float:
    """Loss to add to a real one, so that 1 − (1 − real)(1 − added) is as requested.

    Raises ValueError if less was requested.
    """
    if requested == 0:
        return 0.0
    if requested < real - _TOLERANCE:
        raise ValueError(f"{requested} is below {real}")
    return max(0.0, 1 - (1 - requested) / (1 - real)) if real < 1 else 0.0


@dataclass(frozen=True)
class _Ends:
    """Links of one network, sorted by host; of nodes with equal ones on a host, one."""

    nodes: tuple[str, ...]
    host: Ints
    out_delay_s: Floats
    in_delay_s: Floats
    out_pass: Floats
    in_pass: Floats


def plan_paths(
    nodes: Sequence[NodeSpec],
    networks: Sequence[NetworkSpec],
    host_of: Mapping[str, str],
    paths: Mapping[tuple[str, str], RealPath],
) -> list[PathPlan]:
    """Additional delay and loss of each network from host to host.

    Raises BadInput for requests below the real path.
    """
    hosts = sorted(set(host_of.values()))
    number = {name: i for i, name in enumerate(hosts)}
    real_delay_s, real_loss = np.zeros((2, len(hosts), len(hosts)))
    for (a, b), path in paths.items():
        if a in number and b in number:
            real_delay_s[number[a], number[b]] = path.delay_s
            real_loss[number[a], number[b]] = path.loss
    links: dict[str, list[tuple[int, str, LinkSpec]]] = defaultdict(list)
    for node in nodes:
        for link in node.links:
            links[link.network].append((number[host_of[node.name]], node.name, link))
    plans: list[PathPlan] = []
    wrong: list[str] = []
    for network in networks:
        ends = _ends(links[network.name], each=bool(network.delays))
        for source in np.unique(ends.host):
            for plan in _from(
                network, ends, int(source), hosts, real_delay_s[source], real_loss[source]
            ):
                wrong.extend(_faults(plan))
                plans.append(plan)
    if wrong:
        more = f"\n{len(wrong) - _SHOWN} more such requests" * (len(wrong) > _SHOWN)
        raise BadInput("\n".join(wrong[:_SHOWN]) + more)
    return plans


def _ends(links: Sequence[tuple[int, str, LinkSpec]], *, each: bool) -> _Ends:
    """`each`: no two nodes are equal, because the network has delays of pairs."""
    first: dict[tuple[object, ...], tuple[int, str, LinkSpec]] = {}
    for host, node, link in links:
        alike = (link.delay.mean_s, link.in_delay.mean_s, link.loss, link.in_loss)
        first.setdefault((host, node if each else "", *alike), (host, node, link))
    rows = sorted(first.values(), key=lambda row: row[:2])
    return _Ends(
        tuple(node for _, node, _ in rows),
        np.array([host for host, _, _ in rows], dtype=np.intp),
        np.array([link.delay.mean_s for *_, link in rows]),
        np.array([link.in_delay.mean_s for *_, link in rows]),
        1 - np.array([link.loss for *_, link in rows]),
        1 - np.array([link.in_loss for *_, link in rows]),
    )


def _from(
    network: NetworkSpec,
    ends: _Ends,
    source: int,
    hosts: Sequence[str],
    real_delay_s: Floats,
    real_loss: Floats,
) -> Iterator[PathPlan]:
    """Plans of the traffic from one host to each other; negative values are requests below the real path."""
    rows = np.flatnonzero(ends.host == source)
    targets, starts = np.unique(ends.host, return_index=True)
    delay_s = ends.out_delay_s[rows, None] + ends.in_delay_s + _between(network, ends, rows)
    loss = 1 - ends.out_pass[rows, None] * ends.in_pass
    path_loss = np.minimum(real_loss[ends.host], 1 - _TOLERANCE)
    more_delay = np.where(delay_s > 0, delay_s - real_delay_s[ends.host], np.inf).min(axis=0)
    more_loss = np.where(loss > 0, 1 - (1 - loss) / (1 - path_loss), np.inf).min(axis=0)
    delays, losses = (np.minimum.reduceat(v, starts) for v in (more_delay, more_loss))
    for target, added_delay, added in zip(targets, delays.tolist(), losses.tolist(), strict=True):
        if target != source:
            yield PathPlan(
                network.name,
                hosts[source],
                hosts[target],
                RealPath(float(real_delay_s[target]), float(real_loss[target])),
                None if added_delay == np.inf else added_delay,
                None if added == np.inf else added,
            )


def _between(network: NetworkSpec, ends: _Ends, rows: Ints) -> Floats:
    """Delays of the network itself, from these nodes to all."""
    delays = np.full((len(rows), len(ends.nodes)), network.delay_s)
    if network.delays:
        column = {name: i for i, name in enumerate(ends.nodes)}
        row = {ends.nodes[i]: n for n, i in enumerate(rows.tolist())}
        for (a, b), delay_s in network.delays.items():
            if b in row and a in column and (b, a) not in network.delays:
                delays[row[b], column[a]] = delay_s
            if a in row and b in column:
                delays[row[a], column[b]] = delay_s
    return delays


def _faults(plan: PathPlan) -> Iterator[str]:
    where = f"network {plan.network}: from nodes on {plan.source} to nodes on {plan.target}"
    if plan.added_delay_s is not None and plan.added_delay_s < -_TOLERANCE:
        requested_s = plan.real.delay_s + plan.added_delay_s
        yield (
            f"{where}: found a delay of {requested_s * 1e6:,.1f} us; expected at least "
            f"{plan.real.delay_s * 1e6:,.1f} us, that of the path between these hosts"
        )
    if plan.added_loss is not None and plan.added_loss < -_TOLERANCE:
        requested = 1 - (1 - plan.added_loss) * (1 - plan.real.loss)
        yield (
            f"{where}: found a loss of {percentage(requested, 4)}; expected at least "
            f"{percentage(plan.real.loss, 4)}, that of the path between these hosts"
        )
