"""Tags that programs set by themselves, by setfattr(1) or setxattr(2): taken up when the file is next opened.

Who opens an empty file that has tags waits until the engine was told of them, so that its first byte lies
where they say. Nothing stands between a program and the store; each open of a file costs a look at it. A
process of ours does that as long as the store is up; the kernel lets all opens go when it ends.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from penstock.emulate.cluster.cluster import Cluster, RunningNode
from penstock.errors import PenstockError
from penstock.host.storage.opens import PendingOpen, PendingOpens
from penstock.parts.stores.lock import changing
from penstock.parts.stores.tags import Tagged, own, untaken
from penstock.spec.store import Roles, StoreSpec, refused

#: longest that an open waits for its file's tags; then it goes on without [s]
_PATIENCE_S = 20.0
#: longest that another command may keep us from the store [s]
_LOCK_S = 5.0
#: refusals that are remembered
_MOST_REFUSED = 100
_MOST_WAITING = 1000


class TaggedStore(Protocol):
    """The parts of a store that a watch of its tags uses."""

    cluster: Cluster
    spec: StoreSpec
    roles: Roles

    def take_up(self, full_path: str, node: str, *, empty: bool) -> list[Tagged]:
        """Takes up the tags of a file that `node` opens."""


@dataclass(frozen=True)
class _Mount:
    """A client's mount: the process whose `root` shows it, and its device."""

    pid: int
    device: int
    opens: PendingOpens


class TagWatch:
    """Holds the opens of files on the mounts of a store; `find` gives it as it is now.

    PenstockError where opens cannot be held.
    """

    def __init__(self, find: Callable[[], TaggedStore]) -> None:
        self._find = find
        self._mounts: dict[str, _Mount] = {}
        self._pool = ThreadPoolExecutor(8, thread_name_prefix="tags")
        self._applying = threading.Lock()
        self._waiting = 0
        self._taken = 0
        self._refusals = 0
        self._refused: deque[Tagged] = deque(maxlen=_MOST_REFUSED)

    def hold(self) -> None:
        """Holds the opens of every client's mount, also of one that was made since this was asked last."""
        store = self._find()
        nodes, mount = store.cluster.nodes, store.spec.mount
        for name in store.roles.clients:
            mounted, node = self._mounts.get(name), nodes[name]
            try:
                seen = (node.pid, os.stat(_outside(node, mount)).st_dev)
            except OSError:  # it died, or has nothing mounted
                continue
            if mounted is not None:
                if seen == (mounted.pid, mounted.device):
                    continue
                mounted.opens.close()
            opens = PendingOpens()
            opens.watch(_outside(node, mount))
            self._mounts[name] = _Mount(*seen, opens)
            reader = threading.Thread(target=self._read, args=(name, node, opens), daemon=True)
            reader.start()

    def close(self) -> None:
        """Lets all go."""
        for mount in self._mounts.values():
            mount.opens.close()
        self._mounts.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def report(self) -> dict[str, Any]:
        """JSON values: how many tags were `taken`, how many `refusals`, and the last `refused`."""
        refusals = [t.to_dict() for t in list(self._refused)]
        return {"taken": self._taken, "refusals": self._refusals, "refused": refusals}

    def _read(self, name: str, node: RunningNode, opens: PendingOpens) -> None:
        for pending in opens:
            try:
                if not self._judged(name, node, pending):
                    pending.close()
            except (OSError, RuntimeError):  # gone meanwhile, or we end
                pending.close()

    def _judged(self, name: str, node: RunningNode, pending: PendingOpen) -> bool:
        """Let an open go, or have it wait. True if the file is still needed."""
        facts = os.fstat(pending.fd)
        if not stat.S_ISREG(facts.st_mode):
            return False
        if facts.st_size:
            pending.let()
            if self._waiting > _MOST_WAITING:
                return False
        elif not untaken(_attributes(pending.fd), name, empty=True) or _ours(pending.pid):
            return False
        self._waiting += 1
        self._pool.submit(self._take, name, node, pending, facts.st_size == 0)
        return True

    def _take(self, name: str, node: RunningNode, pending: PendingOpen, empty: bool) -> None:
        late = threading.Timer(_PATIENCE_S, pending.let)
        late.daemon = True
        if empty:
            late.start()
        try:
            if not untaken(_attributes(pending.fd), name, empty=empty):
                return
            with self._applying:  # whoever waited for the same file finds its tags taken up
                tags = _attributes(pending.fd)
                if not untaken(tags, name, empty=empty):
                    return
                self._remember(self._taken_up(name, node, pending.fd, own(tags), empty))
        except OSError:  # the file or the store has gone
            pass
        finally:
            self._waiting -= 1
            late.cancel()
            pending.close()

    def _taken_up(
        self, name: str, node: RunningNode, fd: int, tags: dict[str, str], empty: bool
    ) -> list[Tagged]:
        path = os.readlink(f"/proc/self/fd/{fd}")
        try:
            store = self._find()
            if not _same(fd, node, path) or not path.startswith(f"{store.spec.mount}/"):
                raise PenstockError("it has moved meanwhile")
            with changing(_LOCK_S):
                return self._find().take_up(path, name, empty=empty)
        except PenstockError as error:
            return [Tagged(path, k, v, refused(str(error))) for k, v in tags.items()]

    def _remember(self, results: list[Tagged]) -> None:
        for one in results:
            if one.support.how == "refused":
                self._refusals += 1
                self._refused.append(one)
            else:
                self._taken += 1


def _outside(node: RunningNode, path: str) -> str:
    """A path of a node as this host sees it."""
    return f"/proc/{node.pid}/root{path}"


def _same(fd: int, node: RunningNode, path: str) -> bool:
    """True if the path is still that of the open file."""
    try:
        there, here = os.stat(_outside(node, path), follow_symlinks=False), os.fstat(fd)
    except OSError:
        return False
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


def _attributes(fd: int) -> dict[str, str]:
    attributes = {}
    for name in os.listxattr(fd):
        if name.startswith("user."):
            with contextlib.suppress(OSError):
                attributes[name] = os.getxattr(fd, name).decode("utf-8", "replace")
    return attributes


def _ours(pid: int) -> bool:
    """True if a process was started by this one: a tool of the engine, which must not wait for itself."""
    me = os.getpid()
    while pid > 1 and pid != me:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            return False
        pid = int(status.partition("\nPPid:")[2].split(None, 1)[0])
    return pid == me
