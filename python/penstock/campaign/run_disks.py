"""A run's disks: mounted from the study's one disk server, logged and counted, taken away fast."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.analyse.fidelity import certificate
from penstock.emulate.backends.fuse import INSTANT_PROFILE
from penstock.emulate.disks.request_log import read_disk_log
from penstock.emulate.disks.server import DiskServer, EmulatedDisk
from penstock.emulate.schedule.events_table import events_table, failed
from penstock.host.directories import make_directory, remove_directory
from penstock.host.journal import Entry, Journal
from penstock.study.resolve import ResolvedDisk


@dataclass
class DiskObservation:
    """What the disks of a run counted and logged, and how true they were."""

    tables: dict[str, pa.Table] = field(default_factory=dict)
    faults: tuple[str, ...] = ()


@dataclass
class _Mounted:
    disk: ResolvedDisk
    up: EmulatedDisk
    log: Path | None = None


class RunDisks:
    """The disk server of a study, and the disks of the run at hand."""

    def __init__(self, journal: Journal, home: Path, mounts: Path) -> None:
        self._journal = journal
        self._root = mounts
        self._made: list[Entry] = []
        self._server = DiskServer(journal, home)
        self._mounted: dict[str, _Mounted] = {}

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
            up = self._server.add(
                disk.disk_id,
                mount,
                backing[disk.disk_id],
                disk.profile,
                seed=seed,
                memory_bytes=memory_bytes,
                run=run_id,
            )
            self._mounted[disk.disk_id] = _Mounted(disk, up)
        return {disk_id: m.up.mount for disk_id, m in self._mounted.items()}

    @property
    def up(self) -> dict[str, EmulatedDisk]:
        """The disks that are up."""
        return {disk_id: m.up for disk_id, m in self._mounted.items()}

    def begin(self, spool_dir: Path) -> None:
        """Counters to zero, the request logs begin."""
        for disk_id, mounted in self._mounted.items():
            self._server.reset(disk_id)
            mounted.log = spool_dir / f"{disk_id}.requests"
            self._server.log(disk_id, mounted.log)

    def end(self, utilisation: pa.Table | None, run_cpu_ns: int | None) -> DiskObservation:
        """Reads counters and logs, judges fidelity; the logs are removed once they are tables.

        `utilisation` of the host, where it was monitored, tells a busy host from an untrue disk;
        `run_cpu_ns`, the processor time of the run, tells its own load from others'.
        """
        seen = DiskObservation()
        requests, counters, waits, certificates, windows, faults = [], [], [], [], [], []
        changes: list[tuple[str, str, dict[str, Any]]] = []
        for disk_id, mounted in self._mounted.items():
            if mounted.log is None:
                continue
            stats = self._server.stats(disk_id, closing=True)
            events = self._server.events(disk_id)["events"]
            changes += [("disk", disk_id, event) for event in events]
            self._server.log(disk_id, None)
            host_waits = self._server.host_waits(disk_id)
            waits.append(host_waits)
            table = read_disk_log(mounted.log, disk_id=disk_id)
            requests.append(table)
            counters.append(counters_table(disk_id, stats))
            found = certificate(
                table,
                stats,
                mounted.disk.profile,
                disk_id=disk_id,
                utilisation=utilisation,
                run_cpu_ns=run_cpu_ns,
                events=events,
                host_waits=host_waits,
            )
            certificates.append(found.whole)
            windows.append(found.windows)
            faults += faults_of(found.whole)
            for spool in (mounted.log, Path(f"{mounted.log}.files")):
                spool.unlink(missing_ok=True)
            mounted.log = None
        for name, parts in (
            ("device_requests", requests),
            ("disk_stats", counters),
            ("host_waits", waits),
            ("fidelity", certificates),
            ("fidelity_windows", windows),
        ):
            if parts:
                seen.tables[name] = pa.concat_tables(parts, promote_options="permissive")
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
            while self._mounted:
                disk_id, mounted = self._mounted.popitem()
                stack.callback(_remove_empty, mounted.up.mount, self._root)
                stack.callback(self._server.remove, disk_id)
                with contextlib.suppress(Exception):  # it goes anyway, only slower
                    self._server.set(disk_id, INSTANT_PROFILE)

    def stop(self) -> None:
        """Ends the server and what it still serves."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._server.stop)
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
