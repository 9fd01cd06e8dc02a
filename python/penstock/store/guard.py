"""A store on which nothing may die: what waits for its files is ended, in place of waiting for ever.

Clients of a shared store wait for a server that has gone, as they should where it may come back. Where one
copy of each chunk on one server is measured it does not.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from penstock.errors import PenstockError
from penstock.host.cgroup import members
from penstock.host.processes import start_ticks
from penstock.store.store import Store

_LOOK_EVERY_S = 0.5
#: a process that is seen twice, so far apart, is no command that happened to run [s]
_APART_S = 0.2
#: longest that an engine may take to know that a server of its own has gone [s]
_KNOWN_WITHIN_S = 30.0

#: of a process: node, pid, start
_Process = tuple[str, int, int]


@contextlib.contextmanager
def guarded(store: Store) -> Iterator[None]:
    """Ends all that runs on client nodes as soon as a server has died; the block then fails with its name.

    PenstockError of the block without that is its own.
    """
    names = _running(store)
    time.sleep(_APART_S)
    standing = {p: comm for p, comm in _running(store).items() if p in names}
    over, lost = threading.Event(), list[str]()

    def look() -> None:
        while not over.wait(_LOOK_EVERY_S):
            gone = [p for p in standing if start_ticks(p[1]) != p[2]]
            if gone and _missed(store, over):
                lost.extend(f"{node}: {standing[(node, pid, at)]}" for node, pid, at in gone)
                _end_clients(store)
                return
            for process in gone:  # it was none of the servers
                del standing[process]

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield
    except PenstockError as error:
        if lost:
            raise PenstockError(f"the store died ({', '.join(lost)} has ended)") from error
        raise
    finally:
        over.set()
        watcher.join()


def _running(store: Store) -> dict[_Process, str]:
    """Processes of the nodes of servers, by the name of their command; the nodes' own first ones are not."""
    nodes, found = store.cluster.nodes, {}
    for name in dict.fromkeys((*store.roles.managers, *store.roles.storage)):
        for pid in members(nodes[name].cgroup.paths.values()):
            start = start_ticks(pid)
            if start is None or pid == nodes[name].pid:
                continue
            with contextlib.suppress(OSError):
                comm = Path(f"/proc/{pid}/comm").read_text().strip()
                found[(name, pid, start)] = comm
    return found


def _missed(store: Store, over: threading.Event) -> bool:
    """Whether the engine misses a server, as it does some time after one has gone."""
    until = time.monotonic() + _KNOWN_WITHIN_S
    while not over.is_set() and time.monotonic() < until:
        said = store.status()
        if "trouble" in said or not all(s["up"] for s in said["servers"]):
            return True
        over.wait(_LOOK_EVERY_S)
    return False


def _end_clients(store: Store) -> None:
    """Kills what runs on client nodes, their mounts too: who waits for one of these cannot be killed."""
    nodes = store.cluster.nodes
    for name in store.roles.clients:
        for pid in members(nodes[name].cgroup.paths.values()) - {nodes[name].pid}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
