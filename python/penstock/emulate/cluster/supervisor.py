"""The daemon `penstock-nodes`: owns clusters of virtual nodes and applies scheduled changes.

Like the other daemons, it speaks one JSON object per line on a unix socket. It starts all parts of its
clusters, so the undo journal records it as their owner: if it dies, `penstock undo` removes everything. With
an owner (the conductor) it stops everything when that process ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from penstock.emulate.cluster import changing
from penstock.emulate.cluster.running import LiveCluster, LiveNode
from penstock.emulate.cluster.settings import Change
from penstock.emulate.cluster.status import cluster_status
from penstock.emulate.cluster.wire import from_json, to_json
from penstock.emulate.schedule.timeline import Timeline
from penstock.errors import BadInput, PenstockError
from penstock.host.journal.journal import Journal, unclosed
from penstock.host.nodes.spawner import Spawner
from penstock.host.processes.control import lines, listen, may_ask
from penstock.host.processes.daemon import say_ready
from penstock.host.processes.processes import TOKEN_VARIABLE, Identity
from penstock.spec.check_cluster import check_cluster
from penstock.spec.cluster import ClusterSpec, Event
from penstock.state import runtime_dir
from penstock.writing import write_atomic

#: interval of reclaim above a soft limit where the kernel does not reclaim [s]
_PRESS_EVERY_S = 0.2
#: an idle supervisor without clusters ends after this time [s]
_IDLE_S = 5.0


class Supervisor:
    """Clusters of one process, and the commands that act on them."""

    def __init__(self, config: dict[str, Any], spawner: Spawner) -> None:
        self._config = config
        self._spawner = spawner
        self._token = os.environ.get(TOKEN_VARIABLE, "") or "untokened"
        self._journal = Journal()
        self._clusters: dict[str, LiveCluster] = {}
        self._timelines: dict[str, Timeline] = {}
        self._lock = threading.RLock()
        #: clusters whose client has not confirmed the start yet, by connection
        self._unkept: dict[str, int] = {}
        self._connections = 0
        self._ending = threading.Event()
        self._changed, self._change = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def serve(self) -> None:
        """Serve until a shutdown request or the end of the owner."""
        listener = listen(Path(self._config["socket"]))
        listener.settimeout(0.5)
        for run in (self._watch, self._press):
            threading.Thread(target=run, daemon=True).start()
        say_ready(self._config.get("ready_fd"))
        idle_since = time.monotonic()
        while not self._ending.is_set():
            with contextlib.suppress(TimeoutError):
                connection, _ = listener.accept()
                if not may_ask(connection):
                    connection.close()
                    continue
                connection.settimeout(None)
                threading.Thread(target=self._converse, args=(connection,), daemon=True).start()
                continue
            if self._clusters or self._connections:
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since > _IDLE_S:
                break
        with self._lock:
            self._ending.set()
        listener.close()
        self._end()
        self._leave_no_trace()

    def _converse(self, connection: socket.socket) -> None:
        self._connections += 1
        me = id(connection)
        try:
            with connection, contextlib.suppress(OSError):
                for line in lines(connection):
                    answer = self._answer(line, me)
                    connection.sendall(json.dumps(answer).encode() + b"\n")
                    if self._ending.is_set():
                        return
        finally:
            self._connections -= 1
            for name in [n for n, asker in list(self._unkept.items()) if asker == me]:
                with contextlib.suppress(PenstockError, OSError, KeyError):
                    self._forget(name)

    def _answer(self, line: bytes, asker: int) -> dict[str, Any]:
        try:
            request = json.loads(line.decode())
            if not isinstance(request, dict):
                raise BadInput('no object such as {"cmd": "ping"}')
            command = _COMMANDS.get(request.pop("cmd", None))
            if command is None:
                raise BadInput("no such command")
            if command is Supervisor.reserve:
                request["asker"] = asker
            return {"ok": True, **command(self, **request)}
        except PenstockError as error:
            return {"ok": False, "error": str(error), "bad_input": isinstance(error, BadInput)}
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            return {"ok": False, "error": f"{where}{error.strerror or error}"}
        except (TypeError, ValueError, KeyError) as error:
            return {"ok": False, "error": f"{type(error).__name__}: {error}", "bad_input": True}
        except RecursionError:
            return {"ok": False, "error": "found it nested too deeply", "bad_input": True}

    def ping(self) -> dict[str, Any]:
        """Process and clusters of the supervisor."""
        return {
            "pid": os.getpid(),
            "clusters": list(self._clusters),
            "unkept": list(self._unkept),
        }

    def shutdown(self) -> dict[str, Any]:
        """Stop everything and end."""
        with self._lock:
            self._ending.set()
        self._end()
        return {}

    def reserve(self, spec: dict[str, Any], asker: int) -> dict[str, Any]:
        """Reserve the name of a cluster to be started next. Raises for mistakes in its specification.

        Until `keep` it is removed when the connection of the client closes.
        """
        read = from_json(ClusterSpec, spec)
        check_cluster(read)
        with self._lock:
            if self._ending.is_set():
                raise PenstockError("it is just ending; try again")
            if read.name in self._clusters:
                raise BadInput(f"a cluster {read.name} is up already")
            cluster = LiveCluster(read, self._journal, self._spawner, self._token)
            cluster.changed = self._poke
            for node in read.nodes:
                for disk in node.disks:
                    cluster.disks.choose(disk)
            self._clusters[read.name] = cluster
            self._unkept[read.name] = asker
            self._timelines[read.name] = Timeline(cluster, partial(changing.fire, cluster))
            self._register(read.name)
        return {"cluster": read.name}

    def up(self, cluster: str) -> dict[str, Any]:
        """Start a reserved cluster and its schedule."""
        live = self._cluster(cluster)
        try:
            live.up()
            self._poke()
            if live.spec.events:
                self._timelines[cluster].add(list(live.spec.events))
        except BaseException:
            self._forget(cluster)
            raise
        return live.describe()

    def keep(self, cluster: str) -> dict[str, Any]:
        """Confirm by the client that the cluster is up."""
        self._cluster(cluster)
        self._unkept.pop(cluster, None)
        return {}

    def progress(self, cluster: str) -> dict[str, Any]:
        """Current step of the start, number of completed parts, and their total."""
        what, done, total = self._cluster(cluster).progress
        return {"what": what, "done": done, "total": total}

    def describe(self, cluster: str) -> dict[str, Any]:
        """Facts that a client needs to work with the nodes."""
        return self._cluster(cluster).describe()

    def networks(self, cluster: str) -> dict[str, Any]:
        """Current networks of the cluster."""
        return {"networks": self._cluster(cluster).links.describe()}

    def delays(self, cluster: str, network: str, delays: list[list[Any]]) -> dict[str, Any]:
        """Change delays from node to node: from, to, seconds."""
        self._cluster(cluster).links.set_delays(network, {(a, b): s for a, b, s in delays})
        return {}

    def spec(self, cluster: str) -> dict[str, Any]:
        """Specification that the cluster was started with."""
        return {"spec": to_json(self._cluster(cluster).spec)}

    def status(self, cluster: str) -> dict[str, Any]:
        """States of the nodes, their use of processors and memory, disks and links."""
        return cluster_status(self._cluster(cluster))

    def set(self, cluster: str, changes: list[dict[str, Any]]) -> dict[str, Any]:
        """Make changes; all are checked before the first."""
        live = self._cluster(cluster)
        read = [from_json(Change, change) for change in changes]
        with live.lock:
            applied = changing.change(live, read)
        self._poke()
        return {"applied": applied}

    def schedule(
        self, cluster: str, events: list[dict[str, Any]], start_ns: int | None = None
    ) -> dict[str, Any]:
        """Add events; their times count from `start_ns` (CLOCK_MONOTONIC; default: now)."""
        self._cluster(cluster)
        read = [from_json(Event, event) for event in events]
        return {"start_ns": self._timelines[cluster].add(read, start_ns)}

    def mark(self, cluster: str, phase: str) -> dict[str, Any]:
        """Mark the start of a phase: waiting events get their times."""
        self._cluster(cluster)
        return {"events": self._timelines[cluster].mark(phase)}

    def events(self, cluster: str) -> dict[str, Any]:
        """Results of the events: per node planned, applied, verified [ns], asked, found, error; and
        descriptions of the events that still wait for a phase or a condition.
        """
        live = self._cluster(cluster)
        events = self._timelines[cluster].fired() + live.disks.events()
        return {
            "events": sorted(events, key=lambda e: int(e["planned_ns"])),
            "waiting": self._timelines[cluster].waiting(),
        }

    def begin(self, cluster: str, spool: str) -> dict[str, Any]:
        """Start of a run: disks count from zero and record the data for certificates."""
        return {"state": self._cluster(cluster).disks.begin(Path(spool))}

    def end(self, cluster: str, spool: str) -> dict[str, Any]:
        """End of a run: by disk its counters, facts, and its tables as files of `spool`."""
        ended = self._cluster(cluster).disks.end(())
        return {"disks": {i: one.to_files(Path(spool)) for i, one in ended.items()}}

    def down(self, cluster: str) -> dict[str, Any]:
        """Stop a cluster; `last` is true if it was the last one."""
        self._cluster(cluster)
        self._forget(cluster)
        error = unclosed()
        if error is not None:
            raise error
        return {"last": not self._clusters}

    def _cluster(self, name: str) -> LiveCluster:
        with self._lock:
            if name not in self._clusters:
                raise BadInput(f"no cluster {name} is up here")
            return self._clusters[name]

    def _forget(self, name: str) -> None:
        live = self._clusters[name]
        self._timelines[name].stop()
        try:
            live.down()
        finally:
            with self._lock:
                self._clusters.pop(name, None)
                self._timelines.pop(name, None)
                self._unkept.pop(name, None)
                self._registered(name).unlink(missing_ok=True)
            self._poke()

    def _registered(self, name: str) -> Path:
        return runtime_dir() / f"cluster-{name}.{self._token}.json"

    def _register(self, name: str) -> None:
        """Register a cluster. The token in the file's name lets `penstock undo` remove it with the
        process."""
        own = Identity.own()
        about = {
            **vars(own),
            "cluster": name,
            "socket": self._config["socket"],
            "standing": bool(self._config.get("outlive_owner")),
        }
        write_atomic(self._registered(name), json.dumps(about))

    def _poke(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._change, b"x")

    def _watch(self) -> None:
        """Monitor the nodes and the owner."""
        owner = self._owner()
        while not self._ending.is_set():
            poller = select.poll()
            poller.register(self._changed, select.POLLIN)
            if owner is not None:
                poller.register(owner, select.POLLIN)
            nodes: dict[int, tuple[LiveCluster, LiveNode]] = {}
            for live in list(self._clusters.values()):
                for node in live.nodes.values():
                    if node.pidfd >= 0:
                        nodes[node.pidfd] = (live, node)
                        poller.register(node.pidfd, select.POLLIN)
            for fd, _ in poller.poll():
                if fd == self._changed:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._changed, 4096)
                elif fd == owner:
                    self._ending.set()
                    return
                elif fd in nodes:
                    live, node = nodes[fd]
                    if node.pidfd == fd:
                        live.failed(node)

    def _owner(self) -> int | None:
        if self._config.get("outlive_owner"):
            return None
        try:
            return os.pidfd_open(int(self._config["owner_pid"]))
        except OSError:
            self._ending.set()
            return None

    def _press(self) -> None:
        while not self._ending.wait(_PRESS_EVERY_S):
            for live in list(self._clusters.values()):
                for node in live.nodes.values():
                    settings = node.settings
                    if settings is not None and settings.soft is not None and node.pid:
                        with contextlib.suppress(OSError):
                            settings.group.press()

    def _end(self) -> None:
        for name in list(self._clusters):
            try:
                self._forget(name)
            except (PenstockError, OSError, KeyError) as error:
                print(f"penstock-nodes: taking {name} down: {error}", flush=True)

    def _leave_no_trace(self) -> None:
        """Close our journal entry and remove our files, as there may be no other process to do so."""
        for entry in self._journal.open_entries():
            if entry.kind == "process" and entry.token == self._token:
                self._journal.undone(entry)
        for path in runtime_dir().glob(f"nodes-{self._token}.*"):
            path.unlink(missing_ok=True)


_COMMANDS: dict[str | None, Callable[..., dict[str, Any]]] = {
    name: getattr(Supervisor, name)
    for name in (
        *("ping", "shutdown", "reserve", "up", "keep", "progress", "describe", "spec"),
        *("networks", "delays"),
        *("status", "set", "schedule", "mark", "events", "begin", "end", "down"),
    )
}


def nodes_main(config: dict[str, Any], spawner: Spawner) -> None:
    """Main function of the daemon. Raises RuntimeError if it cannot start."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    supervisor = Supervisor(config, spawner)
    # on a separate thread: the interrupted one may own the event's lock
    signal.signal(
        signal.SIGTERM, lambda *_: threading.Thread(target=supervisor._ending.set).start()
    )
    supervisor.serve()
    time.sleep(0)  # lets the last response go out
    spawner.close()
