"""Back end `cgroup2`: `io.max` of the unified hierarchy, on all data paths.

Write-back is charged to the group whose memory has the dirty pages, if the file system supports it and the
group has the memory controller. A trial verifies this: when a disk with a write limit starts, a process of
the group dirties a file, another outside the group syncs it, and the group's `io.stat` must have moved.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from penstock.emulate.backends.base import Group
from penstock.emulate.backends.counters import Counts
from penstock.emulate.backends.throttled import Throttle, ThrottledBackend, ThrottledDisk
from penstock.errors import BadInput, PenstockError
from penstock.host.cgroups.cgroup import Write
from penstock.host.journal.journal import new_token
from penstock.host.storage.blockdev import BlockDevice
from penstock.host.storage.disk_backends import no_cgroup2
from penstock.spec.cluster import DiskSpec

_KEYS = {
    "read_bps": "rbps",
    "write_bps": "wbps",
    "read_iops": "riops",
    "write_iops": "wiops",
}
#: size of the trial of write-back charging [bytes], and the share that must be charged
TRIAL_BYTES = 1 << 20
CHARGED_SHARE = 0.9
#: enters the group $1 and writes $3 KiB to $2 through the page cache
_WRITE = 'echo $$ >"$1" && exec dd if=/dev/zero of="$2" bs=1024 count="$3" 2>/dev/null'


class IoMax:
    """`io.max` and `io.stat` of one device for a group; limits include child groups."""

    def __init__(self, group: Path, device: BlockDevice) -> None:
        self._group = group
        self._device = device

    def writes(self, name: str, value: int | None) -> list[Write]:
        """Writes that set one key; the kernel leaves the other keys."""
        text = f"{self._device.text} {_KEYS[name]}={'max' if value is None else value}"
        return [(self._group / "io.max", text)]

    def set(self, name: str, value: int | None) -> None:
        for path, text in self.writes(name, value):
            path.write_text(text)

    def get(self) -> dict[str, int]:
        """Limits that are set."""
        pairs = self._line("io.max")
        return {name: int(pairs[k]) for name, k in _KEYS.items() if pairs.get(k, "max") != "max"}

    def counts(self) -> Counts:
        """Bytes and operations charged to the group and its child groups since its creation."""
        pairs = self._line("io.stat")
        return Counts(*(int(pairs.get(k, 0)) for k in ("rbytes", "wbytes", "rios", "wios")))

    def _line(self, name: str) -> dict[str, str]:
        for line in (self._group / name).read_text().splitlines():
            number, _, rest = line.partition(" ")
            if number == self._device.text:
                pairs = (pair.partition("=") for pair in rest.split())
                return {key: value for key, _, value in pairs}
        return {}


class Cgroup2Backend(ThrottledBackend):
    """Disks throttled by `io.max`."""

    name = "cgroup2"

    @classmethod
    def missing(cls) -> str:
        """Requirement of `io.max` that this host lacks."""
        return no_cgroup2()

    def throttle(self, group: Path, device: BlockDevice) -> Throttle:
        """`io.max` of a group's directory. Raises BadInput if the group lacks the controller."""
        if not (group / "io.max").exists():
            raise BadInput(
                f"{group} has no io controller, so nothing can be limited in it; "
                "the nearest alternative is backend: fuse"
            )
        return IoMax(group, device)

    def check(self, disk: ThrottledDisk, spec: DiskSpec) -> list[str]:
        """Check that write-back is charged to the group."""
        assert disk.group is not None
        share = charged_share(disk.group, disk.mount, disk.throttle)
        if share >= CHARGED_SHARE:
            return [f"write-back is charged to the group ({100 * share:.0f} % in a trial)"]
        message = f"write-back on {disk.mount} is not charged to the group ({100 * share:.0f} % in a trial)"
        disk.unhonoured = {"write": message}
        return [message]


def charged_share(group: Group, mount: Path, throttle: Throttle) -> float:
    """Share of a buffered write that is charged to its group if a process outside writes it back.

    A process of the group writes a file below `mount` and exits; this process, outside, syncs it.
    """
    path = mount / f".penstock-trial-{new_token()}"
    enters = [p for p in group.enter_args() if p.startswith(str(group.paths["blkio"]))]
    if not enters:
        raise PenstockError(f"no cgroup.procs in {group.paths['blkio']}")
    before = throttle.counts().written_bytes
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", _WRITE, "sh", enters[0], str(path), str(TRIAL_BYTES >> 10)],
            capture_output=True,
            text=True,
            timeout=60,
        )
        if done.returncode != 0:
            raise PenstockError(f"the trial of write-back charging failed: {done.stderr.strip()}")
        with path.open("rb") as file:
            os.fsync(file.fileno())
        return (throttle.counts().written_bytes - before) / TRIAL_BYTES
    finally:
        path.unlink(missing_ok=True)
