"""The store's protocol unrolled into activities for SimGrid: transfers, disk requests and times, with their
dependencies.

Tasks must name their machine, because there is no scheduler. Chain, parallel and client replication by
complete chunks; random choice of a remote replica by `seed`.
"""

from __future__ import annotations

import random
from typing import Any

from bench.simulation.placement import Placement

Json = dict[str, Any]


class Unrolled:
    """Lines that `flows.cpp` reads: `flow SRC DST BYTES`, `read|write HOST BYTES`, `exec HOST SECONDS`,
    `after A B` (B waits for A); activities are numbered in order of their lines."""

    def __init__(self, workload: Json, network: Json, seed: int = 0) -> None:
        self.lines: list[str] = []
        self.count = 0
        self.rules = network["store"]
        self.control_bytes = network["protocol"]["control_bytes"]
        self.storage = [h["name"] for h in network["hosts"] if h["storage"]]
        manager = [h for h in network["hosts"] if h["manager"]]
        self.manager = manager[0]["name"] if manager else None
        self.manager_s = manager[0]["manager"]["service"]["overhead"] if manager else 0.0
        self.random = random.Random(seed)
        hints = {f["name"]: f.get("hints", {}) for f in workload["files"]}
        self.placement = Placement(self.rules, hints, self.storage, self.random)
        self.files: dict[str, list[tuple[list[int], int]]] = {}
        for file in workload["files"]:
            if file["preloaded"]:
                name, size = file["name"], file["size_bytes"]
                self.files[name] = self.placement.place(name, size, None)
        self.tasks(workload["tasks"])

    def add(self, line: str, after: list[int]) -> int:
        number = self.count
        self.lines.append(line)
        self.lines += [f"after {a} {number}" for a in after]
        self.count += 1
        return number

    def join(self, host: str, after: list[int]) -> int:
        return after[0] if len(after) == 1 else self.add(f"exec {host} 0", after)

    def flow(self, source: str, target: str, size: int, after: list[int]) -> int:
        return self.add(f"flow {source} {target} {size}", after)

    def control(self, source: str, target: str, after: list[int]) -> int:
        return self.flow(source, target, self.control_bytes, after)

    def ask_manager(self, client: str, after: list[int]) -> list[int]:
        if self.manager is None or self.rules["allocation"] == "none":
            return after
        request = self.control(client, self.manager, after)
        served = self.add(f"exec {self.manager} {self.manager_s!r}", [request])
        return [self.control(self.manager, client, [served])]

    def write_chunk(self, client: str, hosts: list[str], size: int, after: list[int]) -> int:
        """The activity that ends with the client's acknowledgement."""
        replication = self.rules["replication"]
        if replication == "client":
            return self.join(client, [self.copy(client, h, size, after) for h in hosts])
        sent = self.flow(client, hosts[0], size, after)
        stored = [self.add(f"write {hosts[0]} {size}", [sent])]
        if replication == "chain" and len(hosts) > 1:
            stored = [self.write_chunk(hosts[0], hosts[1:], size, stored)]
        elif replication == "parallel" and len(hosts) > 1:
            stored = [self.copy(hosts[0], h, size, stored) for h in hosts[1:]]
        return self.control(hosts[0], client, stored)

    def copy(self, source: str, target: str, size: int, after: list[int]) -> int:
        sent = self.flow(source, target, size, after)
        stored = self.add(f"write {target} {size}", [sent])
        return self.control(target, source, [stored])

    def read_chunk(self, client: str, hosts: list[str], size: int, after: list[int]) -> int:
        source = client if client in hosts else self.random.choice(hosts)
        request = self.control(client, source, after)
        served = self.add(f"read {source} {size}", [request])
        return self.flow(source, client, size, [served])

    def operation(self, client: str, step: Json, after: list[int]) -> list[int]:
        file = step.get("file", "")
        if step["op"] == "open":
            return self.ask_manager(client, after)
        if step["op"] == "compute":
            return [self.add(f"exec {client} {step['seconds']!r}", after)]
        if step["op"] == "read":
            ends = [
                self.read_chunk(client, [self.storage[h] for h in hosts], size, after)
                for hosts, size in self.files[file]
            ]
            return [self.join(client, ends)]
        if step["op"] == "write":
            after = self.ask_manager(client, after)
            self.files[file] = self.placement.place(file, step["size_bytes"], client)
            ends = [
                self.write_chunk(client, [self.storage[h] for h in hosts], size, after)
                for hosts, size in self.files[file]
            ]
            return self.ask_manager(client, [self.join(client, ends)])
        return after

    def tasks(self, tasks: list[Json]) -> None:
        """Tasks in the given order; a task waits for the writers of its inputs and for the previous task of
        its machine.
        """
        written: dict[str, int] = {}
        ended: dict[str, int] = {}
        last: dict[str, int] = {}
        for task in tasks:
            host = task["machine"]
            needs = {ended[name] for name in task["after"]}
            needs |= {
                written[s["file"]]
                for s in task["operations"]
                if s["op"] == "read" and s["file"] in written
            }
            needs |= {last[host]} if host in last else set()
            after = [self.join(host, sorted(needs))] if needs else [self.add(f"exec {host} 0", [])]
            for step in task["operations"]:
                after = self.operation(host, step, after)
            end = self.join(host, after)
            last[host] = ended[task["name"]] = end
            for step in task["operations"]:
                if step["op"] == "write":
                    written[step["file"]] = end
