"""A run's disks: mounted from the study's one disk server, logged and counted, taken away fast."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.campaign.disk_certificate import certified
from penstock.emulate.backends.base import Owner, Place
from penstock.emulate.backends.fuse import FuseBackend, FuseDisk
from penstock.emulate.disks.server import EmulatedDisk
from penstock.emulate.schedule.events_table import events_table, failed
from penstock.host.directories import make_directory, remove_directory
from penstock.host.journal import Entry, Journal
from penstock.spec.cluster import DiskSpec
from penstock.study.resolve import ResolvedDisk


@dataclass
class DiskObservation:
    """What the disks of a run counted and logged, and how true they were."""

    tables: dict[str, pa.Table] = field(default_factory=dict)
    faults: tuple[str, ...] = ()


class RunDisks:
    """The disk server of a study, and the disks of the run at hand."""

    def __init__(self, journal: Journal, home: Path, mounts: Path) -> None:
        self._journal = journal
        self._root = mounts
        self._made: list[Entry] = []
        self._backend = FuseBackend(Owner(journal, home))
        self._disks: dict[str, tuple[ResolvedDisk, FuseDisk]] = {}

    def attach(
        self,
        run_id: str,
        disks: list[ResolvedDisk],
        backing: dict[str, Path],
        seed: int,
        memory_bytes: int | None,
    ) -> dict[str, Path]:
        """Mounts the disks over their backing directories; gives the mounts by disk."""
        for disk in disks:
            mount = self._root / run_id / disk.disk_id
            if disk.mount is not None:
                mount = Path(disk.mount)
                if not mount.exists():
                    self._made.append(make_directory(mount, self._journal, run=run_id, mode=0o755))
            else:
                mount.mkdir(parents=True)
            files = backing[disk.disk_id]
            place = Place(disk.disk_id, mount, files, memory_bytes=memory_bytes, run=run_id)
            spec = DiskSpec(disk.name, disk.profile, disk.profile_name, disk.time_scale, seed=seed)
            self._disks[disk.disk_id] = disk, self._backend.up(spec, place)
        return {disk_id: up.mount for disk_id, (_, up) in self._disks.items()}

    @property
    def up(self) -> dict[str, EmulatedDisk]:
        """The disks that are up."""
        return {disk_id: up.served for disk_id, (_, up) in self._disks.items()}

    def begin(self, spool_dir: Path) -> None:
        """Counters to zero, the request logs begin."""
        for _, up in self._disks.values():
            up.begin(spool_dir)

    def end(self, utilisation: pa.Table | None, run_cpu_ns: int | None) -> DiskObservation:
        """Reads counters and logs, judges fidelity; the logs are removed once they are tables.

        `utilisation` of the host, where it was monitored, tells a busy host from an untrue disk;
        `run_cpu_ns`, the processor time of the run, tells its own load from others'.
        """
        parts: dict[str, list[pa.Table]] = {}
        changes: list[tuple[str, str, dict[str, Any]]] = []
        faults: list[str] = []
        for disk_id, (disk, up) in self._disks.items():
            stats, events, tables = up.stats(closing=True), up.events(), up.end()
            if not tables:
                continue  # it was not begun
            changes += [("disk", disk_id, event) for event in events]
            judged = certified(
                disk_id,
                {"stats": stats},
                tables,
                disk.profile,
                events,
                utilisation=utilisation,
                run_cpu_ns=run_cpu_ns,
            )
            tables["disk_stats"] = counters_table(disk_id, stats)
            if judged is not None:
                tables |= {"fidelity": judged.whole, "fidelity_windows": judged.windows}
                faults += faults_of(judged.whole)
            for name, table in tables.items():
                parts.setdefault(name, []).append(table)
        seen = DiskObservation()
        for name, some in parts.items():
            seen.tables[name] = pa.concat_tables(some, promote_options="permissive")
        if changes:
            seen.tables["events"] = events_table(changes)
            faults += failed(seen.tables["events"])
        seen.faults = tuple(faults)
        return seen

    def detach(self) -> None:
        """Takes the disks away, in no time of theirs."""
        with contextlib.ExitStack() as stack:
            while self._made:
                stack.callback(remove_directory, self._made.pop(), self._journal)
            while self._disks:
                _, (_, up) = self._disks.popitem()
                stack.callback(_remove_empty, up.mount, self._root)
                stack.callback(up.down)

    def stop(self) -> None:
        """Ends the server and what it still serves."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._backend.stop)
            self.detach()


def counters_table(disk_id: str, stats: dict[str, Any]) -> pa.Table:
    """The numbers among a disk's counters as rows of `disk_stats`, what belongs together as `a.b`."""
    numbers = dict(_numbers(stats))
    return pa.table(
        {
            "disk_id": pa.array([disk_id] * len(numbers), pa.string()),
            "metric": pa.array(list(numbers), pa.string()),
            "value": pa.array(list(numbers.values()), pa.float64()),
        }
    )


def _numbers(stats: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, float]]:
    for name, value in stats.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{within}{name}.")
        elif isinstance(value, int | float):
            yield f"{within}{name}", float(value)


def faults_of(certificate: pa.Table) -> list[str]:
    """One text per disk whose certificate is not valid, with the first reason."""
    first: dict[str, str] = {}
    for row in certificate.to_pylist():
        if not row["valid"]:
            first.setdefault(str(row["disk_id"]), str(row["reason"] or row["verdict"]))
    return [f"{disk_id}: {reason}" for disk_id, reason in first.items()]


def _remove_empty(mount: Path, root: Path) -> None:
    """Removes a mount point of ours and the run's directory above it."""
    if root in mount.parents:
        for path in (mount, mount.parent):
            with contextlib.suppress(OSError):
                path.rmdir()
