"""The table of back ends, and one of each for an owner of disks, made when first needed."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.emulate.backends.base import Backend, Place, UpDisk
from penstock.emulate.backends.choice import Choice, Offers, choose, offers
from penstock.emulate.disk import DiskServer
from penstock.emulate.spec import DiskSpec
from penstock.host.journal import Journal

#: name → module and class; a new back end is a new file and a line here
TABLE: dict[str, tuple[str, str]] = {
    "fuse": ("penstock.emulate.backends.fuse", "FuseBackend"),
    "cgroup2": ("penstock.emulate.backends.cgroup2", "Cgroup2Backend"),
    "cgroup1": ("penstock.emulate.backends.cgroup1", "Cgroup1Backend"),
}


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
        found: Offers | None = None,
    ) -> None:
        self._journal = journal
        self._state_dir = state_dir
        self._server = server
        self._outlive = outlive
        self._run = run
        self._found = found
        self._made: dict[str, Backend] = {}
        #: by disk_id: which back end, and why (for the manifest)
        self.choices: dict[str, Choice] = {}

    @property
    def found(self) -> Offers:
        """What this host offers, probed once."""
        if self._found is None:
            self._found = offers()
        return self._found

    def choose(self, disk: DiskSpec) -> Choice:
        """Which back end serves a disk here, and why; BadInput where none can."""
        return choose(disk, self.found)

    def up(self, disk: DiskSpec, place: Place) -> UpDisk:
        """Puts a disk up by the back end that `choose` names."""
        choice = self.choose(disk)
        up = self.backend(choice.name).up(disk, place)
        self.choices[place.disk_id] = choice
        return up

    def backend(self, name: str) -> Backend:
        """The owner's back end of that name."""
        if name not in self._made:
            module, kind = TABLE[name]
            make: Callable[..., Backend] = getattr(importlib.import_module(module), kind)
            self._made[name] = make(self._journal, **self._arguments(name))
        return self._made[name]

    def stop(self) -> None:
        """Takes down what is still up."""
        with contextlib.ExitStack() as stack:
            while self._made:
                stack.callback(self._made.popitem()[1].stop)

    def _arguments(self, name: str) -> dict[str, Any]:
        if name != "fuse":
            return {"run": self._run}
        server = self._server or DiskServer(
            self._journal, self._state_dir, outlive_owner=self._outlive, run=self._run
        )
        return {"server": server, "own": self._server is None}
