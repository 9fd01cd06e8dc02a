"""Overhead of tracing: the kernel's run times of our programs, the cost of the hooks, paired runs.

The estimate in every receipt is the run time of each program as measured by the kernel in windows of the
recording (crates/probe/src/meter.rs), plus two costs per run that the target caused, which this account does
not include: entering the program (the tracepoint, the system call's slow path, the page-fault event), and its
after-effects (evicted processor cache lines, mispredicted branches). Both are measured on this machine with
loops: while programs that ignore them are loaded and unloaded, and while the loops themselves are traced.
This happens at first use and on request; the file `trace-cost.json` in the state directory stores the result.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.host.cgroups.cgroup import create_run_cgroup
from penstock.host.journal.journal import Journal
from penstock.host.processes.daemon import Daemon, start_daemon
from penstock.scratch import Scratch
from penstock.writing import write_atomic

_RECORD = "trace-cost.json"
ROUNDS = (
    6  # the range of six differences contains their median with probability 1 - 2 / 2**6 = 97 %
)
_INTERVAL_S = 0.08
_QUICK = 0.1  # quantile of the blocks of an interval: other load only makes them slower

#: of the development machine (bench/trace_overhead.py), hooks included
_ELSEWHERE_NS = {"count": 130.0, "pattern": 200.0, "trace": 300.0}

#: alternates between calls that do nothing and faults of a mapped file's pages; reports the end and the time
#: per operation of every block [ns]; ends with its parent
_LOOP = """
import mmap, os, resource, sys, time
fd, out = os.open(sys.argv[1], os.O_RDONLY), sys.stdout
clock, read = time.monotonic_ns, os.pread
mapped = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
while os.getppid() == int(sys.argv[2]):
    began = clock()
    for _ in range(500):
        read(fd, 4096, 0)
    ended = clock()
    out.write(f"calls {ended} {(ended - began) / 500}\\n")
    took, faults = 0, -resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(64):
        mapped.madvise(mmap.MADV_DONTNEED)
        began = clock()
        mapped[::65536]
        took += clock() - began
    faults += resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    out.write(f"others {clock()} {took / faults}\\n")
"""
_FILE_BYTES = 8 * 65536


@dataclass(frozen=True)
class RunCost:
    """Cost of one run of a program in addition to its work for the target [ns].

    `hook` is the delay of an untraced task per run, `low` and `high` its range over the rounds; `account` is
    the further delay while the kernel measures run times; `idle` is the measured run time of such a run,
    including the clock readings. `left` is the delay of a traced task per run in addition to all these and
    the run's own time.
    """

    hook: float
    low: float
    high: float
    account: float
    idle: float
    left: float


@dataclass(frozen=True)
class Cost:
    """Costs of a run of a system-call program, and of the other programs."""

    calls: RunCost
    others: RunCost
    rounds: int
    basis: str

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Cost:
        """Parse its JSON form; raises TypeError or KeyError if malformed."""
        groups = {name: RunCost(**document[name]) for name in GROUPS}
        return cls(**{**document, **groups})


GROUPS = ("calls", "others")


def _of_another_machine(why: str) -> Cost:
    basis = f"of another machine, within a factor of two: {why}"
    calls = RunCost(45.0, 22.0, 90.0, 60.0, 70.0, 50.0)
    others = RunCost(150.0, 75.0, 300.0, 60.0, 70.0, 50.0)
    return Cost(calls, others, 0, basis)


def recorded_cost(mode: str, state_dir: Path) -> Cost | None:
    """Recorded cost of a program run in a mode, from an earlier `cost_of` on this kernel."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        return Cost.read(json.loads((state_dir / _RECORD).read_text())[_key(mode)])
    return None


def cost_of(
    mode: str, journal: Journal, state_dir: Path, *, again: bool = False, skippable: bool = False
) -> Cost:
    """Cost of a program run in a mode, read from `state_dir`; measured first (some seconds) if missing.

    `again` always measures. On a busy host, and with `skippable` after Ctrl-C, the values are those of
    another machine. Raises PenstockError if the programs cannot be loaded.
    """
    if not again and (recorded := recorded_cost(mode, state_dir)) is not None:
        return recorded
    skip = "; Ctrl-C skips it" if skippable else ""
    try:
        print(
            f"penstock: measuring the cost of tracing (mode {mode}) on this host, for this and later traces: "
            f"about 20 s{skip}",
            file=sys.stderr,
        )
        cost = _measured(mode, journal)
    except (BusyError, KeyboardInterrupt) as error:
        if isinstance(error, KeyboardInterrupt) and not skippable:
            raise
        busy = isinstance(error, BusyError)
        why = "the host is too busy for it" if busy else "interrupted"
        print(
            f"penstock: {why}; the cost is an estimate until a later trace measures it",
            file=sys.stderr,
        )
        return _of_another_machine(str(error) or why)
    document: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        document = dict(json.loads((state_dir / _RECORD).read_text()))
    with contextlib.suppress(PenstockError):  # a cost that cannot be recorded is measured again
        text = json.dumps(document | {_key(mode): asdict(cost)}, indent=1)
        write_atomic(state_dir / _RECORD, text)
    return cost


def _key(mode: str) -> str:
    return f"{os.uname().release} {mode}"


def _measured(mode: str, journal: Journal) -> Cost:
    with (
        Scratch("cost") as folder,
        create_run_cgroup("cost", None, journal) as nobody,
        create_run_cgroup("cost", None, journal) as traced,
    ):
        file, output = folder / "file", folder / "output"
        file.write_bytes(os.urandom(_FILE_BYTES))
        with output.open("wb") as sink:
            loop = subprocess.Popen(
                [sys.executable, "-S", "-c", _LOOP, file, str(os.getpid())],
                stdout=sink,
                stdin=subprocess.DEVNULL,
            )
        try:
            traced.enter(loop.pid)
            groups = nobody.cgroup_id, traced.cgroup_id
            rounds = [
                one_round
                for _ in range(ROUNDS // 2)
                for one_round in _two_rounds(mode, journal, groups, folder)
            ]
        finally:
            loop.kill()
            loop.wait()
        lines = [line.split() for line in output.read_text().splitlines()]
    blocks: dict[str, list[tuple[int, float]]] = {group: [] for group in GROUPS}
    for line in lines:
        if len(line) == 3:
            blocks[line[0]].append((int(line[1]), float(line[2])))
    runs = {"calls": 1, "others": 0} if mode == "count" else {"calls": 2, "others": 3}
    basis = "the kernel's account of our programs, and what their hooks cost on this machine"
    calls, others = (_run_cost(blocks, rounds, group, runs[group]) for group in GROUPS)
    return Cost(calls, others, ROUNDS, basis)


class BusyError(PenstockError):
    """The loop got too little processor time."""


_Span = tuple[int, int]


@dataclass(frozen=True)
class _Round:
    """Intervals without the programs, with them armed for an empty group, and with the kernel's run time
    measurement; the same armed for the loop; the receipts of both."""

    off: _Span
    armed: _Span
    accounted: _Span
    receipt: dict[str, Any]
    traced: _Span
    receipt_traced: dict[str, Any]


def _two_rounds(
    mode: str, journal: Journal, groups: tuple[int, int], place: Path
) -> tuple[_Round, _Round]:
    """Two rounds in the order off, on, on, off with programs that are loaded once.

    Each is armed for an empty group, and for the loop's group.
    """

    def on(daemon: Daemon, group: int) -> tuple[_Span, _Span, dict[str, Any]]:
        target: dict[str, Any] = {
            "cgroup_id": group,
            "spool": str(place / "spool"),
            "files": str(place / "names"),
        }
        daemon.call("arm", **target)  # while the target is idle, the first window continues
        accounted = _let_pass()
        receipt = daemon.call("disarm")
        daemon.call("arm", **target, target={"unmetered": True})
        armed = _let_pass()
        daemon.call("disarm")
        return armed, accounted, receipt

    nobody, loop = groups
    before = _let_pass()
    with start_daemon("tracer", {"mode": mode, "ring_bytes": 8 << 20}, journal) as daemon:
        ons = []
        for _ in range(2):
            armed, accounted, receipt = on(daemon, nobody)
            traced, _, receipt_traced = on(daemon, loop)
            ons.append((armed, accounted, receipt, traced, receipt_traced))
    first, second = ons
    return _Round(before, *first), _Round(_let_pass(), *second)


def _let_pass() -> _Span:
    began = time.monotonic_ns()
    time.sleep(_INTERVAL_S)
    return began, time.monotonic_ns()


def _run_cost(
    blocks: Mapping[str, Sequence[tuple[int, float]]],
    rounds: Sequence[_Round],
    group: str,
    runs: int,
) -> RunCost:
    """Medians over the rounds, and the range of `hook`, of loops whose iteration runs `runs` programs."""
    if not runs:
        return RunCost(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    quick = partial(_quick, blocks[group])
    hooks = [max(quick(r.armed) - quick(r.off), 0.0) / runs for r in rounds]
    account = [max(quick(r.accounted) - quick(r.armed), 0.0) / runs for r in rounds]
    idle = [_idle(r.receipt["metering"][group]) for r in rounds]
    hook, of_idle = statistics.median(hooks), statistics.median(idle)
    remainder = [
        max((quick(r.traced) - quick(r.off)) / runs - hook - _body(r, group, of_idle), 0.0)
        for r in rounds
    ]
    figures = [hook, min(hooks), max(hooks), statistics.median(account), of_idle]
    figures.append(statistics.median(remainder))
    return RunCost(*(round(ns, 1) for ns in figures))


def _body(measured: _Round, group: str, idle: float) -> float:
    """Run time spent on the loop, by the kernel's measurement [ns]."""
    sums = (measured.receipt_traced.get("metering") or {}).get(group) or {}
    own = sums.get("own") or 0.0
    return max(sums["time_ns"] - sums["runs"] * idle, 0.0) / own if own else 0.0


def _idle(sums: Mapping[str, Any]) -> float:
    """Mean run time, by the kernel's measurement."""
    return float(sums["time_ns"] / max(sums["runs"], 1))


def _quick(blocks: Sequence[tuple[int, float]], span: _Span) -> float:
    inside = sorted(ns for ended, ns in blocks if span[0] + 2_000_000 < ended < span[1])
    if not inside:
        raise BusyError("this one was too busy to be measured")
    quick: float = inside[int(_QUICK * len(inside))]
    return quick


@dataclass(frozen=True)
class Paired:
    """A command with and without tracing, in pairs: seconds, and relative overhead."""

    without_s: list[float]
    with_s: list[float]
    share: float
    low: float
    high: float
    limit: float

    @property
    def verdict(self) -> str:
        """`above` if the interval is above the limit, `within` if it is below and no wider than the limit.

        Else `undecided`.
        """
        if self.low > self.limit:
            return "above"
        narrow = self.high - self.low <= self.limit
        return "within" if narrow and self.high <= self.limit else "undecided"

    def as_document(self) -> dict[str, Any]:
        """Entry of receipts: shares of the time without tracing."""
        return asdict(self) | {"verdict": self.verdict, "pairs": len(self.with_s)}


def paired_runs(
    without: Callable[[], float], traced: Callable[[], float], pairs: int, limit: float
) -> Paired:
    """Run both, each returning its seconds, in pairs of alternating order (AB, BA, AB, …).

    The overhead is the median of the pairs' differences over the median time without; its 95 % interval is by
    order statistics, infinite below six pairs. `limit` is a share.
    """
    off, on = [], []
    for number in range(pairs):
        if number % 2:
            on.append(traced())
            off.append(without())
        else:
            off.append(without())
            on.append(traced())
    base = statistics.median(off)
    share, low, high = interval([(b - a) / base for a, b in zip(off, on, strict=True)])
    return Paired(off, on, share, low, high, limit)


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Median and its 95 % interval (Conover 1999, section 3.2), which is infinite below six values."""
    from scipy.stats import binom

    ordered = sorted(values)
    n = len(ordered)
    if n < 6:
        return statistics.median(ordered), float("-inf"), float("inf")
    low = max(int(binom.ppf(0.025, n, 0.5)) - 1, 0)
    return statistics.median(ordered), ordered[low], ordered[n - 1 - low]


@dataclass(frozen=True)
class Added:
    """Time that tracing took from the target [ns], with its interval over windows and hooks."""

    ns: float
    low: float
    high: float

    def __add__(self, other: Added) -> Added:
        return Added(self.ns + other.ns, self.low + other.low, self.high + other.high)


def added_by_programs(metering: Mapping[str, Any], cost: Cost) -> Added | None:
    """Time that the programs took from the target, from the windows of a receipt; None without windows.

    The kernel's time of all runs minus that of as many idle ones is the work for the target; each run for the
    target adds the cost of the hooks and after-effects and, while the kernel measured run times, the cost of
    that. The interval includes the variation between windows and the range of the hooks' cost.
    """
    if not metering["windows"]:
        return None
    error = 1.96 * metering["error_ns"]
    added = Added(0.0, -error, error)
    for group, run in [("calls", cost.calls), ("others", cost.others)]:
        sums = metering[group]
        body = max(sums["time_ns"] - sums["runs"] * run.idle, 0.0)
        body += sums["accounted"] * run.account
        each = (ns + run.left for ns in (run.hook, run.low, run.high))
        added += Added(*(body + sums["own"] * ns for ns in each))
    return Added(added.ns, max(added.low, 0.0), added.high)


def estimate(
    receipt: Mapping[str, Any], cost: Cost, wall_ns: int, cpu_ns: int | None = None
) -> dict[str, Any]:
    """Entries of the receipt on the overhead for the target, and the reader's share of processor time.

    `added_share` is relative to the target's time without tracing: its wall time, or its processor time
    `cpu_ns` if that is longer.
    """
    wall_ns = max(wall_ns, 1)
    calls = receipt["kept"] + receipt["lost"]
    metering = receipt.get("metering")
    added = metering and added_by_programs(metering, cost)
    basis = cost.basis
    if not added:
        ns = calls * _ELSEWHERE_NS[receipt["mode"]]
        added = Added(ns, ns / 2, ns * 2)
        why = (metering or {}).get("refused") or "the kernel gave no account of our programs"
        basis = f"operations × ns of another machine, within a factor of two: {why}"
    return shares(added, calls, max(wall_ns, cpu_ns or 0)) | {
        "added_ns_basis": basis,
        "tracer_cpu_share": receipt["cpu_ns"] / wall_ns,
        "wall_ns": wall_ns,
        "busy_ns": max(wall_ns, cpu_ns or 0),
    }


def shares(added: Added, calls: int, busy_ns: int) -> dict[str, Any]:
    """Entries of receipts: total overhead, per operation, and as a share of the time without it."""

    def share(ns: float) -> float:
        return ns / max(busy_ns - ns, busy_ns / 100)

    return {
        "added_ns": added.ns,
        "added_ns_interval": [added.low, added.high],
        "added_ns_per_call": added.ns / max(calls, 1),
        "added_share": share(added.ns),
        "added_share_interval": [share(added.low), share(added.high)],
    }
