"""Persistent disks, outside a study: one server process, which outlives the command.

The file `standing-disks.json` in the runtime directory has the server's process (pid and start time) and
control socket. The server ends with its last disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from penstock.emulate.backends.fuse import INSTANT_PROFILE
from penstock.emulate.cluster.capacity import refuse_too_fast
from penstock.emulate.disks.server import DiskOptions, DiskServer
from penstock.errors import BadInput, PenstockError
from penstock.host.journal.journal import Entry, Journal
from penstock.host.processes.daemon import Daemon, connect
from penstock.host.processes.processes import Identity, users_of
from penstock.host.storage.mounts import mounts_at
from penstock.platform.schedule import check_of_one_disk, for_disk
from penstock.profile.honour import SMALL_BYTES
from penstock.profile.load import load_profile
from penstock.profile.model import StorageProfile, native
from penstock.spec.cluster import Event
from penstock.state import closed, runtime_dir
from penstock.writing import write_atomic

if TYPE_CHECKING:
    from penstock.analyse.fidelity.fidelity_path import Vague

#: profile name of a disk without service time
NO_PROFILE = "none"
#: most bytes of a path in a disk_id, which is part of a file name
_MOST_ID_BYTES = 160


def up(
    profile: str,
    backing: Path,
    mount: Path,
    *,
    time_scale: float = 1.0,
    **options: Unpack[DiskOptions],
) -> dict[str, Any]:
    """Start a disk and return its description.

    `profile` may be NO_PROFILE: then only `patch` gives the disk a service time. Raises BadInput for a bad
    directory or profile, also for a profile that is faster than this host.
    """
    journal = Journal()
    served, warnings = _served(profile, time_scale, journal)
    with _lock():
        server = DiskServer(journal, runtime_dir(), outlive_owner=True)
        running = _running()
        if running is not None:
            server.adopt(running)
        disk_id = disk_id_at(mount)
        for other in server.list():
            if other["disk_id"] == disk_id:
                if not _is_mounted(other):
                    raise BadInput(_unmounted(mount))
                raise BadInput(f"a disk is up at {mount} already; `penstock disk set` changes it")
        add = partial(server.add, disk_id, mount, backing, served, **options)
        try:
            disk = add()
            if _vague(disk.compensation, served):
                # the host may have been busy for a moment
                server.remove(disk_id)
                disk = add()
            if vague := _vague(disk.compensation, served):
                server.remove(disk_id)
                raise BadInput(_refusal(vague, profile, time_scale))
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
        "transport": disk.transport,
        "warnings": warnings,
    }


def disk_id_at(mount: Path) -> str:
    """disk_id of the disk at `mount`, different for each directory.

    It is the path with hyphens. A path that has hyphens already, or is long, is followed by its digest.
    """
    path = os.fsencode(os.path.realpath(mount))
    hyphenated = path.strip(b"/").replace(b"/", b"-")
    if b"-" in path or len(hyphenated) > _MOST_ID_BYTES:
        hyphenated = (
            hyphenated[-_MOST_ID_BYTES:] + b"-" + hashlib.sha256(path).hexdigest()[:12].encode()
        )
    return "standing-" + hyphenated.decode(errors="replace")


def _vague(ways: Mapping[str, Any], served: str) -> list[Vague]:
    from penstock.analyse.fidelity.fidelity_path import vague

    profile = StorageProfile.from_json(served)
    means = {op: 1e9 * profile.moments(op, False, SMALL_BYTES).mean for op in ("read", "write")}
    return vague(ways, means)


def _refusal(vague: list[Vague], profile: str, time_scale: float) -> str:
    """Message after two imprecise calibrations, with a time scale that the host can emulate."""
    worst = max(vague, key=lambda way: way.share)
    honest = math.ceil(time_scale * worst.too_vague)
    return (
        f"profile {profile} at time_scale {time_scale:g}: {worst.message}; "
        f"under the current load of this host, its time_scale must be {honest} or more"
    )


def change(
    mount: Path, patch: Mapping[str, Any], profile: str | None = None, *, time_scale: float = 1.0
) -> dict[str, Any]:
    """Change the disk at `mount` now: by `patch`, and its profile if given.

    Returns planned_ns, applied_ns, verified_ns, asked and found.
    """
    requested, journal = dict(patch), Journal()
    if profile is None:
        _check_unscaled(time_scale)
    else:
        requested["profile"] = json.loads(_served(profile, time_scale, journal)[0])
    server, disk = _served_at(mount, journal)
    if "power_cut" in requested:
        if len(requested) > 1:
            raise BadInput("found power_cut with another change; expected it alone")
        requested_ns = time.monotonic_ns()
        cut = server.power_cut(disk["disk_id"])
        times = {
            "planned_ns": requested_ns,
            "applied_ns": cut["off_ns"],
            "verified_ns": cut["on_ns"],
        }
        return {**times, "asked": requested, "found": {"power_cut": cut["lost"]}}
    return server.patch(disk["disk_id"], requested)


def schedule(mount: Path, events: list[Event], *, replace: bool = False) -> int:
    """Schedule events of the disk at `mount`, counted from now, in its server; returns their number."""
    check_of_one_disk(events)
    server, disk = _served_at(mount, Journal())
    planned = for_disk(events, time.monotonic_ns())
    if not planned:
        raise BadInput("the schedule has no change of a disk")
    server.schedule(disk["disk_id"], planned, replace=replace)
    return len(planned)


def mark(mount: Path, phase: str) -> int:
    """Mark the start of a phase for the disk at `mount`; returns the number of changes that waited for it."""
    daemon, disk = _find(mount)
    return int(daemon.call("mark", disk_id=disk["disk_id"], phase=phase)["fired"])


def events(mount: Path) -> dict[str, Any]:
    """Applied and planned changes of the disk at `mount`, and its settings; see `DiskServer.events`."""
    daemon, disk = _find(mount)
    return daemon.call("events", disk_id=disk["disk_id"])


def power_cut(mount: Path, *, mode: str = "lost", seed: int = 0) -> dict[str, Any]:
    """Cut the power of the disk at `mount`; see `DiskServer.power_cut`."""
    server, disk = _served_at(mount, Journal())
    return server.power_cut(disk["disk_id"], mode=mode, seed=seed)


def status(mount: Path | None = None) -> list[dict[str, Any]]:
    """The persistent disks (or the one at `mount`) with their counters as `stats`.

    `mounted` is false for a disk that another program has unmounted.
    """
    if mount is not None:
        daemon, disk = _find(mount)
        disks = [disk]
    else:
        running = _running()
        if running is None:
            return []
        daemon, disks = running, daemon_disks(running)
    return [
        {
            **d,
            "mounted": _is_mounted(d),
            "stats": daemon.call("stats", disk_id=d["disk_id"]),
            "active": daemon.call("events", disk_id=d["disk_id"])["active"],
        }
        for d in disks
    ]


def check_server() -> None:
    """Raises PenstockError if the server of the persistent disks runs and does not respond."""
    running = _running()
    if running is not None and (fault := running.fault()) and running.alive:
        raise PenstockError(
            f"the disk server (process {running.pid}) {fault}: the files of its disks cannot be "
            "used; end it, then `penstock undo` removes its mounts"
        )


def dead() -> list[dict[str, Any]]:
    """Mounts of disks whose server has died: `mount`, and the server's former `pid`.

    They fail all requests; `penstock.host.journal.undo` removes them.
    """
    return [
        {"mount": entry.target, "pid": entry.owner.pid}
        for entry in Journal().open_entries()
        if entry.kind == "mount" and not entry.owner.alive and _is_served(entry)
    ]


def _is_served(entry: Entry) -> bool:
    """True if the disk server's mount of the entry exists."""
    return any(
        mount.fstype == "fuse.penstock" and mount.source == f"penstock:{entry.token}"
        for mount in mounts_at(entry.target)
    )


def down(mount: Path, *, force: bool = False) -> dict[str, Any]:
    """Stop the disk at `mount` and return its last counters; the last one ends the server.

    Unless `force`, raises PenstockError with the names of programs that have files or directories of it open.
    """
    journal = Journal()
    with _lock():
        daemon, disk = _find(mount, also_unmounted=True)
        users = [] if force or not _is_mounted(disk) else users_of(mount)
        if users:
            some = ", ".join(f"{name} (process {pid})" for pid, name in users[:5])
            more = f" and {len(users) - 5} more" if len(users) > 5 else ""
            raise PenstockError(
                f"{mount} is in use by {some}{more}; end them first, or unmount it with --force"
            )
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
    """Switch the request log of the disk at `mount` to `log` or off; returns the disk's description.

    With `exact`, files opened from now on bypass the page cache, until a call without it.
    """
    daemon, disk = _find(mount)
    daemon.call("exact", disk_id=disk["disk_id"], on=exact)
    daemon.call("log", disk_id=disk["disk_id"], path=None if log is None else str(log))
    return {**disk, "stats": daemon.call("stats", disk_id=disk["disk_id"])}


@dataclass
class Recording:
    """A disk whose requests are logged: its description before, and `after` the end."""

    before: dict[str, Any]
    after: dict[str, Any]


@contextlib.contextmanager
def recording(mount: Path, log: Path, *, exact: bool, journal: Journal) -> Iterator[Recording]:
    """Log the requests of the disk at `mount` to `log` in this context, see `record`; `undo` handles crashes.

    Raises BadInput if there is no disk, or another command is recording it.
    """
    daemon, disk = _find(mount)
    server = Identity.of(daemon.pid)
    with _lock():
        for open_entry in journal.open_entries():
            if open_entry.kind == "recording" and open_entry.target == disk["mount"]:
                if open_entry.owner.alive:
                    raise BadInput(
                        f"--disk: {mount} is being traced already, by process {open_entry.owner.pid}"
                    )
                journal.undone(open_entry)  # its changes are made again
        about = {"disk_id": disk["disk_id"], "socket": str(daemon.socket_path), "log": str(log)}
        about |= {"pid": daemon.pid, "start": server.start if server is not None else 0}
        entry = journal.plan("recording", disk["mount"], new=about)
    try:
        before = record(mount, log, exact=exact)
        result = Recording(before, before)
        journal.done(entry)
        yield result
    finally:
        after = record(mount, None)
        journal.undone(entry)
    result.after = after


def daemon_disks(daemon: Daemon) -> list[dict[str, Any]]:
    """Disks of a server."""
    return sorted(daemon.call("list")["disks"], key=lambda d: str(d["mount"]))


def _served(profile: str, time_scale: float, journal: Journal) -> tuple[str, list[str]]:
    """JSON of a profile, scaled, and warnings. Raises BadInput if it is faster than this host."""
    if profile == NO_PROFILE:
        _check_unscaled(time_scale)
        return json.dumps(INSTANT_PROFILE), []
    served = _scaled(profile, time_scale)
    return served, refuse_too_fast([StorageProfile.from_json(served)], journal)


def _check_unscaled(time_scale: float) -> None:
    """Raise BadInput for a time scale without a profile, which it would not change."""
    if time_scale != 1.0:
        raise BadInput(
            f"time scale: found {time_scale:g} without a profile; expected a profile, which it makes slower"
        )


def _scaled(profile: str, time_scale: float) -> str:
    text = load_profile(profile).json
    if time_scale == 1.0:
        return text
    try:
        return str(native.profile_scaled(text, time_scale))
    except ValueError as error:
        raise BadInput(f"profile {profile} at time scale {time_scale:g}: {error}") from error


def _is_mounted(disk: Mapping[str, Any]) -> bool:
    """True unless another program has unmounted the disk."""
    return any(
        mount.device == tuple(disk["dev"]) for mount in mounts_at(os.path.realpath(disk["mount"]))
    )


def _unmounted(mount: Path) -> str:
    return (
        f"another program has unmounted the disk at {mount}; `penstock disk down {mount}` stops it, its "
        "files are in the backing directory"
    )


def _find(mount: Path, *, also_unmounted: bool = False) -> tuple[Daemon, dict[str, Any]]:
    real_mount = os.path.realpath(mount)
    running = _running()
    if running is not None:
        for disk in daemon_disks(running):
            if os.path.realpath(disk["mount"]) == real_mount:
                if not also_unmounted and not _is_mounted(disk):
                    raise BadInput(_unmounted(mount))
                return running, disk
    for gone in dead():
        if gone["mount"] == os.path.abspath(mount):
            raise BadInput(
                f"the server of the disk at {mount} is gone (process {gone['pid']} has died); "
                "`penstock undo` removes the mount, its files are in the backing directory"
            )
    raise BadInput(f"no disk of `penstock disk up` is at {mount}")


def _served_at(mount: Path, journal: Journal) -> tuple[DiskServer, dict[str, Any]]:
    """Server of the disk at `mount`, with a journal, and the disk."""
    daemon, disk = _find(mount)
    server = DiskServer(journal, runtime_dir(), outlive_owner=True)
    server.adopt(daemon)
    return server, disk


def _state_file() -> Path:
    return runtime_dir() / "standing-disks.json"


def _remember(daemon: Daemon) -> None:
    identity = Identity.of(daemon.pid)
    assert identity is not None
    facts = {**vars(identity), "socket": str(daemon.socket_path)}
    write_atomic(_state_file(), json.dumps(facts))


def _running() -> Daemon | None:
    try:
        facts = json.loads(_state_file().read_text())
        identity = Identity(facts["boot_id"], facts["pid"], facts["start"])
    except (OSError, ValueError, KeyError):
        return None
    return connect("disk", identity.pid, facts["socket"]) if identity.alive else None


@contextlib.contextmanager
def _lock() -> Iterator[None]:
    with open(runtime_dir() / "standing-disks.lock", "w", opener=closed) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
