"""What tracing costs on this machine: a quick calibration, kept, and paired runs of a command.

The estimate in every receipt is the calls it counted times the ns that a call was found to take longer. The
ns come from a loop of cached 4 KiB reads that goes on while the programs come and go, on first use and when
asked for again; the file `trace-cost.json` in the state directory keeps them.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.host.cgroup import create_run_cgroup
from penstock.host.daemon import start_daemon
from penstock.host.journal import Journal
from penstock.host.undo import put_back

ROUNDS = 6  # the range of six differences holds their median with 1 - 2 / 2**6 = 97 %
_INTERVAL_S = 0.06
_QUICK = 0.1  # of the blocks of an interval: what else the machine does only makes them slower
BPF_STATISTICS = Path("/proc/sys/kernel/bpf_stats_enabled")

#: of the development machine (bench/trace_overhead.py), hooks included
_ELSEWHERE_NS = {"count": 130.0, "pattern": 200.0, "trace": 300.0}

#: reads 4 KiB over and over, and says for every block of reads when it ended and what one took [ns]
_LOOP = """
import os, sys, time
fd, place, out = os.open(sys.argv[1], os.O_RDONLY), [bytearray(4096)], sys.stdout
clock, read = time.monotonic_ns, os.preadv
while True:
    began = clock()
    for at in range(0, 2048000, 4096):
        read(fd, place, at)
    ended = clock()
    out.write(f"{ended} {(ended - began) / 500}\\n")
"""


@dataclass(frozen=True)
class Cost:
    """Added ns per call with its interval, from `rounds` rounds, and where that comes from."""

    ns: float
    low: float
    high: float
    rounds: int
    basis: str


def cost_of(mode: str, journal: Journal, state_dir: Path, *, again: bool = False) -> Cost:
    """What one call costs in a mode, as kept in `state_dir`; measured now (about 2 s) if it is not there.

    `again` measures in any case. Raises PenstockError if the programs cannot be loaded.
    """
    kept = state_dir / "trace-cost.json"
    key = f"{os.uname().release} {mode}"
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        if not again:
            return Cost(**json.loads(kept.read_text())[key])
    try:
        cost = _measured(mode, journal)
    except BusyError as error:
        ns = _ELSEWHERE_NS[mode]
        return Cost(ns, ns / 2, ns * 2, 0, f"of another machine, within a factor of two: {error}")
    known: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        known = dict(json.loads(kept.read_text()))
    made = kept.with_suffix(f".{os.getpid()}")
    try:
        made.write_text(json.dumps(known | {key: asdict(cost)}, indent=1))
        made.replace(kept)
    except OSError:  # then it is measured again the next time
        made.unlink(missing_ok=True)
    return cost


def _measured(mode: str, journal: Journal) -> Cost:
    print(f"penstock: measuring once what mode {mode} costs on this machine", file=sys.stderr)
    with (
        tempfile.TemporaryDirectory(prefix="penstock-cost-") as name,
        create_run_cgroup("cost", None, journal) as group,
    ):
        file, told = Path(name) / "file", Path(name) / "told"
        file.write_bytes(os.urandom(1 << 21))
        with told.open("wb") as sink:
            loop = subprocess.Popen(
                [sys.executable, "-S", "-c", _LOOP, file], stdout=sink, stdin=subprocess.DEVNULL
            )
        try:
            group.enter(loop.pid)
            times = [
                _round(mode, journal, group.cgroup_id, Path(name), number % 2 == 1)
                for number in range(ROUNDS)
            ]
        finally:
            loop.kill()
            loop.wait()
        lines = [line.split() for line in told.read_text().splitlines()[1:]]
    blocks = [(int(line[0]), float(line[1])) for line in lines if len(line) == 2]
    added = [_quick(blocks, on) - _quick(blocks, off) for off, on in times]
    return Cost(
        round(max(statistics.median(added), 0.0), 1),
        round(max(min(added), 0.0), 1),
        round(max(max(added), 0.0), 1),
        ROUNDS,
        "a loop of cached 4 KiB reads on this machine, with and without the programs",
    )


class BusyError(PenstockError):
    """The loop hardly ran."""


_Span = tuple[int, int]


def _round(
    mode: str, journal: Journal, cgroup_id: int, place: Path, first_on: bool
) -> tuple[_Span, _Span]:
    """One interval without the programs and one with them armed."""

    def off() -> _Span:
        return _let_pass()

    def on() -> _Span:
        with start_daemon("tracer", {"mode": mode, "ring_bytes": 8 << 20}, journal) as daemon:
            spool, names = str(place / "spool"), str(place / "names")
            daemon.call("arm", cgroup_id=cgroup_id, spool=spool, files=names)
            span = _let_pass()
            daemon.call("disarm")
        return span

    if first_on:
        armed = on()
        return off(), armed
    return off(), on()


def _let_pass() -> _Span:
    began = time.monotonic_ns()
    time.sleep(_INTERVAL_S)
    return began, time.monotonic_ns()


def _quick(blocks: Sequence[tuple[int, float]], span: _Span) -> float:
    inside = sorted(ns for ended, ns in blocks if span[0] + 2_000_000 < ended < span[1])
    if not inside:
        raise BusyError("this one was too busy to be measured")
    return inside[int(_QUICK * len(inside))]


@dataclass(frozen=True)
class Paired:
    """A command with and without tracing, in pairs: seconds, and the share by which it took longer."""

    without_s: list[float]
    with_s: list[float]
    share: float
    low: float
    high: float
    limit: float

    @property
    def verdict(self) -> str:
        """`within` or `above` the limit; `undecided` where the interval holds it, or is wider than it."""
        if self.high - self.low > self.limit:
            return "undecided"
        if self.high <= self.limit:
            return "within"
        return "above" if self.low > self.limit else "undecided"

    def as_document(self) -> dict[str, Any]:
        """For receipts: shares of the time without tracing."""
        return asdict(self) | {"verdict": self.verdict, "pairs": len(self.with_s)}


def paired_runs(
    without: Callable[[], float], traced: Callable[[], float], pairs: int, limit: float
) -> Paired:
    """Runs both, each giving its seconds, in pairs of alternating order (AB, BA, AB, …).

    The share is the median of the pairs' differences over the median time without; its 95 % interval is
    by order statistics, infinitely wide below six pairs. `limit` is a share.
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


@contextlib.contextmanager
def bpf_statistics(journal: Journal) -> Iterator[None]:
    """The kernel's account of BPF programs' run time, on inside; as it was before afterwards.

    It costs every program two readings of the clock: never on during a measurement by pairs.
    """
    before = BPF_STATISTICS.read_text().strip()
    if before == "1":
        yield
        return
    entry = journal.plan("setting", BPF_STATISTICS, old=before, new="1")
    BPF_STATISTICS.write_text("1")
    journal.done(entry)
    try:
        yield
    finally:
        put_back(entry, journal)


def estimate(receipt: dict[str, Any], cost: Cost, wall_ns: int) -> dict[str, Any]:
    """The receipt's words on what tracing added: operations counted times ns each, and the reader's share."""
    calls = receipt["kept"] + receipt["lost"]
    wall_ns = max(wall_ns, 1)
    return {
        "added_ns_per_call": cost.ns,
        "added_ns_per_call_interval": [cost.low, cost.high],
        "added_ns_basis": cost.basis,
        "added_share": calls * cost.ns / wall_ns,
        "added_share_interval": [calls * cost.low / wall_ns, calls * cost.high / wall_ns],
        "tracer_cpu_share": receipt["cpu_ns"] / wall_ns,
        "wall_ns": wall_ns,
    }
