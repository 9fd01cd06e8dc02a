"""Back end `cgroup1`: the blkio hierarchy's throttle. Direct I/O and uncached reads.

Kernel threads outside the group do write-back, which is not charged to the writer, so limits of buffered
writes are refused (`choice.py`) unless `allow_unhonoured` is set.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from penstock.emulate.backends.base import LIMIT_KEYS, limits_dict
from penstock.emulate.backends.counters import Counts
from penstock.emulate.backends.throttled import Throttle, ThrottledBackend, ThrottledDisk
from penstock.host.cgroups.cgroup import Write
from penstock.host.storage.blockdev import BlockDevice
from penstock.host.storage.disk_backends import no_cgroup1
from penstock.spec.cluster import DiskSpec

NOT_CHARGED = "the blkio hierarchy does not charge write-back to its writer"


class BlkioThrottle:
    """`blkio.throttle.*` of one device for a group and the groups inside it.

    Child groups do not inherit limits in this hierarchy, so every existing group gets them.
    """

    def __init__(self, group: Path, device: BlockDevice) -> None:
        self._group = group
        self._device = device

    def writes(self, name: str, value: int | None) -> list[Write]:
        """Writes that set one limit; 0 clears it."""
        text = f"{self._device.text} {value or 0}"
        return [(group / _file(name), text) for group in self._groups()]

    def set(self, name: str, value: int | None) -> None:
        for path, text in self.writes(name, value):
            path.write_text(text)

    def get(self) -> dict[str, int]:
        """Limits of the group."""
        limits = {}
        for name in ("read_bps", "write_bps", "read_iops", "write_iops"):
            for line in (self._group / _file(name)).read_text().splitlines():
                number, _, value = line.partition(" ")
                if number == self._device.text and value.strip().isdigit():
                    limits[name] = int(value)
        return limits

    def counts(self) -> Counts:
        """Bytes and operations since the group was created, child groups included."""
        moved = self._split("blkio.throttle.io_service_bytes_recursive")
        times = self._split("blkio.throttle.io_serviced_recursive")
        return Counts(moved["Read"], moved["Write"], times["Read"], times["Write"])

    def _split(self, name: str) -> dict[str, int]:
        counts = {"Read": 0, "Write": 0}
        for line in (self._group / name).read_text().splitlines():
            fields = line.split()
            if len(fields) == 3 and fields[0] == self._device.text and fields[1] in counts:
                counts[fields[1]] = int(fields[2])
        return counts

    def _groups(self) -> list[Path]:
        return [Path(top) for top, _, _ in os.walk(self._group)]


class Cgroup1Backend(ThrottledBackend):
    """Disks throttled by the blkio hierarchy."""

    name = "cgroup1"

    @classmethod
    def missing(cls) -> str:
        """Requirement of the blkio throttle that this host lacks."""
        return no_cgroup1()

    @classmethod
    def refusal(cls, disk: DiskSpec) -> str:
        """Refuse also limits of buffered writes."""
        shape = super().refusal(disk)
        if not shape and disk.io != "direct" and _limits_writes(disk):
            return (
                "the blkio hierarchy does not charge write-back to the writer, so it cannot limit "
                "buffered writes"
            )
        return shape

    def throttle(self, group: Path, device: BlockDevice) -> Throttle:
        """Blkio throttle of a group's directory."""
        return BlkioThrottle(group, device)

    def check(self, disk: ThrottledDisk, spec: DiskSpec) -> list[str]:
        """Report limits that are not in force."""
        disk.unhonoured = {"write": NOT_CHARGED}
        return [] if spec.io == "direct" else [f"{NOT_CHARGED}: buffered writes are not limited"]


def _limits_writes(disk: DiskSpec) -> bool:
    limits: dict[str, Any] = limits_dict(disk.limits) | dict(disk.patch.get("limits") or {})
    return any(limits.get(name) not in (None, "max") for name in LIMIT_KEYS if "write" in name)


def _file(name: str) -> str:
    return f"blkio.throttle.{name}_device"
