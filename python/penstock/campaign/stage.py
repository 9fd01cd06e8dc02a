"""Where a run takes place: on the host itself in one control group, or on nodes (`nodes_stage.py`)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from penstock.campaign.run_disks import DiskObservation, RunDisks
from penstock.host.cgroup import RunCgroup, create_run_cgroup
from penstock.host.journal import Journal
from penstock.host.launch import Finished, launch
from penstock.observe.observer import Watched
from penstock.study.resolve import ResolvedRun


@dataclass(frozen=True)
class CommandLine:
    """A command to be run: its text with disks and `{node}` filled in by the stage, and its surroundings."""

    command: str
    stdout: Path
    stderr: Path
    run_dir: Path
    timeout_s: float
    user: str | None
    directory: str | None
    env: Mapping[str, str]


@dataclass
class Used:
    """What a run used: peak of memory (of the node that had most), processor time; and who was killed."""

    peak_memory_bytes: int | None = None
    cpu_ns: int | None = None
    oom_kills: int = 0
    faults: tuple[str, ...] = ()


class Stage(Protocol):
    """One stage serves all runs of a study that are made on its kind of place.

    For each run: `attach`, then `begin`, `run`, `used`, `end`, then `after` and `detach`. `stop` is last.
    """

    #: on the host, where each disk's files can be read
    mounts: dict[str, Path]
    #: what the choice of the place was, for the manifest
    about: dict[str, Any]

    def attach(
        self, run_id: str, resolved: ResolvedRun, backing: dict[str, Path], seed: int, shared: Path
    ) -> None:
        """The place of a run with its disks over their backing directories; `shared` is seen there too."""

    def watched(self) -> Watched:
        """What observers look at."""

    def begin(self, spool: Path) -> None:
        """Disks count from zero."""

    def run(
        self, words: CommandLine, phase: Callable[[str], contextlib.AbstractContextManager[None]]
    ) -> Finished:
        """Runs the command to its end or its time-out, timed by `phase('workload')`."""

    def used(self) -> Used:
        """What the run used so far."""

    def end(self, utilisation: pa.Table | None, run_cpu_ns: int | None) -> DiskObservation:
        """What the disks counted, and how true they were."""

    def after(self, words: CommandLine) -> Finished:
        """Runs the command that comes after."""

    def detach(self) -> None:
        """Takes back what `attach` made, unless the next run can use it."""

    def stop(self) -> None:
        """Takes back everything."""


class HostStage:
    """Runs on the host itself: a control group, and disks of the study's one disk server."""

    def __init__(self, journal: Journal, home: Path, mounts: Path) -> None:
        self._journal = journal
        self._disks = RunDisks(journal, home, mounts)
        self._cgroup: RunCgroup | None = None
        self._resolved: ResolvedRun | None = None
        self.mounts: dict[str, Path] = {}
        self.about: dict[str, Any] = {}

    def attach(
        self, run_id: str, resolved: ResolvedRun, backing: dict[str, Path], seed: int, shared: Path
    ) -> None:
        """The run's control group and its disks."""
        self._resolved = resolved
        memory = resolved.memory_bytes
        self._cgroup = create_run_cgroup(run_id, memory, self._journal, run=run_id)
        self.mounts = {d.disk_id: backing[d.disk_id] for d in resolved.disks if not d.emulated}
        emulated = [d for d in resolved.disks if d.emulated]
        if emulated:
            self.mounts |= self._disks.attach(run_id, emulated, backing, seed, memory)

    def watched(self) -> Watched:
        """The run's group and its emulated disks."""
        up = self._disks.up
        return Watched(
            scope=self._cgroup,
            group=self._cgroup,
            pages={disk_id: disk.stats_file for disk_id, disk in up.items()},
            devices={disk.device: disk_id for disk_id, disk in up.items()},
        )

    def begin(self, spool: Path) -> None:
        """Counters to zero, request logs on."""
        self._disks.begin(spool)

    def run(
        self, words: CommandLine, phase: Callable[[str], contextlib.AbstractContextManager[None]]
    ) -> Finished:
        """The command in the group."""
        with phase("workload"):
            return self._launch(words)

    def after(self, words: CommandLine) -> Finished:
        """The command that comes after, in the group."""
        return self._launch(words)

    def _launch(self, words: CommandLine) -> Finished:
        assert self._resolved is not None
        filling = self._resolved.filling(self.mounts, words.run_dir)
        return launch(
            filling.line(words.command),
            self._cgroup,
            words.stdout,
            words.stderr,
            extra_env=filling.texts(words.env),
            cwd=filling.text(words.directory) if words.directory else str(words.run_dir),
            timeout_s=words.timeout_s,
            user=words.user,
        )

    def used(self) -> Used:
        """Counters of the group."""
        found = Used()
        if self._cgroup is not None:
            with contextlib.suppress(OSError):
                found.peak_memory_bytes = self._cgroup.peak_memory_bytes()
                found.oom_kills = self._cgroup.oom_kills()
                found.cpu_ns = self._cgroup.cpu_ns()
        return found

    def end(self, utilisation: pa.Table | None, run_cpu_ns: int | None) -> DiskObservation:
        """Logs and certificates."""
        return self._disks.end(utilisation, run_cpu_ns)

    def detach(self) -> None:
        """Disks and group go."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._disks.detach)
            if self._cgroup is not None:
                stack.callback(self._cgroup.remove)
                self._cgroup = None

    def stop(self) -> None:
        """Ends the disk server."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._disks.stop)
            self.detach()
