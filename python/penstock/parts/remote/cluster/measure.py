"""Measurement of the hosts of a hosts file: facts, clocks, and the paths between them.

The results are files beside the hosts file, from which a plan reads them.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from penstock.parts.remote.cluster import path_probe
from penstock.parts.remote.cluster.coordinator import call_hosts
from penstock.parts.remote.cluster.hosts_file import MeasuredPath, PathsFile, UnmeasuredHosts
from penstock.parts.remote.cluster.path_probe import RoundTrips
from penstock.parts.remote.workers import WorkerPool
from penstock.scratch import Scratch
from penstock.writing import write_atomic


def measure_hosts(
    hosts: UnmeasuredHosts, say: Callable[[str], None], *, refresh: bool = False
) -> PathsFile:
    """Write the facts of each host and the paths between them; returns the paths.

    Raises PenstockError with the messages of hosts that failed; then nothing is written.
    """
    addresses = hosts.addresses
    with (
        Scratch("measure") as logs,
        WorkerPool("measure", hosts.listen, hosts.workers, logs) as pool,
    ):
        say("measuring how fast an emulated disk can be on each host")
        calls = {host: (address, refresh) for host, address in addresses.items()}
        facts = call_hosts(pool, path_probe.facts, calls)
        clocks = {host: pool.clock_offset(host, realtime=True) for host in addresses}
        say("measuring the paths between the hosts")
        paths = measured_paths(_round_trips(pool, addresses))
    for place in {path.parent for path in (*hosts.facts.values(), hosts.paths)}:
        place.mkdir(parents=True, exist_ok=True)
    for host, path in hosts.facts.items():
        clock = {"offset_ns": clocks[host].offset_ns, "bound_ns": clocks[host].bound_ns}
        write_atomic(path, json.dumps({**facts[host], "clock": clock}))
    write_atomic(hosts.paths, paths.model_dump_json())
    return paths


def _round_trips(
    pool: WorkerPool, addresses: Mapping[str, str]
) -> dict[tuple[str, str], RoundTrips]:
    """Probes from each host to each other, of one host at a time."""
    measured: dict[tuple[str, str], RoundTrips] = {}
    call_hosts(pool, path_probe.listen, {host: (own,) for host, own in addresses.items()})
    try:
        for host, own in addresses.items():
            others = {name: a for name, a in addresses.items() if name != host}
            calls: dict[str, tuple[Any, ...]] = {host: (own, others)}
            for other, trips in call_hosts(pool, path_probe.round_trips, calls)[host].items():
                measured[host, other] = trips
    finally:
        pool.call_all(path_probe.close, dict.fromkeys(addresses, ()))
    return measured


def measured_paths(measured: Mapping[tuple[str, str], RoundTrips]) -> PathsFile:
    """The path between two hosts: half of the shortest round trip, and the loss of one way.

    A probe is lost if it or its return is: the share lost is 1 − (1 − loss)².
    """
    paths = []
    for a, b in itertools.combinations(dict.fromkeys(host for host, _ in measured), 2):
        trips = measured[a, b], measured[b, a]
        lost = sum(t["lost"] for t in trips) / sum(t["sent"] for t in trips)
        delay_s = min(t["shortest_s"] for t in trips) / 2
        paths.append(MeasuredPath(hosts=(a, b), delay_s=delay_s, loss=1 - math.sqrt(1 - lost)))
    return PathsFile(paths=paths)
