"""Back end `fuse`: the disk server's station model, on all data paths, for any program."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.emulate.backends.base import (
    LIMIT_KEYS,
    Applied,
    Cause,
    LimitPatch,
    Owner,
    Place,
    limits_dict,
)
from penstock.emulate.backends.certificate import by_requests
from penstock.emulate.disks.server import DiskServer, EmulatedDisk
from penstock.emulate.failure import Failure
from penstock.host.journal.journal import Entry, Values
from penstock.host.probe.facts import storage_facts
from penstock.host.storage.disk_backends import no_fuse
from penstock.spec.cluster import DiskSpec, Limits

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.analyse.fidelity.fidelity import Certificate
    from penstock.emulate.disks.recorded import Recorded

_NO_TIME: dict[str, Any] = {"overhead": {"kind": "constant", "value_s": 0.0}}
_BOTH = {"sequential": _NO_TIME, "random": _NO_TIME}

#: a device without service time, for disks without a profile
INSTANT_PROFILE: dict[str, Any] = {
    "schema": "penstock/storage-profile/1",
    "name": "instant",
    "servers": 64,
    "read": _BOTH,
    "write": _BOTH,
    "flush": _NO_TIME,
}
#: calls that flush a kernel file system's device but are invisible to FUSE servers
UNSEEN_SYNCS = ("sync", "syncfs")


class FuseBackend:
    """Disks of one disk server: the owner's, else one that ends with `stop`."""

    name = "fuse"
    why = "the model delivers limits evenly, on all paths"

    def __init__(self, owner: Owner) -> None:
        self._journal = owner.journal
        self._own = owner.server is None
        self._server = owner.server or DiskServer(
            owner.journal, owner.home, outlive_owner=owner.outlive, run=owner.run
        )
        self._lock = threading.Lock()
        self._up: dict[str, FuseDisk] = {}

    @classmethod
    def missing(cls) -> str:
        """Requirement of the disk server that this host lacks."""
        return no_fuse()

    @classmethod
    def refusal(cls, disk: DiskSpec) -> str:
        """Nothing: it supports all requests."""
        return ""

    @classmethod
    def certificate(
        cls, recorded: Recorded, utilisation: pa.Table | None, run_cpu_ns: int | None
    ) -> Certificate | None:
        """Certificate from the request log; None for a plain directory, which has no specification."""
        if recorded.profile == INSTANT_PROFILE and not recorded.changes:
            return None
        return by_requests(recorded, utilisation, run_cpu_ns)

    @property
    def server(self) -> DiskServer:
        return self._server

    def up(self, disk: DiskSpec, place: Place) -> FuseDisk:
        """Serve `place.directory` at `place.mount` with the disk's profile and patch."""
        first = dict(disk.patch)
        limits = limits_dict(disk.limits) | dict(first.get("limits") or {})
        if limits:
            LimitPatch.of(limits)
            first["limits"] = limits
        with self._lock:
            served = self._server.add(
                place.disk_id,
                place.mount,
                place.directory,
                disk.profile or INSTANT_PROFILE,
                log=place.log,
                seed=disk.seed,
                memory_bytes=place.memory_bytes,
                most_dirty_bytes=place.most_dirty_bytes,
                readahead_bytes=disk.readahead_bytes,
                size_bytes=disk.size_bytes,
                owner=disk.owner or _owner_of(place.directory),
                patch=first or None,
                run=place.run,
            )
        up = FuseDisk(self, served)
        self._up[place.disk_id] = up
        return up

    def failures(self) -> list[Failure]:
        """Servers of its disks that are dead or do not respond."""
        return self._server.failures() if self._up else []

    def stop(self) -> None:
        """Stop its disks, and its own server."""
        with contextlib.ExitStack() as stack:
            if self._own:
                stack.callback(self._server.stop)
            for disk in list(self._up.values()):
                stack.callback(disk.down)

    def call(self, cmd: str, disk_id: str, **arguments: Any) -> dict[str, Any]:
        """Send the server a request about a disk; one at a time, on its only connection."""
        with self._lock:
            return self._server.daemon.call(cmd, disk_id=disk_id, **arguments)

    def stats(self, disk_id: str, *, closing: bool) -> dict[str, Any]:
        """Counters of a disk."""
        with self._lock:
            return self._server.stats(disk_id, closing=closing)

    def altering(self, disk_id: str, requested: Any) -> list[tuple[Entry, Values]]:
        """Values that `requested` changes on a disk, for the journal."""
        with self._lock:
            return self._server.altering(disk_id, requested)

    def announce(self, disk_id: str, requested: Any) -> None:
        """Record a change of a disk in the journal. Raises JournalFailure if that fails."""
        self._journal.alter(self.altering(disk_id, requested))

    def forget(self, disk_id: str) -> dict[str, Any]:
        """Stop a disk."""
        with self._lock:
            self._up.pop(disk_id, None)
            return self._server.remove(disk_id, hurry=True)


class FuseDisk:
    """A disk of the model that is up."""

    backend = "fuse"
    cuts_power = True

    def __init__(self, owner: FuseBackend, served: EmulatedDisk) -> None:
        self._owner = owner
        self.served = served
        self.disk_id = served.disk_id
        self.mount = served.mount
        self.device = served.device
        self.page = served.stats_file
        self._log: Path | None = None

    def altering(self, patch: Mapping[str, Any]) -> list[tuple[Entry, Values]]:
        """Values that a patch changes, for the journal."""
        return self._owner.altering(self.disk_id, dict(patch))

    def patch(
        self, patch: Mapping[str, Any], *, announced: bool = False, cause: Cause | None = None
    ) -> Applied:
        """Apply a patch (`docs/emulation.md`); the server reads it back."""
        if isinstance(patch.get("limits"), Mapping):
            LimitPatch.of(patch["limits"])
        if not announced:
            self._owner.announce(self.disk_id, dict(patch))
        requested_ns = time.monotonic_ns()
        why = asdict(cause or Cause())
        answer = self._owner.call("patch", self.disk_id, patch=dict(patch), cause=why)
        if "power_cut" in patch:
            return replace(self._cut(dict(patch), answer, requested_ns), cause=cause or Cause())
        return Applied(
            planned_ns=int(answer["planned_ns"]),
            applied_ns=int(answer["applied_ns"]),
            verified_ns=int(answer["verified_ns"]),
            asked=dict(answer["asked"]),
            found=dict(answer["found"]),
            error=str(answer.get("error") or ""),
            cause=cause or Cause(),
        )

    def _cut(self, patch: dict[str, Any], answer: Mapping[str, Any], requested_ns: int) -> Applied:
        """Update the device number: after a power cut the mount is new."""
        self.device = (int(answer["dev"][0]), int(answer["dev"][1]))
        lost = answer["lost"] or {}
        return Applied(
            planned_ns=requested_ns,
            applied_ns=int(answer["off_ns"]),
            verified_ns=int(answer["on_ns"]),
            asked=patch,
            found={"power_cut": {"lost": lost, "dev": list(self.device)}},
            error=str(next(iter(lost.get("failed") or ()), "")),
        )

    def set_limits(self, limits: Mapping[str, float | str | None]) -> Applied:
        """Set the given limits independently."""
        return self.patch({"limits": dict(limits)})

    def read_back(self) -> Limits:
        """Limits currently set in the server."""
        in_force = self._owner.call("events", self.disk_id)["settings"].get("limits") or {}
        limits = {k: in_force.get(k) for k in LIMIT_KEYS}
        return Limits(**{k: None if v in (None, "max") else float(v) for k, v in limits.items()})

    def in_force(self) -> dict[str, Any]:
        """All current changes of the disk, with the keys of a patch."""
        return dict(self._owner.call("events", self.disk_id)["settings"])

    def schedule(self, events: Sequence[Mapping[str, Any]], *, announced: bool = False) -> None:
        """Send events to the server, which applies them independently of this process."""
        if not announced:
            self._owner.announce(self.disk_id, {"schedule": {"events": len(events)}})
        self._owner.call("schedule", self.disk_id, events=[dict(e) for e in events])

    def events(self) -> list[dict[str, Any]]:
        """Results of the events, as recorded by the server."""
        return list(self._owner.call("events", self.disk_id)["events"])

    def stats(self, *, closing: bool = False) -> dict[str, Any]:
        """Counters of the disk in the server."""
        return self._owner.stats(self.disk_id, closing=closing)

    def facts(self) -> dict[str, Any]:
        """Facts of the directory with the disk's files, and the options of the mount."""
        return {
            **storage_facts(self.served.backing),
            "mount": storage_facts(self.mount),
            "compensation": self.served.compensation,
            "transport": self.served.transport,
            "flushed_not_by": list(UNSEEN_SYNCS),
        }

    def begin(self, spool_dir: Path) -> None:
        """Reset the counters and start the request log."""
        self._owner.call("reset", self.disk_id)
        self._log = spool_dir / f"{self.disk_id}.requests"
        self._owner.call("log", self.disk_id, path=str(self._log.absolute()))

    def end(self) -> dict[str, pa.Table]:
        """Request log as the table `device_requests`, activity of the host as `host_waits`."""
        from penstock.emulate.disks.request_log import host_waits_table, read_disk_log

        if self._log is None:
            return {}
        self._owner.call("log", self.disk_id, path=None)
        waits = self._owner.call("host_waits", self.disk_id)
        table = read_disk_log(self._log, disk_id=self.disk_id)
        for spool in (self._log, Path(f"{self._log}.files")):
            spool.unlink(missing_ok=True)
        self._log = None
        return {
            "device_requests": table,
            "host_waits": host_waits_table(self.disk_id, waits),
        }

    def down(self) -> dict[str, Any]:
        """Stop the disk; pending write-back takes no emulated time."""
        return self._owner.forget(self.disk_id)


def _owner_of(directory: Path) -> tuple[int, int]:
    status = directory.stat()
    return status.st_uid, status.st_gid
