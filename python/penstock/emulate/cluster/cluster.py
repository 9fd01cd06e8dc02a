"""Clusters of virtual nodes for programs: start, enter, change, watch, stop.

A supervisor process owns the nodes; this module sends it requests. Clusters that outlive the command share
one supervisor; a conductor has its own, which ends with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock.emulate.backends.fuse import INSTANT_PROFILE
from penstock.emulate.cluster.capacity import refuse_too_fast, warnings
from penstock.emulate.cluster.enter import Entrance, enter_argv
from penstock.emulate.cluster.settings import Change
from penstock.emulate.cluster.wire import from_json, to_json
from penstock.emulate.disks.recorded import Recorded, changes_by_disk
from penstock.emulate.failure import Failure
from penstock.errors import BadInput, PenstockError, Refused
from penstock.host.journal.journal import Entry, Journal, JournalFailure
from penstock.host.nodes.node_group import NodeGroup
from penstock.host.processes.daemon import Daemon, connect, start_daemon, stop_entirely
from penstock.host.processes.launch import Finished, launch
from penstock.host.processes.processes import Identity, boot_id, start_ticks
from penstock.host.storage.residency import drop_file_cache
from penstock.profile.model import StorageProfile
from penstock.spec.check_cluster import check_cluster, matching
from penstock.spec.cluster import ClusterSpec, Event
from penstock.state import closed, runtime_dir

Progress = Callable[[str, int, int], None]
#: longest time to start or stop a large cluster [s]
_PATIENCE_S = 900.0


@dataclass(frozen=True)
class RunningDisk:
    """A disk of a node: mounted `at` on the host and at `mount` inside; `directory` has its files."""

    name: str
    disk_id: str
    at: Path
    mount: str
    directory: Path
    backend: str
    device: tuple[int, int]
    #: page of its counters; only of disks of the model
    page: Path | None = None


@dataclass
class RunningNode:
    """A node that is up: `pid` of its first process, its control group, addresses by network, disks."""

    name: str
    state: str
    pid: int
    cgroup: NodeGroup
    addresses: dict[str, str]
    image: Path | None
    entrance: Entrance | None
    disks: dict[str, RunningDisk] = field(default_factory=dict)
    failure: str = ""
    start_ticks: int = 0

    @property
    def address(self) -> str | None:
        """Address in the first of its networks."""
        return next(iter(self.addresses.values()), None)

    def enter(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
    ) -> list[str]:
        """Command line that runs a command inside the node, in its control group, with the command's status.

        The environment is `env` plus the defaults of `enter_argv`, `cwd` a directory of the node. Raises
        Refused if the node is not up.
        """
        entrance = self.open_entrance()
        if start_ticks(self.pid) != self.start_ticks:  # the pid may have been reused
            raise Refused(f"node {self.name} has died")
        if self.cgroup.frozen():
            raise Refused(f"node {self.name} is frozen; state=running thaws it")
        return enter_argv(entrance, argv, env=env, cwd=cwd, user=user)

    @property
    def here(self) -> bool:
        """True if its processes are those of this host, which shares its clock."""
        return True

    def open_entrance(self) -> Entrance:
        """Its entrance. Raises Refused if the node is not up."""
        if self.entrance is None:
            why = f": {self.failure}" if self.failure else ""
            raise Refused(f"node {self.name} is {self.state}{why}")
        return self.entrance

    def drop_file_caches(self) -> None:
        """Evict the files of its disks from the page cache of its host."""
        for disk in self.disks.values():
            drop_file_cache(disk.at)

    def run(self, argv: Sequence[str], **options: Any) -> Finished:
        """Run a command inside to its end; options: `env`, `cwd`, `user`, and those of
        `host.launch.launch`."""
        entering = {k: options.pop(k) for k in ("env", "cwd", "user") if k in options}
        return launch(self.enter(argv, **entering), None, **options)


class Cluster:
    """A cluster that is up, and its supervisor."""

    def __init__(self, name: str, daemon: Daemon, *, outlive: bool) -> None:
        self.name = name
        self._daemon = daemon
        self._outlive = outlive
        self._described: dict[str, Any] = {}
        self._spec: ClusterSpec | None = None
        self._asking = threading.Lock()
        #: journal entry until the cluster is complete
        self._entry: Entry | None = None

    @classmethod
    def up(
        cls,
        spec: ClusterSpec,
        journal: Journal,
        *,
        outlive: bool,
        progress: Progress | None = None,
        run: str | None = None,
        complete: bool = True,
    ) -> Cluster:
        """Start a cluster completely or not at all. With `outlive` it survives this process.

        Until it is complete, the journal has it as a change of this process, so that `penstock undo` stops it
        if this process dies; without `complete`, until `completed` is called. Raises BadInput for
        contradictory values, PenstockError if the host refuses.
        """
        check_cluster(spec)
        request = {"spec": to_json(spec)}
        if outlive:
            with _lock():
                _check_free(spec.name)
                daemon = _standing() or _started(journal, outlive=True)
                entry = None
                try:
                    entry = _planned(journal, spec.name, daemon)
                    daemon.call("reserve", **request)
                except BaseException:
                    if entry is not None:
                        journal.undone(entry)
                    _stop_if_idle(daemon, journal)
                    raise
        else:
            _check_free(spec.name)
            daemon, entry = _started(journal, outlive=False, run=run), None
        cluster = cls(spec.name, daemon, outlive=outlive)
        cluster._entry = entry
        cluster._spec = spec
        try:
            if not outlive:
                daemon.call("reserve", **request)
            with _watched(daemon, spec.name, progress):
                cluster._described = daemon.call("up", _PATIENCE_S, cluster=spec.name)
            daemon.call("keep", cluster=spec.name)
        except BaseException as error:
            cluster._abandon(journal, interrupted=not isinstance(error, PenstockError))
            raise
        if complete:
            cluster.completed()
        return cluster

    def completed(self) -> None:
        """Mark the cluster complete: from now on it survives this process."""
        if self._entry is not None:
            Journal().undone(self._entry)
            self._entry = None

    def ending(self) -> None:
        """Mark the cluster incomplete: `penstock undo` stops it if this process dies.

        Errors of the journal are ignored: stopping a cluster must be possible on a full disk.
        """
        if self._outlive and self._entry is None:
            with contextlib.suppress(JournalFailure):
                self._entry = _planned(Journal(), self.name, self._daemon)

    @classmethod
    def of_platform(
        cls,
        platform: str | Path,
        overrides: Sequence[str] = (),
        *,
        name: str | None = None,
        runtime: str | None = None,
        ssh: bool = False,
        outlive: bool = False,
        warn: Callable[[str], None] | None = None,
        progress: Progress | None = None,
    ) -> Cluster:
        """Start the nodes of a platform file with their disks and links; `overrides` are its `--set`.

        Raises BadInput for a mistake in the file, and for a disk that is faster than this host.
        """
        from penstock.platform.cluster import cluster_spec
        from penstock.platform.hosts import load_platform

        spec = cluster_spec(load_platform(Path(platform), list(overrides), predicted=False))
        spec = replace(spec, name=name or spec.name, runtime=runtime or spec.runtime)
        if ssh:
            spec = replace(spec, nodes=tuple(replace(node, ssh=True) for node in spec.nodes))
        disks = [disk for node in spec.nodes for disk in node.disks]
        profiles = {
            (d.profile_name, d.time_scale): d.profile for d in disks if d.profile is not None
        }
        journal = Journal()
        too_fast = refuse_too_fast(map(StorageProfile.from_dict, profiles.values()), journal)
        for warning in [*warnings(spec), *too_fast]:
            if warn is not None:
                warn(warning)
        return cls.up(spec, journal, outlive=outlive, progress=progress)

    @classmethod
    def find(cls, name: str | None = None) -> Cluster:
        """The cluster of that name, or the only one that is up. Raises BadInput if there is none."""
        clusters = registered()
        if name is None and len(clusters) == 1:
            name = next(iter(clusters))
        if name is None and not clusters and (dead := abandoned()):
            raise BadInput("\n".join(failure.message for failure in dead.values()))
        if name is None:
            names = ", ".join(clusters) or "none"
            raise BadInput(f"which cluster? There are {names}" if clusters else "no cluster is up")
        if name not in clusters and (failure := abandoned().get(name)) is not None:
            raise BadInput(failure.message)
        if name not in clusters:
            raise BadInput(f"no cluster {name} is up; there are {', '.join(clusters) or 'none'}")
        cluster = cls(name, clusters[name], outlive=True)
        cluster.refresh()
        return cluster

    @property
    def pid(self) -> int:
        """Process ID of the supervisor."""
        return self._daemon.pid

    @property
    def home(self) -> Path:
        """Directory of its nodes' files."""
        return Path(self._described["home"])

    @property
    def described(self) -> dict[str, Any]:
        """The cluster in JSON values, as of the last request."""
        return self._described

    @property
    def nodes(self) -> dict[str, RunningNode]:
        """Its nodes by name, as of the last request (`refresh`)."""
        return {node["name"]: running_node(node) for node in self._described["nodes"]}

    @property
    def interrupted(self) -> bool:
        """True if the command that starts or stops it died before its end."""
        return self.name in incomplete()

    def refresh(self) -> None:
        """Request current pids, states and addresses."""
        self._described = self._ask("describe")

    def chosen(self, patterns: Sequence[str]) -> list[RunningNode]:
        """Nodes that match names and patterns. Raises BadInput for one without a match."""
        nodes = self.nodes
        return [nodes[name] for name in matching(patterns, nodes)]

    def exec(self, node: str, argv: Sequence[str], **options: Any) -> Finished:
        """Run a command in a node to its end (`RunningNode.run`)."""
        return self.chosen([node])[0].run(argv, **options)

    def set(
        self, nodes: Sequence[str], resource: str, name: str | None, patch: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """Change one resource of several nodes at once; returns the requested and actual values per node."""
        return self.change([Change(tuple(nodes), resource, dict(patch), name)])  # type: ignore[arg-type]

    def change(self, changes: Sequence[Change]) -> list[dict[str, Any]]:
        """Make several changes in one request; all are checked before the first."""
        requests = [
            {"nodes": list(c.nodes), "resource": c.resource, "patch": c.patch, "name": c.name}
            for c in changes
        ]
        return list(self._ask("set", changes=requests)["applied"])

    def schedule(self, events: Sequence[Event], start_ns: int | None = None) -> int:
        """Submit events, which continue without this process; returns the time they count from [ns]."""
        planned = [to_json(event) for event in events]
        return int(self._ask("schedule", events=planned, start_ns=start_ns)["start_ns"])

    def mark(self, phase: str) -> int:
        """Mark the start of a phase; returns the number of events that waited for it."""
        return int(self._ask("mark", phase=phase)["events"])

    def events(self) -> list[dict[str, Any]]:
        """Results of the events: node, planned, applied, verified [ns], asked, found, error."""
        return list(self._ask("events")["events"])

    def waiting(self) -> list[str]:
        """Descriptions of the events that still wait for a phase or a condition."""
        return list(self._ask("events")["waiting"])

    def networks(self) -> list[dict[str, Any]]:
        """Its networks: subnet, carrier, delays between nodes, counters of the relay."""
        return list(self._ask("networks")["networks"])

    def set_delays(self, network: str, delays: Mapping[tuple[str, str], float]) -> None:
        """Change one-way delays of pairs of nodes [s]; both ways unless both are given."""
        rows = [[a, b, s] for (a, b), s in delays.items()]
        self._ask("delays", network=network, delays=rows)

    def spec_json(self) -> dict[str, Any]:
        """The specification that it was started with, in JSON values (`wire.from_json` reads them)."""
        return dict(self._ask("spec")["spec"])

    def status(self) -> list[dict[str, Any]]:
        """The nodes with their use of processors, memory, disks and links."""
        return list(self.full_status()["nodes"])

    def full_status(self) -> dict[str, Any]:
        """Status of the nodes and of the cluster: `jain_index` of the nodes that competed for processors."""
        return self._ask("status")

    def begin(self, spool: Path) -> dict[str, dict[str, Any]]:
        """Start of a run: disks count from zero and record in `spool` the data for certificates. Returns the
        initial state by disk_id."""
        return dict(self._ask("begin", spool=str(spool.absolute())).get("state") or {})

    def end(
        self, spool: Path, changes: Sequence[Mapping[str, Any]] | None = None
    ) -> dict[str, Recorded]:
        """End the run; the records of each disk, by disk_id. `changes`: `events()`, if already read."""
        changes = self.events() if changes is None else changes
        records = self._ask("end", spool=str(spool.absolute()))["disks"]
        if self._spec is None:
            self._spec = from_json(ClusterSpec, self.spec_json())
        specs = {f"{n.name}.{d.name}": d for n in self._spec.nodes for d in n.disks}
        by_disk = changes_by_disk(changes)
        return {
            i: Recorded.from_files(i, one, specs[i].profile or INSTANT_PROFILE, by_disk.get(i, ()))
            for i, one in records.items()
        }

    @property
    def above(self) -> Path | None:
        """Parent control group of all nodes in the unified hierarchy; None if there is none."""
        path = self._described.get("above")
        return Path(path) if path else None

    def freeze(self, *nodes: str) -> list[dict[str, Any]]:
        """Freeze nodes."""
        return self.set(nodes or ("*",), "node", None, {"state": "frozen"})

    def unfreeze(self, *nodes: str) -> list[dict[str, Any]]:
        """Thaw frozen nodes."""
        return self.set(nodes or ("*",), "node", None, {"state": "running"})

    def down(self, progress: Progress | None = None) -> None:
        """Stop the cluster; with the last one the supervisor ends."""
        self.ending()
        if not self._outlive:
            with _watched(self._daemon, self.name, progress):
                self._ask("down", _PATIENCE_S)
            stop_entirely(self._daemon, Journal())
            return
        with _lock():
            with _watched(self._daemon, self.name, progress):
                self._ask("down", _PATIENCE_S)
            _stop_if_idle(self._daemon, Journal())
        journal = Journal()
        for entry in [e for e in journal.open_entries() if _is_of(e, self.name)]:
            journal.undone(entry)
        self._entry = None

    def _ask(self, cmd: str, timeout_s: float = 120.0, **arguments: Any) -> dict[str, Any]:
        with self._asking:
            return self._daemon.call(cmd, timeout_s, cluster=self.name, **arguments)

    def _abandon(self, journal: Journal, *, interrupted: bool) -> None:
        """Have the supervisor stop a cluster whose start failed or was interrupted."""
        with contextlib.suppress(PenstockError, OSError):
            if interrupted:  # its connection still waits for `up`
                self._daemon.hang_up()
                with contextlib.suppress(PenstockError):
                    self._daemon.call("down", _PATIENCE_S, cluster=self.name)
            if self._outlive:
                with _lock():
                    _stop_if_idle(self._daemon, journal)
            else:
                stop_entirely(self._daemon, journal)
            if self._entry is not None:
                journal.undone(self._entry)
                self._entry = None

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()


def registered() -> dict[str, Daemon]:
    """Clusters that are up on this host, with their supervisors."""
    return {f["cluster"]: connect("nodes", f["pid"], f["socket"]) for f in _register()}


def abandoned() -> dict[str, Failure]:
    """Clusters whose supervisor has died and that are no longer monitored."""
    live = registered()
    return {
        facts["cluster"]: Failure(
            "supervisor",
            f"{facts['cluster']}: its supervisor (process {facts['pid']}) has died; "
            "`penstock undo` removes the rest of the cluster",
            facts["pid"],
        )
        for facts in _register(alive=False)
        if facts["cluster"] not in live
    }


def incomplete() -> dict[str, Entry]:
    """By name, clusters whose command died before they were complete, or while it stopped them."""
    return {
        entry.target: entry
        for entry in Journal().open_entries()
        if entry.kind == "cluster" and not entry.owner.alive
    }


def _planned(journal: Journal, name: str, daemon: Daemon) -> Entry:
    """Record in the journal that a supervisor is about to create a cluster."""
    supervisor = Identity.of(daemon.pid)
    if supervisor is None:
        raise PenstockError(f"penstock-nodes ({daemon.pid}) has died")
    about = {
        "pid": supervisor.pid,
        "start": supervisor.start,
        "socket": str(daemon.socket_path),
    }
    return journal.plan("cluster", name, run=name, new=about)


def _is_of(entry: Entry, name: str) -> bool:
    """True for an entry of that cluster by this process or by one that died."""
    owned = entry.owner == Identity.own() or not entry.owner.alive
    return entry.kind == "cluster" and entry.target == name and owned


def _started(journal: Journal, *, outlive: bool, run: str | None = None) -> Daemon:
    """Start a supervisor of nodes."""
    module = "penstock.emulate.cluster.daemon"
    return start_daemon("nodes", {"outlive_owner": outlive}, journal, run=run, module=module)


def _register(alive: bool = True) -> list[dict[str, Any]]:
    """Records of clusters by running supervisors; or by those that died since boot."""
    records = []
    for path in sorted(runtime_dir().glob("cluster-*.json")):
        try:
            facts = json.loads(path.read_text())
            holder = Identity(facts["boot_id"], facts["pid"], facts["start"])
        except (OSError, ValueError, KeyError):
            continue
        if holder.alive == alive and holder.boot_id == boot_id():
            records.append(facts)
    return records


def _check_free(name: str) -> None:
    if name in registered():
        raise BadInput(
            f"a cluster {name} is up already; `penstock nodes down {name}` takes it down"
        )


def running_node(description: Mapping[str, Any]) -> RunningNode:
    """A node from its description in JSON values (`Cluster.described`)."""
    group = NodeGroup(
        description["group"],
        {controller: Path(path) for controller, path in description["paths"].items()},
        description["memory_bytes"],
        description["missing"],
        description["group_token"],
    )
    disks = {
        name: RunningDisk(
            name,
            disk["disk_id"],
            Path(disk["at"]),
            disk["mount"],
            Path(disk["directory"]),
            disk["backend"],
            (disk["device"][0], disk["device"][1]),
            Path(disk["page"]) if disk.get("page") else None,
        )
        for name, disk in description["disks"].items()
    }
    image = Path(description["image"]) if description["image"] else None
    return RunningNode(
        description["name"],
        description["state"],
        description["pid"],
        group,
        description["addresses"],
        image,
        Entrance(**description["entrance"]) if description["entrance"] else None,
        disks,
        description["failure"],
        description["start_ticks"],
    )


@contextlib.contextmanager
def _watched(daemon: Daemon, name: str, progress: Progress | None) -> Iterator[None]:
    """Report the current step to `progress`, over a separate connection."""
    if progress is None:
        yield
        return
    over = threading.Event()
    other = connect("nodes", daemon.pid, daemon.socket_path)

    def look() -> None:
        with contextlib.suppress(PenstockError):
            while not over.wait(0.1):
                state = other.call("progress", cluster=name)
                progress(state["what"], state["done"], state["total"])
        other.hang_up()

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join(timeout=5.0)


def _standing() -> Daemon | None:
    """Supervisor of clusters that outlive the command, if it runs."""
    for facts in _register():
        if facts.get("standing"):
            return connect("nodes", facts["pid"], facts["socket"])
    return None


def _stop_if_idle(daemon: Daemon, journal: Journal) -> None:
    """Stop a supervisor without clusters, and close its journal entries."""
    with contextlib.suppress(PenstockError):
        if daemon.call("ping")["clusters"]:
            return
    stop_entirely(daemon, journal)


@contextlib.contextmanager
def _lock() -> Iterator[None]:
    with open(runtime_dir() / "standing-nodes.lock", "w", opener=closed) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
