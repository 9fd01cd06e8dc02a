"""Live disks of one owner: the host stage of a study, or a cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.emulate.backends import Applied, Backends, Choice, Place, UpDisk
from penstock.emulate.backends.base import Cause, limits_dict
from penstock.emulate.backends.fuse import INSTANT_PROFILE
from penstock.emulate.disks.beginning import beginning
from penstock.emulate.disks.recorded import Recorded, changes_by_disk
from penstock.emulate.failure import Failure
from penstock.errors import BadInput, PenstockError
from penstock.host.journal.journal import Entry, Journal, Values
from penstock.host.storage.mounts import mounts
from penstock.spec.cluster import DiskSpec


@dataclass
class LiveDisk:
    """A disk that is up: mounted at `at` on the host, at `mount` for its user."""

    spec: DiskSpec
    at: Path
    mount: str
    directory: Path
    up: UpDisk
    choice: Choice
    #: true if a run has started on it
    begun: bool = False

    @property
    def disk_id(self) -> str:
        """`node.disk`."""
        return self.up.disk_id

    @property
    def device(self) -> tuple[int, int]:
        """Device number of its files; changes after a power cut."""
        return self.up.device

    @property
    def page(self) -> Path | None:
        """Page of its counters; only of disks of the model."""
        page: Path | None = getattr(self.up, "page", None)
        return page

    def describe(self) -> dict[str, Any]:
        """The disk in JSON values, without counters."""
        return {
            "mount": self.mount,
            "at": str(self.at),
            "directory": str(self.directory),
            "disk_id": self.disk_id,
            "device": list(self.device),
            "backend": self.choice.name,
            "reason": self.choice.reason,
            "warnings": list(self.choice.warnings),
            "profile": self.spec.profile_name or None,
            "time_scale": self.spec.time_scale,
            "page": None if self.page is None else str(self.page),
        }

    def status(self, *, counted: bool = True) -> dict[str, Any]:
        """The disk with its counters and the values in force: its profile, and the keys of a patch."""
        if not counted:
            return self.describe() | {"stats": None, "now": {}}
        stats = None
        with contextlib.suppress(PenstockError):
            stats = self.up.stats()
        served = {k: v for k, v in (stats or {}).items() if k in ("profile", "time_scale")}
        if served.get("profile") == INSTANT_PROFILE["name"]:
            served["profile"] = None
        return self.describe() | served | {"stats": stats, "now": self._in_force()}

    def _in_force(self) -> dict[str, Any]:
        read = getattr(self.up, "in_force", None)
        with contextlib.suppress(PenstockError):
            return {"limits": limits_dict(self.up.read_back())} if read is None else read()
        return {}

    def beginning(self) -> dict[str, Any] | None:
        """Initial state in a run that has started; None where only the kernel has it."""
        if self.page is None:
            return None
        with contextlib.suppress(PenstockError):
            return beginning(self.up.stats(), self.spec.profile or {}, self._in_force())
        return None

    def recorded(self, changes: Sequence[Mapping[str, Any]]) -> Recorded:
        """Records of a completed run; `changes`: those of the disk."""
        self.begun = False
        stats = self.up.stats(closing=True)
        return Recorded(
            disk_id=self.disk_id,
            backend=self.choice.name,
            stats=stats,
            tables=self.up.end(),
            facts=self.up.facts(),
            reason=self.choice.reason,
            warnings=self.choice.warnings,
            profile=self.spec.profile or INSTANT_PROFILE,
            changes=changes,
        )


class LiveDisks:
    """All disks of one owner, by node and name; their servers start with the first disk.

    `lacking`: requirement that the host lacks, by back end, if available.
    """

    def __init__(
        self,
        home: Path,
        journal: Journal,
        *,
        run: str | None = None,
        lacking: Mapping[str, str] | None = None,
    ) -> None:
        self._backends = Backends(journal, home, run=run, lacking=lacking)
        self._disks: dict[str, dict[str, LiveDisk]] = {}

    def __iter__(self) -> Iterator[LiveDisk]:
        return (disk for disks in self._disks.values() for disk in disks.values())

    def choose(self, disk: DiskSpec) -> Choice:
        """Choose the back end of a disk. Raises BadInput if there is none."""
        return self._backends.choose(disk)

    def up(self, node: str, disk: DiskSpec, place: Place, mount: str) -> LiveDisk:
        """Start one disk, mounted at `mount` in its node. Raises PenstockError, or BadInput for a request
        that no back end supports."""
        up = self._backends.up(disk, place)
        choice = self._backends.choices[place.disk_id]
        live = LiveDisk(disk, place.mount, mount, place.directory, up, choice)
        self._disks.setdefault(node, {})[disk.name] = live
        return live

    def of(self, node: str) -> dict[str, LiveDisk]:
        """Disks of a node by name."""
        return self._disks.get(node, {})

    def altering(
        self, node: str, name: str | None, patch: dict[str, Any]
    ) -> list[tuple[Entry, Values]]:
        """Values that a patch changes, for the journal."""
        return self.find(node, name).up.altering(patch)

    def patch(
        self, node: str, name: str | None, patch: dict[str, Any], cause: Cause | None = None
    ) -> Applied:
        """Apply a change that is in the journal, and read it back."""
        return self.find(node, name).up.patch(patch, announced=True, cause=cause)

    def check_cut(self, node: str, name: str | None) -> None:
        """Raises BadInput for a disk whose power cannot be cut."""
        disk = self.find(node, name)
        if not getattr(disk.up, "cuts_power", False):
            raise BadInput(
                f"node {node}: power_cut of disk {name}: its back end {disk.choice.name} has none; "
                "expected a disk with backend: fuse"
            )

    def schedule(self, node: str, name: str | None, events: list[dict[str, Any]]) -> None:
        """Schedule events that are in the journal: `at_ns` (CLOCK_MONOTONIC) and `patch` each."""
        self.find(node, name).up.schedule(events, announced=True)

    def events(self) -> list[dict[str, Any]]:
        """Results of the disks' events."""
        events = []
        for node, disks in self._disks.items():
            for name, disk in disks.items():
                with contextlib.suppress(PenstockError):
                    for event in disk.up.events():
                        events.append({"node": node, "resource": "disk", "name": name, **event})
        return events

    def status(self, node: str, *, counted: bool = True) -> dict[str, dict[str, Any]]:
        """Disks of a node with their counters; unless `counted`, the servers get no request."""
        return {name: disk.status(counted=counted) for name, disk in self.of(node).items()}

    def failures(self) -> list[Failure]:
        """Disk servers that are dead or do not respond, and disks that are no longer mounted."""
        failures = self._backends.failures()
        points = {mount.point for mount in mounts()}
        for node, disks in self._disks.items():
            for name, disk in disks.items():
                if str(disk.at) not in points:
                    message = f"disk {name} of node {node}: nothing is mounted at {disk.at}"
                    failures.append(Failure("disk", message))
        return failures

    def begin(self, spool: Path) -> dict[str, dict[str, Any]]:
        """Start of a run on all disks: reset counters, start the records for certificates.

        Returns the initial state by disk_id, of the disks that report it.
        """
        for disk in self:
            disk.up.begin(spool)
            disk.begun = True
        states = {disk.disk_id: disk.beginning() for disk in self}
        return {disk_id: state for disk_id, state in states.items() if state is not None}

    def end(self, changes: Sequence[Mapping[str, Any]]) -> dict[str, Recorded]:
        """End of a run; by disk_id the records of each disk that was started on it.

        `changes`: `events()`, or none if the caller that evaluates the disks has them.
        """
        by_disk = changes_by_disk(changes)
        begun = [disk for disk in self if disk.begun]
        return {d.disk_id: d.recorded(by_disk.get(d.disk_id, ())) for d in begun}

    def down(self) -> None:
        """Stop all disks; their servers remain for the next ones."""
        disks, self._disks = list(self), {}
        with contextlib.ExitStack() as stack:
            for disk in disks:
                stack.callback(disk.up.down)

    def stop(self) -> None:
        """Stop all disks and their servers."""
        self._disks.clear()
        self._backends.stop()

    def find(self, node: str, name: str | None) -> LiveDisk:
        """One disk of a node. Raises BadInput if there is none."""
        disk = self.of(node).get(name or "")
        if disk is None:
            there = ", ".join(self.of(node)) or "none"
            raise BadInput(f"node {node} has no disk {name!r}; it has {there}")
        return disk
