"""Runs on virtual nodes: a cluster for each run, or a shared one that is changed between runs."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from penstock.campaign.places.cluster_reuse import changes_between
from penstock.campaign.places.services import Services, descendants
from penstock.campaign.places.stage import CommandLine, Site, Stage, Used, nodes_and_disks
from penstock.emulate.cluster.cluster import Cluster, RunningNode
from penstock.emulate.disks.recorded import Recorded
from penstock.emulate.network.port import interface_name
from penstock.errors import PenstockError
from penstock.host.cgroups.cgroup import members
from penstock.host.journal.journal import new_token
from penstock.host.processes.launch import Finished, launch
from penstock.observe.observer import Watched
from penstock.plugins import CLUSTER_SERVICES
from penstock.spec.check_cluster import check_cluster
from penstock.spec.cluster import ClusterSpec, DiskSpec, Event, NodeSpec
from penstock.spec.template import Filling
from penstock.study.resolve import ResolvedRun

#: phase whose mark starts the schedule of a study, unless an event names another
RUN = "run"


class ClusterService(Protocol):
    """A service on the nodes of a run: a row of `penstock.plugins.CLUSTER_SERVICES`."""

    cluster: Cluster

    def status(self) -> dict[str, Any]:
        """Its state as JSON values."""

    def stop(self) -> None:
        """Stop it; the nodes remain."""


class NodesStage(Stage):
    """One cluster at a time, owned by a supervisor that ends with this process."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self._journal = site.journal
        self._study_dir = site.study_dir
        self._cluster: Cluster | None = None
        self._spec: ClusterSpec | None = None
        self._resolved: ResolvedRun | None = None
        self._services: Services | None = None
        self._store: ClusterService | None = None
        #: processes of the store's daemons
        self._of_store: set[int] = set()
        self._before: dict[str, Used] = {}
        self._faults: list[str] = []

    @classmethod
    def takes(cls, resolved: ResolvedRun) -> bool:
        """True for a treatment with nodes, and without a guest."""
        return resolved.cluster is not None and resolved.guest is None

    def change(self, resolved: ResolvedRun, actions: Sequence[str]) -> None:
        """Stop the cluster for any action: disks are mounted and services started with a new one."""
        if actions:
            self._take_down()

    def attach(
        self, run_id: str, resolved: ResolvedRun, backing: dict[str, Path], seed: int, shared: Path
    ) -> None:
        """Start the cluster, or change the running one if possible."""
        assert resolved.cluster is not None
        self._resolved = resolved
        self._faults = []
        spec = self._placed(resolved.cluster, backing, seed, shared)
        events = [_from_run(e) for e in spec.events]
        check_cluster(replace(spec, events=tuple(events)))
        began = time.monotonic()
        reused = self._set_anew(spec, resolved)
        if not reused:
            self._take_down()
            self._cluster = self._up(spec, resolved, run_id)
            self._of_store = self._standing() if self._store is not None else set()
            if events:
                self._cluster.schedule(events)
        self._spec = spec
        cluster = self._running()
        self.mounts = {d.disk_id: d.at for n in cluster.nodes.values() for d in n.disks.values()}
        self._before = {name: _used(node) for name, node in cluster.nodes.items()}
        self.about = {
            "nodes": {
                n.name: {
                    "addresses": n.addresses,
                    "missing": n.cgroup.missing,
                    "disks": {d.disk_id: d.backend for d in n.disks.values()},
                    "cpus": _node_of(spec, n.name).cpus,
                    "tenant": _node_of(spec, n.name).tenant,
                }
                for n in cluster.nodes.values()
            },
            **({"store": self._store.status()} if self._store is not None else {}),
            "put_up": "set" if reused else "up",
            "put_up_s": round(time.monotonic() - began, 4),
        }

    def _up(self, spec: ClusterSpec, resolved: ResolvedRun, run_id: str) -> Cluster:
        """Start the nodes, with the store on them if the run has one."""
        bare = replace(spec, events=())
        if resolved.store is None:
            return Cluster.up(bare, self._journal, outlive=False, run=run_id)
        store = resolved.store
        # strict: a factor that the engine ignores would have no effect, for no visible reason
        up = CLUSTER_SERVICES.load("store").up
        service: ClusterService = up(bare, store.spec, store.roles, outlive=False, strict=True)
        self._store = service
        return service.cluster

    def _placed(
        self, spec: ClusterSpec, backing: Mapping[str, Path], seed: int, shared: Path
    ) -> ClusterSpec:
        """The cluster with its disks' files in place, and a schedule relative to the start of the run.

        Its events are submitted separately: they wait for the mark of their phase.
        """
        places = tuple((str(p), str(p)) for p in dict.fromkeys((shared, self._study_dir)))
        nodes = tuple(
            replace(
                node,
                shared=(*node.shared, *places),
                disks=tuple(_disk(d, backing[f"{node.name}.{d.name}"], seed) for d in node.disks),
            )
            for node in spec.nodes
        )
        return replace(spec, name=f"study-{new_token()}", nodes=nodes)

    def _set_anew(self, spec: ClusterSpec, resolved: ResolvedRun) -> bool:
        """True if the running cluster was changed into this one; only if runs leave no data behind."""
        if self._cluster is None or self._spec is None or resolved.mutates is True:
            return False
        if self._store is not None or resolved.store is not None:
            return False  # a run must not see the data that an earlier one wrote to the store
        changes = changes_between(self._spec, spec)
        if changes is None:
            return False
        self._cluster.refresh()
        if any(n.state != "running" for n in self._cluster.nodes.values()):
            return False
        with contextlib.suppress(PenstockError):
            results = self._cluster.change(changes) if changes else []
            return not any(m["error"] for m in results)
        return False

    def _running(self) -> Cluster:
        assert self._cluster is not None
        return self._cluster

    def _now(self) -> ResolvedRun:
        assert self._resolved is not None
        return self._resolved

    def watched(self) -> Watched:
        """All nodes: their parent group for the tracer, each node's own for the monitor."""
        cluster = self._running()
        nodes = cluster.nodes
        scope: Any = cluster.above.stat().st_ino if cluster.above is not None else 0
        if not scope and len(nodes) == 1:
            scope = next(iter(nodes.values())).cgroup
        return Watched(
            scope=scope,
            group=None,
            links=_capacities(self._spec) if self._spec is not None else {},
            **nodes_and_disks(nodes.values()),
        )

    def run(
        self,
        command_line: CommandLine,
        phase: Callable[[str], contextlib.AbstractContextManager[None]],
    ) -> Finished:
        """Start the services, run the command in its place, stop the services."""
        cluster = self._running()
        self._services = Services(command_line.stdout.parent)
        try:
            if self._now().services:
                with phase("services"):
                    fault = self._start_services(command_line)
                    if fault:
                        self._faults.append(fault)
                        for output in (command_line.stdout, command_line.stderr):
                            output.touch()  # output of a command that never started
                        return _not_begun()
            on = self._on(self._now().on)
            cluster.mark(RUN)
            with phase("workload"):
                finished = self._everywhere(on, command_line)
            fault = self._services.fault()
            if fault:
                self._faults.append(fault)
            return finished
        finally:
            with phase("stop"):
                self._services.stop()

    def after(self, command_line: CommandLine) -> Finished:
        """Run the subsequent command on the nodes of the measured one."""
        return self._everywhere(self._on(self._now().on), command_line)

    def _start_services(self, command_line: CommandLine) -> str:
        assert self._services is not None
        try:
            for service in self._now().services:
                for node in self._on(service.on):
                    filling = self._filling(node, command_line.run_dir)
                    text, env = filling.line(service.command), filling.texts(command_line.env)
                    ready = service.ready.command if service.ready is not None else None
                    test = filling.line(ready) if ready is not None else None
                    self._services.start(service, node, text, env, test)
                self._services.await_ready(service)
        except PenstockError as error:
            return str(error)
        return ""

    def _on(self, patterns: tuple[str, ...]) -> list[RunningNode]:
        nodes = self._running().nodes
        if not patterns:
            return [next(iter(nodes.values()))]
        if patterns == ("all",):
            return list(nodes.values())
        return [n for name, n in nodes.items() if any(fnmatch.fnmatch(name, p) for p in patterns)]

    def _filling(self, node: RunningNode, run_dir: Path) -> Filling:
        """Paths as that node sees them; a disk without a node's name is its own."""
        assert self._resolved is not None
        every = (d for n in self._running().nodes.values() for d in n.disks.values())
        places = {d.disk_id: d.mount for d in every}
        places |= {d.name: d.mount for d in node.disks.values()}
        return self._resolved.filling(places, run_dir, node.name)

    def _everywhere(self, nodes: list[RunningNode], command_line: CommandLine) -> Finished:
        """Run the command on these nodes at once; ends with the last one, with the highest status."""
        if len(nodes) == 1:
            return self._in(nodes[0], command_line, command_line.stdout, command_line.stderr)
        parts = [
            (
                n,
                command_line.stdout.with_suffix(f".{n.name}.txt"),
                command_line.stderr.with_suffix(f".{n.name}.txt"),
            )
            for n in nodes
        ]
        with ThreadPoolExecutor(len(nodes)) as pool:
            futures = [pool.submit(self._in, n, command_line, out, err) for n, out, err in parts]
            try:
                done = [f.result() for f in futures]
            except BaseException:
                self._kill(nodes)
                raise
        _joined(command_line.stdout, [out for _, out, _ in parts])
        _joined(command_line.stderr, [err for _, _, err in parts])
        worst = max(done, key=lambda f: (f.stopped, f.timed_out, f.exit_status))
        return replace(
            worst,
            start_ns=min(f.start_ns for f in done),
            end_ns=max(f.end_ns for f in done),
        )

    def _in(
        self, node: RunningNode, command_line: CommandLine, stdout: Path, stderr: Path
    ) -> Finished:
        filling = self._filling(node, command_line.run_dir)
        text, env = filling.line(command_line.command), filling.texts(command_line.env)
        directory = (
            str(command_line.run_dir)
            if command_line.directory is None
            else filling.text(command_line.directory)
        )
        argv = node.enter(["/bin/sh", "-c", text], env=env, cwd=directory, user=command_line.user)
        try:
            finished = launch(
                argv, None, stdout, stderr, timeout_s=command_line.timeout_s, stop=command_line.stop
            )
        except BaseException:
            self._kill([node])
            raise
        if finished.timed_out or finished.stopped:
            self._kill([node])
        return finished

    def _kill(self, nodes: list[RunningNode]) -> None:
        """Kill the processes on the nodes, except first processes, services and the store's daemons."""
        spared = {n.pid for n in nodes} | _trees(self._services)
        spared |= {p for one in self._of_store for p in (one, *descendants(one))}
        for node in nodes:
            for pid in members(node.cgroup.directories) - spared:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _standing(self) -> set[int]:
        """Processes on the nodes before the start of a run's own programs, without the nodes' first
        processes."""
        nodes = self._running().nodes.values()
        return {p for n in nodes for p in members(n.cgroup.directories)} - {n.pid for n in nodes}

    def used(self) -> Used:
        """Largest peak memory of a node, total processor time; killed processes and dead nodes."""
        if self._cluster is None:
            return Used()
        self._cluster.refresh()
        total = Used(faults=tuple(self._faults))
        for name, node in self._cluster.nodes.items():
            now, before = _used(node), self._before.get(name, Used())
            peaks = [p for p in (total.peak_memory_bytes, now.peak_memory_bytes) if p is not None]
            total.peak_memory_bytes = max(peaks, default=None)
            if now.cpu_ns is not None:
                total.cpu_ns = (total.cpu_ns or 0) + now.cpu_ns - (before.cpu_ns or 0)
            if now.cpu_waited_ns is not None:
                waited_ns = now.cpu_waited_ns - (before.cpu_waited_ns or 0)
                total.cpu_waited_ns = (total.cpu_waited_ns or 0) + waited_ns
            kills = max(0, now.oom_kills - before.oom_kills)
            total.oom_kills += kills
            if kills:
                total.faults += (f"node {name}: {kills} processes killed because memory ran out",)
            if node.state == "failed":
                total.faults += (f"node {name} died: {node.failure}",)
        broken = self._cluster.full_status()["failures"]
        total.faults += tuple(failure["message"] for failure in broken)
        return total

    def _disks(self) -> Cluster | None:
        return self._cluster

    def _recorded(
        self, spool: Path, changes: Sequence[Mapping[str, Any]]
    ) -> Mapping[str, Recorded]:
        cluster = self._running()
        if waiting := cluster.waiting():
            self.about["not_fired"] = waiting
        recorded = cluster.end(spool, changes)
        self.about["disks"] = {
            i: {
                "backend": disk.backend,
                "reason": disk.reason,
                "facts": disk.facts,
                "emulated": disk.profile,
                "changed_before": [
                    {k: e.get(k) for k in ("applied_ns", "asked", "error")}
                    for e in disk.changes
                    if e["planned_ns"] < self._began_ns
                ],
            }
            for i, disk in recorded.items()
        }
        return recorded

    def detach(self) -> None:
        """Kill remaining processes on the nodes; keep the cluster only if the next run may use it."""
        self._before = {}
        if self._cluster is None:
            return
        if self._resolved is None or self._resolved.mutates is True or self._faults:
            self._take_down()
        else:
            self._kill(list(self._cluster.nodes.values()))

    def _take_down(self) -> None:
        if self._cluster is not None:
            if self._store is not None:
                store, self._store = self._store, None
                store.stop()
            cluster, self._cluster, self._spec = self._cluster, None, None
            self.mounts = {}
            cluster.down()

    def stop(self) -> None:
        """Stop the cluster."""
        if self._services is not None:
            self._services.stop()
        self._take_down()


def _joined(target: Path, parts: list[Path]) -> None:
    with open(target, "wb") as sink:
        for part in parts:
            with open(part, "rb") as source:
                shutil.copyfileobj(source, sink)


def _from_run(event: Event) -> Event:
    """The event; without a phase of its own it counts from the mark of the run."""
    when = event.when
    if when.phase is not None or when.condition is not None:
        return event
    return replace(event, when=replace(when, phase=RUN))


def _node_of(spec: ClusterSpec, name: str) -> NodeSpec:
    return next(n for n in spec.nodes if n.name == name)


def _capacities(spec: ClusterSpec) -> dict[str, float]:
    """Capacities of the nodes' interfaces, by `NODE INTERFACE`; the larger of the two directions
    [bytes/s]."""
    capacities = {}
    for node in spec.nodes:
        for number, link in enumerate(node.links):
            rates = [bps for bps in (link.out_bps, link.in_bps) if bps is not None]
            if rates:
                capacities[f"{node.name} {interface_name(number)}"] = max(rates)
    return capacities


def _disk(disk: DiskSpec, directory: Path, seed: int) -> DiskSpec:
    return replace(disk, directory=directory, seed=disk.seed or seed)


def _used(node: RunningNode) -> Used:
    used = Used()
    with contextlib.suppress(OSError, PenstockError):
        used.peak_memory_bytes = node.cgroup.peak_memory_bytes()
        used.oom_kills = node.cgroup.oom_kills()
        used.cpu_ns = node.cgroup.cpu_ns()
        used.cpu_waited_ns = node.cgroup.cpu_waited_ns()
    return used


def _trees(services: Services | None) -> set[int]:
    return services.pids() if services is not None else set()


def _not_begun() -> Finished:
    """End of a command that was never started because a requirement was missing."""
    now = time.monotonic_ns()
    return Finished(1, None, False, now, now, 0.0, 0)
