"""Emulated disks: the disk server of one owner, and its disks."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from penstock.emulate.disks import transport as transports
from penstock.emulate.disks.floor import stored_floor
from penstock.emulate.disks.transport import DEVICE, IO_URING, missing, required, usable
from penstock.emulate.failure import Failure
from penstock.errors import BadInput, PenstockError, Refused
from penstock.host.journal.journal import Entry, Journal, Values
from penstock.host.processes.daemon import Daemon, start_daemon
from penstock.host.storage.mounts import has_mount

if TYPE_CHECKING:
    import pyarrow as pa

#: share of a node's memory for dirty pages of one disk (vm.dirty_ratio of Linux)
DIRTY_SHARE = 0.2
#: most dirty pages of one disk if the node's memory is unlimited [bytes]
MOST_DIRTY_BYTES = 64 << 20
#: fewest, so that write-back still uses large requests [bytes]
LEAST_DIRTY_BYTES = 4 << 20


@dataclass(frozen=True)
class EmulatedDisk:
    """A disk that is up."""

    disk_id: str
    mount: Path
    backing: Path
    #: device number of its files (major, minor)
    device: tuple[int, int]
    #: page with its counters, for mmap
    stats_file: Path
    #: path overhead subtracted from arrivals, by direction: base_ns, per_byte_ns
    compensation: dict[str, dict[str, float]]
    #: transport of its requests (`transport.TRANSPORTS`)
    transport: str = DEVICE


def dirty_bytes(memory_bytes: int | None) -> int:
    """Most dirty pages of a disk of a node with that memory [bytes]."""
    if memory_bytes is None:
        return MOST_DIRTY_BYTES
    share = int(DIRTY_SHARE * memory_bytes)
    return max(LEAST_DIRTY_BYTES, min(MOST_DIRTY_BYTES, share))


def dirty_bytes_of_node(nodes: int, vmstat: str) -> int:
    """Most dirty pages of a disk of one of `nodes` without a memory limit [bytes], from /proc/vmstat.

    Nodes and the host have equal parts of the host's own limit: a real node would have that of its memory.
    The kernel refuses a disk more than the host's limit.
    """
    pages = dict(line.split() for line in vmstat.splitlines()).get("nr_dirty_threshold", "0")
    return max(MOST_DIRTY_BYTES, int(pages) * os.sysconf("SC_PAGE_SIZE") // (nodes + 1))


def profile_object(profile: Any) -> dict[str, Any]:
    """A StorageProfile in the server's form, from a model, a mapping or JSON text."""
    if hasattr(profile, "to_dict"):
        return dict(profile.to_dict())
    if isinstance(profile, str | bytes):
        profile = json.loads(profile)
    if not isinstance(profile, Mapping):
        raise TypeError(f"not a storage profile: {type(profile).__name__}")
    return dict(profile)


class DiskOptions(TypedDict, total=False):
    """Options of a disk."""

    #: file of its requests
    log: str | os.PathLike[str] | None
    #: seed of its random draws; 0
    seed: int
    #: for tests: `slow_by` (share by which it is slower than its profile without accounting for it),
    #: `reply_sleep_s`, `timer_late_s` (before each reply), `lock_held_s` (the disk's lock, once a second)
    plant: Mapping[str, float] | None
    #: wait for the host's disk in each flush
    durable: bool
    #: memory of the node
    memory_bytes: int | None
    #: limit of its dirty pages; by default according to `memory_bytes`
    most_dirty_bytes: int | None
    #: readahead of the kernel; 128 KiB
    readahead_bytes: int
    #: requests that the kernel sends at the same time; 128
    max_background: int
    #: subtract the path overhead; True
    calibrate: bool
    #: size of the disk; None: that of the host's file system
    size_bytes: int | None
    #: uid and gid that see files of the backing directory's owner as their own; setuid and setgid files,
    #: capabilities and devices are refused
    owner: tuple[int, int] | None
    #: propagate the mount to mount namespaces that have the mount point
    shared: bool
    #: store unflushed data separately, so that `power_cut` can discard them
    volatile: bool
    #: initial changes
    patch: Mapping[str, Any] | None
    #: run to which the entry in the journal belongs
    run: str | None
    #: transport of its requests; None: $PENSTOCK_TRANSPORT, else the one measured to be faster on this host
    transport: str | None


class DiskServer:
    """One server process for all disks of its owner; started at the first `add`.

    Every change of the host is recorded in the journal first. Stopping it stops all its disks.
    """

    def __init__(
        self,
        journal: Journal,
        state_dir: str | os.PathLike[str],
        *,
        owner_pid: int | None = None,
        outlive_owner: bool = False,
        readers: int = 2,
        timers: int = 2,
        run: str | None = None,
    ) -> None:
        self._journal = journal
        self._dir = Path(state_dir)
        self._config = {
            "owner_pid": owner_pid or os.getpid(),
            "outlive_owner": outlive_owner,
            "readers": readers,
            "timers": timers,
            "stats_dir": str(self._dir / "disk-stats"),
        }
        self._run = run
        self._daemon: Daemon | None = None
        self._disks: dict[str, EmulatedDisk] = {}
        self._entries: dict[str, Entry] = {}
        #: disks whose power can be cut, for which the kernel keeps offering io_uring
        self._offers: dict[str, Entry | None] = {}

    @property
    def daemon(self) -> Daemon:
        """Server process, started at first use."""
        if self._daemon is None:
            self._dir.mkdir(parents=True, exist_ok=True)
            self._daemon = start_daemon(
                "disk", self._config, self._journal, self._dir / "disk-server.log", run=self._run
            )
        return self._daemon

    def failures(self) -> list[Failure]:
        """The server, if it is dead or does not respond: all files of its disks are then unusable."""
        if self._daemon is None or not (fault := self._daemon.fault()):
            return []
        disks = ", ".join(self._disks) or "none"
        process = f"disk server (process {self._daemon.pid})"
        message = f"{process} {fault}: no file can be used of the disks {disks}"
        return [Failure("disk server", message, self._daemon.pid)]

    def adopt(self, daemon: Daemon) -> None:
        """Use a running server; its disks are known from the journal."""
        self._daemon = daemon
        for entry in self._journal.open_entries():
            if entry.kind == "mount" and entry.owner.pid == daemon.pid and "disk_id" in entry.facts:
                self._entries[str(entry.facts["disk_id"])] = entry

    @property
    def disks(self) -> dict[str, EmulatedDisk]:
        """Disks that are up, by name."""
        return dict(self._disks)

    def add(
        self,
        disk_id: str,
        mount: str | os.PathLike[str],
        backing: str | os.PathLike[str],
        profile: Any,
        **options: Unpack[DiskOptions],
    ) -> EmulatedDisk:
        """Serve `backing` at `mount` at the speed of `profile` (already scaled in time).

        Raises BadInput if a directory or the transport is unusable, PenstockError if the host refuses.
        """
        if unknown := options.keys() - DiskOptions.__annotations__.keys():
            raise TypeError(f"not an option of a disk: {', '.join(sorted(unknown))}")
        profile = profile_object(profile)
        durable = options.get("durable", False)
        transport = _transport_of(options.get("transport"), profile, durable=durable)
        mount_path = _directory("mount point", mount)
        backing_path = _directory("backing directory", backing)
        log, owner = options.get("log"), options.get("owner")
        plant, patch = options.get("plant"), options.get("patch")
        most_dirty_bytes = options.get("most_dirty_bytes")
        request = {
            "disk_id": disk_id,
            "mount": str(mount_path),
            "backing": str(backing_path),
            "profile": profile,
            "log": None if log is None else str(Path(log).absolute()),
            "seed": options.get("seed", 0),
            "plant": None if plant is None else dict(plant),
            "durable": durable,
            "readahead_bytes": options.get("readahead_bytes", 128 * 1024),
            "max_background": options.get("max_background", 128),
            "dirty_bytes": most_dirty_bytes or dirty_bytes(options.get("memory_bytes")),
            "compensation": None if options.get("calibrate", True) else NO_COMPENSATION,
            "size_bytes": options.get("size_bytes"),
            "owner": None if owner is None else {"uid": owner[0], "gid": owner[1]},
            "shared": options.get("shared", False),
            "volatile": options.get("volatile", False),
            "patch": None if patch is None else dict(patch),
            "transport": transport,
        }
        answer = self._start(request, options.get("run") or self._run)
        stats_file = Path(str(self._config["stats_dir"])) / f"{disk_id}.stats"
        disk = EmulatedDisk(
            disk_id=disk_id,
            mount=mount_path,
            backing=backing_path,
            device=_device(answer),
            stats_file=stats_file,
            compensation=answer["compensation"],
            transport=answer["transport"],
        )
        self._disks[disk_id] = disk
        return disk

    def _start(self, request: Mapping[str, Any], run: str | None) -> Mapping[str, Any]:
        """Start a disk by a request to the server, recorded in the journal; returns the answer."""
        disk_id, mount = request["disk_id"], request["mount"]
        daemon = self.daemon
        entry = self._journal.plan("mount", mount, run=run)
        offered = contextlib.ExitStack()
        try:
            if request["transport"] == IO_URING:
                # for a server that outlives this process, no process would restore the setting
                stays = request["volatile"] and not self._config["outlive_owner"]
                self._offer(disk_id, offered, run, stays=stays)
            answer = daemon.call("add", **request, token=entry.token)
            self._journal.done(entry, disk_id=disk_id)
            if self._config["outlive_owner"]:
                self._journal.hand_over(entry, daemon.pid)
        except BaseException:
            if has_mount(mount, entry.token):
                with contextlib.suppress(PenstockError):
                    daemon.call("remove", disk_id=disk_id, hurry=True)
            if not has_mount(mount, entry.token):
                self._journal.undone(entry)
            offered.close()
            self._withdraw(disk_id)
            raise
        finally:
            offered.close()
        self._entries[disk_id] = entry
        return answer

    def set(
        self, disk_id: str, profile: Any, *, seed: int = 0, slow_by: float | None = None
    ) -> None:
        """Change a disk's profile from now on."""
        self.announce(disk_id, {"profile": profile_object(profile).get("name"), "seed": seed})
        self.daemon.call(
            "set", disk_id=disk_id, profile=profile_object(profile), seed=seed, slow_by=slow_by
        )

    def patch(
        self, disk_id: str, patch: Mapping[str, Any], *, planned_ns: int | None = None
    ) -> dict[str, Any]:
        """Change a disk now, read it back; returns planned_ns, applied_ns, verified_ns, asked, found.

        `patch` as in docs/emulation.md: absent keys stay, None or "max" resets. Raises PenstockError for
        contradictory values, without any change.
        """
        self.announce(disk_id, dict(patch))
        return self.daemon.call("patch", disk_id=disk_id, patch=dict(patch), planned_ns=planned_ns)

    def schedule(
        self, disk_id: str, events: Iterable[Mapping[str, Any]], *, replace: bool = False
    ) -> None:
        """Schedule changes in the server: `{"at_ns": CLOCK_MONOTONIC, "patch": …}`,
        `{"phase", "after_ns", "patch"}` or `{"metric", "above" or "below", "after_ns", "patch"}`.

        All or, if one is invalid, none. `replace` drops the earlier schedule.
        """
        listed = [dict(event) for event in events]
        self.announce(disk_id, {"schedule": {"events": len(listed), "replace": replace}})
        self.daemon.call("schedule", disk_id=disk_id, events=listed, replace=replace)

    def altering(self, disk_id: str, requested: Any) -> list[tuple[Entry, Values]]:
        """Values that `requested` changes on a disk, with those in force now, for the journal."""
        if disk_id not in self._entries:
            raise PenstockError(
                f"the undo journal {self._journal.path} does not contain the disk {disk_id}; expected the "
                "journal with which it was started ($PENSTOCK_STATE)"
            )
        now = self.daemon.call("events", disk_id=disk_id)["settings"]
        return [(self._entries[disk_id], {f"disk {disk_id}": (now, requested)})]

    def announce(self, disk_id: str, requested: Any) -> None:
        """Record a change of a disk in the journal. Raises JournalFailure if that fails."""
        self._journal.alter(self.altering(disk_id, requested))

    def mark(self, phase: str, *, disk_id: str | None = None, t_ns: int | None = None) -> int:
        """Mark the start of a phase (now, or at `t_ns`); returns the number of planned changes it
        triggered."""
        answer = self.daemon.call("mark", disk_id=disk_id, phase=phase, t_ns=t_ns)
        return int(answer["fired"])

    def events(self, disk_id: str) -> dict[str, Any]:
        """`events`: applied changes, with planned_ns, applied_ns, verified_ns, asked, found, error, active;
        `pending`: planned ones; `active` and `settings`: values in force."""
        return self.daemon.call("events", disk_id=disk_id)

    def power_cut(self, disk_id: str, *, mode: str = "lost", seed: int = 0) -> dict[str, Any]:
        """Cut and restore the power: unflushed data are `lost` or `torn`, open files fail, the mount is new.
        Returns the losses. The disk must be volatile."""
        self.announce(disk_id, {"power_cut": mode})
        with contextlib.ExitStack() as offered:
            over_ring = any(
                d["disk_id"] == disk_id and d["transport"] == IO_URING for d in self.list()
            )
            if over_ring and disk_id not in self._offers:
                self._offer(disk_id, offered, self._run, stays=False)
            answer = self.daemon.call("power_cut", disk_id=disk_id, mode=mode, seed=seed)
        disk = self._disks.get(disk_id)
        if disk is not None:
            self._disks[disk_id] = replace(disk, device=_device(answer))
        return answer

    def log(self, disk_id: str, path: str | os.PathLike[str] | None) -> None:
        """Switch a disk's request log: close the open one, open `path` unless None."""
        where = None if path is None else str(Path(path).absolute())
        self.daemon.call("log", disk_id=disk_id, path=where)

    def stats(self, disk_id: str, *, closing: bool = False) -> dict[str, Any]:
        """Counters of a disk: ns, bytes and counts since `add` or `reset`.

        `closing`: the run is over. The kernel path is measured once more, as `path_after` (like
        `compensation`; absent if the disk was unused or does not respond).
        """
        stats = self.daemon.call("stats", disk_id=disk_id)
        if closing and any(stats[done] for done in ("reads", "writes", "flushes")):
            with contextlib.suppress(Refused):
                stats["path_after"] = self.daemon.call("path", disk_id=disk_id)
        return stats

    def host_waits(self, disk_id: str) -> pa.Table:
        """Waits of the server for the host since `add` or `reset`, as the table `host_waits`."""
        from penstock.emulate.disks.request_log import host_waits_table

        return host_waits_table(disk_id, self.daemon.call("host_waits", disk_id=disk_id))

    def reset(self, disk_id: str) -> None:
        """Reset a disk's counters, random draws and positions."""
        self.daemon.call("reset", disk_id=disk_id)

    def remove(self, disk_id: str, *, hurry: bool = False) -> dict[str, Any]:
        """Stop a disk (lazily if files are open) and return its last counters.

        With `hurry`, pending write-back takes no emulated time.
        """
        answer = self.daemon.call("remove", disk_id=disk_id, hurry=hurry)
        self._withdraw(disk_id)
        self._disks.pop(disk_id, None)
        entry = self._entries.pop(disk_id, None)
        if entry is not None:
            self._journal.undone(entry)
        return dict(answer["stats"])

    def list(self) -> list[dict[str, Any]]:
        """Disks of the server."""
        return list(self.daemon.call("list")["disks"])

    def stop(self) -> None:
        """Stop all disks and the server."""
        if self._daemon is not None:
            self._daemon.stop()
            self._daemon = None
        self._disks.clear()
        for disk_id in list(self._offers):
            self._withdraw(disk_id)
        for disk_id in list(self._entries):
            entry = self._entries.pop(disk_id)
            if not has_mount(entry.target, entry.token):
                self._journal.undone(entry)

    def _offer(
        self, disk_id: str, while_added: contextlib.ExitStack, run: str | None, *, stays: bool
    ) -> None:
        """Let the kernel offer io_uring while a disk starts; if it `stays`, until the disk stops, because the
        disk is mounted again after a power cut."""
        while_added.enter_context(transports.locked())
        entry = transports.offer(self._journal, run)
        if stays:
            self._offers[disk_id] = entry
        else:
            while_added.callback(transports.withdraw, entry, self._journal)

    def _withdraw(self, disk_id: str) -> None:
        if (entry := self._offers.pop(disk_id, None)) is not None:
            with transports.locked():
                transports.withdraw(entry, self._journal)

    def __enter__(self) -> DiskServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _transport_of(requested: str | None, profile: Mapping[str, Any], *, durable: bool) -> str:
    """Transport of a new disk. Raises BadInput if it is requested and unavailable.

    The thread of a ring must not wait for the host's disk, as flushes of a durable disk do.
    """
    if (name := requested or required()) is not None:
        return usable(name, "transport")
    floor = stored_floor()
    if durable or floor is None or missing():
        return DEVICE
    from penstock.profile.model import StorageProfile  # a guest has neither it nor a floor

    return floor.transport(StorageProfile.from_dict(dict(profile)))


NO_COMPENSATION = {
    "read": {"base_ns": 0.0, "per_byte_ns": 0.0},
    "write": {"base_ns": 0.0, "per_byte_ns": 0.0},
}


def _device(answer: Mapping[str, Any]) -> tuple[int, int]:
    major, minor = answer["dev"]
    return int(major), int(minor)


def _directory(what: str, path: str | os.PathLike[str]) -> Path:
    """The absolute path of a directory. Raises BadInput if it is none, or not text: it is part of JSON."""
    path = Path(path).absolute()
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:
        raise BadInput(f"{what}: found {path}, which is not UTF-8; expected text") from None
    try:
        mode = path.stat().st_mode
    except FileNotFoundError as error:
        raise BadInput(f"{what} {path} does not exist") from error
    except OSError as error:
        raise PenstockError(f"{what} {path}: {error.strerror}; try `penstock undo`") from error
    if not stat.S_ISDIR(mode):
        raise BadInput(f"{what} {path} is not a directory")
    return path
