"""Energy of an executed workflow: busy times of its hosts, with the powers of the platform file.

The emulated meter reads each node's disk busy time and link traffic once a second; operations have the
compute times. Its result is the energy model (docs/platform-file.md) applied to these times. It therefore
compares predicted with actual times, not watts: nodes have no electricity meter.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.emulate.cluster.cluster import Cluster
from penstock.errors import PenstockError
from penstock.host.probe.meter import Meter, find_meter
from penstock.parts.prediction.queue_network.energy import Energy, run_energy
from penstock.parts.stores.workflow.running.executed import Executed
from penstock.platform.hosts import Platform
from penstock.spec.cluster import ClusterSpec

_EVERY_S = 1.0


@dataclass(frozen=True)
class Reading:
    """Counters of one node at a time of CLOCK_MONOTONIC: disk busy nanoseconds, link bytes."""

    at_ns: int
    disk_ns: float
    out_bytes: float
    in_bytes: float


@dataclass
class Readings:
    """Readings by node, and of this host's own meter (none without one): time [ns] and joules until then."""

    nodes: dict[str, list[Reading]] = field(default_factory=dict)
    host: list[tuple[int, float]] = field(default_factory=list)
    #: part of the host that its meter measures
    host_scope: str = ""


@contextmanager
def metered(cluster: Cluster) -> Iterator[Readings]:
    """Read at the start and end of the block, and while it runs."""
    readings, over = Readings(), threading.Event()
    meter, _ = find_meter()
    total = _Total(meter) if meter is not None and meter.counters else None

    def read() -> None:
        if total is not None:
            total.read()
        with suppress(PenstockError):  # a dead node has no further readings
            for row in cluster.status():
                readings.nodes.setdefault(row["name"], []).append(_reading(row))

    def go_on() -> None:
        while not over.wait(_EVERY_S):
            read()

    read()
    reader = threading.Thread(target=go_on, daemon=True)
    reader.start()
    try:
        yield readings
    finally:
        over.set()
        reader.join()
        read()
        if total is not None and total.complete:
            readings.host, readings.host_scope = total.rows, total.meter.what


class _Total:
    """Energy since the start by a meter whose counters may wrap around once between two reads."""

    def __init__(self, meter: Meter) -> None:
        self.meter, self.complete = meter, True
        #: time [ns], and joules until then
        self.rows: list[tuple[int, float]] = []
        self._counts: list[int] = []

    def read(self) -> None:
        """Add the energy since the last read."""
        try:
            counts = self.meter.counts()
        except (OSError, ValueError):
            self.complete = False
            return
        before = self.rows[-1][1] if self.rows else 0.0
        joules = self.meter.joules(self._counts, counts) if self._counts else 0.0
        self.rows.append((time.monotonic_ns(), before + joules))
        self._counts = counts


def host_energy_of(run: Executed, readings: Readings) -> tuple[str, float] | None:
    """Scope of this host's meter, and joules from the first dispatch to the end of the last task.

    None without a meter. Power is uniform between readings. Copies of inputs before and of results after it
    do not count.
    """
    if len(readings.host) < 2:
        return None
    times, joules = zip(*readings.host, strict=True)
    ends = [run.begin_ns, run.begin_ns + round(1e9 * run.makespan_s)]
    first, last = np.interp(ends, times, joules)
    return readings.host_scope, float(last - first)


def _reading(row: Mapping[str, Any]) -> Reading:
    disks = (d.get("stats") or {} for d in (row.get("disks") or {}).values())
    links = [one or {} for one in (row.get("links") or {}).values()]
    return Reading(
        time.monotonic_ns(),
        sum(float(d.get("busy_ns", 0)) for d in disks),
        sum(float(one.get("out_bytes", 0)) for one in links),
        sum(float(one.get("in_bytes", 0)) for one in links),
    )


def energy_of(
    run: Executed,
    readings: Readings,
    platform: Platform,
    nodes: ClusterSpec,
    slots: Mapping[str, int],
) -> Energy | None:
    """Joules of a run by host and state. None without powers in the platform or without readings."""
    if not platform.power or not readings.nodes:
        return None
    rates = {n.name: n.links[0] for n in nodes.nodes if n.links}
    begin, end = run.begin_ns, run.begin_ns + round(1e9 * run.makespan_s)
    on = {t["task"]: t["host"] for t in run.tasks.to_pylist()}
    app: dict[str, float] = {}
    operations = run.operations.to_pylist()
    programs = on.keys() - {row["task"] for row in operations}
    computing = [row for row in operations if row["op"] == "compute"]
    computing += [row for row in run.tasks.to_pylist() if row["task"] in programs]
    for row in computing:
        host = on[row["task"]]
        app[host] = app.get(host, 0.0) + row["end_s"] - row["start_s"]
    hosts = []
    for name, counters in readings.nodes.items():
        link = rates.get(name)
        out_bps, in_bps = (link.out_bps, link.in_bps) if link is not None else (None, None)
        storage_s, network_s = busy(counters, begin, end, out_bps, in_bps)
        app_s = app.get(name, 0.0) / slots.get(name, 1)
        hosts.append({"name": name, "app_s": app_s, "storage_s": storage_s, "network_s": network_s})
    return run_energy(run.makespan_s, hosts, platform.power)


def busy(
    readings: list[Reading], begin_ns: int, end_ns: int, out_bps: float | None, in_bps: float | None
) -> tuple[float, float]:
    """Busy seconds of a node's disk and of its link between two times.

    Activity is uniform between readings. A link is busy for its bytes at its rate; directions overlap as if
    independent, 1 − (1 − out)(1 − in). A link without a rate is never busy.
    """
    storage_s = network_s = 0.0
    for first, last in itertools.pairwise(readings):
        between_ns = last.at_ns - first.at_ns
        part_ns = min(end_ns, last.at_ns) - max(begin_ns, first.at_ns)
        if between_ns <= 0 or part_ns <= 0:
            continue
        share, seconds = part_ns / between_ns, part_ns / 1e9
        storage_s += min(seconds, max(0.0, last.disk_ns - first.disk_ns) * share / 1e9)
        idle = 1.0
        for rate, moved in (
            (out_bps, last.out_bytes - first.out_bytes),
            (in_bps, last.in_bytes - first.in_bytes),
        ):
            if rate:
                idle *= 1 - min(1.0, max(0.0, moved) * share / rate / seconds)
        network_s += seconds * (1 - idle)
    return storage_s, network_s
