"""A cluster on several hosts as a `RunningCluster`: its nodes are entered from here.

A command in a node reaches its host as the worker of that host does: over ssh, or in a network namespace.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.emulate.cluster.cluster import Progress, RunningNode, running_node
from penstock.emulate.cluster.enter import enter_argv
from penstock.errors import PenstockError
from penstock.host.nodes.node_group import NodeGroup
from penstock.parts.remote.cluster.coordinator import RemoteCluster, Say
from penstock.parts.remote.cluster.hosts_file import read_hosts
from penstock.parts.remote.cluster.plan import plan_platform
from penstock.parts.remote.cluster.records import place
from penstock.parts.remote.workers import on_host, python_on
from penstock.platform.hosts import Platform
from penstock.spec.check_cluster import matching
from penstock.spec.cluster import ClusterSpec
from penstock.spec.study import Worker

#: longest time of a reply of a host [s]
_REPLY_S = 60.0

#: $1, $2: pid and start of a node's first process (proc(5), field 22); then the command that enters the node
_ENTER_LIVE = (
    'p=$1 t=$2; shift 2; is() { [ $# -gt 19 ] && shift 19 && [ "$1" = "$t" ]; }; '
    '{ read -r s <"/proc/$p/stat"; } 2>/dev/null && is ${s##*) } || '
    '{ echo "penstock: the node has died" >&2; exit 125; }; exec "$@"'
)

#: evicts the files of the directories in its arguments from the page cache of its host
_DROP = (
    "import sys; from penstock.host.storage.residency import drop_file_cache as drop; "
    "[drop(path) for path in sys.argv[1:]]"
)

#: the control group of a node of another host
_NO_GROUP = NodeGroup("", {}, None, [], "")


@dataclass(kw_only=True)
class RemoteNode(RunningNode):
    """A node on another host. Its process and control group are not those of this host: `pid` is 0.

    `worker`: its host; `python`, `program`: penstock's interpreter and `penstock-enter` there.
    """

    worker: Worker
    python: str = ""
    program: str = ""

    @property
    def here(self) -> bool:
        """False, because its host may be another one."""
        return False

    def enter(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
    ) -> list[str]:
        """Command line that runs a command inside the node; our own interpreter is that of the host.

        The host checks that the node lives. As `RunningNode.enter` otherwise.
        """
        entrance = self.open_entrance()
        command = [self.python if argv[0] == sys.executable else argv[0], *argv[1:]]
        _, described, *rest = enter_argv(entrance, command, env=env, cwd=cwd, user=user)
        first = [str(entrance.pid), str(self.start_ticks)]
        shell = ["/bin/sh", "-c", _ENTER_LIVE, "sh", *first]
        return on_host(self.worker, [*shell, self.program, described, *rest])

    def drop_file_caches(self) -> None:
        """Evict the files of its disks from the page cache of its host. Raises PenstockError."""
        if self.disks:
            places = [str(disk.at) for disk in self.disks.values()]
            _reply(self.worker, on_host(self.worker, [self.python, "-c", _DROP, *places]))


class ClusterOnHosts:
    """Nodes on several hosts. Those of a host that does not respond are `lost`."""

    def __init__(self, remote: RemoteCluster) -> None:
        self._remote = remote
        self._workers = {w.name: w for w in remote.workers}
        self._nodes: dict[str, RunningNode] = {}

    @classmethod
    def find(cls, name: str | None = None) -> ClusterOnHosts:
        """The cluster of that name, or the only one. Raises BadInput if there is none."""
        return cls(RemoteCluster.find(name))

    @property
    def name(self) -> str:
        """Its name."""
        return self._remote.name

    @property
    def home(self) -> Path:
        """Directory of its record here, which is removed with it."""
        return place(self.name)

    @property
    def nodes(self) -> dict[str, RunningNode]:
        """Its nodes by name, as of the last `refresh`."""
        if not self._nodes:
            self.refresh()
        return self._nodes

    @property
    def interrupted(self) -> bool:
        """True if the command that starts or stops it died before its end."""
        return self._remote.interrupted

    def chosen(self, patterns: Sequence[str]) -> list[RunningNode]:
        """Nodes that match names and patterns. Raises BadInput for one without a match."""
        nodes = self.nodes
        return [nodes[name] for name in matching(patterns, nodes)]

    def refresh(self) -> None:
        """Request the current state of the nodes from all hosts."""
        replies, lost = self._ask("describe")
        described = {
            node["name"]: _node(node, reply, self._workers[host])
            for host, reply in replies.items()
            for node in reply["nodes"]
        }
        self._nodes = {
            name: described.get(name) or self._lost(name, lost.get(host, f"host {host} lacks it"))
            for name, host in self._remote.host_of.items()
        }

    def _lost(self, name: str, why: str) -> RemoteNode:
        return RemoteNode(
            name,
            "lost",
            0,
            _NO_GROUP,
            dict(self._remote.addresses.get(name, {})),
            None,
            None,
            failure=why,
            worker=self._workers[self._remote.host_of[name]],
        )

    def status(self) -> list[dict[str, Any]]:
        """The nodes with their use of processors, memory, disks and links. Raises PenstockError."""
        replies, lost = self._ask("status")
        if lost:
            raise PenstockError("\n".join(lost.values()))
        by_name = {row["name"]: row for rows in replies.values() for row in rows}
        return [by_name[name] for name in self._remote.host_of if name in by_name]

    def spec_json(self) -> dict[str, Any]:
        """The specification that it was started with, in JSON values."""
        return dict(self._remote.spec)

    def set_delays(self, network: str, delays: Mapping[tuple[str, str], float]) -> None:
        """Raise PenstockError: delays of pairs cannot be changed on several hosts."""
        raise PenstockError(
            f"network {network}: delays of pairs of nodes cannot be changed on several hosts"
        )

    def completed(self) -> None:
        """Mark it complete: it survives this process."""
        self._remote.settled()

    def ending(self) -> None:
        """Mark it incomplete: `penstock undo` stops it if this process dies."""
        self._remote.ending()

    def down(self, progress: Progress | None = None) -> None:
        """Stop its nodes and restore the hosts. PenstockError lists hosts that did not respond."""
        self._remote.ending()
        self._remote.down()
        self._remote.settled()

    def _ask(self, what: str) -> tuple[dict[str, Any], dict[str, str]]:
        """Replies of `nodes_here` by host, and the last messages of hosts without one."""
        module = "penstock.parts.remote.running.nodes_here"

        def ask(worker: Worker) -> tuple[Any, str]:
            try:
                line = python_on(worker, module, what, self.name)
                return json.loads(_reply(worker, line)), ""
            except PenstockError as error:
                return None, str(error)

        with ThreadPoolExecutor(max(1, min(32, len(self._workers)))) as pool:
            answers = dict(zip(self._workers, pool.map(ask, self._workers.values()), strict=True))
        replies = {host: reply for host, (reply, why) in answers.items() if not why}
        return replies, {host: why for host, (_, why) in answers.items() if why}


def start_on_hosts(
    spec: ClusterSpec,
    platform: Platform,
    hosts: Path,
    say: Say,
    *,
    engine: str,
    allow_overcommit: bool = False,
) -> ClusterOnHosts:
    """Start the cluster of a platform, for a store, on the hosts of a hosts file.

    It is incomplete until `completed`. Raises BadInput before any host is changed.
    """
    file = read_hosts(hosts)
    plan = plan_platform(
        platform, file.inventory, name=spec.name, spec=spec, allow_overcommit=allow_overcommit
    )
    for over in plan.placement.over:
        say(f"overcommitted: {over.text}")
    return ClusterOnHosts(RemoteCluster.up(plan, file, say, engine=engine, complete=False))


def _node(described: Mapping[str, Any], host: Mapping[str, Any], worker: Worker) -> RemoteNode:
    """A node from its description on its host."""
    node = running_node(described)
    return RemoteNode(
        **{**vars(node), "pid": 0, "cgroup": _NO_GROUP},
        worker=worker,
        python=host["python"],
        program=host["program"],
    )


def _reply(worker: Worker, line: Sequence[str]) -> str:
    """Output of a command on a host. PenstockError with its last message if it fails."""
    try:
        done = subprocess.run(
            line, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_REPLY_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PenstockError(f"host {worker.name}: {error}") from None
    if done.returncode:
        message = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise PenstockError(f"host {worker.name}: {message}")
    return done.stdout
