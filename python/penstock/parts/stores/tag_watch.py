"""Tags set by programs with setfattr(1) or setxattr(2): applied at the file's next open.

An open of an empty file with tags blocks until the engine has applied them, so that its first byte is placed
accordingly. Data do not pass through this process; each open of a file costs a permission event. The process
runs as long as the store is up; the kernel allows all opens when it ends.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from penstock.emulate.cluster.cluster import RunningNode
from penstock.emulate.cluster.running_cluster import RunningCluster
from penstock.errors import PenstockError
from penstock.host.storage.opens import PendingOpen, PendingOpens
from penstock.parts.stores.lock import changing
from penstock.parts.stores.tags import Tagged, own, untaken
from penstock.spec.store import Roles, StoreSpec, refused

#: longest wait of an open for its file's tags; it proceeds without them [s]
_PATIENCE_S = 20.0
#: longest wait for another command's lock of the store [s]
_LOCK_S = 5.0
#: recorded refusals: a run predicts its workflow without them
_MOST_REFUSED = 10_000
_MOST_WAITING = 1000


class TaggedStore(Protocol):
    """Parts of a store used by the watch."""

    cluster: RunningCluster
    spec: StoreSpec
    roles: Roles

    def take_up(self, full_path: str, node: str, *, empty: bool) -> list[Tagged]:
        """Apply the tags of a file that `node` opens."""


@dataclass(frozen=True)
class _Mount:
    """A client's mount: a process whose `root` shows it, and its device."""

    pid: int
    device: int
    opens: PendingOpens


class TagWatch:
    """Intercepts opens of files on the mounts of a store; `find` returns its current state.

    PenstockError if opens cannot be intercepted.
    """

    def __init__(self, find: Callable[[], TaggedStore]) -> None:
        self._find = find
        self._mounts: dict[str, _Mount] = {}
        self._pool = ThreadPoolExecutor(8, thread_name_prefix="tags")
        self._applying = threading.Lock()
        self._waiting = 0
        self._taken = 0
        self._refusals = 0
        self._forgotten = 0
        #: by path and key
        self._refused: dict[tuple[str, str], Tagged] = {}

    def hold(self) -> None:
        """Intercept opens of every client's mount, including new ones."""
        store = self._find()
        nodes, mount = store.cluster.nodes, store.spec.mount
        for name in store.roles.clients:
            mounted, node = self._mounts.get(name), nodes[name]
            try:
                seen = (node.pid, os.stat(_outside(node, mount)).st_dev)
            except OSError:  # it died, or has no mounts
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
        """Allow all pending opens and stop."""
        for mount in self._mounts.values():
            mount.opens.close()
        self._mounts.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def report(self) -> dict[str, Any]:
        """JSON values: numbers of `taken` tags and `refusals`, the `refused` ones, and those `forgotten`."""
        counts = {"taken": self._taken, "refusals": self._refusals, "forgotten": self._forgotten}
        return {**counts, "refused": [t.to_dict() for t in list(self._refused.values())]}

    def _read(self, name: str, node: RunningNode, opens: PendingOpens) -> None:
        for pending in opens:
            try:
                if not self._judged(name, node, pending):
                    pending.close()
            except (OSError, RuntimeError):  # closed meanwhile, or the watch ends
                pending.close()

    def _judged(self, name: str, node: RunningNode, pending: PendingOpen) -> bool:
        """Allow an open, or defer it. True if the file is still needed."""
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
            with self._applying:  # a concurrent opener of the same file may have applied its tags
                tags = _attributes(pending.fd)
                if not untaken(tags, name, empty=empty):
                    return
                self._remember(self._taken_up(name, node, pending.fd, own(tags), empty))
        except OSError:  # the file or the store is gone
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
                raise PenstockError("it was moved")
            with changing(_LOCK_S):
                return self._find().take_up(path, name, empty=empty)
        except PenstockError as error:
            return [Tagged(path, k, v, refused(str(error))) for k, v in tags.items()]

    def _remember(self, results: list[Tagged]) -> None:
        for one in results:
            if one.support.how == "refused":
                self._refusals += 1
                self._refused.pop((one.path, one.key), None)
                self._refused[one.path, one.key] = one
                if len(self._refused) > _MOST_REFUSED:
                    del self._refused[next(iter(self._refused))]
                    self._forgotten += 1
            else:
                self._taken += 1


def _outside(node: RunningNode, path: str) -> str:
    """Path on this host of a path in a node."""
    return f"/proc/{node.pid}/root{path}"


def _same(fd: int, node: RunningNode, path: str) -> bool:
    """True if the path still refers to the open file."""
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
    """True for a child of this process: a tool of the engine, which must not wait for its own request."""
    me = os.getpid()
    while pid > 1 and pid != me:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            return False
        pid = int(status.partition("\nPPid:")[2].split(None, 1)[0])
    return pid == me
