"""Detection of dead servers of a store: kills the processes that would wait forever for its files.

Clients of a shared store wait for a dead server, which is right if it may come back. It does not in
measurements with one copy of each chunk on one server.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from penstock.errors import PenstockError
from penstock.host.cgroups.cgroup import members
from penstock.host.processes.processes import start_ticks
from penstock.parts.stores.store import Store

_LOOK_EVERY_S = 0.5
#: the same between two requests to the engine for servers on other hosts
_ASK_EVERY_S = 5.0
#: interval between two observations of a process that rules out a short-lived command [s]
_APART_S = 0.2
#: longest time until an engine detects the death of its own server [s]
_NOTICED_WITHIN_S = 30.0

#: unanswered requests in a row after which an engine is down
_SILENT_LOOKS = 3

#: stands for all servers if the engine does not answer
ALL = frozenset({"*"})

#: node, pid and start of a process
_Process = tuple[str, int, int]


@contextlib.contextmanager
def guarded(store: Store) -> Iterator[None]:
    """Kill all processes on client nodes as soon as a server dies; the block then fails with its name.

    Other PenstockErrors of the block propagate.
    """
    lost: list[str] = []

    def died(names: Sequence[str], _: Sequence[str]) -> None:
        lost[:] = names  # all so far
        _end_clients(store)

    try:
        with watched_servers(store, died):
            yield
    except PenstockError as error:
        if lost:
            raise PenstockError(f"the store died ({', '.join(lost)} has ended)") from error
        raise


@contextlib.contextmanager
def watched_servers(
    store: Store, died: Callable[[Sequence[str], Sequence[str]], None]
) -> Iterator[None]:
    """Call `died` with the names of server processes that ended, and their nodes.

    A process on a server's node counts if the engine misses a server after its end. `died` is called in a
    separate thread, with all that died since the block began.
    """
    if not all(store.cluster.nodes[name].here for name in _servers(store)):
        with _servers_by_engine(store, died):
            yield
        return
    names = _running(store)
    time.sleep(_APART_S)
    standing = {p: comm for p, comm in _running(store).items() if p in names}
    over, lost, before = threading.Event(), dict[_Process, str](), servers_down(store)

    def look() -> None:
        nonlocal before
        while not over.wait(_LOOK_EVERY_S):
            gone = [p for p in standing if start_ticks(p[1]) != p[2]]
            if gone and _missed(store, before, over):
                before = servers_down(store)
                lost.update({p: standing[p] for p in gone})
                names = [f"{node}: {comm}" for (node, _, _), comm in lost.items()]
                died(names, list(dict.fromkeys(node for node, _, _ in lost)))
            for process in gone:  # else it was not a server
                del standing[process]

    with _watching(look, over):
        yield


@contextlib.contextmanager
def _servers_by_engine(
    store: Store, died: Callable[[Sequence[str], Sequence[str]], None]
) -> Iterator[None]:
    """As `watched_servers`, for servers on other hosts, whose processes are not seen: by the engine alone."""
    over, before, dead = threading.Event(), servers_down(store), dict[str, None]()

    def look() -> None:
        nonlocal before
        while _missed(store, before, over, math.inf, _ASK_EVERY_S):
            down = servers_down(store)
            nodes = store.roles.managers if down == ALL else sorted(down - before)
            if nodes:
                dead.update(dict.fromkeys(nodes))
                died([f"{node}: its server" for node in dead], list(dead))
            before = down

    with _watching(look, over):
        yield


@contextlib.contextmanager
def _watching(look: Callable[[], None], over: threading.Event) -> Iterator[None]:
    """Run `look` in a thread, which ends once `over` is set."""
    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _servers(store: Store) -> list[str]:
    """Nodes with servers."""
    return list(dict.fromkeys((*store.roles.managers, *store.roles.storage)))


def _running(store: Store) -> dict[_Process, str]:
    """Processes on server nodes by command name, without the nodes' init processes."""
    nodes, processes = store.cluster.nodes, {}
    for name in _servers(store):
        for pid in members(nodes[name].cgroup.paths.values()):
            start = start_ticks(pid)
            if start is None or pid == nodes[name].pid:
                continue
            with contextlib.suppress(OSError):
                comm = Path(f"/proc/{pid}/comm").read_text().strip()
                processes[(name, pid, start)] = comm
    return processes


def servers_down(store: Store) -> frozenset[str]:
    """Nodes whose server is down according to the engine; ALL if the engine does not answer."""
    status = store.status()
    if "trouble" in status:
        return ALL
    return frozenset(str(s["node"]) for s in status["servers"] if not s["up"])


def _missed(
    store: Store,
    before: frozenset[str],
    over: threading.Event,
    within_s: float | None = None,
    every_s: float | None = None,
) -> bool:
    """True once the engine reports another server as down, which it does some time after the server's end.

    A busy engine misses a single request; one that misses several in a row is down.
    """
    until = time.monotonic() + (_NOTICED_WITHIN_S if within_s is None else within_s)
    silent = 0
    while not over.is_set() and time.monotonic() < until:
        down = servers_down(store)
        silent = silent + 1 if down == ALL else 0
        if (silent >= _SILENT_LOOKS and before != ALL) or (silent == 0 and down - before):
            return True
        over.wait(_LOOK_EVERY_S if every_s is None else every_s)
    return False


def _end_clients(store: Store) -> None:
    """Kill the processes on client nodes, and their mounts: processes that wait for a mount cannot be
    killed."""
    nodes = store.cluster.nodes
    for name in store.roles.clients:
        for pid in members(nodes[name].cgroup.paths.values()) - {nodes[name].pid}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
