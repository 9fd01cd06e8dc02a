"""Comparison of all nodes with the three on which a store is seeded: each disk and each link, timed shortly.

Service times that were measured on one storage node are given to all of them. So every node of the platform
is put up as it will be, without the store, and timed in rounds: a disk by what it takes to write and to read
a piece, a link by bursts to and from the two next nodes. In a round all nodes are timed once, one after the
other, so that what the host does in the meantime falls on all of them.
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

#: the chance that any node at all is named where all are alike
LEVEL = 0.01
#: what differs by less is as well known as the seeded means are
MATTERS = 0.05
#: rounds go on until a difference of this much would be seen, if the budget allows
SEEN = 0.10
FEWEST, MOST = 3, 12
_PIECES = 6
#: seconds that a burst is to take, and its bytes at most and where no rate is described
_BURST_S, _MOST_BYTES, _BYTES = 0.15, 32 << 20, 16 << 20
_LEAST_BYTES = 256 << 10

#: seconds, or seconds per what was described, by what was timed, by node, a value for each round
Timed = Mapping[str, Mapping[str, Sequence[float]]]


@dataclass(frozen=True)
class Unlike:
    """A node that differs: `what` of it, how many times as long as the others', with its interval."""

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
    """Result of the comparison: the nodes that differ, and for each quantity the least difference it could
    show.
    """

    unlike: tuple[Unlike, ...]
    #: by what was timed, as a share
    shows: Mapping[str, float]
    nodes: int
    rounds: int

    def to_dict(self) -> dict[str, Any]:
        """In JSON values."""
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
        """In words: who differs, and what could not be told."""
        blunt = [
            f"{what}: a node that differs by less than {percent(share)} would not have been seen "
            f"in {self.rounds} rounds"
            for what, share in self.shows.items()
            if share > 2 * SEEN
        ]
        return [*map(str, self.unlike), *blunt]


def judged(timed: Timed) -> Homogeneity:
    """Names the nodes that differ from the others by more than MATTERS, at LEVEL for all of them together.

    Of the logarithms, a node's distance in each round from the median of the others; its standard error by
    the residuals of nodes and rounds pooled (two-way layout, one observation a cell); Student's t with
    (nodes − 1)(rounds − 1) degrees of freedom, and Bonferroni over all nodes and things timed.
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
    """Half of the interval of a node's distance from the median of the others."""
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
    # the variance of a median of normal values is at most π/2 that of their mean, and no more than one's own
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
    """Puts the platform's nodes up, times each, and takes them down; None where there is nothing to compare.

    Storage nodes by their disks, those of them that have one; all nodes by their links.
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
    """Rounds over nodes that are up, until a difference of SEEN would show, MOST are made or time is over."""
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
    """Seconds of a piece, the median of some, by write and read."""
    disk = next(iter(node.disks.values()))
    seconds = json.loads(ask(node, DISK, f"{disk.mount}/.probe", str(_PIECES)))
    return {what: statistics.median(times) for what, times in seconds.items()}


def _links(
    nodes: Sequence[RunningNode], ports: Mapping[str, str], spec: ClusterSpec
) -> Iterator[tuple[str, str, float]]:
    """Seconds of a burst out of and into each node, in shares of the time by the link's description.

    A burst goes to each of the two next nodes and the shorter one counts, so that a slow peer is not taken
    for a slow node.
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
    """Ports of the burst servers on every node, by node."""
    with contextlib.ExitStack() as stack:
        yield {n.name: stack.enter_context(serving(n, n.address or "")) for n in nodes}
