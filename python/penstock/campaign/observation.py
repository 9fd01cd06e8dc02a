"""The observers around a run: started once per study, armed for each run, read when it has ended."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.archive.bundle import Bundle, read_accesses
from penstock.campaign.disk_observation import DiskObservation
from penstock.host.journal import Journal
from penstock.observe.observer import Observer, Watched
from penstock.plugins import OBSERVERS
from penstock.spec.study import Observers


@dataclass
class Observation:
    """What the observers and the disks saw of one run."""

    observed: dict[str, pa.Table] = field(default_factory=dict)
    receipts: dict[str, Any] = field(default_factory=dict)
    #: by observer, what it lost
    losses: dict[str, int] = field(default_factory=dict)
    disks: DiskObservation = field(default_factory=DiskObservation)
    events_path: Path | None = None

    def events(self, columns: list[str]) -> pa.Table | None:
        """Reads and writes of the table `io_events` in the bundle; None if there is none."""
        if self.events_path is None:
            return None
        return read_accesses(self.events_path, columns)

    def tables(self) -> dict[str, pa.Table]:
        """All tables by name, those that are small."""
        return {**self.observed, **self.disks.tables}

    @property
    def fidelity_faults(self) -> tuple[str, ...]:
        """Why the disks did not do what was asked, one text per disk that did not."""
        return self.disks.faults


class RunObservers:
    """The observers that a study asks for, each made by its row of `OBSERVERS`."""

    def __init__(self, journal: Journal, home: Path, wanted: Observers) -> None:
        self._all: dict[str, Observer] = {}
        self._on: list[str] = []
        try:
            for name, settings in wanted.by_name().items():
                self._all[name] = OBSERVERS.load(name)(journal, home, settings)
        except BaseException:
            self.stop()
            raise

    def start(self, watched: Watched, out_dir: Path) -> None:
        """Arms them for a run's groups and its emulated disks."""
        for name, observer in self._all.items():
            observer.start(watched, out_dir)
            self._on.append(name)

    def finish(self, bundle: Bundle, run: tuple[int, int] | None) -> Observation:
        """Ends the run's observation, of those armed; the last armed first.

        `run`: begin and end of the program [ns].
        """
        found = Observation()
        while self._on:
            name = self._on.pop()
            seen = self._all[name].finish(bundle, run)
            found.observed.update(seen.tables)
            found.events_path = seen.events_path or found.events_path
            found.receipts[name] = seen.receipt
            found.losses[name] = seen.lost
            bundle.manifest.update(seen.manifest)
        return found

    def stop(self) -> None:
        with contextlib.ExitStack() as stack:
            while self._all:
                stack.callback(self._all.popitem()[1].stop)
