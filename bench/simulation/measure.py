"""Timing, memory and rows, for all cases of the bench."""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.record import Row, row

Json = dict[str, Any]
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Timed:
    """One timed call: wall and CPU seconds of this thread, and its result (JSON is parsed outside of the
    timing).
    """

    wall_s: float
    cpu_s: float
    result: Any


def timed(call: Callable[[], Any]) -> Timed:
    gc.collect()
    gc.disable()  # Python's garbage collector is not part of the measurement
    try:
        wall, cpu = time.perf_counter(), time.thread_time()
        result = call()
        wall_s, cpu_s = time.perf_counter() - wall, time.thread_time() - cpu
        return Timed(wall_s, cpu_s, json.loads(result) if isinstance(result, str) else result)
    finally:
        gc.enable()


def interleaved(
    engines: Mapping[str, Callable[[], Any]], rounds: int, label: str = ""
) -> dict[str, list[Timed]]:
    """Run every engine once per round, in turn, so that a slow minute of the host affects all of them."""
    runs: dict[str, list[Timed]] = {name: [] for name in engines}
    for number in range(rounds):
        for name, call in engines.items():
            runs[name].append(timed(call))
        if label:
            print(f"{label}: round {number + 1} of {rounds}", file=sys.stderr)
    return runs


def time_rows(case: str, engine: str, runs: list[Timed]) -> list[Row]:
    """Wall time, and CPU time, which other load on the host affects less."""
    return [
        row(case, engine, "wall time", [r.wall_s for r in runs], "s"),
        row(case, engine, "CPU time", [r.cpu_s for r in runs], "s"),
    ]


def rate_rows(
    case: str, engine: str, metric: str, counts: list[float], runs: list[Timed]
) -> list[Row]:
    """`counts` per second of wall time and per second of CPU time."""
    pairs = list(zip(counts, runs, strict=True))
    return [
        row(case, engine, metric, [n / r.wall_s for n, r in pairs], "1/s"),
        row(case, engine, f"{metric} of CPU time", [n / r.cpu_s for n, r in pairs], "1/s"),
    ]


def host_row(when: str) -> Row:
    """Load of the host per core at the start or end of the bench; 1 is a busy host."""
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    return row("this host", "-", f"load per core, {when}", [load], "")


def linear_r2(x: list[float], y: list[float]) -> float:
    """R^2 of the least-squares line through (x, y)."""
    return float(statistics.correlation(x, y) ** 2)


_CHILD = """
import json, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from bench.simulation.penstock_engine import Simulator

def peak():
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024

given = json.load(sys.stdin)
simulator, network = Simulator(given["workload"]), json.dumps(given["network"])
before = peak()
simulator.outcome(network)
print(before, peak())
"""


def peak_memory(workload: Json, network: Json) -> tuple[float, float]:
    """Peak resident bytes of a process that simulates once: before the simulation (Python and inputs), and at
    its end.
    """
    run = subprocess.run(
        [sys.executable, "-c", _CHILD, str(ROOT)],
        input=json.dumps({"workload": workload, "network": network}),
        capture_output=True,
        text=True,
        check=True,
    )
    before, after = run.stdout.split()
    return float(before), float(after)
