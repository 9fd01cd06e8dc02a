"""Comparison of all nodes with the three seeded ones: brief timings of each disk and each link.

Service times measured on one storage node are applied to all of them. Therefore every node of the platform is
started as it will be, without the store, and timed in rounds: a disk by writes and reads of one piece, a link
by bursts to and from the next two nodes. A round times all nodes once, one after the other, so that load on
the host affects all of them.
"""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scipy.stats import t as student

from penstock.emulate.cluster.cluster import Cluster, Progress, RunningNode
from penstock.host.journal.journal import Journal
from penstock.parts.stores.calibration.probes import DISK, NETWORK, ask, serving
from penstock.platform.cluster import checked_cluster
from penstock.platform.hosts import Platform
from penstock.spec.cluster import ClusterSpec
from penstock.text import percent

#: family-wise probability of a false positive among identical nodes
LEVEL = 0.01
#: smaller differences are within the accuracy of the seeded means
MATTERS = 0.05
#: rounds continue until a difference of this size would be detected, within the budget
SEEN = 0.10
FEWEST, MOST = 3, 12
_PIECES = 6
#: target duration of a burst [s], its maximum size, and its size if no rate is described [bytes]
_BURST_S, _MOST_BYTES, _BYTES = 0.15, 32 << 20, 16 << 20
_LEAST_BYTES = 256 << 10

#: seconds, or seconds relative to the description, by quantity, by node, one value per round
Timed = Mapping[str, Mapping[str, Sequence[float]]]


@dataclass(frozen=True)
class Unlike:
    """A node that differs: quantity, ratio of its time to the others', with its interval."""

    node: str
    what: str
    times: float
    low: float
    high: float

    def __str__(self) -> str:
        slow = (
            f"{self.times:.2f} times as long as on the others ({self.low:.2f} to {self.high:.2f})"
        )
        return f"{self.node}: {self.what} takes {slow}"


@dataclass(frozen=True)
class Homogeneity:
    """Result of the comparison: nodes that differ, and the smallest detectable difference of each
    quantity."""

    unlike: tuple[Unlike, ...]
    #: by quantity, as a fraction
    shows: Mapping[str, float]
    nodes: int
    rounds: int

    def to_dict(self) -> dict[str, Any]:
        return {
            "level": LEVEL,
            "nodes": self.nodes,
            "rounds": self.rounds,
            "shows": {k: round(v, 4) for k, v in self.shows.items()},
            "unlike": [
                {"node": u.node, "what": u.what, "times": round(u.times, 4)} for u in self.unlike
            ],
        }

    @property
    def cautions(self) -> list[str]:
        """Messages: nodes that differ, and quantities with insufficient data."""
        blunt = [
            f"{what}: a node that differs by less than {percent(share)} would not have been seen "
            f"in {self.rounds} rounds"
            for what, share in self.shows.items()
            if share > 2 * SEEN
        ]
        return [*map(str, self.unlike), *blunt]


def judged(timed: Timed) -> Homogeneity:
    """Nodes that differ from the others by more than MATTERS, at LEVEL for all of them together.

    The statistic is a node's log distance in each round from the median of the others. Its standard error
    comes from the pooled residuals of nodes and rounds (two-way layout, one observation per cell). The test
    is Student's t with (nodes − 1)(rounds − 1) degrees of freedom, with Bonferroni correction over all nodes
    and quantities.
    """
    tests = sum(len(nodes) for nodes in timed.values() if len(nodes) > 1)
    unlike: list[Unlike] = []
    shows: dict[str, float] = {}
    rounds = min(len(v) for nodes in timed.values() for v in nodes.values())
    for what, nodes in timed.items():
        if len(nodes) < 2:
            continue
        logs = {name: [math.log(v) for v in values[:rounds]] for name, values in nodes.items()}
        half = _half_width(logs, tests)
        shows[what] = math.expm1(half)
        for name, own in logs.items():
            others = [v for other, v in logs.items() if other != name]
            apart = statistics.fmean(
                own[r] - statistics.median(v[r] for v in others) for r in range(rounds)
            )
            if abs(apart) > max(half, math.log1p(MATTERS)):
                ends = (math.exp(apart - half), math.exp(apart + half))
                unlike.append(Unlike(name, what, math.exp(apart), *ends))
    several = {what: [u for u in unlike if u.what == what] for what in shows}
    named = tuple(
        u for what in shows for u in sorted(several[what], key=lambda u: -abs(math.log(u.times)))
    )
    return Homogeneity(named, shows, max(map(len, timed.values())), rounds)


def _half_width(logs: Mapping[str, Sequence[float]], tests: int) -> float:
    """Half width of the interval of a node's distance from the median of the others."""
    nodes, rounds = len(logs), len(next(iter(logs.values())))
    of_node = {n: statistics.fmean(v) for n, v in logs.items()}
    of_round = [statistics.fmean(v[r] for v in logs.values()) for r in range(rounds)]
    grand = statistics.fmean(of_round)
    squares = sum(
        (v[r] - of_node[n] - of_round[r] + grand) ** 2
        for n, v in logs.items()
        for r in range(rounds)
    )
    freedom = (nodes - 1) * (rounds - 1)
    # the variance of a median of normal values is at most π/2 that of their mean, and at most a node's own
    others = min(1.0, math.pi / 2 / (nodes - 1))
    error = math.sqrt(squares / freedom * (1 + others) / rounds)
    return float(student.ppf(1 - LEVEL / tests / 2, freedom)) * error


def homogeneity(
    platform: Platform,
    *,
    budget_s: float = 60.0,
    note: Callable[[str], None] = lambda _: None,
    progress: Progress | None = None,
) -> Homogeneity | None:
    """Start the platform's nodes, time each, and stop them; None if there is nothing to compare.

    Storage nodes are compared by their disks, if any; all nodes by their links.
    """
    spec = checked_cluster(platform)
    storage = [h.name for h in platform.hosts if "storage" in h.roles]
    if len(spec.nodes) < 2:
        return None
    bare = replace(spec, name=f"{spec.name[:26]}-alike", events=())
    with Cluster.up(bare, Journal(), outlive=False, progress=progress) as cluster:
        timed = measured(cluster, bare, storage, budget_s=budget_s, note=note)
    return judged(timed) if timed else None


def measured(
    cluster: Cluster,
    spec: ClusterSpec,
    storage: Sequence[str],
    *,
    budget_s: float = 60.0,
    note: Callable[[str], None] = lambda _: None,
) -> Timed:
    """Rounds over running nodes, until a difference of SEEN is detectable, after MOST rounds or a timeout."""
    nodes = cluster.nodes
    disks = [nodes[n] for n in storage if nodes[n].disks]
    linked = [n for n in nodes.values() if n.address is not None]
    timed: dict[str, dict[str, list[float]]] = {}

    def record(what: str, node: str, value: float) -> None:
        timed.setdefault(what, {}).setdefault(node, []).append(value)

    until = time.monotonic() + budget_s
    with _servers(linked if len(linked) > 1 else []) as ports:
        for number in range(1, MOST + 1):
            if len(disks) > 1:
                for node in disks:
                    for what, value in _disk(node).items():
                        record(f"disk, {what}", node.name, value)
            for what, name, value in _links(linked, ports, spec):
                record(what, name, value)
            note(f"all nodes, round {number}")
            if not timed or (number >= FEWEST and _enough(timed, until)):
                break
    return timed


def _enough(timed: Timed, until: float) -> bool:
    return time.monotonic() > until or max(judged(timed).shows.values(), default=0.0) <= SEEN


def _disk(node: RunningNode) -> dict[str, float]:
    """Median seconds of a piece, by write and read."""
    disk = next(iter(node.disks.values()))
    seconds = json.loads(ask(node, DISK, f"{disk.mount}/.probe", str(_PIECES)))
    return {what: statistics.median(times) for what, times in seconds.items()}


def _links(
    nodes: Sequence[RunningNode], ports: Mapping[str, str], spec: ClusterSpec
) -> Iterator[tuple[str, str, float]]:
    """Seconds of a burst out of and into each node, relative to the time by the link's description.

    The shorter burst to either of the next two nodes counts, so that a slow peer does not make a node look
    slow.
    """
    if not ports:
        return
    described = {n.name: n.links[0] for n in spec.nodes if n.links}
    out: dict[str, list[float]] = {}
    into: dict[str, list[float]] = {}
    for place, node in enumerate(nodes):
        for step in {1, 2 % len(nodes)} - {0}:
            peer = nodes[(place + step) % len(nodes)]
            rates = (described[node.name].out_bps, described[peer.name].in_bps)
            rate = min((r for r in rates if r is not None), default=None)
            size = int(min(_MOST_BYTES, max(_LEAST_BYTES, _BURST_S * rate))) if rate else _BYTES
            arguments = ("burst", peer.address or "", ports[peer.name], str(size))
            took_s = float(ask(node, NETWORK, *arguments))
            share = took_s * rate / size if rate else took_s
            out.setdefault(node.name, []).append(share)
            into.setdefault(peer.name, []).append(share)
    for what, by_node in (("link, out", out), ("link, in", into)):
        for name, shares in by_node.items():
            yield what, name, min(shares)


@contextlib.contextmanager
def _servers(nodes: Sequence[RunningNode]) -> Iterator[dict[str, str]]:
    with contextlib.ExitStack() as stack:
        yield {n.name: stack.enter_context(serving(n, n.address or "")) for n in nodes}
