"""Network namespaces that are pinned at a path of the runtime directory, and their removal."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

from penstock.errors import PenstockError
from penstock.host.journal.journal import Entry, Journal, new_token
from penstock.host.network.netlink import GROUP, Netlink
from penstock.host.network.netns import CLONE_NEWNET, LIBC, call
from penstock.host.nodes.namespaces import in_a_thread
from penstock.host.storage.mounts import mounts_at, unmount
from penstock.state import runtime_dir

_MS_BIND = 4096


def pin_namespace(journal: Journal, run: str | None = None) -> Entry:
    """Create a network namespace and pin it at a path of the runtime directory (the entry's target)."""
    token = new_token()
    path = runtime_dir() / f"netns-{token}"
    entry = journal.plan("netns", path, run=run, token=token)

    def make() -> None:
        path.touch()
        call("unshare(CLONE_NEWNET)", LIBC.unshare(CLONE_NEWNET))
        source = f"/proc/self/task/{threading.get_native_id()}/ns/net"
        target = os.fsencode(path)
        call(
            f"pinning a namespace at {path}",
            LIBC.mount(source.encode(), target, b"none", _MS_BIND, None),
        )

    try:
        in_a_thread(make)
        journal.done(entry)
    except BaseException:
        take_namespace(entry)
        journal.undone(entry)
        raise
    return entry


def take_namespace(entry: Entry) -> bool:
    """Remove a pinned namespace with every link in it and ours outside; False if there was none."""
    path = Path(entry.target)
    if entry.token not in path.name:
        return False
    removed = False
    with contextlib.suppress(PenstockError), Netlink() as root:
        for index, name in root.links():
            if entry.token in name:
                removed = True
                root.delete_link(index)
    while stack := mounts_at(path):
        if stack[-1].fstype != "nsfs":
            raise PenstockError(f"{stack[-1].source} was mounted over {path}")
        # links first: a copy of the mount in another mount namespace may keep this one
        with contextlib.suppress(PenstockError), Netlink(path) as there:
            there.delete_group(GROUP)
        unmount(path)
        removed = True
    if path.exists():
        path.unlink()
        removed = True
    return removed
