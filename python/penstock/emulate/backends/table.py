"""The back ends of an owner of disks, made when first needed."""

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
    """The back ends of one owner of disks (a cluster, a study): `up` chooses, puts up and says why.

    `server` serves the disks of the model; without one it is made in `state_dir`. With `outlive` what is put
    up stays when this process ends.
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
        #: by disk_id: which back end, and why (for the manifest)
        self.choices: dict[str, Choice] = {}

    @property
    def lacking(self) -> Mapping[str, str]:
        """By back end, the part that this host lacks for it; probed once."""
        if self._lacking is None:
            self._lacking = missing_here()
        return self._lacking

    def choose(self, disk: DiskSpec) -> Choice:
        """The back end that serves a disk here, and the reason; BadInput if none can."""
        return choose(disk, self.lacking)

    def up(self, disk: DiskSpec, place: Place) -> UpDisk:
        """Puts a disk up by the back end that `choose` names."""
        choice = self.choose(disk)
        up = self.backend(choice.name).up(disk, place)
        self.choices[place.disk_id] = choice
        return up

    def backend(self, name: str) -> Backend:
        """The owner's back end of that name."""
        if name not in self._backends:
            self._backends[name] = DISK_BACKENDS.load(name)(self._owner)
        return self._backends[name]

    def failures(self) -> list[Failure]:
        """Parts that the disks depend on and that do not work, of the back ends that check them."""
        checks = (getattr(backend, "failures", None) for backend in self._backends.values())
        return [failure for find in checks if find is not None for failure in find()]

    def stop(self) -> None:
        """Takes down what is still up."""
        with contextlib.ExitStack() as stack:
            while self._backends:
                stack.callback(self._backends.popitem()[1].stop)
