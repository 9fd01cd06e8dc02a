#!/usr/bin/env python3
"""Start of a cluster on many hosts: time with 1,000 nodes on 10 hosts and 10,000 on 100, and what bounds it.

The coordinator is real: it plans, starts a program per host in place of ssh, connects the workers over TLS
and sends each host its part. The hosts are simulated: each call takes the time that it takes on this machine,
where a real worker in a network namespace starts the part of the first host. A host therefore has the
processors of this machine. All simulated workers share one process, unlike those of real hosts: its processor
time is printed.

A cluster on one host is started by both kinds of hosts in turns: the simulated one must take as long within
20 %. Planted: hosts that take twice as long, which this comparison must reject. Exit status 1 if it does not,
or if a goal is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import record
from bench.cluster_placement import alike, hosts_of
from penstock.emulate.cluster.wire import to_json
from penstock.parts.remote.cluster import agent
from penstock.parts.remote.cluster.coordinator import RemoteCluster, call_hosts
from penstock.parts.remote.cluster.host_specs import host_specs
from penstock.parts.remote.cluster.hosts_file import HostsFile, read_hosts
from penstock.parts.remote.cluster.physical import Inventory
from penstock.parts.remote.cluster.plan import ClusterPlan, plan_cluster
from penstock.parts.remote.workers import WorkerPool
from penstock.spec.study import Worker
from tests.integration.remote_hosts import SUBNET, RemoteHosts
from tests.support.simulated_hosts import Times, simulated_hosts

#: nodes of the clusters, a hundred on each host
SIZES = (1000, 10_000)
#: largest deviation of the simulated start of one host from the real one
TOLERANCE = 0.2
_CALLS = ("prepare", "start", "confirm", "stop")


@dataclass(frozen=True)
class Started:
    """Times of a start [s]: in total, until the workers are up, and of processors."""

    total: float
    workers: float
    processor: float
    hosts_processor: float = 0.0


class Bench:
    """The first host, real; `hosts`: its namespace and state."""

    def __init__(self, hosts: RemoteHosts) -> None:
        self._here = hosts.here.where
        self._file = read_hosts(hosts.file)

    def plan(self, nodes: int, hosts: int) -> tuple[ClusterPlan, Inventory]:
        """Plan equal nodes on hosts at addresses of the namespaces' subnet."""
        inventory = hosts_of(hosts)
        addressed = tuple(
            replace(
                h, name=f"h{i}", address=f"{SUBNET}.{i + 1}", mtu=1500, processors=nodes // hosts
            )
            for i, h in enumerate(inventory.hosts)
        )
        inventory = replace(inventory, hosts=addressed)
        spec, _ = alike(nodes)
        spec = replace(spec, nodes=tuple(replace(n, memory_bytes=64 << 20) for n in spec.nodes))
        return plan_cluster(spec, inventory), inventory

    def measure(self, plan: ClusterPlan, inventory: Inventory) -> Times:
        """Start and stop the part of the first host on a real worker."""
        (worker,) = self._file.workers
        parts = host_specs(plan, inventory.paths(plan.placement.hosts))
        seconds: dict[str, float] = {"worker": self._worker_s(worker)}
        part, name = json.dumps(to_json(parts[worker.name])), plan.spec.name
        arguments = {
            "prepare": (),
            "start": (part, "key"),
            "confirm": (name,),
            "stop": (name, "key"),
        }
        with self._pool([worker]) as pool:
            for call in _CALLS:
                begin = time.monotonic()
                function = getattr(agent, call)
                call_hosts(pool, function, {worker.name: arguments[call]})
                seconds[call] = time.monotonic() - begin
        return Times(**seconds)

    def _worker_s(self, worker: Worker) -> float:
        """Time to start a worker: that of a pool with it, less that of a pool without."""
        seconds = []
        for workers in ([worker], []):
            begin = time.monotonic()
            with self._pool(workers):
                seconds.append(time.monotonic() - begin)
        return max(0.0, seconds[0] - seconds[1])

    def _pool(self, workers: list[Worker]) -> WorkerPool:
        return WorkerPool("start", str(self._file.listen), workers, self._here)

    def start_real(self, plan: ClusterPlan, inventory: Inventory) -> Started:
        return self._start(plan, replace(self._file, inventory=inventory))

    def start_simulated(self, plan: ClusterPlan, inventory: Inventory, times: Times) -> Started:
        with (
            tempfile.TemporaryDirectory(dir=self._here) as place,
            simulated_hosts(Path(place), times) as (program, process),
        ):
            workers = tuple(Worker(name=h.name, python=str(program)) for h in inventory.hosts)
            file = replace(self._file, inventory=inventory, workers=workers)
            before = processor_s(process.pid)
            started = self._start(plan, file)
            return replace(started, hosts_processor=processor_s(process.pid) - before)

    def _start(self, plan: ClusterPlan, file: HostsFile) -> Started:
        begin, used = time.monotonic(), time.process_time()
        messages: list[float] = []  # the first one when the workers are up
        cluster = RemoteCluster.up(plan, file, lambda _: messages.append(time.monotonic()))
        total, processor = time.monotonic() - begin, time.process_time() - used
        cluster.down()
        return Started(total, messages[0] - begin, processor)


def processor_s(pid: int) -> float:
    """Processor time of a process [s]."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def deviation(real: list[Started], simulated: list[Started]) -> float:
    """Relative difference of the medians of the total times."""
    a, b = (statistics.median(s.total for s in starts) for starts in (real, simulated))
    return abs(b / a - 1)


def compared(
    bench: Bench, nodes: int, repetitions: int
) -> tuple[list[record.Row], dict[str, bool]]:
    """Deviation of one simulated host from a real one, and the planted slow host."""
    plan, inventory = bench.plan(nodes, 1)
    bench.measure(plan, inventory)  # discarded: the first start reads files from the disk
    starts: dict[str, list[Started]] = {"real": [], "simulated": [], "slow": []}
    for _ in range(repetitions):
        times = bench.measure(plan, inventory)
        slow = replace(
            times, worker=2 * times.worker, prepare=2 * times.prepare, start=2 * times.start
        )
        starts["real"].append(bench.start_real(plan, inventory))
        starts["simulated"].append(bench.start_simulated(plan, inventory, times))
        starts["slow"].append(bench.start_simulated(plan, inventory, slow))
    case = f"{nodes} nodes on one host"
    rows = [
        record.row(case, f"{kind} host", "time to start", [s.total for s in starts[kind]], "s")
        for kind in ("real", "simulated")
    ]
    error = 100 * deviation(starts["real"], starts["simulated"])
    row = record.row(case, "simulated host", "deviation from the real one", [error], "%")
    rows.append(record.at_most(row, 100 * TOLERANCE))
    planted = deviation(starts["real"], starts["slow"]) > TOLERANCE
    return rows, {"hosts that take twice as long": planted}


def large(bench: Bench, nodes: int, per_host: int, repetitions: int) -> list[record.Row]:
    """Times of a cluster on simulated hosts, and the share of what bounds it."""
    begin = time.process_time()
    plan, inventory = bench.plan(nodes, nodes // per_host)
    plan_s = time.process_time() - begin
    times = [bench.measure(plan, inventory) for _ in range(repetitions)]
    starts = [bench.start_simulated(plan, inventory, one) for one in times]
    case = f"{nodes:,} nodes on {len(inventory.hosts)} hosts"
    bound = [100 * t.start / s.total for t, s in zip(times, starts, strict=True)]
    columns: Mapping[str, list[float]] = {
        "time to start": [s.total for s in starts],
        "until all workers are connected": [s.workers for s in starts],
        "a host starts its nodes, measured": [t.start for t in times],
        "a host starts its worker, measured": [t.worker for t in times],
        "processor time of the coordinator": [s.processor for s in starts],
        "processor time of the simulated hosts": [s.hosts_processor for s in starts],
        "processor time of the plan": [plan_s],
    }
    rows = [record.row(case, "", metric, seen, "s") for metric, seen in columns.items()]
    return [*rows, record.row(case, "", "share of the time in which hosts start nodes", bound, "%")]


@contextlib.contextmanager
def bench_of() -> Iterator[Bench]:
    """A namespace as the first host, and the state of the coordinator."""
    with RemoteHosts.up(["h0"]) as hosts:
        os.environ.update({k: v for k, v in hosts.here.environment.items() if "PENSTOCK" in k})
        yield Bench(hosts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="rows as JSON")
    parser.add_argument(
        "--nodes", type=int, action="append", help="nodes; repeatable [1000, 10000]"
    )
    parser.add_argument("--repetitions", type=int, default=3, help="starts of each cluster [3]")
    parser.add_argument("--quick", action="store_true", help="40 nodes on 4 hosts, once")
    record.option(parser)
    options = parser.parse_args()
    if os.geteuid() != 0:
        print("needs root", file=sys.stderr)
        return 2
    if options.quick:
        options.nodes, options.repetitions = [40], 1
    per_host = 10 if options.quick else 100
    with bench_of() as bench:
        rows, planted = compared(bench, 10 if options.quick else 20, options.repetitions)
        for nodes in options.nodes or SIZES:
            rows += large(bench, nodes, per_host, options.repetitions)
    record.keep(options.record, rows, planted)
    return record.report(rows, planted, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
