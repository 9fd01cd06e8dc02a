"""Runs on the host itself: a control group, and disks of the study's disk server."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.campaign.places.stage import CommandLine, Site, Stage, Used, pages_and_devices
from penstock.emulate.backends import Place
from penstock.emulate.disks.live import LiveDisks
from penstock.emulate.disks.recorded import Recorded
from penstock.host.cgroups.cgroup import RunCgroup, create_run_cgroup
from penstock.host.journal.directories import make_directory, remove_directory
from penstock.host.journal.journal import Entry, Journal
from penstock.host.processes.launch import Finished, launch
from penstock.observe.observer import Watched
from penstock.spec.cluster import DiskSpec
from penstock.study.resolve import ResolvedDisk, ResolvedRun


class HostStage(Stage):
    """The host as a single plain node; its programs run like any others."""

    by_node = False

    def __init__(self, site: Site) -> None:
        super().__init__()
        self._journal = site.journal
        # a plain node's disks have a profile, which only one back end supports: no probing
        self._live = LiveDisks(site.home, site.journal, lacking={})
        self._points = MountPoints(site.journal, site.mounts)
        self._cgroup: RunCgroup | None = None
        self._resolved: ResolvedRun | None = None

    @classmethod
    def takes(cls, resolved: ResolvedRun) -> bool:
        """True for a treatment without a guest and without virtual nodes."""
        return resolved.guest is None and resolved.cluster is None

    def change(self, resolved: ResolvedRun, actions: Sequence[str]) -> None:
        """Nothing: each run has its own group and mounts."""

    def attach(
        self, run_id: str, resolved: ResolvedRun, backing: dict[str, Path], seed: int, shared: Path
    ) -> None:
        """Create the run's control group and its disks."""
        self._resolved = resolved
        memory = resolved.memory_bytes
        self._cgroup = create_run_cgroup(run_id, memory, self._journal, run=run_id)
        self.mounts = {d.disk_id: backing[d.disk_id] for d in resolved.disks if not d.emulated}
        for disk in resolved.disks:
            if not disk.emulated:
                continue
            mount = self._points.make(run_id, disk)
            files = backing[disk.disk_id]
            spec = DiskSpec(disk.name, disk.profile, disk.profile_name, disk.time_scale, seed=seed)
            place = Place(disk.disk_id, mount, files, memory_bytes=memory, run=run_id)
            self._live.up(disk.node, spec, place, str(mount))
            self.mounts[disk.disk_id] = mount

    def watched(self) -> Watched:
        """The run's group and its emulated disks."""
        return Watched(scope=self._cgroup, group=self._cgroup, **pages_and_devices(self._live))

    def run(
        self,
        command_line: CommandLine,
        phase: Callable[[str], contextlib.AbstractContextManager[None]],
    ) -> Finished:
        """Run the command in the group."""
        with phase("workload"):
            return self._launch(command_line)

    def after(self, command_line: CommandLine) -> Finished:
        """Run the subsequent command in the group."""
        return self._launch(command_line)

    def _launch(self, command_line: CommandLine) -> Finished:
        assert self._resolved is not None
        filling = self._resolved.filling(self.mounts, command_line.run_dir)
        return launch(
            filling.line(command_line.command),
            self._cgroup,
            command_line.stdout,
            command_line.stderr,
            extra_env=filling.texts(command_line.env),
            cwd=filling.text(command_line.directory)
            if command_line.directory
            else str(command_line.run_dir),
            timeout_s=command_line.timeout_s,
            user=command_line.user,
            stop=command_line.stop,
        )

    def used(self) -> Used:
        """Counters of the group."""
        used = Used()
        if self._cgroup is not None:
            with contextlib.suppress(OSError):
                used.peak_memory_bytes = self._cgroup.peak_memory_bytes()
                used.oom_kills = self._cgroup.oom_kills()
                used.cpu_ns = self._cgroup.cpu_ns()
                used.cpu_waited_ns = self._cgroup.cpu_waited_ns()
        return used

    def _disks(self) -> LiveDisks:
        return self._live

    def _recorded(
        self, spool: Path, changes: Sequence[Mapping[str, Any]]
    ) -> Mapping[str, Recorded]:
        return self._live.end(changes)

    def _of_run(self, changes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """All changes, as the disks were started for this run; with full names."""
        return [{**c, "name": f"{c['node']}.{c['name']}"} for c in changes]

    def detach(self) -> None:
        """Remove disks and group."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._points.remove)
            stack.callback(self._live.down)
            if self._cgroup is not None:
                stack.callback(self._cgroup.remove)
                self._cgroup = None

    def stop(self) -> None:
        """End the disk server."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._live.stop)
            self.detach()


class MountPoints:
    """Mount points of a run's disks: as the study declares, else in a private directory of the run."""

    def __init__(self, journal: Journal, root: Path) -> None:
        self._journal = journal
        self._root = root
        #: entries of mount points that the study names
        self._declared: list[Entry] = []
        self._own: list[Path] = []

    def make(self, run_id: str, disk: ResolvedDisk) -> Path:
        """Create the mount point of a disk."""
        if disk.mount is None:
            mount = self._root / run_id / disk.disk_id
            mount.mkdir(parents=True)
            self._own.append(mount)
            return mount
        mount = Path(disk.mount)
        if not mount.exists():
            self._declared.append(make_directory(mount, self._journal, run=run_id, mode=0o755))
        return mount

    def remove(self) -> None:
        """Remove the mount points of `make` that are unused."""
        while self._own:
            mount = self._own.pop()
            for path in (mount, mount.parent):
                with contextlib.suppress(OSError):
                    path.rmdir()
        with contextlib.ExitStack() as stack:
            while self._declared:
                stack.callback(remove_directory, self._declared.pop(), self._journal)
