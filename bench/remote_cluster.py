#!/usr/bin/env python3
"""One cluster on several hosts: time to start it, its links, and the simultaneity of its schedule.

Network namespaces act as hosts, each with its own state directory; they share processors and the clock. A
cluster on all hosts alternates with the same cluster on the first host. Links are measured from one node to
another on the same host and on a different one: one-way delay is half of a round trip, the rate is that of
UDP packets with their headers. Planted at the end: a latency that is 1 ms above the requested one. Exit
status 1 if it is not detected, or a goal is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import record
from bench.network import round_trips
from tests.integration.remote_hosts import RemoteHosts

#: goals: ratio of start times, one-way delay [ms], error of a rate [%], difference of events [ms]
START_RATIO, DELAY_MS, RATE_PERCENT, EVENTS_MS = 1.5, 0.3, 1.0, 5.0
PLANTED_MS = 1.0
LOSS = 0.01
PAIR = {"h0": 1, "h1": 1}
#: payload of a packet, and with its headers of Ethernet, IP and UDP [bytes]
PAYLOAD, FRAME = 1200, 1242
NAME = "remote"
_RECEIVE = """
import socket, sys, time
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.setsockopt(socket.SOL_SOCKET, 33, 1 << 24)  # SO_RCVBUFFORCE
udp.bind((sys.argv[1], 7000)); udp.settimeout(3)
print("ready", flush=True); seen = []
try:
    while len(udp.recv(2000)) > 1: seen.append(time.monotonic())
except TimeoutError: pass
steady = [t for t in seen if t >= seen[0] + 0.5]
print(len(seen), (len(steady) - 1) / (steady[-1] - steady[0]) if len(steady) > 1 else 0.0)
"""
_SEND = """
import socket, sys, time
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
target, size, count, rate = (sys.argv[1], 7000), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
start = time.monotonic()
for number in range(count):
    wait = start + number / rate - time.monotonic()
    if wait > 0.001: time.sleep(wait)
    udp.sendto(bytes(size), target)
time.sleep(0.5)
for _ in range(20): udp.sendto(b"x", target)
"""
_EVENTS = f"""
import json
from penstock.emulate.cluster.cluster import Cluster
print(json.dumps(Cluster.find({NAME!r}).events()))
"""


class Hosts(RemoteHosts):
    """The coordinator and the hosts h0, h1, …"""

    def penstock(self, *arguments: str, host: str | None = None) -> str:
        """Output of a command on a host (None: the coordinator)."""
        return self.python("-m", "penstock", *arguments, host=host)

    def python(self, *arguments: str, host: str | None = None) -> str:
        ground = self.here if host is None else self.others[host]
        enter = [] if host is None else ["nsenter", f"--net=/run/netns/{self.namespaces[host]}"]
        line = [*enter, sys.executable, *arguments]
        result = subprocess.run(
            line, env=ground.environment, capture_output=True, text=True, timeout=600
        )
        if result.returncode:
            raise RuntimeError(
                f"{' '.join(arguments[:4])}: status {result.returncode}: {result.stderr}"
            )
        return result.stdout

    @contextlib.contextmanager
    def cluster(self, groups: dict[str, int], spread: bool, more: str = "") -> Iterator[float]:
        """Cluster of N nodes per host, or all of them on the first; yields its start time [s]."""
        lines = [f"penstock_platform: 1\nname: {NAME}\nhosts:"]
        for number, (host, count) in enumerate(groups.items()):
            pin = f", host: {host}" if spread else ""
            lines.append(f"  - {{group: g{number}, count: {count}, memory: 64MiB{pin}}}")
        platform = self.where / "platform.yaml"
        platform.write_text("\n".join([*lines, more]))
        on = ("--hosts", str(self.file)) if spread else ()
        start = time.monotonic()
        self.verb(spread, "up", str(platform), *on)
        try:
            yield time.monotonic() - start
        finally:
            self.verb(spread, "down", NAME)

    def verb(self, spread: bool, *arguments: str) -> None:
        """Run a command on the cluster: `hosts` on the coordinator, or `nodes` on the first host."""
        if spread:
            self.penstock("hosts", *arguments)
        else:
            self.penstock("nodes", *arguments, host="h0")

    def pair(self) -> tuple[list[int], str]:
        """Processes of the nodes g0-0 and g1-0, and the address of the second."""
        shown = [self.penstock("nodes", "status", "--json", host=h) for h in self.others]
        nodes = {n["name"]: n for s in shown for c in json.loads(s)["clusters"] for n in c["nodes"]}
        first, second = nodes["g0-0"], nodes["g1-0"]
        return [first["pid"], second["pid"]], second["addresses"]["net"]


def starts(hosts: Hosts, per_host: int, repetitions: int) -> Iterator[record.Row]:
    groups = dict.fromkeys(hosts.others, per_host)
    case = f"{len(groups)} hosts × {per_host} nodes"
    times: dict[str, list[float]] = {"hosts up": [], "nodes up on one host": [], "hosts status": []}
    for _ in range(repetitions):
        with hosts.cluster(groups, True) as took_s:
            times["hosts up"].append(took_s)
            start = time.monotonic()
            hosts.penstock("hosts", "status")  # mostly the start of the workers
            times["hosts status"].append(time.monotonic() - start)
        with hosts.cluster(groups, False) as took_s:
            times["nodes up on one host"].append(took_s)
    yield from (record.row(case, "", metric, seen, "s") for metric, seen in times.items())
    spread, single_host, _ = times.values()
    ratios = [a / b for a, b in zip(spread, single_host, strict=True)]
    yield record.at_most(record.row(case, "", "ratio of start times", ratios, ""), START_RATIO)


def stream(pids: list[int], address: str, packets: int, rate: float) -> tuple[int, float]:
    """Packets that arrived, and their rate after the first half second [1/s]."""
    receive, send = (
        ["nsenter", f"--net=/proc/{pid}/ns/net", sys.executable, "-c", text, address]
        for pid, text in ((pids[1], _RECEIVE), (pids[0], _SEND))
    )
    with subprocess.Popen(receive, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        subprocess.run([*send, str(PAYLOAD), str(packets), str(rate)], check=True, timeout=120)
        arrived, steady = process.stdout.read().split()
    return int(arrived), float(steady)


def delay(
    hosts: Hosts, spread: bool, requested_ms: float, real_ms: float, count: int
) -> record.Row:
    """Difference of the one-way delay from the requested one."""
    with hosts.cluster(PAIR, spread, f"network: {{latency: {real_ms:g}ms}}"):
        trips = round_trips(*hosts.pair(), count)
    late = [abs(t * 1e3 / 2 - requested_ms) for t in trips]
    row = record.row(_pair(spread), "", f"error of a latency of {requested_ms:g} ms", late, "ms")
    return record.at_most(row, DELAY_MS)


def rate_and_loss(hosts: Hosts, spread: bool, quick: bool) -> Iterator[record.Row]:
    with hosts.cluster(PAIR, spread):
        path = hosts.pair()
        for mbit in (20, 100):
            hosts.verb(spread, "set", "g0-0", f"bandwidth={mbit}Mbit/s")
            per_s = mbit * 1e6 / 8 / FRAME
            packets = int(1.2 * per_s * (2 if quick else 5))
            times = 1 if quick else 3
            seen = [stream(*path, packets, 1.2 * per_s)[1] for _ in range(times)]
            error = [100 * abs(s / per_s - 1) for s in seen]
            row = record.row(_pair(spread), "", f"error of a rate of {mbit} Mbit/s", error, "%")
            yield record.at_most(row, RATE_PERCENT)
        hosts.verb(spread, "set", "g0-0", "bandwidth=max", f"loss={100 * LOSS:g}%")
        packets = 5000 if quick else 20000
        lost = packets - stream(*path, packets, 2000)[0]
        deviation = abs(lost - packets * LOSS) / (packets * LOSS * (1 - LOSS)) ** 0.5
        metric = f"loss of 1 %: {lost} of {packets} packets; error in standard deviations"
        yield record.at_most(record.row(_pair(spread), "", metric, [deviation], ""), 1.96)


def events(hosts: Hosts, count: int) -> record.Row:
    """Differences of the times at which each event of the schedule took effect on the first two hosts."""
    lines = [f"  - {{at: {1 + n / 4}s, cpus: {0.3 + n / 100:.2f}}}" for n in range(count)]
    with hosts.cluster(PAIR, True, "\n".join(["schedule:", *lines])):
        time.sleep(3 + count / 4)
        results = [json.loads(hosts.python("-c", _EVENTS, host=host)) for host in PAIR]
    applied = []
    for rows in results:
        rows.sort(key=lambda e: e["planned_ns"])
        applied.append([e["applied_ns"] for e in rows])
    if [len(a) for a in applied] != [count, count] or not all(map(all, applied)):
        raise RuntimeError(f"{count} events; applied {[sum(map(bool, a)) for a in applied]}")
    differences_ms = [abs(a - b) / 1e6 for a, b in zip(*applied, strict=True)]
    row = record.row("2 hosts", "", "difference of events, largest", differences_ms, "ms")
    return record.at_most({**row, "value": max(differences_ms)}, EVENTS_MS)


def _pair(spread: bool) -> str:
    return f"pair on {'two hosts' if spread else 'one host'}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="rows as JSON")
    parser.add_argument("--quick", action="store_true", help="2 hosts × 4 nodes, short streams")
    record.option(parser)
    options = parser.parse_args()
    if os.geteuid() != 0:
        print("needs root", file=sys.stderr)
        return 2
    quick = options.quick
    trips = 60 if quick else 400
    with Hosts.up([f"h{i}" for i in range(2 if quick else 3)]) as hosts:
        rows = list(starts(hosts, 4 if quick else 20, 1 if quick else 3))
        for requested_ms in (0.0, 5.0):
            rows += [
                delay(hosts, spread, requested_ms, requested_ms, trips) for spread in (False, True)
            ]
        for spread in (False, True):
            rows += rate_and_loss(hosts, spread, quick)
        rows.append(events(hosts, 4 if quick else 20))
        late = delay(hosts, True, 5.0, 5.0 + PLANTED_MS, trips)
    planted = {f"a latency {PLANTED_MS:g} ms too long": late["verdict"] == record.MISSED}
    record.keep(options.record, rows, planted)
    return record.report(rows, planted, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
