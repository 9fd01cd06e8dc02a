"""Objects of one attempt at a run, from `prepare` to `collect` (`executor.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock.archive.bundle import Bundle
from penstock.campaign.evidence.observation import RunObservation
from penstock.campaign.places.stage import CommandLine, Stage, Used
from penstock.campaign.preparation.device_state import State
from penstock.campaign.preparation.prepared import PreparedSet
from penstock.campaign.preparation.settle import Settled
from penstock.design.changes import Step
from penstock.host.journal.journal import Entry
from penstock.host.processes.launch import Finished, Stop
from penstock.observe.sampler.alerts import AlertWatch
from penstock.study.resolve import ResolvedRun


@dataclass
class AttemptWork:
    """Objects of one attempt while it runs."""

    run_id: str
    resolved: ResolvedRun
    bundle: Bundle
    run_dir: Path
    step: Step
    prepared: PreparedSet | None = None
    copied: Entry | None = None
    copies: list[Path] = field(default_factory=list)
    backing: dict[str, Path] = field(default_factory=dict)
    mounts: dict[str, Path] = field(default_factory=dict)
    stage: Stage | None = None
    used: Used = field(default_factory=Used)
    settled: Settled | None = None
    #: initial state of each disk's device
    devices: dict[str, State] = field(default_factory=dict)
    discarded: dict[str, int] = field(default_factory=dict)
    #: faults reported by `verify`, and remaining write-back
    verdict: str = ""
    undrained: str = ""
    finished: Finished | None = None
    after: Finished | None = None
    observation: RunObservation = field(default_factory=RunObservation)
    #: environment variables of the command from the observers
    environment: Mapping[str, str] = field(default_factory=dict)
    stop: Stop | None = None
    watch: AlertWatch | None = None
    #: message of the alert that ended it
    alert: str = ""

    def line(self, command: str, prefix: str = "") -> CommandLine:
        """A command of this run; one other than the workload writes its output under a `prefix`."""
        place = self.bundle.path
        names = (f"{prefix}.txt", f"{prefix}.err.txt") if prefix else ("stdout.txt", "stderr.txt")
        out, err = names
        return CommandLine(
            command=command,
            stdout=place / out,
            stderr=place / err,
            run_dir=self.run_dir,
            timeout_s=self.resolved.timeout_s,
            user=self.resolved.user,
            directory=self.resolved.directory,
            env=self.resolved.env if prefix else {**self.resolved.env, **self.environment},
            stop=None if prefix else self.stop,
        )
