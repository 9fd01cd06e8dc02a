#!/usr/bin/env python3
"""Virtual nodes: time to start, change and stop 1, 10, 100 and 1,000 of them.

Up to 100 nodes have an emulated disk and a shaped link each; 1,000 are idle (a network, no disk). Prints per
count the seconds with the range of the repetitions and the goal, if there is one, and the memory per node. An
event of all nodes reaches them one after the other: its lateness is given as median, range and 99th
percentile, which has the goal. After a change, processors and memory are read back; links and disks are as
the supervisor reports them. Planted failure: a change that omits one node, which the read-back must report.
Exit status 1 if it does not, or if a real change is incomplete.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import record
from penstock.emulate.cluster.cluster import Cluster
from penstock.host.journal.journal import Journal
from penstock.profile.load import load_profile
from penstock.spec.cluster import ClusterSpec, DiskSpec, Event, LinkSpec, NodeSpec, When

MIB = 1 << 20
#: goals [s]: nodes → metric → limit
BARS = {100: {"up": 10.0, "down": 10.0, "set": 0.5}, 1000: {"up": 60.0}}
#: limit of the 99th percentile of the lateness of events [ms]
LATE_MS = 5.0
READ_BACK = (
    "After a change the bench reads back processors and memory of each node itself; of disks and links it "
    "takes the word of the supervisor."
)


def spec_of(count: int, runtime: str) -> ClusterSpec:
    disks: tuple[DiskSpec, ...] = ()
    link = LinkSpec()
    if count <= 100:
        profile = json.loads(load_profile("sata-ssd").json)
        disks = (DiskSpec("data", profile=profile, profile_name="sata-ssd"),)
        link = LinkSpec(out_bps=125e6 / 2, in_bps=125e6 / 2)
    nodes = tuple(
        NodeSpec(f"n-{i}", cpus=1.0, memory_bytes=256 * MIB, disks=disks, links=(link,))
        for i in range(count)
    )
    return ClusterSpec(f"bench{count}", nodes, runtime=runtime)  # type: ignore[arg-type]


def available_mib() -> float:
    with open("/proc/meminfo") as lines:
        return next(int(x.split()[1]) / 1024 for x in lines if x.startswith("MemAvailable"))


def timed(work: Callable[[], object]) -> float:
    start = time.monotonic()
    work()
    return time.monotonic() - start


def change_all(cluster: Cluster, count: int, plant: bool) -> tuple[float, int]:
    """Change processors, memory and link of every node in one request; return its time [s] and the number of
    changed nodes.
    """
    from penstock.emulate.cluster.settings import Change

    changes = []
    for number in range(count):
        node = (f"n-{number}",)
        cpus = 0.25 + (number % 50) / 100
        changes.append(Change(node, "cpu", {"cpus": cpus}))
        changes.append(Change(node, "memory", {"hard": (128 + number % 64) * MIB}))
        changes.append(Change(node, "network", {"out_bps": 10e6 + 1e4 * number}, "net"))
        if count <= 100:
            limits = {"read_bps": 20e6 + 1e4 * number, "write_bps": 10e6 + 1e4 * number}
            changes.append(Change(node, "disk", {"limits": limits}, "data"))
    if plant:
        del changes[:1]
    start = time.monotonic()
    applied = cluster.change(changes)
    took = time.monotonic() - start
    wrong = [a for a in applied if a["error"]]
    for failure in wrong[:3]:
        print(f"{failure['node']}: {failure['resource']}: {failure['error']}", file=sys.stderr)
    status = cluster.status()
    changed = sum(
        abs(n["cpu"]["cpus"] - (0.25 + (i % 50) / 100)) < 0.001
        and n["memory"]["hard"] == (128 + i % 64) * MIB
        for i, n in enumerate(status)
    )
    return took, changed - len(wrong)


def lateness(cluster: Cluster, count: int) -> dict[str, list[float]]:
    """Lateness of events of each resource on their nodes [ms]; ten at different times."""
    resources: dict[str, tuple[str | None, str]] = {
        "cpu": (None, "cpus"),
        "network": ("net", "out_bps"),
    }
    if count <= 100:
        resources["disk"] = ("data", "limits")
    events = []
    for number in range(10):
        for which, (resource, (name, key)) in enumerate(resources.items()):
            value: Any = 0.3 + number / 100 if key == "cpus" else 20e6 + number
            patch = {key: {"read_bps": value} if key == "limits" else value}
            when = When(0.2 + 0.3 * number + 0.1 * which)
            events.append(Event(when, resource, patch, ("*",), name))  # type: ignore[arg-type]
    start_ns = cluster.schedule(events)
    expected = len(events) * count
    until = time.monotonic() + 20
    applied: list[dict[str, Any]] = []
    while len(applied) < expected and time.monotonic() < until:
        time.sleep(0.2)
        applied = [e for e in cluster.events() if e["applied_ns"] and e["planned_ns"] > start_ns]
    late_ms_by_resource: dict[str, list[float]] = {}
    for event in applied:
        if not event["error"]:
            late_ms = (event["applied_ns"] - event["planned_ns"]) / 1e6
            late_ms_by_resource.setdefault(event["resource"], []).append(late_ms)
    if sum(map(len, late_ms_by_resource.values())) != expected:
        print(
            f"{count} nodes: {expected} events, {sum(map(len, late_ms_by_resource.values()))} made",
            file=sys.stderr,
        )
    return late_ms_by_resource


def measure(
    count: int, repetitions: int, runtime: str, plant: bool = False
) -> tuple[list[record.Row], bool]:
    """Rows; true if every change reached every node."""
    times: dict[str, list[float]] = {"up": [], "set": [], "status": [], "down": []}
    costs = []
    lates: dict[str, list[float]] = {}
    complete = True
    for _ in range(repetitions):
        before = available_mib()
        spec = spec_of(count, runtime)
        start = time.monotonic()
        cluster = Cluster.up(spec, Journal(), outlive=False)
        try:
            times["up"].append(time.monotonic() - start)
            running = sum(n.state == "running" for n in cluster.nodes.values())
            costs.append((before - available_mib()) / count)
            took, changed = change_all(cluster, count, plant)
            times["set"].append(took)
            times["status"].append(timed(cluster.status))
            if count <= 100 and not plant:
                for resource, late in lateness(cluster, count).items():
                    lates.setdefault(resource, []).extend(late)
            if running != count or changed != count:
                print(
                    f"{count} nodes: {running} running, {changed} with the new limits",
                    file=sys.stderr,
                )
                complete = False
        finally:
            times["down"].append(timed(cluster.down))
    case = f"{count:,} node{'s' if count > 1 else ''}"
    bars = BARS.get(count, {})
    rows = []
    for name, t in times.items():
        time_row = record.row(case, "", name, t, "s")
        rows.append(record.at_most(time_row, bars[name]) if name in bars else time_row)
    for resource, late in lates.items():
        rows.append(record.row(case, "", f"{resource} event late", late, "ms"))
        tail = sorted(late)[math.ceil(0.99 * len(late)) - 1]
        time_row = record.row(case, "", f"{resource} event late, 99th percentile", [tail], "ms")
        rows.append(record.at_most({**time_row, "n": len(late)}, LATE_MS))
    rows.append(record.row(case, "", "memory per node", costs, "MiB"))
    return rows, complete


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--quick", action="store_true", help="1, 10 and 100 nodes, twice")
    arguments.add_argument("--counts", help="such as 1,10,100,1000")
    arguments.add_argument("--repetitions", type=int, default=5)
    arguments.add_argument("--runtime", default="auto")
    record.option(arguments)
    options = arguments.parse_args()
    if os.geteuid() != 0:
        print("needs root", file=sys.stderr)
        return 2
    counts = [
        int(c)
        for c in (options.counts or ("1,10,100" if options.quick else "1,10,100,1000")).split(",")
    ]
    rows: list[record.Row] = []
    complete = True
    for count in counts:
        times = 2 if options.quick or count >= 1000 else options.repetitions
        count_rows, changed_all = measure(count, times, options.runtime)
        complete &= changed_all
        rows += count_rows
        if not options.json:
            for r in count_rows:
                goal = f"   ({r['bar']}: {r['verdict']})" if "bar" in r else ""
                print(
                    f"{r['case']:>11}  {r['metric']:<36}{r['value']:9.3f} {r['unit']:<4}"
                    f"[{r['low']:.3f}, {r['high']:.3f}] n={r['n']}{goal}",
                    flush=True,
                )
    _, unnoticed = measure(3, 1, options.runtime, plant=True)
    if options.json:
        print(json.dumps(rows))
    print(f"planted, one node left out: {'NOT FOUND' if unnoticed else 'found'}", file=sys.stderr)
    planted = {"a change that leaves one node out": not unnoticed}
    record.keep(options.record, rows, planted, READ_BACK)
    return 0 if complete and not unnoticed else 1


if __name__ == "__main__":
    sys.exit(main())
