"""The disks of a cluster's nodes: put up on the host by a back end, seen by the node at its own place."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.emulate.backends import Applied, Backends, Choice, Place, UpDisk
from penstock.emulate.backends.base import Cause, limits_dict
from penstock.emulate.backends.fuse import FuseDisk
from penstock.errors import BadInput, PenstockError
from penstock.host.journal import Entry, Journal, Values
from penstock.host.node_group import NodeGroup
from penstock.host.node_root import Bind
from penstock.spec.check_cluster import mount_point
from penstock.spec.cluster import DiskSpec, NodeSpec


@dataclass
class NodeDisk:
    """A disk of a node that is up: `at` is where the host has it, `mount` where the node sees it."""

    spec: DiskSpec
    at: Path
    mount: str
    directory: Path
    up: UpDisk
    choice: Choice


class NodeDisks:
    """All disks of one cluster; what serves them is started when the first is asked for."""

    def __init__(self, home: Path, journal: Journal, run: str) -> None:
        self._home = home
        self._backends = Backends(journal, home, run=run)
        self._disks: dict[str, dict[str, NodeDisk]] = {}

    def choose(self, disk: DiskSpec) -> Choice:
        """Which back end would serve a disk. Raises BadInput where none can."""
        return self._backends.choose(disk)

    def up(self, node: NodeSpec, group: NodeGroup, disk: DiskSpec) -> NodeDisk:
        """Puts one disk up. Raises PenstockError, or BadInput where it cannot be as asked."""
        directory = disk.directory or self._home / "disks" / node.name / disk.name
        at = self._home / "mounts" / node.name / disk.name
        directory.mkdir(parents=True, exist_ok=True)
        at.mkdir(parents=True)
        disk_id = f"{node.name}.{disk.name}"
        place = Place(disk_id, at, directory, group, node.memory_bytes)
        try:
            up = self._backends.up(disk, place)
        except BadInput as error:
            raise BadInput(f"node {node.name}: {error}") from error
        except PenstockError as error:
            raise PenstockError(f"node {node.name}: disk {disk.name}: {error}") from error
        choice = self._backends.choices[disk_id]
        made = NodeDisk(disk, at, mount_point(disk), directory, up, choice)
        self._disks.setdefault(node.name, {})[disk.name] = made
        return made

    def binds(self, node: str) -> tuple[Bind, ...]:
        """What a node's root gets of its disks, outer ones first."""
        disks = sorted(self.of(node).values(), key=lambda d: d.mount)
        return tuple(Bind(str(disk.at), disk.mount) for disk in disks)

    def of(self, node: str) -> dict[str, NodeDisk]:
        """A node's disks by name."""
        return self._disks.get(node, {})

    def altering(
        self, node: str, name: str | None, patch: dict[str, Any]
    ) -> list[tuple[Entry, Values]]:
        """What a patch changes, for the journal."""
        return self._find(node, name).up.altering(patch)

    def patch(
        self, node: str, name: str | None, patch: dict[str, Any], cause: Cause | None = None
    ) -> Applied:
        """Changes a disk now, of which the journal was told, and reads it back."""
        return self._find(node, name).up.patch(patch, announced=True, cause=cause)

    def check_cut(self, node: str, name: str | None) -> None:
        """Raises BadInput for a disk whose power cannot be cut."""
        disk = self._find(node, name)
        if not isinstance(disk.up, FuseDisk):
            raise BadInput(
                f"node {node}: power_cut of disk {name}: its back end {disk.choice.name} has none; "
                "expected a disk with backend: fuse"
            )

    def again(self, node: str, name: str | None) -> list[tuple[str, str]]:
        """Where the host has a disk that was mounted anew, and the node's disks in it; where it sees them."""
        cut = self._find(node, name)
        beneath = cut.mount.rstrip("/") + "/"
        inside = [d for d in self.of(node).values() if d.mount.startswith(beneath)]
        return [(str(d.at), d.mount) for d in (cut, *sorted(inside, key=lambda disk: disk.mount))]

    def schedule(self, node: str, name: str | None, events: list[dict[str, Any]]) -> None:
        """Hands a disk's events, of which the journal was told, to what serves it: `at_ns` (CLOCK_MONOTONIC)
        and `patch` each."""
        self._find(node, name).up.schedule(events, announced=True)

    def events(self) -> list[dict[str, Any]]:
        """What became of the disks' events."""
        found = []
        for node, disks in self._disks.items():
            for name, disk in disks.items():
                with contextlib.suppress(PenstockError):
                    for event in disk.up.events():
                        found.append({"node": node, "resource": "disk", "name": name, **event})
        return found

    def status(self, node: str) -> dict[str, dict[str, Any]]:
        """A node's disks with their counters."""
        return {
            name: describe(disk) | {"stats": _stats(disk), "now": _now(disk)}
            for name, disk in self.of(node).items()
        }

    def begin(self, spool: Path) -> None:
        """A run begins on all disks: counters to zero, what a certificate needs is recorded from now on."""
        for disks in self._disks.values():
            for disk in disks.values():
                disk.up.begin(spool)

    def end(self, spool: Path) -> dict[str, dict[str, Any]]:
        """The run has ended: by disk its counters, facts, and its tables as files of `spool` (Parquet)."""
        from penstock.archive.bundle import write_parquet

        found = {}
        for disks in self._disks.values():
            for disk in disks.values():
                stats = disk.up.stats(closing=True)
                tables = {}
                for name, table in disk.up.end().items():
                    path = spool / f"{disk.up.disk_id}.{name}.parquet"
                    write_parquet(path, table)
                    tables[name] = str(path)
                found[disk.up.disk_id] = {
                    "stats": stats,
                    "facts": disk.up.facts(),
                    "tables": tables,
                    "backend": disk.choice.name,
                    "reason": disk.choice.reason,
                    "warnings": list(disk.choice.warnings),
                }
        return found

    def down(self) -> None:
        """Takes all disks down."""
        self._disks.clear()
        self._backends.stop()

    def _find(self, node: str, name: str | None) -> NodeDisk:
        disk = self.of(node).get(name or "")
        if disk is None:
            there = ", ".join(self.of(node)) or "none"
            raise BadInput(f"node {node} has no disk {name!r}; it has {there}")
        return disk


def describe(disk: NodeDisk) -> dict[str, Any]:
    """A disk in JSON values, without its counters."""
    return {
        "mount": disk.mount,
        "at": str(disk.at),
        "directory": str(disk.directory),
        "disk_id": disk.up.disk_id,
        "device": list(disk.up.device),
        "backend": disk.choice.name,
        "reason": disk.choice.reason,
        "warnings": list(disk.choice.warnings),
        "profile": disk.spec.profile_name or None,
        "time_scale": disk.spec.time_scale,
        "page": _page(disk.up),
    }


def _page(up: UpDisk) -> str | None:
    """The page of its counters, of a disk of the model."""
    served = getattr(up, "served", None)
    return str(served.stats_file) if served is not None else None


def _now(disk: NodeDisk) -> dict[str, Any]:
    """What is in force, with the keys of a patch."""
    try:
        if isinstance(disk.up, FuseDisk):
            return disk.up.in_force()
        return {"limits": limits_dict(disk.up.read_back())}
    except PenstockError:
        return {}


def _stats(disk: NodeDisk) -> dict[str, Any] | None:
    try:
        return disk.up.stats()
    except PenstockError:
        return None
