"""The value of a platform that is wrong, or the node or link that is slow: the one change of the model
that best explains the operations of real runs.

Each run is simulated again with every task on the node where it ran and every file where it lay, so that
only service times are left to differ. Then one value at a time is scaled until the simulated operations
come as near as they can to those that were measured.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scipy.optimize import minimize_scalar
from scipy.stats import f as f_distribution

from penstock.parts.prediction.queue_network.simulate import Simulator
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.parts.stores.workflow.execute import Executed, placement
from penstock.platform.hosts import Platform

Network = dict[str, Any]
#: a kind of operation: read or write, whether on the node itself, and bytes
Kind = tuple[str, bool, int]

#: a value is looked for between its third and its threefold
_MOST = math.log(3)
_NEAR = 0.01
_COARSE = 5
#: simulations for one value, about; and how many values are of no single node
_TRIES, _OF_ALL = 2 * _COARSE + 12, 3
#: what is suspected explains at least this share of what differs, and is off by at least this factor
EXPLAINS, OFF = 0.3, math.log(1.08)
#: how seldom chance alone may name something, operations that are needed, and least deviation of a kind
CHANCE, _FEWEST, _LEAST_DEVIATION = 0.001, 8, 0.02
#: and what is named explains at least this share there
LEAST_SHARE = 0.1
#: chunks that are simulated to name a suspect, at most; nodes are left out, or nobody is suspected
_MOST_CHUNKS = 2e7
#: operations below it take what no service time says [bytes]
_LEAST_BYTES = 64 * 1024


@dataclass(frozen=True)
class Suspect:
    """One value of the model: `name` as in "storage.read" or "link of node-2".

    With `factor` times its service time (1.25: it takes a quarter longer than the platform says) the model
    comes nearest to the runs; `explains` is the share of the squared logarithms of measured over simulated
    that this takes away, weighted by seconds or, where healthy runs are known, by how much these differ.
    """

    name: str
    factor: float
    explains: float

    def __str__(self) -> str:
        return f"{self.name} taking {self.factor:.2f} times as long ({self.explains:.0%} explained)"


@dataclass(frozen=True)
class _Seen:
    """One operation that was measured, and its place in the simulated run."""

    kind: Kind
    task: str
    number: int
    seconds: float


class Comparison:
    """Real runs of one workload beside its model. Several may be looked at together."""

    def __init__(self, workload: Workload, runs: Sequence[Executed]) -> None:
        self._runs = [_Run(workload, run) for run in runs]

    def operations(self, usual_ratios: Mapping[Kind, Usual]) -> int:
        """Number of operations of the kinds with a usual ratio."""
        return sum(one.kind in usual_ratios for run in self._runs for one in run.seen)

    @property
    def moved_bytes(self) -> int:
        """By all operations that are compared."""
        return sum(run.moved_bytes for run in self._runs)

    def ratios(self, network: Network) -> Iterator[tuple[Kind, float, float]]:
        """Kind, measured seconds, and the logarithm of measured over simulated, for each operation."""
        for run in self._runs:
            yield from run.ratios(network)


class _Run:
    def __init__(self, workload: Workload, run: Executed) -> None:
        hosts = {t["task"]: t["host"] for t in run.tasks.to_pylist()}
        tasks = tuple(replace(t, machine=hosts[t.name]) for t in workload.tasks)
        pinned = replace(workload, tasks=tasks, origin=None)
        at = json.dumps(placement(run))
        self._simulator = Simulator(pinned, 1, None, at)
        self.seen = [
            _Seen(self._kind(run, row, hosts), row["task"], row["number"], took)
            for row in run.operations.to_pylist()
            if row["op"] in ("read", "write")
            and row["size_bytes"] >= _LEAST_BYTES
            and (took := row["end_s"] - row["start_s"]) > 0
        ]

    @property
    def moved_bytes(self) -> int:
        return sum(one.kind[2] for one in self.seen)

    @staticmethod
    def _kind(run: Executed, row: Mapping[str, Any], hosts: Mapping[str, str]) -> Kind:
        nodes = {n for e in run.extents.get(row["file"], ()) for n in e.nodes}
        return row["op"], nodes == {hosts[row["task"]]}, row["size_bytes"]

    def ratios(self, network: Network) -> Iterator[tuple[Kind, float, float]]:
        done = self._simulator.full(network, 1)
        spans = {t["name"]: t["spans"] for t in done["tasks"]}
        for one in self.seen:
            span = spans[one.task][one.number]
            simulated = span["end_s"] - span["start_s"]
            if simulated > 0:
                yield one.kind, one.seconds, math.log(one.seconds / simulated)


@dataclass(frozen=True)
class Usual:
    """The logarithm of measured over simulated of one kind of operation in healthy runs."""

    mean: float
    deviation: float


def usual(platform: Platform, healthy: Sequence[Comparison]) -> dict[Kind, Usual]:
    """Usual deviation of the model by kind of operation, which is no reason to suspect anything; and the
    spread of single operations around it, by which every difference is weighted.
    """
    ratios: dict[Kind, list[float]] = defaultdict(list)
    network = platform.lower()
    for comparison in healthy:
        for kind, _, ratio in comparison.ratios(network):
            ratios[kind].append(ratio)
    return {
        kind: Usual(statistics.fmean(rows), max(_LEAST_DEVIATION, statistics.stdev(rows)))
        for kind, rows in ratios.items()
        if len(rows) > 1
    }


def suspects(
    platform: Platform,
    compared: Sequence[Comparison],
    usual_ratios: Mapping[Kind, Usual] | None = None,
) -> list[Suspect]:
    """Explanations of the runs, the best first: a service time or the network that differs from the
    platform, or a node or link that is slower (a faster one is no fault).

    Empty where nothing explains enough of the differences, or where the search would take minutes.

    `usual_ratios` is the result of `usual` for healthy runs. With it a value is named where chance explains
    the better fit in less than one of a thousand comparisons (F test, Bonferroni over the values); without,
    it has to explain EXPLAINS.
    """
    base = platform.lower()

    def residual(network: Network) -> float:
        total = 0.0
        for comparison in compared:
            for kind, seconds, ratio in comparison.ratios(network):
                if usual_ratios is None:
                    total += seconds * ratio**2
                elif kind in usual_ratios:
                    total += ((ratio - usual_ratios[kind].mean) / usual_ratios[kind].deviation) ** 2
        return total

    changes = list(_changes(base))
    each = sum(c.moved_bytes for c in compared) / int(base["store"]["chunk_bytes"]) * _TRIES
    if each * len(changes) > _MOST_CHUNKS:
        changes = changes[:_OF_ALL]
    if each * len(changes) > _MOST_CHUNKS:
        return []
    before = residual(base)
    enough = EXPLAINS
    if usual_ratios is not None:
        n = sum(c.operations(usual_ratios) for c in compared)
        if n < _FEWEST:
            return []
        f = float(f_distribution.isf(CHANCE / len(changes), 1, n - 1))
        # the share of the sum of squares at which F is that; operations of one run are not independent of
        # each other, so that F alone says too much
        enough = max(LEAST_SHARE, f / (f + n - 1))
    suspected = []
    for name, scale in changes:
        at, least = _lowest(lambda x, scale=scale: residual(scale(math.exp(x))))  # type: ignore[misc]
        explains = 1 - least / before if before > 0 else 0.0
        if explains >= enough and (at if " of " in name else abs(at)) >= OFF:
            suspected.append(Suspect(name, math.exp(at), explains))
    return sorted(suspected, key=lambda s: -s.explains)


def _lowest(of: Callable[[float], float]) -> tuple[float, float]:
    """Minimum of a function of the logarithm of a factor, and its value there; it may have local minima."""
    steps = [_MOST * i / _COARSE for i in range(-_COARSE, _COARSE + 1)]
    values = [of(x) for x in steps]
    i = values.index(min(values))
    around = (steps[max(i - 1, 0)], steps[min(i + 1, len(steps) - 1)])
    done = minimize_scalar(of, bounds=around, method="bounded", options={"xatol": _NEAR})
    best = min((float(done.fun), float(done.x)), (values[i], steps[i]))
    return best[1], best[0]


def _changes(base: Network) -> Iterator[tuple[str, Callable[[float], Network]]]:
    """Every value that may be wrong, and the model with it taking a number of times as long."""
    for which in ("read", "write"):
        yield f"storage.{which}", _scaled(base, None, (which,), link=False)
    yield "network.bandwidth", _scaled(base, None, (), link=True)
    for host in base["hosts"]:
        if host["storage"] is not None:
            yield f"storage of {host['name']}", _scaled(base, host["name"], ("read", "write"))
        if host["storage"] is not None or host["client"] is not None:
            yield f"link of {host['name']}", _scaled(base, host["name"], (), link=True)


def _scaled(
    base: Network, name: str | None, services: Sequence[str], link: bool = False
) -> Callable[[float], Network]:
    text = json.dumps(
        base
    )  # hosts of one group share what they are made of; each is changed by itself

    def changed(factor: float) -> Network:
        network: Network = json.loads(text)
        for host in network["hosts"]:
            if name is not None and host["name"] != name:
                continue
            for which in services if host["storage"] is not None else ():
                for key in ("overhead", "s_per_byte"):
                    host["storage"][which][key] *= factor
            if link:
                for key in ("out_bps", "in_bps"):
                    host["network"][key] /= factor
        return network

    return changed
