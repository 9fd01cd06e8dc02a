"""The operations by which a store is seeded: their times, round by round, until the means are known."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from penstock.campaign.workflow.execute import execute
from penstock.emulate.cluster.cluster import RunningNode
from penstock.errors import PenstockError
from penstock.host.loopback import Measured, interval
from penstock.store.store import Store
from penstock.workload.workflow import File, Operation, Task, Workload

PROBE = Path(__file__).with_name("netprobe.py")
#: the relative half width of a 95 % interval that is narrow enough
NARROW = 0.05
#: operations of one round, by their bytes
SIZES = (256 * 1024, 4 * 2**20)
_OF_EACH = {0: 6, SIZES[0]: 4, SIZES[1]: 2}
_CHAIN = 6
_FEWEST_ROUNDS = 3
#: a round is dropped where the host's processors were busier than this
BUSIEST = 0.7
_PROBE_S = 3.0

Key = tuple[str, int]


@dataclass
class Trials:
    """Seconds of every operation by (op, bytes), of launches, and the rounds that were dropped, with why."""

    seconds: dict[Key, list[float]] = field(default_factory=dict)
    launches_s: list[float] = field(default_factory=list)
    rounds: int = 0
    dropped: list[str] = field(default_factory=list)

    def means(self) -> dict[Key, Measured]:
        """Mean and interval of each kind of operation."""
        return {key: interval(values) for key, values in self.seconds.items()}

    @property
    def converged(self) -> bool:
        """Whether each mean is known within NARROW."""
        return all(
            len(v) > 2 and _half(v) <= NARROW * sum(v) / len(v) for v in self.seconds.values()
        )


def needed(values: list[float]) -> int:
    """Operations for an interval within NARROW: (z s / (r mean))², rounded up [Jain 1991, eq. 13.3]."""
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / max(1, len(values) - 1))
    return math.ceil((1.96 * deviation / (NARROW * mean)) ** 2)


def measure(store: Store, budget_s: float, note: Callable[[str], None] = lambda _: None) -> Trials:
    """Rounds of writes, reads and empty tasks on one client, until the means are known or time is over."""
    client = store.roles.clients[0]
    trials = Trials()
    until = time.monotonic() + budget_s
    while True:
        before = _processors()
        run = execute(_round(), store, slots={client: 1}, groups={client: client}, located=False)
        busy = _busy(before, _processors())
        trials.rounds += 1
        if busy > BUSIEST:
            trials.dropped.append(f"round {trials.rounds}: processors {busy:.0%} busy")
        else:
            _take(trials, run.operations.to_pylist(), run.tasks.to_pylist())
        note(f"round {trials.rounds}: " + ("dropped" if busy > BUSIEST else "kept"))
        enough = trials.rounds - len(trials.dropped) >= _FEWEST_ROUNDS and trials.converged
        if enough or (time.monotonic() > until and trials.seconds):
            return trials
        if time.monotonic() > until + budget_s:
            raise PenstockError(
                f"the host was too busy to measure on: {trials.dropped[-1]}; none of "
                f"{trials.rounds} rounds could be used"
            )


def _round() -> Workload:
    files, tasks = [], []
    for size, count in _OF_EACH.items():
        writes = tuple(Operation("write", f"w{size}.{i}", 0, size) for i in range(count))
        tasks.append(Task(f"write {size}", writes))
        if size:
            files += [File(f"r{size}.{i}", size, preloaded=True) for i in range(count)]
            reads = tuple(Operation("read", f"r{size}.{i}", 0, size) for i in range(count))
            tasks.append(Task(f"read {size}", reads))
    for i in range(_CHAIN):
        after = (f"chain {i - 1}",) if i else ()
        tasks.append(Task(f"chain {i}", (Operation("compute", seconds=0.0),), after=after))
    return Workload("seeding", tuple(files), tuple(tasks))


def _take(trials: Trials, operations: list[dict], tasks: list[dict]) -> None:  # type: ignore[type-arg]
    for row in operations:
        if row["op"] in ("read", "write"):
            key = (row["op"], int(row["size_bytes"]))
            trials.seconds.setdefault(key, []).append(row["end_s"] - row["start_s"])
    at = {t["task"]: t for t in tasks}
    for i in range(1, _CHAIN):
        trials.launches_s.append(at[f"chain {i}"]["start_s"] - at[f"chain {i - 1}"]["end_s"])


def link(asking: RunningNode, answering: RunningNode) -> tuple[Measured, Measured]:
    """Bytes per second of a program between two nodes (or in one), and seconds of half a round trip."""
    text = PROBE.read_text()
    address = answering.address if asking is not answering else "127.0.0.1"
    if address is None:
        raise PenstockError(f"node {answering.name} is in no network")
    words = [sys.executable, "-I", "-u", "-c", text]
    server = subprocess.Popen(
        answering.enter([*words, "serve", address]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert server.stdout is not None
        port = server.stdout.readline().decode().strip()
        done = subprocess.run(
            asking.enter([*words, "ask", address, port, str(_PROBE_S)]),
            capture_output=True,
            timeout=60,
            stdin=subprocess.DEVNULL,
        )
    finally:
        assert server.stdin is not None
        server.stdin.close()
        try:
            server.wait(5)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
    if done.returncode != 0:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise PenstockError(f"{asking.name} to {answering.name}: {' '.join(last) or 'no answer'}")
    said = json.loads(done.stdout)
    return interval(said["rates_bps"]), interval([s / 2 for s in said["trips_s"]])


def _half(values: list[float]) -> float:
    found = interval(values)
    return (found.high - found.low) / 2


def _processors() -> tuple[int, int]:
    """Ticks in all and of them idle, of all processors (proc_stat(5)); stolen time is busy."""
    ticks = [int(x) for x in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(ticks), ticks[3] + ticks[4]


def _busy(before: tuple[int, int], after: tuple[int, int]) -> float:
    whole = after[0] - before[0]
    return 1 - (after[1] - before[1]) / whole if whole else 0.0
