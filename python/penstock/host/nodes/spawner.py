"""Creation of virtual nodes: a small process that forks, so that its large parent need not.

The supervisor starts it before it loads large modules, and requests nodes over a socket (one JSON object per
packet; an answer for each, in the order of completion). It ends with the supervisor; its nodes do not.

A node is a first process (`penstock-enter`, which waits forever) in new namespaces. It ignores SIGCHLD, so
that the kernel reaps the orphans that it adopts. It is loaded from the host before the node's root becomes
its root, so an image need not contain it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.host.nodes import namespaces
from penstock.host.nodes.isolation import Device, Isolation
from penstock.host.nodes.node_root import Bind, NodeRoot, assemble, mount_groups, mount_proc
from penstock.host.processes.processes import TOKEN_VARIABLE
from penstock.host.storage.mounts import mount_of

if TYPE_CHECKING:
    from penstock.host.journal.journal import Journal

_PACKET = 1 << 18
#: program that enters a node (crates/enter)
ENTER = str(Path(__file__).parents[1] / "penstock-enter")
#: PATH of a node's first process, and of commands without one
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Birth:
    """Specification of a new node: `groups` are the files by which a process enters its control groups,
    `filter` is its system call filter.
    """

    hostname: str
    groups: tuple[str, ...]
    root: NodeRoot
    token: str
    isolation: Isolation
    filter: str


class Spawner:
    """Client end: requests nodes and receives the pid of each first process."""

    def __init__(self, sock: socket.socket, pid: int) -> None:
        self._socket = sock
        self._lock = threading.Lock()
        self.pid = pid

    def make(self, births: dict[str, Birth]) -> dict[str, int | str]:
        """Create these nodes, some at a time; returns a pid or an error message for each."""
        with self._lock:
            return self._make(births)

    def _make(self, births: dict[str, Birth]) -> dict[str, int | str]:
        waiting = list(births.items())
        under_way = 0
        answers: dict[str, int | str] = {}
        while waiting or under_way:
            while waiting and under_way < 4:
                key, birth = waiting.pop()
                packet = json.dumps({"key": key, **asdict(birth)}).encode()
                if len(packet) > _PACKET:
                    answers[key] = f"its description is longer than {_PACKET} bytes"
                    continue
                self._socket.send(packet)
                under_way += 1
            if not under_way:
                break
            raw = self._socket.recv(_PACKET)
            if not raw:
                raise ConnectionError("the process that makes nodes has died")
            answer = json.loads(raw)
            answers[answer["key"]] = answer.get("pid") or str(answer.get("error"))
            under_way -= 1
        return answers

    def close(self) -> None:
        self._socket.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


class NamespacesRuntime:
    """Nodes of one cluster, created by the small process; they leave nothing on the host."""

    all_groups = False

    def __init__(self, home: Path, journal: Journal, run: str, spawner: Spawner) -> None:
        self._spawner = spawner

    @staticmethod
    def missing() -> str:
        """Nothing beyond the requirements of all nodes."""
        return ""

    def make(self, births: dict[str, Birth]) -> dict[str, int | str]:
        """Request all of them from the small process."""
        return self._spawner.make(births)

    def forget(self, name: str) -> None:
        """Nothing to do: namespaces end with their processes."""

    def forget_all(self) -> None:
        """Nothing to do."""


def start() -> Spawner:
    """Fork the small process; call it while this process is small and single-threaded."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _PACKET)
    pid = os.fork()
    if pid:
        theirs.close()
        return Spawner(ours, pid)
    status = 1
    try:
        ours.close()
        _serve(theirs)
        status = 0
    finally:
        os._exit(status)


def _serve(sock: socket.socket) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    namespaces.name_process("penstock-spawn")
    namespaces.adopt_orphans()
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    builders: dict[int, str] = {}
    while True:
        for fd, _ in poller.poll():
            if fd in builders:  # it has answered, or died
                poller.unregister(fd)
                key, answered = builders.pop(fd), os.read(fd, 1)
                os.close(fd)
                if not answered:
                    failure = {"key": key, "error": "what builds the node was killed"}
                    sock.send(json.dumps(failure).encode())
                continue
            raw = sock.recv(_PACKET)
            if not raw:
                return
            request = json.loads(raw)
            says = _build(sock, request)
            builders[says] = request["key"]
            poller.register(says, select.POLLIN)


def _build(sock: socket.socket, request: Mapping[str, Any]) -> int:
    """Fork a builder of one node, which answers; returns a pipe that it writes to afterwards."""
    says, done = os.pipe()
    if os.fork():
        os.close(done)
        return says
    answer: dict[str, Any] = {"key": request["key"]}
    try:
        answer["pid"] = _bear(_birth(request))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        answer["error"] = f"{where}{error.strerror or error}"
    except BaseException as error:
        answer["error"] = repr(error)
    try:
        sock.send(json.dumps(answer).encode())
        os.write(done, b"x")
    finally:
        os._exit(0)


def _birth(request: Mapping[str, Any]) -> Birth:
    root = request["root"]
    binds = tuple(Bind(**each) for each in root.pop("binds"))
    devices = tuple(Device(**each) for each in request["isolation"]["devices"])
    return Birth(
        request["hostname"],
        tuple(request["groups"]),
        NodeRoot(**root, binds=binds),
        request["token"],
        Isolation(tuple(request["isolation"]["capabilities"]), devices),
        request["filter"],
    )


def _bear(birth: Birth) -> int:
    """Create the node's namespaces and its first process; returns its pid."""
    namespaces.unshare(namespaces.OF_A_NODE)
    namespaces.mount("", "/", flags=namespaces.MS_REC | namespaces.MS_PRIVATE)
    namespaces.set_hostname(birth.hostname)
    namespaces.loopback_up()
    assemble(birth.root, birth.isolation.devices, birth.token)
    _write_protect(ENTER)
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        _first_process(birth, writes)
    os.close(writes)
    with os.fdopen(reads) as says:
        state = says.read()
    if state != "ready":
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        raise OSError(f"its first process: {state or 'it was killed'}")
    try:
        namespaces.pivot_into(birth.root.at)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise
    return pid


def _write_protect(program: str) -> None:
    """Make the first process's program, which belongs to the host, read-only in /proc/1/exe of the node."""
    mount = mount_of(program)
    if mount is not None:
        flags = namespaces.MS_BIND | namespaces.MS_REMOUNT | namespaces.MS_RDONLY
        namespaces.mount("", mount.point, flags=flags)


def _first_process(birth: Birth, says: int) -> None:
    """Mount /proc, which shows the mounting process's pid namespace, and wait forever."""
    try:
        mount_proc(birth.root.at)
        _enter(birth.groups)  # last: the node's limits do not apply to its construction
        namespaces.unshare(namespaces.CLONE_NEWCGROUP)
        mount_groups(birth.root.at)
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        environment = {"PATH": PATH, "HOME": "/root", TOKEN_VARIABLE: birth.token}
        os.set_inheritable(says, True)
        described = {"capabilities": birth.isolation.bits, "filter": birth.filter, "ready_fd": says}
        os.execve(ENTER, [ENTER, json.dumps(described)], environment)
    except OSError as error:
        os.write(says, str(error).encode())
    finally:
        os._exit(127)


def _enter(groups: tuple[str, ...]) -> None:
    for path in groups:
        try:
            with open(path, "w") as group:
                group.write("0")
        except OSError as error:
            raise OSError(error.errno, f"{path}: {error.strerror}") from error
