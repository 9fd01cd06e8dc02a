"""Deduplicating mounts: start, find, change, end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import BadInput, PenstockError
from penstock.host.journal.journal import Entry, Journal
from penstock.host.processes.daemon import Daemon, connect, start_daemon, stop_entirely
from penstock.host.processes.processes import users_of
from penstock.host.storage.mounts import has_mount
from penstock.parts.dedup.options import HASHES, MountOptions, normal_chunking, one_of

_KIND = "dedup"
_MODULE = "penstock.parts.dedup.server"


@dataclass(frozen=True)
class DedupMount:
    """A mount whose server runs."""

    store: Path
    mount: Path
    daemon: Daemon

    def status(self) -> dict[str, Any]:
        """Configuration, totals and the last records of the server."""
        return self.daemon.call("status")

    def change(
        self, *, chunking: str | None = None, hash_name: str | None = None
    ) -> dict[str, Any]:
        """Change the configuration of the versions that start from now on; returns the new one."""
        if chunking is not None:
            chunking = normal_chunking(chunking)
        if hash_name is not None:
            one_of("hash", hash_name, HASHES)
        return self.daemon.call("set", chunking=chunking, hash=hash_name)


def mount(
    store: Path, point: Path, options: MountOptions | None = None, *, outlive: bool = True
) -> DedupMount:
    """Mount the store in the directory `store`, which may be empty, at `point`.

    With `outlive` the server stays when this process ends. Raises BadInput for unusable directories,
    PenstockError if the server does not start.
    """
    options = options or MountOptions()
    store, point = _directory("store", store), _directory("mount point", point)
    if store.is_relative_to(point) or point.is_relative_to(store):
        raise BadInput(
            f"mount point: found {point}; expected a directory not above or in the store"
        )
    journal = Journal()
    if any(same.mount == point for same in mounts()):
        raise BadInput(f"mount point: found a deduplicating mount at {point}; expected none")
    entry = journal.plan("mount", point)
    config = options.server_config()
    config |= {"store": str(store), "mount": str(point), "token": entry.token}
    try:
        daemon = start_daemon(_KIND, {**config, "outlive_owner": outlive}, journal, module=_MODULE)
    except BaseException:
        if not has_mount(point, entry.token):
            journal.undone(entry)
        raise
    facts = {"store": str(store), "socket": str(daemon.socket_path), "pid": daemon.pid}
    journal.done(entry, dedup=facts)
    if outlive:
        journal.hand_over(entry, daemon.pid)
    return DedupMount(store, point, daemon)


@contextlib.contextmanager
def mounted(store: Path, point: Path, options: MountOptions | None = None) -> Iterator[DedupMount]:
    """Context of a mount that ends with it."""
    served = mount(store, point, options, outlive=False)
    try:
        yield served
    finally:
        unmount(served.mount, force=True)


def mounts() -> list[DedupMount]:
    """Mounts whose server runs."""
    return [served for served in map(_of, _entries()) if served.daemon.alive]


def dead() -> list[Entry]:
    """Journal entries of mounts whose server has died; `penstock undo` removes them."""
    return [entry for entry in _entries() if not _of(entry).daemon.alive]


def find(path: Path) -> DedupMount:
    """The mount at `path`, or of the store there. Raises BadInput if there is none."""
    real = Path(os.path.realpath(path))
    for served in mounts():
        if real in (served.mount, served.store):
            return served
    places = ", ".join(str(served.mount) for served in mounts()) or "none"
    raise BadInput(f"{path}: found no deduplicating mount; expected one of: {places}")


def unmount(path: Path, *, force: bool = False) -> dict[str, Any]:
    """End the mount at `path`; returns the server's last status.

    Unless `force`, raises PenstockError with the names of programs that use it.
    """
    served = find(path)
    users = [] if force else users_of(served.mount)
    if users:
        names = ", ".join(f"{name} (process {pid})" for pid, name in users[:5])
        more = f" and {len(users) - 5} more" if len(users) > 5 else ""
        raise PenstockError(
            f"{served.mount} is in use by {names}{more}; end them first, or unmount it with --force"
        )
    journal, last = Journal(), served.status()
    entries = [entry for entry in _entries() if _of(entry).daemon.pid == served.daemon.pid]
    stop_entirely(served.daemon, journal)
    for entry in entries:
        # the server closes the entry of a mount that outlives its command
        if not has_mount(served.mount, entry.token) and entry in journal.open_entries():
            journal.undone(entry)
    return last


def _entries() -> list[Entry]:
    return [
        entry
        for entry in Journal().open_entries()
        if entry.kind == "mount" and _KIND in entry.facts and has_mount(entry.target, entry.token)
    ]


def _of(entry: Entry) -> DedupMount:
    facts = entry.facts[_KIND]
    daemon = connect(_KIND, int(facts["pid"]), facts["socket"])
    return DedupMount(Path(facts["store"]), Path(entry.target), daemon)


def _directory(what: str, path: Path) -> Path:
    real = Path(os.path.realpath(path))
    if not real.is_dir():
        raise BadInput(f"{what}: found no directory {path}; expected one")
    return real
