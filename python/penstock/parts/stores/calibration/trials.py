"""Operations for seeding a store: timed in rounds until the means are precise."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from penstock.emulate.cluster.cluster import RunningNode
from penstock.errors import PenstockError
from penstock.host.cgroups.busy import busy_share, busy_ticks
from penstock.host.network.loopback import Measured as Interval
from penstock.host.network.loopback import interval
from penstock.parts.prediction.queue_network.identify import Measured
from penstock.parts.prediction.workloads.task import File, Hints, Operation, Task
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.parts.stores.calibration.probes import NETWORK, ask, serving
from penstock.parts.stores.store import Store
from penstock.parts.stores.workflow.execute import Executed, execute
from penstock.text import percentage

#: target relative half width of a 95 % interval
NARROW = 0.05
#: sizes of operations [bytes], and operations of each size per round; the smallest shows the fixed cost
SIZES = (1024, 64 * 1024, 4 * 2**20)
_OF_EACH = {0: 6, SIZES[0]: 4, SIZES[1]: 4, SIZES[2]: 2}
_CHAIN = 6
_FEWEST_ROUNDS = 3
#: consecutive discarded rounds, with none before, before giving up
_MOST_IN_A_ROW = 5
#: rounds with a higher processor utilisation of the host are discarded
BUSIEST = 0.7
_PROBE_S = 3.0


@dataclass
class Trials:
    """Seconds of operations and task starts, and discarded rounds with their reasons.

    `launches_s`: from the end of a task to the start of the next; `tags_s`: additional time for a written
    file with hints; `locates_s`: additional time for locating the input in the store.
    """

    seconds: dict[Measured, list[float]] = field(default_factory=dict)
    launches_s: list[float] = field(default_factory=list)
    tags_s: list[float] = field(default_factory=list)
    locates_s: list[float] = field(default_factory=list)
    rounds: int = 0
    dropped: list[str] = field(default_factory=list)

    def means(self) -> dict[Measured, Interval]:
        """Mean and interval of each kind of operation."""
        return {key: interval(values) for key, values in self.seconds.items()}

    @property
    def converged(self) -> bool:
        """True if the interval of each mean is within NARROW."""
        return all(
            len(v) > 2 and _half(v) <= NARROW * sum(v) / len(v) for v in self.seconds.values()
        )


def needed(values: list[float]) -> int:
    """Operations for an interval within NARROW: (z s / (r mean))², rounded up [Jain 1991, eq. 13.3]."""
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / max(1, len(values) - 1))
    return math.ceil((1.96 * deviation / (NARROW * mean)) ** 2)


def measure(store: Store, budget_s: float, note: Callable[[str], None] = lambda _: None) -> Trials:
    """Rounds of writes, reads and empty tasks, until the means are precise or time is over.

    Operations run on a client that stores nothing and, if the storage node is a client too, on that node.
    """
    clients, storage = store.roles.clients, store.roles.storage
    places = {node in storage: node for node in clients}
    trials = Trials()
    until, in_a_row = time.monotonic() + budget_s, 0

    def run(workload: Workload, *, by_data: bool = False) -> Executed:
        at = dict.fromkeys(places.values(), 1)
        groups = {node: node for node in places.values()}
        return execute(
            workload,
            store,
            slots=at,
            groups=groups,
            by_data=by_data,
            located=False,
            watched=False,  # `guarded` already watches the servers
        )

    while True:
        before = busy_ticks()
        done = run(_operations(places))
        chains = {hints: run(_chain(places, hints), by_data=hints) for hints in (False, True)}
        busy = busy_share(before, busy_ticks())
        trials.rounds += 1
        why = (
            f"processors {percentage(busy)} busy, limit {percentage(BUSIEST)}"
            if busy > BUSIEST
            else ""
        )
        in_a_row = in_a_row + 1 if why else 0
        if why:
            trials.dropped.append(f"round {trials.rounds}: {why}")
        else:
            for row in done.operations.to_pylist():
                key = Measured(row["op"], int(row["size_bytes"]), row["task"].startswith("local"))
                trials.seconds.setdefault(key, []).append(row["end_s"] - row["start_s"])
            _take_chains(trials, chains)
        note(f"round {trials.rounds}: " + (f"discarded ({why})" if why else "kept"))
        enough = trials.rounds - len(trials.dropped) >= _FEWEST_ROUNDS and trials.converged
        if enough or (time.monotonic() > until and trials.seconds):
            return trials
        hopeless = in_a_row >= _MOST_IN_A_ROW and not trials.seconds
        if hopeless or time.monotonic() > until + budget_s:
            raise PenstockError(
                f"the host was too busy to measure on: {trials.dropped[-1]}; none of "
                f"{trials.rounds} rounds could be used"
            )


def _operations(places: Mapping[bool, str]) -> Workload:
    """Writes and reads one after the other, at each place; empty files involve only the manager."""
    files: list[File] = []
    tasks: list[Task] = []
    for local, node in places.items():
        place = "local" if local else "remote"
        for size, count in _OF_EACH.items():
            if not size and local:
                continue
            names = [f"{place}.{size}.{i}" for i in range(count)]
            kinds = ("write", "read") if size else ("write",)
            for op in kinds:
                steps = tuple(Operation(op, f"{op}.{name}", 0, size) for name in names)
                after = (tasks[-1].name,) if tasks else ()
                tasks.append(Task(f"{place} {op} {size}", steps, machine=node, after=after))
            if size:
                files += [File(f"read.{name}", size, preloaded=True) for name in names]
    return Workload("seeding", tuple(files), tuple(tasks))


def _chain(places: Mapping[bool, str], hints: bool) -> Workload:
    """Tasks on one node that each read the previous one's output, with or without hints on these files."""
    node = places.get(True) or places[False]
    hint = Hints(placement="local" if True in places else "collocate", group="seeding")
    names = [f"chain.{i}" for i in range(_CHAIN)]
    files = [File(name, hints=hint if hints else None) for name in names]
    tasks = []
    for i, name in enumerate(names):
        steps = (Operation("read", names[i - 1], 0, 1),) if i else ()
        write = Operation("write", name, 0, 1)
        tasks.append(Task(f"chain {i}", (*steps, write), machine=node))
    return Workload("chain", tuple(files), tuple(tasks))


def _take_chains(trials: Trials, chains: Mapping[bool, Executed]) -> None:
    """Task start times, and the time added by hints and by locating files."""

    def gaps(hints: bool) -> tuple[list[float], list[float], list[float]]:
        at = {t["task"]: t for t in chains[hints].tasks.to_pylist()}
        pairs = [(at[f"chain {i - 1}"], at[f"chain {i}"]) for i in range(1, _CHAIN)]
        return (
            [b["start_s"] - a["end_s"] for a, b in pairs],
            [b["sent_s"] - b["ready_s"] for _, b in pairs],
            [b["ready_s"] - a["end_s"] for a, b in pairs],
        )

    launches, sent, ready = gaps(False)
    _, sent_tagged, ready_located = gaps(True)
    trials.launches_s += launches
    trials.tags_s += [max(0.0, one - statistics.fmean(sent)) for one in sent_tagged]
    trials.locates_s += [max(0.0, one - statistics.fmean(ready)) for one in ready_located]


def link(asking: RunningNode, answering: RunningNode) -> tuple[Interval, Interval]:
    """Bytes per second of a program between two nodes (or within one), and half a round trip [s]."""
    address = answering.address if asking is not answering else "127.0.0.1"
    if address is None:
        raise PenstockError(f"node {answering.name} is in no network")
    with serving(answering, address) as port:
        measured = json.loads(ask(asking, NETWORK, "ask", address, port, str(_PROBE_S)))
    return interval(measured["rates_bps"]), interval([s / 2 for s in measured["trips_s"]])


def _half(values: list[float]) -> float:
    result = interval(values)
    return (result.high - result.low) / 2
