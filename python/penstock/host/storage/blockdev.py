"""Block devices by any path: a device node, a symbolic link, a file on a file system, a mount point."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import BadInput
from penstock.host.storage.mounts import mount_of

_SYS = Path("/sys/dev/block")


@dataclass(frozen=True)
class BlockDevice:
    """A complete block device: number, kernel name, and the devices below it if it is stacked (loop, dm, md).

    Limits apply to this one only: a request to a stacked device is charged there and again below.
    """

    number: tuple[int, int]
    name: str
    below: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """MAJOR:MINOR, as in control group files."""
        return f"{self.number[0]}:{self.number[1]}"

    @property
    def queue(self) -> Path:
        """Directory of its queue settings."""
        return Path("/sys/block") / self.name / "queue"


def device_of(path: str | os.PathLike[str]) -> BlockDevice:
    """Complete device of `path`, cached. Raises BadInput if there is none (tmpfs, FUSE, …)."""
    where = os.path.realpath(path)
    try:
        status = os.stat(where)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}; expected a device or a path on one") from error
    if stat.S_ISBLK(status.st_mode):
        return _device_of_number(status.st_rdev, path)
    if os.major(status.st_dev) != 0:
        return _device_of_number(status.st_dev, path)
    # file systems of several devices (btrfs) and layers (overlay) have synthetic numbers
    mount = mount_of(where)
    if mount is not None:
        if mount.source.startswith("/dev/") and os.path.exists(mount.source):
            return device_of(mount.source)
        if mount.fstype == "overlay":
            upper = next((o[9:] for o in mount.super_options if o.startswith("upperdir=")), "")
            if upper and os.path.exists(upper):
                return device_of(upper)
    kind = mount.fstype if mount is not None else "an unknown file system"
    raise BadInput(f"{path} is on {kind}; expected a path on a block device")


def settings(device: BlockDevice) -> dict[str, Any]:
    """Scheduler, readahead, write cache, queue depth and largest request of a device."""

    def text(name: str) -> str:
        try:
            return (device.queue / name).read_text().strip()
        except OSError:
            return ""

    scheduler = text("scheduler")
    if "[" in scheduler:
        scheduler = scheduler[scheduler.index("[") + 1 : scheduler.index("]")]
    return {
        "device_number": device.text,
        "device": device.name,
        "below": list(device.below),
        "scheduler": scheduler,
        "read_ahead_kib": int(text("read_ahead_kb") or 0),
        "queue_depth": int(text("nr_requests") or 0),
        "largest_request_kib": int(text("max_sectors_kb") or 0),
        "write_cache": text("write_cache"),
        "rotational": text("rotational") == "1",
    }


def _device_of_number(rdev: int, path: str | os.PathLike[str]) -> BlockDevice:
    link = _SYS / f"{os.major(rdev)}:{os.minor(rdev)}"
    if not link.exists():
        raise BadInput(f"{path}: device {os.major(rdev)}:{os.minor(rdev)} is not known to /sys")
    node = Path(os.path.realpath(link))
    if (node / "partition").exists():
        node = node.parent
    major, _, minor = (node / "dev").read_text().strip().partition(":")
    below: list[str] = []
    if (node / "slaves").is_dir():
        below += sorted(os.listdir(node / "slaves"))
    backing = node / "loop" / "backing_file"
    if backing.exists():
        below.append(backing.read_text().strip())
    return BlockDevice((int(major), int(minor)), node.name, tuple(below))


def disk_name(major: int, minor: int) -> str:
    """Name of a block device in /sys/block, `major:minor` if it is gone."""
    try:
        return Path(os.readlink(f"/sys/dev/block/{major}:{minor}")).name
    except OSError:
        return f"{major}:{minor}"
