"""Disks that stand without a study: one server process of their own, which outlives the command.

The server is found again by the file `standing-disks.json` in the runtime directory, which names its
process (pid and start time) and its control socket. It ends with its last disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock.emulate.disk import DiskServer
from penstock.errors import BadInput
from penstock.host.daemon import Daemon, connect
from penstock.host.floor import host_floor
from penstock.host.journal import Journal
from penstock.host.processes import Identity
from penstock.host.state import runtime_dir
from penstock.profile.honour import check_honourable
from penstock.profile.load import load_profile
from penstock.profile.model import StorageProfile


def up(
    profile: str,
    backing: Path,
    mount: Path,
    *,
    time_scale: float = 1.0,
    durable: bool = False,
    slow_by: float = 0.0,
) -> dict[str, Any]:
    """Puts a disk up and gives its description.

    Raises BadInput for a bad directory or profile, also for one that is faster than this host can be.
    """
    served = _scaled(profile, time_scale)
    journal = Journal()
    check_honourable(StorageProfile.from_json(served), host_floor(journal))
    with _lock():
        server = DiskServer(journal, runtime_dir(), outlive_owner=True)
        running = _running()
        if running is not None:
            server.adopt(running)
        disk_id = "standing-" + os.fspath(mount.absolute()).strip("/").replace("/", "-")
        before = {d["disk_id"] for d in server.list()}
        if disk_id in before:
            raise BadInput(f"a disk is up at {mount} already; `penstock disk set` changes it")
        try:
            disk = server.add(disk_id, mount, backing, served, durable=durable, slow_by=slow_by)
        except BaseException:
            if running is None:
                server.stop()
            raise
        if running is None:
            _remember(server.daemon)
    return {
        "disk_id": disk_id,
        "mount": str(disk.mount),
        "backing": str(disk.backing),
        "profile": profile,
        "time_scale": time_scale,
        "device": list(disk.device),
        "pid": server.daemon.pid,
        "stats_file": str(disk.stats_file),
        "compensation": disk.compensation,
    }


def set_profile(mount: Path, profile: str, *, time_scale: float = 1.0) -> None:
    """Changes the profile of the disk at `mount`."""
    served = _scaled(profile, time_scale)
    daemon, disk = _find(mount)
    daemon.call("set", disk_id=disk["disk_id"], profile=json.loads(served))


def status(mount: Path | None = None) -> list[dict[str, Any]]:
    """The standing disks (or the one at `mount`) with their counters as `stats`."""
    if mount is not None:
        daemon, disk = _find(mount)
        disks = [disk]
    else:
        running = _running()
        if running is None:
            return []
        daemon, disks = running, daemon_disks(running)
    return [{**d, "stats": daemon.call("stats", disk_id=d["disk_id"])} for d in disks]


def down(mount: Path) -> dict[str, Any]:
    """Takes the disk at `mount` down and gives its last counters; the last one ends the server."""
    journal = Journal()
    with _lock():
        daemon, disk = _find(mount)
        last = daemon.call("remove", disk_id=disk["disk_id"])
        entries = [e for e in journal.open_entries() if e.owner.pid == daemon.pid]
        for entry in entries:
            if entry.kind == "mount" and entry.facts.get("disk_id") == disk["disk_id"]:
                journal.undone(entry)
        if not daemon_disks(daemon):
            daemon.stop()
            for entry in entries:
                if entry.kind == "process":
                    journal.undone(entry)
            _state_file().unlink(missing_ok=True)
    return dict(last["stats"])


def record(mount: Path, log: Path | None, *, exact: bool = False) -> dict[str, Any]:
    """Switches the request log of the disk at `mount`, to `log` or off; gives the disk's description.

    With `exact`, files opened from now on bypass the page cache, until this is called again without.
    """
    daemon, disk = _find(mount)
    daemon.call("exact", disk_id=disk["disk_id"], on=exact)
    daemon.call("log", disk_id=disk["disk_id"], path=None if log is None else str(log))
    return {**disk, "stats": daemon.call("stats", disk_id=disk["disk_id"])}


def daemon_disks(daemon: Daemon) -> list[dict[str, Any]]:
    """The disks a server knows."""
    return sorted(daemon.call("list")["disks"], key=lambda d: str(d["mount"]))


def _scaled(profile: str, time_scale: float) -> str:
    from penstock.profile.model import native

    text = load_profile(profile).json
    if time_scale == 1.0:
        return text
    try:
        return str(native.profile_scaled(text, time_scale))
    except ValueError as error:
        raise BadInput(f"profile {profile} at time scale {time_scale:g}: {error}") from error


def _find(mount: Path) -> tuple[Daemon, dict[str, Any]]:
    wanted = os.path.realpath(mount)
    running = _running()
    if running is not None:
        for disk in daemon_disks(running):
            if os.path.realpath(disk["mount"]) == wanted:
                return running, disk
    raise BadInput(f"no disk of `penstock disk up` is at {mount}")


def _state_file() -> Path:
    return runtime_dir() / "standing-disks.json"


def _remember(daemon: Daemon) -> None:
    identity = Identity.of(daemon.pid)
    assert identity is not None
    facts = {**vars(identity), "socket": str(daemon.socket_path)}
    _state_file().write_text(json.dumps(facts))


def _running() -> Daemon | None:
    try:
        facts = json.loads(_state_file().read_text())
        identity = Identity(facts["boot_id"], facts["pid"], facts["start"])
    except (OSError, ValueError, KeyError):
        return None
    return connect("disk", identity.pid, facts["socket"]) if identity.alive else None


@contextlib.contextmanager
def _lock() -> Iterator[None]:
    with open(runtime_dir() / "standing-disks.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
