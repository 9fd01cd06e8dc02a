"""The object store in SimPy, frame by frame: a process per message, a resource per server.

It shares no code with penstock's simulator and follows the description of the model independently: FIFO out-
and in-servers and frames, loopback, manager, storage modules; placement striped, local and collocated; chain
(by chunk or by frame), parallel and client replication; workqueue and data-location-aware scheduling; racks,
core and window. Not included: distributions, caches, limited capacity.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from typing import Any

import simpy

from bench.simulation.placement import Placement

Json = dict[str, Any]
Steps = Generator[Any, Any, Any]


@dataclass
class Outcome:
    """Makespan in seconds; services completed by any server; chunk requests served by storage; SimPy's
    own events."""

    makespan_s: float
    services: int
    requests: int
    network_bytes: int
    steps: int


@dataclass(eq=False)
class Host:
    """One machine and its servers."""

    name: str
    index: int
    rack: int
    out_bps: float
    in_bps: float
    loopback_bps: float
    latency_s: float
    out: simpy.Resource
    into: simpy.Resource
    loopback: simpy.Resource
    slots: int
    storage: Json | None
    disk: simpy.Resource | None
    manager: Json | None
    desk: simpy.Resource | None


@dataclass
class Stored:
    """Location of a file's chunks: hosts of the replicas, size in bytes."""

    chunks: list[tuple[list[Host], int]] = field(default_factory=list)


class Store:
    """One simulation of one workload on one platform."""

    def __init__(self, workload: Json, network: Json, seed: int = 0) -> None:
        self.env = simpy.Environment()
        self.random = random.Random(seed)
        self.workload, self.rules = workload, network["store"]
        self.frame_bytes = network["protocol"]["frame_bytes"]
        self.control_bytes = network["protocol"]["control_bytes"]
        self.fabric_s = network["fabric"]["latency_s"]
        self.core_bps = network["fabric"]["capacity_bps"]
        self.uplink_bps = network["fabric"]["rack_uplink_bps"]
        self.core = simpy.Resource(self.env)
        self.racks = {
            (host["rack"], direction): simpy.Resource(self.env)
            for host in network["hosts"]
            for direction in ("up", "down")
        }
        self.by_location = network["scheduler"]["kind"] == "data_location"
        self.hosts = [self.host(i, h) for i, h in enumerate(network["hosts"])]
        self.storage = [h for h in self.hosts if h.storage is not None]
        self.manager = next((h for h in self.hosts if h.manager is not None), None)
        self.files: dict[str, Stored] = {}
        hints = {f["name"]: f.get("hints", {}) for f in workload["files"]}
        names = [h.name for h in self.storage]
        self.placement = Placement(self.rules, hints, names, self.random)
        self.services = self.requests = self.network_bytes = self.steps = 0

    def host(self, index: int, machine: Json) -> Host:
        def server(part: Json | None) -> simpy.Resource | None:
            return None if part is None else simpy.Resource(self.env, part["servers"])

        link = machine["network"]
        return Host(
            machine["name"], index, machine["rack"], link["out_bps"], link["in_bps"], link["loopback_bps"],
            link["latency_s"], simpy.Resource(self.env), simpy.Resource(self.env),
            simpy.Resource(self.env), machine["client"]["slots"] if machine["client"] else 0,
            machine["storage"], server(machine["storage"]), machine["manager"], server(machine["manager"]),
        )  # fmt: skip

    def serve(self, server: simpy.Resource, seconds: float) -> Steps:
        with server.request() as turn:
            yield turn
            yield self.env.timeout(seconds)
        self.services += 1

    def send(
        self, source: Host, target: Host, size: int, inbox: simpy.Store | None = None
    ) -> Steps:
        """One message: its frames leave one after another, and mix with others' at the receiver. Arrived
        bytes are reported to `inbox` frame by frame.
        """
        if source is target:
            yield from self.serve(source.loopback, size / source.loopback_bps)
            if inbox is not None:
                inbox.put(size)
            return
        self.network_bytes += size
        with source.out.request() as turn:
            yield turn
            remaining = size
            while remaining > 0:
                frame = min(remaining, self.frame_bytes)
                yield self.env.timeout(frame / source.out_bps)
                self.services += 1
                last = self.env.process(self.arrive(source, target, frame, inbox))
                remaining -= frame
        yield last

    def arrive(
        self, source: Host, target: Host, frame: int, inbox: simpy.Store | None = None
    ) -> Steps:
        for link in self.links(source, target):
            yield from self.serve(link[0], frame / link[1])
        latency_s = self.fabric_s + source.latency_s + target.latency_s
        if latency_s:
            yield self.env.timeout(latency_s)
        yield from self.serve(target.into, frame / target.in_bps)
        if inbox is not None:
            inbox.put(frame)

    def links(self, source: Host, target: Host) -> list[tuple[simpy.Resource, float]]:
        """Links between two hosts: the rack's uplink, core, the rack's downlink; with rates in bytes per
        second.
        """
        path = []
        if self.uplink_bps is not None and source.rack != target.rack:
            path = [
                (self.racks[source.rack, "up"], self.uplink_bps),
                (self.racks[target.rack, "down"], self.uplink_bps),
            ]
        if self.core_bps is not None:
            path.insert(1 if path else 0, (self.core, self.core_bps))
        return path

    def stream(self, source: Host, hosts: list[Host], size: int, inbox: simpy.Store) -> Steps:
        """Send a chunk down the chain, each frame forwarded when it arrives; ends with the acknowledgement
        to `source`. `inbox` reports the bytes that the first of `hosts` has received.
        """
        receiver, rest = hosts[0], hosts[1:]
        further = simpy.Store(self.env)
        after = self.env.process(self.stream(receiver, rest, size, further)) if rest else None
        received = 0
        while received < size:
            part = yield inbox.get()
            received += part
            if rest:
                self.env.process(self.send(receiver, rest[0], part, further))
        yield from self.use_disk(receiver, "write", size)
        if after is not None:
            yield after
        yield from self.control(receiver, source)

    def control(self, source: Host, target: Host) -> Steps:
        yield from self.send(source, target, self.control_bytes)

    def ask_manager(self, client: Host) -> Steps:
        if self.rules["allocation"] == "none":
            return
        assert self.manager is not None
        assert self.manager.desk is not None
        assert self.manager.manager is not None
        yield from self.control(client, self.manager)
        yield from self.serve(self.manager.desk, self.manager.manager["service"]["overhead"])
        yield from self.control(self.manager, client)

    def use_disk(self, host: Host, operation: str, size: int) -> Steps:
        assert host.storage is not None
        assert host.disk is not None
        service = host.storage[operation]
        yield from self.serve(host.disk, service["overhead"] + size * service["s_per_byte"])
        self.requests += 1

    def place(self, name: str, size: int, client: Host | None) -> Stored:
        chunks = self.placement.place(name, size, client.name if client else None)
        return Stored([([self.storage[n] for n in at], part) for at, part in chunks])

    def write_chunk(self, client: Host, replicas: list[Host], size: int) -> Steps:
        replication = self.rules["replication"]
        if replication == "chain" and self.rules["forward"] == "frame":
            inbox = simpy.Store(self.env)
            self.env.process(self.send(client, replicas[0], size, inbox))
            yield from self.stream(client, replicas, size, inbox)
            return
        yield from self.send(client, replicas[0], size)
        yield from self.use_disk(replicas[0], "write", size)
        if replication == "chain" and len(replicas) > 1:
            yield from self.write_chunk(replicas[0], replicas[1:], size)
        elif replication == "parallel" and len(replicas) > 1:
            rest = [self.env.process(self.write_copy(replicas[0], h, size)) for h in replicas[1:]]
            yield self.env.all_of(rest)
        yield from self.control(replicas[0], client)

    def write_copy(self, source: Host, target: Host, size: int) -> Steps:
        yield from self.send(source, target, size)
        yield from self.use_disk(target, "write", size)
        yield from self.control(target, source)

    def at_most(self, requests: Iterable[Steps]) -> simpy.Event:
        """All chunk requests of an operation, limited by the store's window."""
        window = self.rules["window"]
        turns = simpy.Resource(self.env, window) if window else None

        def in_turn(request: Steps) -> Steps:
            if turns is None:
                yield from request
                return
            with turns.request() as turn:
                yield turn
                yield from request

        return self.env.all_of([self.env.process(in_turn(request)) for request in requests])

    def write(self, client: Host, name: str, size: int) -> Steps:
        yield from self.ask_manager(client)
        placed = self.place(name, size, client)
        self.files[name] = placed
        if self.rules["replication"] == "client":
            copies = [(host, n) for hosts, n in placed.chunks for host in hosts]
            yield self.at_most(self.write_copy(client, host, n) for host, n in copies)
        else:
            yield self.at_most(self.write_chunk(client, hosts, n) for hosts, n in placed.chunks)
        yield from self.ask_manager(client)

    def read_chunk(self, client: Host, source: Host, size: int) -> Steps:
        yield from self.control(client, source)
        yield from self.use_disk(source, "read", size)
        yield from self.send(source, client, size)

    def read(self, client: Host, name: str) -> Steps:
        def source(hosts: list[Host]) -> Host:
            return client if client in hosts else self.random.choice(hosts)

        chunks = self.files[name].chunks
        yield self.at_most(self.read_chunk(client, source(hosts), n) for hosts, n in chunks)

    def run_task(self, host: Host, task: Json) -> Steps:
        for step in task["operations"]:
            if step["op"] == "open":
                yield from self.ask_manager(host)
            elif step["op"] == "read":
                yield from self.read(host, step["file"])
            elif step["op"] == "write":
                yield from self.write(host, step["file"], step["size_bytes"])
            elif step["op"] == "compute":
                yield self.env.timeout(step["seconds"])

    def choose(self, task: Json, idle: list[Host]) -> Host | None:
        if task["machine"] is not None:
            return next((h for h in idle if h.name == task["machine"]), None)
        spread = min(idle, key=lambda h: (h.slots - idle.count(h), h.index))
        if not self.by_location:
            return spread
        local_bytes = {h.index: 0 for h in idle}
        for step in task["operations"]:
            if step["op"] == "read":
                for hosts, size in self.files[step["file"]].chunks:
                    for h in hosts:
                        if h.index in local_bytes:
                            local_bytes[h.index] += size
        most = max(idle, key=lambda h: (local_bytes[h.index], -h.index))
        return most if local_bytes[most.index] else spread

    def schedule(self) -> Steps:
        """Ready tasks in order, each on the idle machine with the fewest tasks, then by index."""
        env, tasks = self.env, self.workload["tasks"]
        for file in self.workload["files"]:
            if file["preloaded"]:
                self.files[file["name"]] = self.place(file["name"], file["size_bytes"], None)
        writer = {
            step["file"]: number
            for number, task in enumerate(tasks)
            for step in task["operations"]
            if step["op"] == "write"
        }
        names = {t["name"]: i for i, t in enumerate(tasks)}
        needs = []
        for number, task in enumerate(tasks):
            before = {names[a] for a in task["after"]}
            before |= {
                writer[s["file"]]
                for s in task["operations"]
                if s["op"] == "read" and s["file"] in writer
            }
            needs.append(before - {number})
        idle = [h for h in self.hosts for _ in range(h.slots)]
        running: dict[Any, tuple[int, Host]] = {}
        ready = [i for i in range(len(tasks)) if not needs[i]]
        waiting = {i for i in range(len(tasks)) if needs[i]}
        while ready or running:
            for number in list(ready):
                host = self.choose(tasks[number], idle) if idle else None
                if host is not None:
                    idle.remove(host)
                    ready.remove(number)
                    running[env.process(self.run_task(host, tasks[number]))] = (number, host)
            done = yield env.any_of(running)
            for process in done.events:
                number, host = running.pop(process)
                idle = sorted([*idle, host], key=lambda h: h.index)
                for dependent in sorted(waiting):
                    needs[dependent].discard(number)
                    if not needs[dependent]:
                        waiting.discard(dependent)
                        ready.append(dependent)

    def run(self) -> Outcome:
        scheduler = self.env.process(self.schedule())
        while scheduler.is_alive:
            self.env.step()
            self.steps += 1
        return Outcome(self.env.now, self.services, self.requests, self.network_bytes, self.steps)


def simulate(workload: Json, network: Json, seed: int = 0) -> Outcome:
    return Store(workload, network, seed).run()
