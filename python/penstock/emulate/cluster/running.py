"""A cluster in its supervisor: started, changed, monitored and stopped."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from penstock.emulate.backends import Applied, Place
from penstock.emulate.backends.base import Cause
from penstock.emulate.cluster.enter import Entrance
from penstock.emulate.cluster.links import Links
from penstock.emulate.cluster.settings import NodeSettings
from penstock.emulate.cluster.sshd import Sshd
from penstock.emulate.disks.live import LiveDisks
from penstock.emulate.disks.server import dirty_bytes_of_node
from penstock.emulate.failure import Failure
from penstock.errors import BadInput, PenstockError
from penstock.host.journal.directories import make_directory, remove_directory
from penstock.host.journal.journal import Entry, Journal
from penstock.host.nodes import system_calls
from penstock.host.nodes.isolation import Isolation, isolation_of
from penstock.host.nodes.namespaces import bind_into
from penstock.host.nodes.node_group import NodeGroup, NodeGroups, create_node_groups
from penstock.host.nodes.node_root import Bind, NodeRoot
from penstock.host.nodes.node_runtime import NodeRuntime, runtime_of
from penstock.host.nodes.spawner import Birth, Spawner
from penstock.host.processes.processes import start_ticks
from penstock.plugins import NODE_RUNTIMES
from penstock.spec.check_cluster import matching, mount_point
from penstock.spec.cluster import ClusterSpec, DiskSpec, NodeSpec
from penstock.state import passable_state_dir

#: directories of which each node has a private copy
_PRIVATE = ("/tmp/", "/run/")
#: Python installation of penstock and its commands, if a node's private directories would hide it
_OWN_PYTHON = tuple(
    Bind(place, place, read_only=True)
    for place in dict.fromkeys(
        (sys.prefix, sys.base_prefix, str(Path(__file__).resolve().parents[3]))
    )
    if place.startswith(_PRIVATE)
)
_GONE_WITHIN_S = 10.0
#: number of nodes that are created together
_BATCH = 25


@dataclass
class LiveNode:
    """One node: its state, first process, group, and specification."""

    spec: NodeSpec
    state: str = "created"
    pid: int = 0
    pidfd: int = -1
    #: start time of the first process, which identifies it together with the pid
    start_ticks: int = 0
    since_ns: int = 0
    cpu_at_start_ns: int = 0
    failure: str = ""
    addresses: dict[str, str] = field(default_factory=dict)
    group: NodeGroup | None = None
    settings: NodeSettings | None = None
    isolation: Isolation | None = None

    @property
    def name(self) -> str:
        """Name of the node, also its host name."""
        return self.spec.name


class LiveCluster:
    """Nodes of one cluster. One thread changes it at a time (`lock`)."""

    def __init__(
        self,
        spec: ClusterSpec,
        journal: Journal,
        spawner: Spawner,
        token: str,
    ) -> None:
        self.spec = spec
        self.lock = threading.RLock()
        self.nodes = {node.name: LiveNode(node) for node in spec.nodes}
        self.home = passable_state_dir() / "clusters" / f"{spec.name}-{token}"
        self.runtime = runtime_of(spec.runtime)
        self._unwanted = threading.Event()
        self.progress: tuple[str, int, int] = ("", 0, 0)
        self._journal = journal
        make = NODE_RUNTIMES.load(self.runtime)
        self._maker: NodeRuntime = make(self.home, journal, spec.name, spawner)
        self._token = token
        self._home_entry: Entry | None = None
        self._groups: NodeGroups | None = None
        self._disks = LiveDisks(self.home, journal, run=spec.name)
        self._links = Links(spec, journal)
        self._sshd = Sshd(self.home / "ssh", spec)
        #: called when the first process of a node has changed or is gone
        self.changed: Callable[[], object] = lambda: None

    @property
    def journal(self) -> Journal:
        """Journal in which changes are recorded before they are made."""
        return self._journal

    def announce(self, what: str, request: Any) -> None:
        """Record a request to be carried out later. Raises JournalFailure if that fails."""
        if self._groups is not None:
            self._journal.alter([(self._groups.entry, {what: (None, request)})])

    @property
    def disks(self) -> LiveDisks:
        """Disks of its nodes."""
        return self._disks

    @property
    def links(self) -> Links:
        """Networks of the cluster."""
        return self._links

    def up(self) -> None:
        """Start everything or nothing: a failure stops the rest again."""
        with self.lock:
            self._up()

    def _up(self) -> None:
        try:
            self._make_home()
            self._make_groups()
            self._make_disks()
            self._links.up()
            self._start(list(self.nodes.values()))
        except BaseException:
            with contextlib.suppress(PenstockError, OSError):
                self.down()
            raise

    def _say(self, what: str, done: int, total: int) -> None:
        """Report progress; a requested stop takes effect here instead of at the end."""
        self.progress = (what, done, total)
        if self._unwanted.is_set() and what != "ending":
            raise PenstockError(f"{self.spec.name} is stopped before it was up")

    def _make_home(self) -> None:
        self.home.parent.mkdir(mode=0o711, exist_ok=True)
        self._home_entry = make_directory(self.home, self._journal, self.spec.name)
        (self.home / "root").mkdir()
        self._write_hosts()
        for name in self.nodes:
            for part in ("changes", "work", "tmp"):
                (self.home / "nodes" / name / part).mkdir(parents=True)
            (self.home / "nodes" / name / "tmp").chmod(0o1777)
            changes = self.home / "nodes" / name / "changes"
            changes.chmod(0o755)
            (changes / "etc").mkdir(mode=0o755)
            (changes / "etc" / "hostname").write_text(f"{name}\n")
        for node in self.nodes.values():
            node.isolation = isolation_of(node.spec.privileges)
            if not (at := self._filter(node)).exists():
                at.write_bytes(system_calls.compiled(node.isolation.capabilities))

    def _filter(self, node: LiveNode) -> Path:
        """System call filter of a node, shared by nodes with the same capabilities."""
        assert node.isolation is not None
        return self.home / f"system-calls-{node.isolation.bits:x}"

    def _make_groups(self) -> None:
        self._say("groups", 0, len(self.nodes))
        self._groups = create_node_groups(
            self.spec.name, self.nodes, self._journal, everywhere=self._maker.all_groups
        )
        for node in self.nodes.values():
            node.state = "configuring"
            node.group = self._groups.groups[node.name]
            node.settings = NodeSettings(node.spec, node.group)
        first = [
            (node.settings.group, node.settings.writes(resource, patch))
            for node in self.nodes.values()
            if node.settings is not None
            for resource, patch in node.settings.first().items()
        ]
        # a runtime that enters all groups has a separate setting for devices
        devices = (
            []
            if self._maker.all_groups
            else [
                (node.group, node.group.device_writes(node.isolation.device_rules))
                for node in self.nodes.values()
                if node.group is not None and node.isolation is not None
            ]
        )
        first += devices
        self._journal.alter(each for group, writes in first for each in group.altering(writes))
        for node in self.nodes.values():
            if node.settings is not None:
                node.settings.begin()
        for group, writes in devices:
            group.write(writes)
        self._journal.read_back(
            reading
            for group, writes in first
            for reading in group.readings_of(path for path, _ in writes)
        )

    def _make_disks(self) -> None:
        total = sum(len(node.spec.disks) for node in self.nodes.values())
        done = 0
        for node in self.nodes.values():
            for disk in node.spec.disks:
                self._say("disks", done, total)
                self._put_up(node, disk)
                done += 1
            node.state = "ready"

    def _put_up(self, node: LiveNode, disk: DiskSpec) -> None:
        name = node.name
        directory = disk.directory or self.home / "disks" / name / disk.name
        at = self.home / "mounts" / name / disk.name
        directory.mkdir(parents=True, exist_ok=True)
        at.mkdir(parents=True)
        memory_bytes = node.spec.memory_bytes
        dirty = dirty_bytes_of_node(len(self.nodes), Path("/proc/vmstat").read_text("ascii"))
        place = Place(
            f"{name}.{disk.name}",
            at,
            directory,
            node.group,
            memory_bytes,
            dirty if memory_bytes is None else None,
        )
        try:
            self._disks.up(name, disk, place, mount_point(disk))
        except BadInput as error:
            raise BadInput(f"node {name}: {error}") from error
        except PenstockError as error:
            raise PenstockError(f"node {name}: disk {disk.name}: {error}") from error

    def _binds(self, node: str) -> list[Bind]:
        """Disks to mount in a node's root, outer ones first."""
        disks = sorted(self._disks.of(node).values(), key=lambda d: d.mount)
        return [Bind(str(disk.at), disk.mount) for disk in disks]

    def _start(self, nodes: list[LiveNode]) -> None:
        """Create first process, links and servers of these nodes."""
        for first in range(0, len(nodes), _BATCH):
            some = nodes[first : first + _BATCH]
            self._say("nodes", first, len(nodes))
            answers = self._maker.make({node.name: self._birth(node) for node in some})
            for node in some:
                answer = answers[node.name]
                if isinstance(answer, int):
                    self._started(node, answer)
            wrong = [f"node {n.name}: {a}" for n in some if isinstance(a := answers[n.name], str)]
            if wrong:
                raise PenstockError("\n".join(wrong))
        for number, node in enumerate(nodes):
            self._say("links", number, len(nodes))
            node.addresses = self._links.attach(node.spec, node.pid)
        self._write_hosts()
        for node in nodes:
            if node.spec.ssh:
                self._sshd.start(node.name, self.entrance(node), node.addresses)
        self._sshd.ready(node.name for node in nodes)
        for node in nodes:
            node.state = "running"
        self._say("", len(nodes), len(nodes))

    def _started(self, node: LiveNode, pid: int) -> None:
        node.pid = pid
        node.failure = ""
        try:
            node.pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            raise PenstockError(f"node {node.name} died while it was started") from None
        node.start_ticks = start_ticks(pid) or 0
        node.since_ns = time.monotonic_ns()
        node.cpu_at_start_ns = (node.group.cpu_ns() or 0) if node.group else 0

    def _birth(self, node: LiveNode) -> Birth:
        at = self.home / "nodes" / node.name
        assert node.group is not None
        root = NodeRoot(
            lower=str(node.spec.image or "/"),
            changes=str(at / "changes"),
            work=str(at / "work"),
            at=str(self.home / "root"),
            tmp=str(at / "tmp"),
            hosts=str(self.home / "hosts"),
            binds=(
                *(_OWN_PYTHON if node.spec.image is None else ()),
                *(Bind(source, target) for source, target in node.spec.shared),
                *self._binds(node.name),
            ),
        )
        assert node.isolation is not None
        filter_ = str(self._filter(node))
        return Birth(node.name, node.group.entrances(), root, self._token, node.isolation, filter_)

    def entrance(self, node: LiveNode) -> Entrance:
        """Arguments for running commands in a node."""
        assert node.group is not None
        assert node.isolation is not None
        groups = node.group.entrances()
        return Entrance(node.pid, groups, node.isolation.bits, str(self._filter(node)))

    def _write_hosts(self) -> None:
        """Write the hosts file in place: it is mounted in each node."""
        lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
        for node in self.nodes.values():
            for number, (network, address) in enumerate(node.addresses.items()):
                names = (
                    f"{node.name} {node.name}.{network}"
                    if number == 0
                    else f"{node.name}.{network}"
                )
                lines.append(f"{address} {names}")
        lines += self._beyond()
        (self.home / "hosts").write_text("\n".join(lines) + "\n")

    def _beyond(self) -> list[str]:
        """Lines of the hosts file for the nodes of the cluster on other hosts."""
        lines = []
        named: set[str] = set()
        for network in self.spec.networks:
            for name, address in network.tunnel.nodes if network.tunnel else ():
                first = [] if name in named else [name]
                lines.append(" ".join([address, *first, f"{name}.{network.name}"]))
                named.add(name)
        return lines

    def failures(self) -> list[Failure]:
        """Failed parts that its nodes depend on."""
        links = self._links.failures(self._lives)
        return [*links, *self._disks.failures(), *self._sshd.failures()]

    def _lives(self, name: str) -> bool:
        """False for a node whose first process has ended or is being ended; its links go with it."""
        node = self.nodes.get(name)
        return node is None or (node.pidfd >= 0 and not _has_ended(node.pidfd))

    def chosen(self, patterns: Iterable[str]) -> list[LiveNode]:
        """Nodes that match names and patterns. Raises BadInput for one without a match."""
        return [self.nodes[name] for name in matching(patterns, self.nodes)]

    def set_state(self, node: LiveNode, target: str) -> dict[str, Any]:
        """Change a node's state: `up`, `down`, `frozen`, `running`; returns `Applied` without the planned
        time."""
        with self.lock:
            if node.group is None:
                raise PenstockError(f"node {node.name} is {node.state}")
            if target == "down":
                self._stop(node)
            elif target == "frozen":
                self._must_run(node)
                node.group.freeze(True)
                node.state = "frozen"
            elif node.state == "frozen":
                node.group.freeze(False)
                node.state = "running"
            elif target == "up" and node.state in ("stopped", "failed"):
                self._start([node])
            else:
                self._must_run(node)
            applied = time.monotonic_ns()
            self.changed()
            return {
                "applied_ns": applied,
                "verified_ns": time.monotonic_ns(),
                "error": "",
                "asked": {"state": target},
                "found": {"state": node.state},
            }

    def cut_power(
        self, node: LiveNode, disk: str | None, patch: dict[str, Any], cause: Cause
    ) -> Applied:
        """Cut a disk's power; in a running node the new mount replaces the old one."""
        with self.lock:
            self._disks.check_cut(node.name, disk)
            applied = self._disks.patch(node.name, disk, patch, cause)
            if node.pid:
                bind_into(node.pid, self._mounted_anew(node.name, disk))
            return applied

    def _mounted_anew(self, node: str, disk: str | None) -> list[tuple[str, str]]:
        """Mount points of a remounted disk and of the node's disks below it: on the host and in the node."""
        cut = self._disks.find(node, disk)
        beneath = cut.mount.rstrip("/") + "/"
        inside = [d for d in self._disks.of(node).values() if d.mount.startswith(beneath)]
        return [(str(d.at), d.mount) for d in (cut, *sorted(inside, key=lambda disk: disk.mount))]

    @staticmethod
    def _must_run(node: LiveNode) -> None:
        if node.state not in ("running", "frozen"):
            why = f": {node.failure}" if node.failure else ""
            raise PenstockError(f"node {node.name} is {node.state}{why}")

    def _stop(self, node: LiveNode) -> None:
        """Kill a node's processes at once, as a power failure would."""
        pidfd, node.pidfd = node.pidfd, -1
        if node.group is not None:
            if node.state == "frozen":
                node.group.freeze(False)
            node.group.kill()
        if pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
        self._maker.forget(node.name)
        self._links.detached(node.name)
        self._sshd.forget(node.name)
        node.pid, node.state = 0, "stopped"

    def failed(self, node: LiveNode) -> None:
        """Handle a first process that ended unexpectedly."""
        with self.lock:
            if node.pidfd < 0 or not _has_ended(node.pidfd):
                return  # stopped by us meanwhile, and perhaps restarted
            kills = node.group.oom_kills() if node.group is not None else 0
            with contextlib.suppress(PenstockError):
                self._stop(node)
            node.state = "failed"
            node.failure = (
                "killed because memory ran out" if kills else "its first process was killed"
            )

    def describe(self) -> dict[str, Any]:
        """Facts that a client needs to work with the nodes."""
        return {
            "cluster": self.spec.name,
            "runtime": self.runtime,
            "home": str(self.home),
            "ssh": self._sshd.describe(),
            "above": str(self._groups.above) if self._groups and self._groups.above else None,
            "nodes": [
                {
                    "name": node.name,
                    "state": node.state,
                    "failure": node.failure,
                    "pid": node.pid,
                    "start_ticks": node.start_ticks,
                    "addresses": node.addresses,
                    "image": str(node.spec.image) if node.spec.image else None,
                    "group": node.group.name if node.group else "",
                    "group_token": node.group.token if node.group else "",
                    "paths": {c: str(p) for c, p in node.group.paths.items()} if node.group else {},
                    "missing": node.group.missing if node.group else [],
                    "entrance": asdict(self.entrance(node)) if node.pid else None,
                    "memory_bytes": node.spec.memory_bytes,
                    "disks": {n: d.describe() for n, d in self._disks.of(node.name).items()},
                }
                for node in self.nodes.values()
            ],
        }

    def down(self) -> None:
        """Stop everything; failures are left to `penstock undo`, and reported."""
        self._unwanted.set()
        with self.lock, contextlib.ExitStack() as stack:
            # the callbacks run in reverse order
            if self._home_entry is not None:
                stack.callback(remove_directory, self._home_entry, self._journal)
                self._home_entry = None
            if self._groups is not None:
                stack.callback(self._groups.remove)
                self._groups = None
            stack.callback(self._disks.stop)
            stack.callback(self._maker.forget_all)
            stack.callback(self._links.down)
            stack.callback(self._end_all)

    def _end_all(self) -> None:
        pidfds = []
        total = len(self.nodes)
        for number, node in enumerate(self.nodes.values()):
            self._say("ending", number, total)
            if node.state == "frozen" and node.group is not None:
                with contextlib.suppress(PenstockError):
                    node.group.freeze(False)
            pidfd, node.pidfd = node.pidfd, -1
            if pidfd >= 0:
                pidfds.append(pidfd)
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            node.pid, node.state = 0, "stopped"
        self._sshd.forget_all()
        _await_end(pidfds)


def _has_ended(pidfd: int) -> bool:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))


def _await_end(pidfds: list[int]) -> None:
    poller = select.poll()
    for fd in pidfds:
        poller.register(fd, select.POLLIN)
    waiting = set(pidfds)
    until = time.monotonic() + _GONE_WITHIN_S
    while waiting and time.monotonic() < until:
        for fd, _ in poller.poll(200):
            poller.unregister(fd)
            waiting.discard(fd)
    for fd in pidfds:
        os.close(fd)
