"""Back ends of an owner of disks, created at first use."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from penstock.emulate.backends.base import Backend, Owner, Place, UpDisk
from penstock.emulate.backends.choice import Choice, choose, missing_here
from penstock.emulate.disks.server import DiskServer
from penstock.emulate.failure import Failure
from penstock.host.journal.journal import Journal
from penstock.plugins import DISK_BACKENDS
from penstock.spec.cluster import DiskSpec


class Backends:
    """Back ends of one owner of disks (a cluster, a study); `up` chooses one and records the reason.

    `server` serves the disks of the model; without one it is created in `state_dir`. With `outlive` the disks
    survive this process.
    """

    def __init__(
        self,
        journal: Journal,
        state_dir: Path,
        *,
        server: DiskServer | None = None,
        outlive: bool = False,
        run: str | None = None,
        lacking: Mapping[str, str] | None = None,
    ) -> None:
        self._owner = Owner(journal, state_dir, server, outlive, run)
        self._lacking = lacking
        self._backends: dict[str, Backend] = {}
        #: by disk_id: the back end and the reason (for the manifest)
        self.choices: dict[str, Choice] = {}

    @property
    def lacking(self) -> Mapping[str, str]:
        """Requirement that this host lacks, by back end; probed once."""
        if self._lacking is None:
            self._lacking = missing_here()
        return self._lacking

    def choose(self, disk: DiskSpec) -> Choice:
        """Back end for a disk on this host, with the reason. Raises BadInput if there is none."""
        return choose(disk, self.lacking)

    def up(self, disk: DiskSpec, place: Place) -> UpDisk:
        """Start a disk with the back end of `choose`."""
        choice = self.choose(disk)
        up = self.backend(choice.name).up(disk, place)
        self.choices[place.disk_id] = choice
        return up

    def backend(self, name: str) -> Backend:
        """Back end of that name."""
        if name not in self._backends:
            self._backends[name] = DISK_BACKENDS.load(name)(self._owner)
        return self._backends[name]

    def failures(self) -> list[Failure]:
        """Failed parts that the disks depend on, from back ends that check them."""
        checks = (getattr(backend, "failures", None) for backend in self._backends.values())
        return [failure for find in checks if find is not None for failure in find()]

    def stop(self) -> None:
        """Stop the remaining disks."""
        with contextlib.ExitStack() as stack:
            while self._backends:
                stack.callback(self._backends.popitem()[1].stop)
