"""A cluster on several hosts: start, inspect, enter, change, stop.

Each command starts a worker on every host and stops it at its end; the nodes belong to the supervisor of
their host. A record in the state directory names the hosts and the host of each node.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from penstock.emulate.cluster.change_arguments import changes_of
from penstock.emulate.cluster.wire import to_json
from penstock.errors import BadInput, PenstockError
from penstock.host.journal.journal import Entry, Journal, JournalFailure, new_token
from penstock.host.probe.clock_offset import Offset
from penstock.host.processes.command import Command, plan_command
from penstock.host.processes.processes import Identity
from penstock.parts.remote.cluster import agent
from penstock.parts.remote.cluster.host_specs import events_of, host_specs
from penstock.parts.remote.cluster.hosts_file import HostsFile, listen_address
from penstock.parts.remote.cluster.plan import ClusterPlan
from penstock.parts.remote.cluster.records import names, place, record
from penstock.parts.remote.workers import WorkerPool
from penstock.spec.check_cluster import matching
from penstock.spec.study import Worker
from penstock.state import closed
from penstock.text import listed
from penstock.version import version

T = TypeVar("T")
Say = Callable[[str], None]
#: time from the last reply to the start of a schedule [s]
_SCHEDULE_LEAD_S = 1.0
#: longest time to stop everything [s]
_UNDO_S = 600.0


class HostStatus(agent.PartStatus):
    """Status of a host with its nodes, and the offset of its clock; None if it is lost."""

    clock: Mapping[str, Any] | None
    nodes: list[str]


@dataclass(frozen=True)
class RemoteCluster:
    """A cluster on several hosts, from its record."""

    name: str
    #: identifies its start on the hosts
    key: str
    listen: str
    workers: tuple[Worker, ...]
    #: host of each node
    host_of: Mapping[str, str]
    addresses: Mapping[str, Mapping[str, str]]
    #: its specification, in JSON values
    spec: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def up(
        cls,
        plan: ClusterPlan,
        hosts: HostsFile,
        say: Say,
        *,
        engine: str | None = None,
        complete: bool = True,
    ) -> RemoteCluster:
        """Start the planned nodes on all hosts, completely or not at all.

        Until all are up, the journal here has the command that stops them; without `complete`, until
        `settled` is called. `engine`: of a store that is to run on the nodes. Raises BadInput before any
        host is changed, PenstockError with the message of each host that failed.
        """
        name = plan.spec.name
        listen = listen_address(hosts)
        if record(name).exists():
            raise BadInput(
                f"cluster {name} is up, or not completely stopped; penstock hosts down {name}"
            )
        host_of = plan.placement.by_node()
        used = tuple(w for w in hosts.workers if w.name in set(host_of.values()))
        addresses = plan.addresses.addresses
        spec = to_json(plan.spec)
        cluster = cls(name, new_token(), listen, used, host_of, addresses, spec)
        paths = hosts.inventory.paths(plan.placement.hosts)
        # as text: Dask examines every value of a structure
        specs = {h: json.dumps(to_json(one)) for h, one in host_specs(plan, paths).items()}
        journal = Journal()
        with cluster.pool() as pool:
            cluster._check_versions(pool)
            if engine is not None:
                call_hosts(pool, agent.require_engine, dict.fromkeys(specs, (engine,)))
            entry = cluster._plan_undo(journal)
            cluster._write()
            try:
                say(f"starting {len(host_of)} nodes on {len(specs)} hosts")
                call_hosts(pool, agent.start, {h: (spec, cluster.key) for h, spec in specs.items()})
                call_hosts(pool, agent.confirm, dict.fromkeys(specs, (name,)))
                cluster._schedule(pool, plan, say)
            except BaseException:
                say("stopping the nodes that were started")
                cluster._stop(pool)
                journal.undone(entry)
                raise
            if complete:
                journal.undone(entry)
        return cluster

    @property
    def interrupted(self) -> bool:
        """True if the command that starts or stops it died before its end."""
        return any(not entry.owner.alive for entry in self._open_entries())

    def ending(self) -> None:
        """Mark it incomplete: `penstock undo` stops it if this process dies."""
        if any(entry.owner == Identity.own() for entry in self._open_entries()):
            return
        with contextlib.suppress(JournalFailure):  # it can be stopped on a full disk
            self._plan_undo(Journal())

    def settled(self) -> None:
        """Close the entries of the journal here, once it is complete or stopped."""
        for entry in self._open_entries():
            if entry.owner == Identity.own() or not entry.owner.alive:
                Journal().undone(entry)

    def _open_entries(self) -> list[Entry]:
        kind_and_target = "command", self._target
        return [e for e in Journal().open_entries() if (e.kind, e.target) == kind_and_target]

    def _plan_undo(self, journal: Journal) -> Entry:
        """Write the command that stops it into a journal."""
        return plan_command(journal, self._target, _undo_command(self.name))

    @property
    def _target(self) -> str:
        """Its name in the entries of the journal."""
        return f"cluster {self.name}"

    @classmethod
    def find(cls, name: str | None) -> RemoteCluster:
        """The cluster of that name, or the only one. Raises BadInput if there is none."""
        existing = names()
        if name is None and len(existing) == 1:
            name = existing[0]
        if name not in existing:
            raise BadInput(
                f"found {'no name' if name is None else repr(name)}; expected one of the clusters "
                f"{listed(existing) if existing else '(there is none)'}"
            )
        fields = json.loads(record(str(name)).read_text())
        workers = tuple(
            Worker(**{**w, "ssh_options": tuple(w["ssh_options"])}) for w in fields.pop("workers")
        )
        return cls(workers=workers, **fields)

    def status(self) -> dict[str, HostStatus]:
        """Status by host."""
        with self.pool(partial=True) as pool:
            up = list(pool.addresses)
            results, failures = pool.call_all(agent.status, dict.fromkeys(up, (self.name,)))
            clocks = {h: asdict(pool.clock_offset(h)) for h in up}
        lost = {**pool.failed, **failures}
        parts: dict[str, agent.PartStatus] = {
            w.name: {"status": None, "failures": [f"lost: {lost.get(w.name)}"]}
            for w in self.workers
        }
        parts |= results
        return {
            host: {**part, "clock": clocks.get(host), "nodes": self._on(host)}
            for host, part in parts.items()
        }

    def execute(self, patterns: Sequence[str], argv: Sequence[str], **options: Any) -> int:
        """Run a command in nodes at once and print their output; returns the highest status."""
        nodes = matching(patterns, self.host_of)
        with self.pool(only={self.host_of[n] for n in nodes}) as pool:
            return self.execute_in(pool, nodes, argv, **options)

    def execute_in(
        self, pool: WorkerPool, nodes: Sequence[str], argv: Sequence[str], **options: Any
    ) -> int:
        """Run a command in these nodes at once, print their output; returns the highest status.

        Raises PenstockError after the output with the messages of hosts that failed.
        """
        calls = {
            host: (self.name, own, list(argv), options) for host, own in self.by_host(nodes).items()
        }
        try:
            results, failures = pool.call_all(agent.execute, calls)
        except KeyboardInterrupt:
            pool.interrupt(agent.interrupt, list(calls))
            raise
        done = {node: result for by_node in results.values() for node, result in by_node.items()}
        for node in (n for n in nodes if n in done):
            result = done[node]
            prefix = f"{node} | " if len(nodes) > 1 else ""
            for data, sink in ((result["stdout"], sys.stdout), (result["stderr"], sys.stderr)):
                _print(data, prefix, sink)
            if result["cut"]:
                print(f"{node}: the output was cut after 16 MiB", file=sys.stderr)
        _raise(failures)
        return max(int(result["status"]) for result in done.values())

    def by_host(self, nodes: Sequence[str]) -> dict[str, list[str]]:
        """These nodes by host."""
        by_host: dict[str, list[str]] = {}
        for node in nodes:
            by_host.setdefault(self.host_of[node], []).append(node)
        return by_host

    def change(self, arguments: Sequence[str]) -> Sequence[Mapping[str, Any]]:
        """Change nodes (`NODE… key=value…`) on all their hosts; all are checked before the first."""
        by_host: dict[str, list[Any]] = {}
        for change in changes_of(arguments):
            nodes = matching(change.nodes, self.host_of)
            for host, here in self.by_host(nodes).items():
                by_host.setdefault(host, []).append(to_json(replace(change, nodes=tuple(here))))
        with self.pool(only=set(by_host)) as pool:
            results = call_hosts(
                pool, agent.change, {h: (self.name, c) for h, c in by_host.items()}
            )
        return [{"host": host, **row} for host, rows in results.items() for row in rows]

    def down(self) -> None:
        """Stop the nodes on all hosts and restore them.

        Raises PenstockError that lists hosts which did not respond, each with the command to run there; the
        record then stays.
        """
        with self.pool(partial=True) as pool:
            failures = {**pool.failed, **self._stop(pool)}
        if failures:
            command = f"penstock nodes down {self.name}; penstock undo"
            raise PenstockError(
                "\n".join(
                    f"host {host} was not restored: {why}\n  run there: {command}"
                    for host, why in failures.items()
                )
            )

    def _stop(self, pool: WorkerPool) -> dict[str, str]:
        """Stop the nodes on the hosts that are up; returns failures. The record stays if there are any."""
        _, failures = pool.call_all(
            agent.stop, dict.fromkeys(pool.addresses, (self.name, self.key))
        )
        if not failures and not pool.failed:
            shutil.rmtree(place(self.name), ignore_errors=True)
        return failures

    def _on(self, host: str) -> list[str]:
        return [node for node, there in self.host_of.items() if there == host]

    @contextlib.contextmanager
    def pool(self, *, only: set[str] | None = None, partial: bool = False) -> Iterator[WorkerPool]:
        """Workers of the hosts, or of those in `only`; with `partial` without hosts that are lost."""
        workers = [w for w in self.workers if only is None or w.name in only]
        logs = place(self.name)
        logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        with WorkerPool(self.name, self.listen, workers, logs, partial=partial) as pool:
            yield pool

    def _check_versions(self, pool: WorkerPool) -> None:
        versions = call_hosts(pool, agent.prepare, {w.name: () for w in self.workers})
        other = [f"{host} has {v}" for host, v in versions.items() if v != version()]
        if other:
            raise BadInput(f"found other versions: {listed(other)}; expected {version()}")

    def _schedule(self, pool: WorkerPool, plan: ClusterPlan, say: Say) -> None:
        """Start the schedule on all hosts at the same time; the error of the clocks is printed."""
        if not plan.spec.events:
            return
        offsets: dict[str, Offset] = {w.name: pool.clock_offset(w.name) for w in self.workers}
        start_ns = time.monotonic_ns() + int(_SCHEDULE_LEAD_S * 1e9)
        calls = {}
        for host, offset in offsets.items():
            events = [to_json(e) for e in events_of(plan.spec.events, self._on(host))]
            calls[host] = (self.name, events, start_ns + offset.offset_ns)
        call_hosts(pool, agent.schedule, calls)
        late_ns = time.monotonic_ns() - start_ns
        if late_ns > 0:
            say(f"warning: the schedule started up to {late_ns / 1e6:.0f} ms late")
        bound_ms = max(o.bound_ns for o in offsets.values()) / 1e6
        say(f"schedule: started on all hosts at one time, to within {bound_ms:.1f} ms")

    def _write(self) -> None:
        fields = {
            "name": self.name,
            "key": self.key,
            "listen": self.listen,
            "workers": [w.model_dump() for w in self.workers],
            "host_of": dict(self.host_of),
            "addresses": {n: dict(a) for n, a in self.addresses.items()},
            "spec": dict(self.spec),
        }
        with open(record(self.name), "x", opener=closed) as file:
            json.dump(fields, file)


def call_hosts(
    pool: WorkerPool, function: Callable[..., T], arguments: Mapping[str, Sequence[Any]]
) -> dict[str, T]:
    """Results of a call by host. Raises PenstockError with the messages of all hosts that failed."""
    results, failures = pool.call_all(function, arguments)
    _raise(failures)
    return results


def _raise(failures: Mapping[str, str]) -> None:
    if failures:
        raise PenstockError("\n".join(f"host {h}: {why}" for h, why in failures.items()))


def _print(data: bytes, prefix: str, sink: Any) -> None:
    if not prefix:
        sink.flush()
        sink.buffer.write(data)
        sink.flush()
        return
    for line in data.decode(errors="replace").splitlines():
        sink.write(f"{prefix}{line}\n")


def _undo_command(name: str) -> Command:
    """Stop a cluster, unless that was done in the meantime."""
    variables = ("PENSTOCK_STATE", "PENSTOCK_RUNTIME", "PATH", "HOME")
    env = {k: os.environ[k] for k in variables if k in os.environ}
    down = shlex.join([sys.executable, "-m", "penstock", "hosts", "down", name])
    line = f"test ! -e {shlex.quote(str(record(name)))} || {down}"
    return Command(line, env, "/", None, _UNDO_S)
