"""Place of a run: common parts of the host (`host_stage.py`) and of nodes (`nodes_stage.py`)."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from penstock.campaign.evidence.disk_observation import DiskObservation, observation_of
from penstock.campaign.preparation.device_state import State, of_devices
from penstock.emulate.disks.recorded import Recorded
from penstock.host.journal.journal import Journal
from penstock.host.processes.launch import Finished, Stop
from penstock.observe.observer import Watched
from penstock.study.resolve import ResolvedRun

if TYPE_CHECKING:
    from penstock.emulate.cluster.cluster import RunningNode


@dataclass(frozen=True)
class CommandLine:
    """A command to run, in which the stage substitutes disks and `{node}`, and its environment."""

    command: str
    stdout: Path
    stderr: Path
    run_dir: Path
    timeout_s: float
    user: str | None
    directory: str | None
    env: Mapping[str, str]
    #: request to end it early
    stop: Stop | None = None


@dataclass
class Used:
    """Resources used by a run: peak memory (the maximum over nodes), processor time, killed processes.

    `cpu_waited_ns`: time in which some task of it waited for a processor, summed over nodes.
    """

    peak_memory_bytes: int | None = None
    cpu_ns: int | None = None
    cpu_waited_ns: int | None = None
    oom_kills: int = 0
    faults: tuple[str, ...] = ()


class UpDisk(Protocol):
    """A disk that is up, in this process (`LiveDisk`) or in that of a cluster (`RunningDisk`)."""

    @property
    def disk_id(self) -> str: ...
    @property
    def at(self) -> Path: ...
    @property
    def device(self) -> tuple[int, int]: ...
    @property
    def page(self) -> Path | None: ...


class Disks(Protocol):
    """The disks of a place: those of a host (`LiveDisks`), or of a cluster (`Cluster`)."""

    def begin(self, spool: Path) -> dict[str, dict[str, Any]]: ...
    def events(self) -> list[dict[str, Any]]: ...


@dataclass(frozen=True)
class Site:
    """Directories of a campaign on this host: of its daemons, mount points and study file."""

    journal: Journal
    home: Path
    mounts: Path
    study_dir: Path


class Stage(ABC):
    """Place of all runs of a study of one kind.

    For each run: `change`, `attach`, then `begin`, `run`, `used`, `end`, then `after` and `detach`. `stop` is
    last.
    """

    @classmethod
    @abstractmethod
    def takes(cls, resolved: ResolvedRun) -> bool:
        """True if this stage supports runs of this kind."""

    #: true if its records are by node
    by_node = True

    def __init__(self) -> None:
        #: directory on the host with each disk's files
        self.mounts: dict[str, Path] = {}
        #: description of the place, for the manifest
        self.about: dict[str, Any] = {}
        self._spool: Path | None = None
        self._began_ns = 0

    @abstractmethod
    def change(self, resolved: ResolvedRun, actions: Sequence[str]) -> None:
        """Stop what would be reused, if one of the `actions` that a change of factors requires demands it;
        strongest first."""

    @abstractmethod
    def attach(
        self, run_id: str, resolved: ResolvedRun, backing: dict[str, Path], seed: int, shared: Path
    ) -> None:
        """Create the place of a run, with its disks over their backing directories; `shared` is visible
        there."""

    @abstractmethod
    def watched(self) -> Watched:
        """Groups, nodes and disks for the observers."""

    @abstractmethod
    def run(
        self,
        command_line: CommandLine,
        phase: Callable[[str], contextlib.AbstractContextManager[None]],
    ) -> Finished:
        """Run the command to its end or its time-out, timed by `phase('workload')`."""

    @abstractmethod
    def used(self) -> Used:
        """Resources used so far."""

    @abstractmethod
    def after(self, command_line: CommandLine) -> Finished:
        """Run the subsequent command."""

    @abstractmethod
    def detach(self) -> None:
        """Reverse `attach`, unless the next run can use the result."""

    @abstractmethod
    def stop(self) -> None:
        """Reverse everything."""

    @abstractmethod
    def _disks(self) -> Disks | None:
        """Service of the disks; None if no disk is up."""

    @abstractmethod
    def _recorded(
        self, spool: Path, changes: Sequence[Mapping[str, Any]]
    ) -> Mapping[str, Recorded]:
        """Records of the disks in the run; `changes`: all changes since the disks were started."""

    def begin(self, spool: Path) -> dict[str, State]:
        """Start disk counters and records in `spool`; returns the initial state of each device."""
        disks = self._disks()
        assert disks is not None
        self._spool, self._began_ns = spool, time.monotonic_ns()
        states = disks.begin(spool)
        others = of_devices({i: at for i, at in self.mounts.items() if i not in states})
        return {i: states[i] if i in states else others[i] for i in self.mounts}

    def end(self, utilisation: pa.Table | None, run_cpu_ns: int | None) -> DiskObservation:
        """Counters and logs of the disks, changes during the run, and fidelity of the disks."""
        disks = self._disks()
        if disks is None or self._spool is None:
            return DiskObservation()
        spool, self._spool = self._spool, None
        changes = disks.events()
        recorded = self._recorded(spool, changes)
        return observation_of(
            recorded.values(),
            self._of_run(changes),
            utilisation=utilisation,
            run_cpu_ns=run_cpu_ns,
            by_node=self.by_node,
        )

    def _of_run(self, changes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Changes that belong to the run."""
        return [c for c in changes if c["planned_ns"] >= self._began_ns]


def nodes_and_disks(nodes: Iterable[RunningNode]) -> Mapping[str, Any]:
    """The fields of `Watched` that describe nodes and their disks."""
    nodes = list(nodes)
    return {
        "nodes": {
            node.name: {**node.cgroup.paths, "net": Path(f"/proc/{node.pid}/net/dev")}
            for node in nodes
        },
        **pages_and_devices(disk for node in nodes for disk in node.disks.values()),
    }


def pages_and_devices(disks: Iterable[UpDisk]) -> dict[str, Any]:
    """The fields of `Watched` that describe the disks."""
    disks = list(disks)
    return {
        "pages": {d.disk_id: d.page for d in disks if d.page is not None},
        "devices": {d.device: d.disk_id for d in disks},
    }
