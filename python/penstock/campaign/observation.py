"""The observers around a run: started once per study, armed for each run, read when it has ended."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.archive.bundle import Bundle, read_accesses
from penstock.campaign.run_disks import DiskObservation
from penstock.campaign.stage import Watched
from penstock.errors import PenstockError
from penstock.host.journal import Journal
from penstock.observe.monitor.monitor import Monitor
from penstock.observe.trace.tracer import Tracer
from penstock.study.model import Observers


@dataclass
class Observation:
    """What the observers and the disks saw of one run."""

    observed: dict[str, pa.Table] = field(default_factory=dict)
    receipts: dict[str, Any] = field(default_factory=dict)
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
    def losses(self) -> dict[str, int]:
        """By observer, what it lost."""
        lost = {}
        if "trace" in self.receipts:
            lost["trace"] = int(self.receipts["trace"].get("lost", 0))
        if "monitor" in self.receipts:
            lost["monitor"] = int(self.receipts["monitor"].get("missed", 0))
        return lost

    @property
    def fidelity_faults(self) -> tuple[str, ...]:
        """Why the disks did not do what was asked, one text per disk that did not."""
        return self.disks.faults


class RunObservers:
    """The monitor and the tracer of a study, those of them that it asks for."""

    def __init__(self, journal: Journal, state_dir: Path, wanted: Observers) -> None:
        self._monitor: Monitor | None = None
        self._tracer: Tracer | None = None
        self._on: list[str] = []
        try:
            if wanted.monitor is not None:
                interval_ns = round(wanted.monitor.interval_s * 1e9)
                self._monitor = Monitor(journal, state_dir, interval_ns)
                self._monitor.open()
            if wanted.trace is not None:
                self._tracer = Tracer(journal, state_dir, wanted.trace.mode)
        except BaseException:
            self.stop()
            raise

    def start(self, watched: Watched, out_dir: Path) -> None:
        """Arms them for a run's groups and its emulated disks."""
        if self._monitor is not None:
            self._monitor.start(watched.group, watched.pages, out_dir, nodes=watched.nodes)
            self._on.append("monitor")
        if self._tracer is not None:
            if watched.scope is None or watched.scope == 0:
                raise PenstockError(
                    "several nodes cannot be traced here: their control groups have none of their own "
                    "above them (the unified hierarchy holds the controllers); take trace out of observers"
                )
            self._tracer.arm(watched.scope, out_dir, watched.devices)
            self._on.append("trace")

    def finish(self, bundle: Bundle) -> Observation:
        """Ends the run's observation, of those armed; the tracer first, its events into `bundle`."""
        seen = Observation()
        while self._on:
            name = self._on.pop()
            if name == "trace":
                assert self._tracer is not None
                traced = self._tracer.disarm(bundle)
                seen.observed.update(traced.tables)
                seen.events_path = traced.events_path
                seen.receipts[name] = traced.receipt
                bundle.manifest["closing"] = traced.closing
            else:
                assert self._monitor is not None
                sampled = self._monitor.stop()
                seen.observed.update(sampled.tables)
                seen.receipts[name] = sampled.receipt
        return seen

    def stop(self) -> None:
        """Ends the daemons."""
        with contextlib.ExitStack() as stack:
            if self._monitor is not None:
                stack.callback(self._monitor.close)
                self._monitor = None
            if self._tracer is not None:
                stack.callback(self._tracer.stop)
                self._tracer = None
