"""A back end of disks: the disk's directory itself, bound to its mount point, without limits."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.analyse.fidelity.fidelity import Certificate
from penstock.emulate.backends.base import Applied, Cause, Owner, Place
from penstock.emulate.disks.recorded import Recorded
from penstock.errors import BadInput, PenstockError
from penstock.host.journal.journal import Entry, Journal, Values
from penstock.host.storage.mounts import mounts_at, unmount
from penstock.spec.cluster import DiskSpec, Limits

_MS_BIND = 4096
_libc = ctypes.CDLL(None, use_errno=True)


class ToyDisk:
    """A directory that is bound to a mount point."""

    backend = "toy"

    def __init__(self, place: Place, journal: Journal) -> None:
        self.disk_id = place.disk_id
        self.mount = place.mount
        self._journal = journal
        self._entry = journal.plan("mount", place.mount, run=place.run)
        if _libc.mount(bytes(place.directory), bytes(place.mount), None, _MS_BIND, None) != 0:
            journal.undone(self._entry)
            raise PenstockError(f"{place.mount}: {os.strerror(ctypes.get_errno())}")
        number = place.mount.stat().st_dev
        self.device = os.major(number), os.minor(number)

    def altering(self, patch: Mapping[str, Any]) -> list[tuple[Entry, Values]]:
        """No values can be changed."""
        return []

    def patch(
        self, patch: Mapping[str, Any], *, announced: bool = False, cause: Cause | None = None
    ) -> Applied:
        """Refuse every patch."""
        if patch:
            raise BadInput(f"disk {self.disk_id}: a toy has no {', '.join(patch)}")
        now = time.monotonic_ns()
        return Applied(now, now, now, {}, {})

    def set_limits(self, limits: Mapping[str, float | str | None]) -> Applied:
        """Refuse limits."""
        return self.patch({"limits": limits} if limits else {})

    def read_back(self) -> Limits:
        """No limits are set."""
        return Limits()

    def schedule(self, events: Sequence[Mapping[str, Any]], *, announced: bool = False) -> None:
        """Refuse events."""
        if events:
            raise BadInput(f"disk {self.disk_id}: a toy has no events")

    def events(self) -> list[dict[str, Any]]:
        """No events."""
        return []

    def stats(self, *, closing: bool = False) -> dict[str, Any]:
        """Zero counters: this disk does not count."""
        return {"read_bytes": 0, "written_bytes": 0, "reads": 0, "writes": 0}

    def facts(self) -> dict[str, Any]:
        """Facts about the disk."""
        return {"file_system": "the host's"}

    def begin(self, spool_dir: Path) -> None:
        """Do nothing: this disk records no requests."""

    def end(self) -> dict[str, pa.Table]:
        """No tables: nothing is recorded."""
        return {}

    def down(self) -> dict[str, Any]:
        """Unmount the directory."""
        if mounts_at(self.mount):
            unmount(self.mount)
        self._journal.undone(self._entry)
        return self.stats()


class ToyBackend:
    """Disks that are plain directories."""

    name = "toy"
    why = "there is nothing else"

    def __init__(self, owner: Owner) -> None:
        self._journal = owner.journal
        self._up: dict[str, ToyDisk] = {}

    @classmethod
    def missing(cls) -> str:
        """Reason why the back end cannot be used: it needs root."""
        return "" if os.geteuid() == 0 else "only root can mount"

    @classmethod
    def refusal(cls, disk: DiskSpec) -> str:
        """Reason to refuse a disk: patches and limits are not supported; every profile is accepted."""
        unsupported = [*sorted(disk.patch), *(["limits"] if disk.limits != Limits() else [])]
        return f"a toy has no {', '.join(unsupported)}" if unsupported else ""

    @classmethod
    def certificate(
        cls, recorded: Recorded, utilisation: pa.Table | None, run_cpu_ns: int | None
    ) -> Certificate | None:
        """No certificate: nothing is recorded."""
        return None

    def up(self, disk: DiskSpec, place: Place) -> ToyDisk:
        """Bind the place's directory to its mount point."""
        self._up[place.disk_id] = ToyDisk(place, self._journal)
        return self._up[place.disk_id]

    def stop(self) -> None:
        """Stop all disks."""
        while self._up:
            self._up.popitem()[1].down()
