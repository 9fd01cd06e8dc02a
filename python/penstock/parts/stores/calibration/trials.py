"""Operations for seeding a store: timed in rounds until the means are precise."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.emulate.cluster.cluster import RunningNode
from penstock.errors import PenstockError
from penstock.host.cgroups.busy import busy_share, busy_ticks
from penstock.host.network.loopback import Measured as Interval
from penstock.host.network.loopback import interval
from penstock.parts.prediction.queue_network.identify import IN_TURN, Measured
from penstock.parts.prediction.workloads.task import File, Hints, Operation, Task
from penstock.parts.prediction.workloads.workflow import Workload
from penstock.parts.stores.calibration.probes import NETWORK, ask, serving
from penstock.parts.stores.store import Store
from penstock.parts.stores.workflow.execute import Executed, execute
from penstock.parts.stores.workflow.running.journal import Row
from penstock.text import percentage

#: target relative half width of a 95 % interval
NARROW = 0.05
#: sizes of operations [bytes]; the smallest shows the fixed cost
SIZES = (1024, 64 * 1024, 4 * 2**20)
#: operations of each size per round, of empty files, and of sizes above SMALL
_SMALL, _EMPTY, _LARGE = 4, 6, 2
SMALL = SIZES[1]
#: sizes that several clients write at once [bytes]
_TOGETHER = SIZES[1:]
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

    `launches_s`: from the end of a task to the start of the next; `tags_s`: hints of a written file;
    `locates_s`: locating a written file in the store; all three on all clients at once. `limited`: by node,
    periods of its processor limit in which it ran, and in which it was throttled.
    """

    seconds: dict[Measured, list[float]] = field(default_factory=dict)
    launches_s: list[float] = field(default_factory=list)
    tags_s: list[float] = field(default_factory=list)
    locates_s: list[float] = field(default_factory=list)
    rounds: int = 0
    dropped: list[str] = field(default_factory=list)
    limited: dict[str, list[int]] = field(default_factory=dict)

    def means(self) -> dict[Measured, Interval]:
        """Mean and interval of each kind of operation."""
        return {key: interval(values) for key, values in self.seconds.items()}

    @property
    def converged(self) -> bool:
        """True if the interval of each mean is within NARROW."""
        return all(
            len(v) > 2 and _half(v) <= NARROW * sum(v) / len(v) for v in self.seconds.values()
        )

    @property
    def throttled(self) -> dict[str, float]:
        """By node with a processor limit, share of the limit's periods in which it was throttled."""
        return {node: cut / ran for node, (ran, cut) in self.limited.items() if ran}

    def take(self, done: Executed) -> None:
        """Add the operations of a run of `operations`."""
        for row in done.operations.to_pylist():
            place, _, clients = row["task"].split()[0].partition(".")
            key = Measured(row["op"], int(row["size_bytes"]), place == "local", int(clients or 1))
            self.seconds.setdefault(key, []).append(row["end_s"] - row["start_s"])

    def take_chains(self, plain: Executed, hinted: Executed) -> None:
        """Add the times of task starts, and of hints and locations of files."""
        for before, after in _pairs(plain):
            self.launches_s.append(after["start_s"] - before["end_s"])
        for before, after in _pairs(hinted):
            self.tags_s.append(after["tag_s"])
            self.locates_s.append(before["locate_s"])

    def add_limits(
        self, before: Mapping[str, tuple[int, int]], after: Mapping[str, tuple[int, int]]
    ) -> None:
        """Add the periods of the nodes' processor limits between two readings."""
        for node, (ran, cut) in after.items():
            total = self.limited.setdefault(node, [0, 0])
            total[0] += ran - before[node][0]
            total[1] += cut - before[node][1]


def sizes(chunk_bytes: int) -> tuple[int, ...]:
    """SIZES and, if it is smaller than the largest, one chunk."""
    return tuple(sorted({*SIZES, min(chunk_bytes, SIZES[-1])}))


def needed(values: list[float]) -> int:
    """Operations for an interval within NARROW: (z s / (r mean))², rounded up [Jain 1991, eq. 13.3]."""
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / max(1, len(values) - 1))
    return math.ceil((1.96 * deviation / (NARROW * mean)) ** 2)


def measure(
    store: Store,
    budget_s: float,
    note: Callable[[str], None] = lambda _: None,
    *,
    of_sizes: Sequence[int] = SIZES,
) -> Trials:
    """Rounds of writes, reads and empty tasks, until the means are precise or time is over.

    Operations run on a client that stores nothing and, if the storage node is a client too, on that node;
    then clients without storage write at once.
    """
    clients, storage = store.roles.clients, store.roles.storage
    local = [node for node in clients if node in storage][:1]
    remote = [node for node in clients if node not in storage]
    nodes = [*local, *remote]
    trials = Trials()
    until, in_a_row = time.monotonic() + budget_s, 0

    def run(workload: Workload, *, by_data: bool = False) -> Executed:
        return execute(
            workload,
            store,
            slots=dict.fromkeys(nodes, 1),
            groups={node: node for node in nodes},
            by_data=by_data,
            located=False,
            watched=False,  # `guarded` already watches the servers
        )

    def limits() -> dict[str, tuple[int, int]]:
        return {name: node.cgroup.limit_periods() for name, node in store.cluster.nodes.items()}

    while True:
        before, before_limits = busy_ticks(), limits()
        done = run(operations(local, remote, of_sizes))
        after_limits = limits()
        plain, hinted = (
            run(chains(nodes, local, hints=hints), by_data=hints) for hints in (False, True)
        )
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
            trials.take(done)
            trials.take_chains(plain, hinted)
            trials.add_limits(before_limits, after_limits)
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


def operations(
    local: Sequence[str], remote: Sequence[str], of_sizes: Sequence[int] = SIZES
) -> Workload:
    """Writes and reads one after the other, at each place; empty files involve only the manager. Then writes
    of two clients without storage at once, and of all of them."""
    files: list[File] = []
    tasks: list[Task] = []
    for place, node in [*(("local", n) for n in local), *(("remote", n) for n in remote[:1])]:
        for size in (0, *of_sizes):
            if not size and place == "local":
                continue
            count = _SMALL if size <= SMALL else _LARGE
            names = [f"{place}.{size}.{i}" for i in range(count if size else _EMPTY)]
            for op in ("write", "read") if size else ("write",):
                steps = tuple(Operation(op, f"{op}.{name}", 0, size) for name in names)
                after = (tasks[-1].name,) if tasks else ()
                tasks.append(Task(f"{place} {op} {size}", steps, machine=node, after=after))
            if size:
                files += [File(f"read.{name}", size, preloaded=True) for name in names]
    earlier = tuple(task.name for task in tasks[-1:])
    for clients in sorted({min(2, len(remote)), len(remote)} - {0, 1}):
        for size in _TOGETHER:
            stage = [
                Task(
                    f"remote.{clients} write {size} {node}",
                    tuple(
                        Operation("write", f"{clients}.{size}.{node}.{i}", 0, size)
                        for i in range(IN_TURN)
                    ),
                    machine=node,
                    after=earlier,
                )
                for node in remote[:clients]
            ]
            tasks += stage
            earlier = tuple(task.name for task in stage)
    return Workload("seeding", tuple(files), tuple(tasks))


def chains(nodes: Iterable[str], local: Sequence[str], *, hints: bool) -> Workload:
    """Chains of tasks that each read the previous one's output, one on each node, with or without hints on
    these files."""
    files: list[File] = []
    tasks: list[Task] = []
    for node in nodes:
        hint = Hints(placement="local" if node in local else "collocate", group="seeding")
        names = [f"{node}.{i}" for i in range(_CHAIN)]
        files += [File(name, hints=hint if hints else None) for name in names]
        for i, name in enumerate(names):
            steps = (Operation("read", names[i - 1], 0, 1),) if i else ()
            write = Operation("write", name, 0, 1)
            tasks.append(Task(f"{node} {i}", (*steps, write), machine=node))
    return Workload("chain", tuple(files), tuple(tasks))


def _pairs(run: Executed) -> list[tuple[Row, Row]]:
    """Rows of consecutive tasks of each chain."""
    rows = {row["task"]: row for row in run.tasks.to_pylist()}
    before = {task: f"{task.split()[0]} {int(task.split()[1]) - 1}" for task in rows}
    return [(rows[before[task]], row) for task, row in rows.items() if before[task] in rows]


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
