"""Rates and latencies of programs on each ready profile at its sustainable time scale, and their predictions.

fio reads and writes 4 KiB at random, with and without a sync after each write, with 1, 4, 16 and 64 threads:
directly, through the page cache, and through a mapping, each page once and cold. Synced writes have a file
per thread. fio's rate and quantiles are compared with those of the same threads in a closed loop over the
station in virtual time. These threads request the same pages in the same order and think for up to a
microsecond: threads without think time would stay in step, which no program does. Requests and the start time
of each thread are taken from the disk's log: threads that queue retain their order and distances, which
determine the movements of the arm and how the time of a cycle is divided between write and flush. No other
measured time is used.

A cell whose certificate is not valid is reported but not evaluated, and so is a p99 on which fio and the
disk's log disagree. Goals: 95 % of the cells within 5 % (rate) and 15 % (p50, p99), and no further deviation
in cells with a valid certificate. Planted failures: a disk 8 % slow, and a server that replies late. One cell
is repeated to show its spread. Exit status 1 if a goal is missed or a planted failure is not detected; 4 if
too few cells could be evaluated on this host.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import record
from bench.crosscheck import SIZE, Bench, Seen, Virtual, Workload, bench_on, in_virtual_time
from penstock import _native as native
from penstock.emulate.disks.measure_floor import host_floor
from penstock.profile import load_profile
from penstock.profile.honour import nearest_honest_time_scale
from penstock.profile.load import ready_names

RATE_LIMIT, QUANTILE_LIMIT, SHARE = 0.05, 0.15, 0.95
SPREAD_LIMIT, AGAIN = 0.03, 10
DEPTHS = (1, 4, 16, 64)
PAGE, OPERATIONS = 4096, 8000
#: number of requests that determines a rate within about 1 %, and time limit for them [s]
ENOUGH, PATIENCE_S = 1600, 16.0
#: sleep of the planted late server before each reply [s]
REPLY_LATE_S = 0.001
#: mean think time of a thread [ns]
OUT_OF_STEP_NS = 1000
ENGINES = {
    "direct": {"ioengine": "psync", "direct": 1},
    "buffered": {"ioengine": "psync", "direct": 0, "fadvise_hint": "random"},
    "mmap": {"ioengine": "mmap", "direct": 0},
}
#: writes without a waiting caller belong to the page cache: only their syncs depend on the disk
CELLS = [("direct", "read"), ("direct", "write"), ("direct", "fsync"), ("buffered", "read")]
CELLS += [("buffered", "fsync"), ("mmap", "read"), ("mmap", "fsync")]


@dataclass(frozen=True)
class Cell:
    """A profile, a kind of access, and a number of threads."""

    profile: str
    engine: str
    op: str
    depth: int

    def __str__(self) -> str:
        return f"{self.profile}, {self.engine} {self.op}, depth {self.depth}"

    @property
    def own_files(self) -> bool:
        """True if each thread has its own file: threads that flush one file wait for its lock
        (docs/limits.md), and fio maps the first part of a file for each thread.
        """
        return self.op == "fsync" or self.engine == "mmap"

    @property
    def requests_per_op(self) -> list[int]:
        """Requests of a thread to the disk per operation: reads (0), writes (1), flushes (2)."""
        if self.engine == "mmap" and self.op == "fsync":
            return [0, 1, 2]  # a page is read before it is written to
        return {"read": [0], "write": [1], "fsync": [1, 2]}[self.op]

    def workload(self, profile: dict[str, Any]) -> Workload:
        """The workload for fio: each thread has its own part of the file, and requests each page once."""
        job: dict[str, Any] = {"rw": "randread" if self.op == "read" else "randwrite", "bs": "4k"}
        job |= {**ENGINES[self.engine], "thread": 1, "numjobs": self.depth, "norandommap": 0}
        job |= {"size": SIZE // self.depth}
        job |= {"own_files": 1} if self.own_files else {"offset_increment": SIZE // self.depth}
        job |= {"time_based": 0} | ({"fsync": 1} if self.op == "fsync" else {})
        return Workload(str(self), profile, job)


def file_of(thread: int) -> str:
    """fio's name of the file of a thread."""
    return f"crosscheck.{thread}.0"


def cells(profiles: list[str]) -> list[Cell]:
    """All evaluated cells."""
    combinations = itertools.product(profiles, CELLS, DEPTHS)
    return [Cell(name, engine, op, depth) for name, (engine, op), depth in combinations]


def replayed(cell: Cell, log: pd.DataFrame, profile: dict[str, Any]) -> Virtual:
    """The threads of a run over the station, each with its requests, in the order of their starts."""
    log = log.sort_values("t_ns", kind="stable")
    code = log["op"].astype(str).map({"read": 0, "write": 1, "flush": 2})
    if cell.own_files:
        thread = log["file"].astype(str)
    else:
        thread = (log["offset_bytes"] // (SIZE // cell.depth)).astype(str)
    rng, clients = np.random.default_rng(4), []
    issued_ns = log["t_ns"] - log["compensation_ns"]
    log = log.assign(code=code, late_ns=issued_ns - issued_ns.min())
    for _, part in log.groupby(thread, sort=False):
        think_ns = out_of_step(len(part), rng)
        think_ns[0] = int(part["late_ns"].min())
        pattern = {
            "kind": "explicit",
            "op": part["code"].tolist(),
            "offset_bytes": part["device_offset_bytes"].tolist(),
            "size_bytes": part["size_bytes"].tolist(),
            "think_ns": think_ns,
        }
        clients.append({"iodepth": 1, "pattern": pattern, "device_offset_bytes": 0})
    return as_fio_reports(cell, in_virtual_time(profile, clients, []))


def out_of_step(count: int, chance: np.random.Generator) -> list[int]:
    """Think times of a thread [ns]."""
    return [int(ns) for ns in chance.exponential(OUT_OF_STEP_NS, count)]


def as_fio_reports(cell: Cell, virtual: Virtual) -> Virtual:
    """Metrics that fio reports as well: for synced writes through the page cache only the rate, because there
    a sync is the write and the flush.
    """
    figures, counts = virtual
    figures["throughput"] /= sum(
        op != 2 for op in cell.requests_per_op
    )  # fio does not count reads for writes
    if cell.op == "fsync" and cell.engine != "direct":
        figures = {"throughput": figures["throughput"]}
    return figures, counts


def foreseen(cell: Cell, profile: dict[str, Any]) -> Virtual:
    """Metrics predicted before the run, from random pages."""
    chance = np.random.default_rng(3)
    pages = SIZE // cell.depth // PAGE
    clients = []
    for thread in range(cell.depth):
        order = chance.permutation(pages)[: max(100, OPERATIONS // cell.depth)]
        at = thread * pages * PAGE
        if cell.own_files:
            at = native.disk_device_offset(file_of(thread), 0)
        offsets = np.repeat(order * PAGE, len(cell.requests_per_op))
        pattern = {"kind": "explicit", "op": cell.requests_per_op * len(order)}
        sizes = [0 if op == 2 else PAGE for op in cell.requests_per_op] * len(order)
        pattern |= {"offset_bytes": offsets.tolist(), "size_bytes": sizes}
        pattern["think_ns"] = out_of_step(len(sizes), chance)
        clients.append({"iodepth": 1, "pattern": pattern, "device_offset_bytes": at})
    return as_fio_reports(cell, in_virtual_time(profile, clients, []))


def seconds_for(figures: dict[str, float], least: float) -> float:
    """Duration of a cell [s]."""
    return min(PATIENCE_S, max(least, ENOUGH * PAGE / figures["throughput"]))


def off(seen: Seen) -> list[str]:
    """Metrics beyond their limits."""
    deviations = []
    for metric, ratio in ratios(seen).items():
        limit = RATE_LIMIT if metric == "throughput" else QUANTILE_LIMIT
        if abs(ratio - 1) > limit:
            deviations.append(f"{metric} {100 * (ratio - 1):+.1f} %")
    return deviations


def ratios(seen: Seen) -> dict[str, float]:
    """Ratio of fio's figure to the prediction."""
    return {k: seen.real[k] / v for k, v in seen.virtual.items() if v and seen.real.get(k)}


def rows_of(cell: Cell, seen: Seen) -> list[record.Row]:
    """One row per metric."""
    rows = [record.row(str(cell), "fio / predicted", k, [v], "1") for k, v in ratios(seen).items()]
    return [{**row, "valid": seen.valid, "reason": seen.reason} for row in rows]


def spread(bench: Bench, cell: Cell, profile: dict[str, Any], times: int) -> list[float]:
    """Rates of the valid runs of one cell."""
    runs = [bench.run(cell.workload(profile)) for _ in range(times)]
    return [seen.real["throughput"] for seen in runs if seen.valid]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two profiles, depths 1 and 16")
    parser.add_argument("--seconds", type=float, default=2.0, help="minimum time of each cell")
    parser.add_argument("--only", default="", help="only cells whose name contains this text")
    record.option(parser)
    arguments = parser.parse_args()
    floor = host_floor(refresh=True)
    full_speed = {name: load_profile(name) for name in ready_names()}
    scales = {n: nearest_honest_time_scale(p, floor) for n, p in full_speed.items()}
    profiles = {n: p.scaled(scales[n]).to_dict() for n, p in full_speed.items()}
    chosen = [c for c in cells(list(profiles)) if arguments.only in str(c)]
    if arguments.quick:
        names = list(profiles)[:2]
        chosen = [c for c in chosen if c.profile in names and c.depth in (1, 16)]
    expected = {str(c): foreseen(c, profiles[c.profile]) for c in chosen}
    named = {str(c): c for c in chosen}

    def virtual(work: Workload, log: Any, _events: Any) -> Virtual:
        cell = named[work.name]
        return replayed(cell, log, profiles[cell.profile])

    rows: list[record.Row] = []
    deviating, invalid, evaluated = [], 0, 0
    with tempfile.TemporaryDirectory(prefix="penstock-application-") as place:
        for bench in bench_on(Path(place), arguments.seconds, virtual):
            for thread in range(max(DEPTHS)):
                with open(bench.base / "backing" / file_of(thread), "wb") as file:
                    file.truncate(SIZE)
            for cell in chosen:
                bench.seconds = seconds_for(expected[str(cell)][0], arguments.seconds)
                seen = bench.run(cell.workload(profiles[cell.profile]))
                rows += rows_of(cell, seen)
                ratios_text = ", ".join(f"{k} {v:.3f}" for k, v in ratios(seen).items())
                print(
                    f"{cell} x{scales[cell.profile]:g}: {ratios_text} {seen.reason[:100]}",
                    flush=True,
                )
                evaluated += seen.valid
                invalid += not seen.valid
                if seen.valid and off(seen):
                    deviating.append(f"{cell}: {', '.join(off(seen))}")
            first = chosen[0]
            bench.seconds = seconds_for(expected[str(first)][0], arguments.seconds)
            rates = spread(bench, first, profiles[first.profile], 3 if arguments.quick else AGAIN)
            work = first.workload(profiles[first.profile])
            planted = bench.run(work, slow_by=0.08)
            late = bench.run(work, reply_sleep_s=REPLY_LATE_S)
    width = (max(rates) - min(rates)) / statistics.median(rates) if rates else None
    for line in deviating:
        print(line, file=sys.stderr)
    disk_detected = bool(off(planted)) and not planted.valid
    print(f"{evaluated} of {len(chosen)} cells vouched for, {len(deviating)} of them off")
    print(f"a disk planted 8 % slow: {'found' if disk_detected else 'NOT FOUND'} ({off(planted)})")
    late_detected = bool(off(late)) and not late.valid
    print(f"a server planted late: {'found' if late_detected else 'NOT FOUND'} ({off(late)})")
    within = f"rate within {RATE_LIMIT:.0%}, p50 and p99 within {QUANTILE_LIMIT:.0%}"
    totals = [
        record.share("cells", "", within, evaluated - len(deviating), evaluated, SHARE),
        record.claim(
            "cells off though vouched for", "none", str(len(deviating)), "none", not deviating
        ),
        record.share("cells", "", "vouched for", evaluated, len(chosen), 0.8),
    ]
    if width is not None:
        spread_text = f"{100 * width:.1f} % of {len(rates)} runs"
        limit = f"at most {SPREAD_LIMIT:.0%}"
        totals.append(
            record.claim("one cell again", "spread", spread_text, limit, width <= SPREAD_LIMIT)
        )
        print(f"one cell again: spread {spread_text}")
    totals = [{**row, "quoted": True} for row in totals]
    plants = {
        "a disk 8 % slow": disk_detected,
        "a server that sleeps before it replies": late_detected,
    }
    record.keep(arguments.record, totals + rows, plants)
    if (
        deviating
        or not disk_detected
        or not late_detected
        or (width is not None and width > SPREAD_LIMIT)
    ):
        return 1
    return 4 if evaluated < 0.8 * len(chosen) else 0


if __name__ == "__main__":
    sys.exit(main())
