"""Search for a wrong value of a platform, or a slow node or link: the change of the model that best explains
the operations of real runs.

Each run is simulated again with every task on its actual node and every file at its actual location, so that
only service times can differ. Then one value at a time is scaled until the simulated operations fit the
measured ones best.
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
from penstock.parts.stores.workflow.running.executed import Executed, placement
from penstock.platform.hosts import Platform
from penstock.text import percentage

Network = dict[str, Any]
#: kind of operation: read or write, whether local to the node, and bytes
Kind = tuple[str, bool, int]

#: search range of a factor: a third to threefold
_MOST = math.log(3)
_NEAR = 0.01
_COARSE = 5
#: approximate simulations per value; and number of values that are not specific to a node
_TRIES, _OF_ALL = 2 * _COARSE + 12, 3
#: a suspect explains at least this share of the differences, and is off by at least this factor
EXPLAINS, OFF = 0.3, math.log(1.08)
#: significance level, required operations, and least deviation of a kind
CHANCE, _FEWEST, _LEAST_DEVIATION = 0.001, 8, 0.02
#: share that a significant suspect explains at least
LEAST_SHARE = 0.1
#: limit of simulated chunks in a search; above it, nodes are omitted, or there is no suspect
_MOST_CHUNKS = 2e7
#: smaller operations are dominated by costs outside the service times [bytes]
_LEAST_BYTES = 64 * 1024


@dataclass(frozen=True)
class Suspect:
    """One value of the model: `name` as in "storage.read" or "link of node-2".

    With `factor` times its service time (1.25: a quarter longer than in the platform) the model fits the runs
    best; `explains` is the share of the squared log ratios, measured over simulated, that this removes,
    weighted by seconds or, with healthy runs, by their spread.
    """

    name: str
    factor: float
    explains: float

    def __str__(self) -> str:
        return f"{self.name} taking {self.factor:.2f} times as long ({percentage(self.explains)} explained)"


@dataclass(frozen=True)
class _Seen:
    """A measured operation, and its place in the simulated run."""

    kind: Kind
    task: str
    number: int
    seconds: float


class Comparison:
    """Real runs of one workload with their model. Several can be analysed together."""

    def __init__(self, workload: Workload, runs: Sequence[Executed]) -> None:
        self._runs = [_Run(workload, run) for run in runs]

    def operations(self, usual_ratios: Mapping[Kind, Usual]) -> int:
        """Number of operations of the kinds with a usual ratio."""
        return sum(one.kind in usual_ratios for run in self._runs for one in run.seen)

    @property
    def moved_bytes(self) -> int:
        """Bytes moved by all compared operations."""
        return sum(run.moved_bytes for run in self._runs)

    def ratios(self, network: Network) -> Iterator[tuple[Kind, float, float]]:
        """Kind, measured seconds, and log ratio of measured over simulated, for each operation."""
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
    """Log ratio of measured over simulated of one kind of operation in healthy runs."""

    mean: float
    deviation: float


def usual(platform: Platform, healthy: Sequence[Comparison]) -> dict[Kind, Usual]:
    """Usual deviation of the model by kind of operation, which is not suspect; and the spread of single
    operations around it, the weight of every difference.
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
    """Explanations of the runs, best first: a service time or the network that differs from the platform, or
    a node or link that is slower (a faster one is not a fault).

    Empty if none explains enough of the differences, or if the search would take minutes.

    `usual_ratios` is the result of `usual` for healthy runs. With it, a value is reported if the better fit
    is significant at one in a thousand (F test, Bonferroni over the values); without, if it explains
    EXPLAINS.
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
        # share of the sum of squares at that F; operations of one run are dependent, so F alone is too
        # optimistic
        enough = max(LEAST_SHARE, f / (f + n - 1))
    suspected = []
    for name, scale in changes:
        at, least = _lowest(lambda x, scale=scale: residual(scale(math.exp(x))))  # type: ignore[misc]
        explains = 1 - least / before if before > 0 else 0.0
        if explains >= enough and (at if " of " in name else abs(at)) >= OFF:
            suspected.append(Suspect(name, math.exp(at), explains))
    return sorted(suspected, key=lambda s: -s.explains)


def _lowest(of: Callable[[float], float]) -> tuple[float, float]:
    """Minimum of a function of the log factor, and its value there; local minima are possible."""
    steps = [_MOST * i / _COARSE for i in range(-_COARSE, _COARSE + 1)]
    values = [of(x) for x in steps]
    i = values.index(min(values))
    around = (steps[max(i - 1, 0)], steps[min(i + 1, len(steps) - 1)])
    done = minimize_scalar(of, bounds=around, method="bounded", options={"xatol": _NEAR})
    best = min((float(done.fun), float(done.x)), (values[i], steps[i]))
    return best[1], best[0]


def _changes(base: Network) -> Iterator[tuple[str, Callable[[float], Network]]]:
    """Candidates for a wrong value, and the model with a multiple of its service time."""
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
    )  # hosts of one group share their components; each is changed individually

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
