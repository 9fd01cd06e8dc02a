"""Which back end serves a disk: by what is asked and what the host offers, and why in words."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.emulate.backends.base import LIMIT_KEYS, limits_dict
from penstock.emulate.spec import DiskSpec
from penstock.errors import BadInput
from penstock.host.cgroup import Hierarchies, hierarchies

#: what a patch may say to a throttled device; everything else needs the model
_OF_A_THROTTLE = {"limits", "readahead"}


@dataclass(frozen=True)
class Choice:
    """A back end and why it was taken; `warnings`: what of the request it will not honour."""

    name: str
    reason: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Offers:
    """What a host offers, by back end: empty text if it can be used, else what is missing."""

    fuse: str = ""
    cgroup2: str = ""
    cgroup1: str = ""

    def usable(self) -> list[str]:
        """Names of the back ends that can be used here."""
        return [name for name in ("fuse", "cgroup2", "cgroup1") if not getattr(self, name)]


def offers(table: Hierarchies | None = None) -> Offers:
    """Looks at this host (devices, hierarchies, programs, rights); changes nothing."""
    found = hierarchies() if table is None else table
    throttled = _no_loop()
    return Offers(
        fuse=_no_fuse(),
        cgroup2=_no_cgroup2(found) or throttled,
        cgroup1=_no_cgroup1(found) or throttled,
    )


def choose(disk: DiskSpec, host: Offers | None = None) -> Choice:
    """The back end for a disk. `disk.backend` overrides, and is refused where it cannot honour the request.

    The model (`fuse`) serves whatever has a shape: a profile, faults, other features; it also delivers plain
    limits evenly. Throttled devices serve plain limits where there is no FUSE. Raises BadInput with the
    reason and the nearest alternative.
    """
    host = offers() if host is None else host
    if disk.backend != "auto":
        missing = getattr(host, disk.backend)
        if missing:
            raise BadInput(
                f"disk {disk.name}: back end {disk.backend} cannot be used here: {missing}; "
                f"{_nearest(disk, host, without=disk.backend)}"
            )
        refusal = _refusal(disk, disk.backend)
        if refusal and not _overridden(disk, disk.backend):
            raise BadInput(
                f"disk {disk.name}: {refusal}; {_nearest(disk, host, without=disk.backend)}"
            )
        return Choice(disk.backend, "asked for", (refusal,) if refusal else ())
    reasons: list[str] = []
    for name in ("fuse", "cgroup2", "cgroup1"):
        reason = getattr(host, name) or _refusal(disk, name)
        if not reason:
            return Choice(name, "; ".join([_why(disk, name), *reasons]))
        reasons.append(f"not {name}: {reason}")
    raise BadInput(
        f"disk {disk.name}: no back end can honour it here: {'; '.join(reasons)}; "
        f"{_nearest(disk, host)}"
    )


def shape_of(disk: DiskSpec) -> list[str]:
    """What of a disk's request only the model can give, in words; empty for plain limits."""
    words = []
    if disk.profile is not None:
        words.append(f"the latency of profile {disk.profile_name or 'given'}")
    words += sorted(set(disk.patch) - _OF_A_THROTTLE)
    return words


def _refusal(disk: DiskSpec, name: str) -> str:
    """Why a back end cannot honour a request; empty if it can."""
    if name == "fuse":
        return ""
    shape = shape_of(disk)
    if shape:
        return f"{name} throttles a device and has no {', '.join(shape)}"
    if name == "cgroup1" and disk.io != "direct" and _limits_writes(disk):
        return (
            "the blkio hierarchy does not charge write-back to its writer, so a limit of buffered "
            "writes is not honoured"
        )
    return ""


def _overridden(disk: DiskSpec, name: str) -> bool:
    """Only a limit can be left unhonoured on purpose; a shape that is not there cannot be asked for."""
    return disk.allow_unhonoured and not shape_of(disk) and name != "fuse"


def _limits_writes(disk: DiskSpec) -> bool:
    asked: dict[str, Any] = limits_dict(disk.limits) | dict(disk.patch.get("limits") or {})
    return any(asked.get(name) not in (None, "max") for name in LIMIT_KEYS if "write" in name)


def _why(disk: DiskSpec, name: str) -> str:
    shape = shape_of(disk)
    if shape:
        return f"{', '.join(shape)}: only the model has it"
    if name == "fuse":
        return "the model delivers limits evenly, on all paths"
    return "limits of a throttled device, in slices of some 100 ms"


def _nearest(disk: DiskSpec, host: Offers, without: str = "") -> str:
    able = [n for n in host.usable() if n != without and not _refusal(disk, n)]
    if able:
        return f"the nearest alternative is backend: {able[0]}"
    if shape_of(disk) and host.usable():
        return "the nearest alternative is a disk with limits and nothing else"
    if "cgroup1" in host.usable():
        return (
            "the nearest alternative is backend: cgroup1 with io: direct (limits then hold for "
            "direct I/O only), or allow_unhonoured: true"
        )
    return "penstock doctor says what this host offers and what to do about the rest"


def _no_fuse() -> str:
    device = Path("/dev/fuse")
    if not device.exists():
        return "there is no /dev/fuse"
    if not os.access(device, os.R_OK | os.W_OK):
        return "/dev/fuse may not be opened"
    if os.geteuid() != 0 and shutil.which("fusermount3") is None:
        return "fusermount3 (Debian package fuse3) is not installed"
    return ""


def _no_cgroup2(found: Hierarchies) -> str:
    if found.unified is None:
        return "no cgroup v2 hierarchy is mounted"
    lacking = [c for c in ("io", "memory") if c not in found.v2]
    if lacking:
        return f"the cgroup v2 hierarchy has no {' and no '.join(lacking)} controller"
    if not os.access(found.unified, os.W_OK):
        return f"{found.unified} may not be written"
    return ""


def _no_cgroup1(found: Hierarchies) -> str:
    blkio = found.v1.get("blkio")
    if blkio is None:
        return "no blkio hierarchy is mounted"
    if not (blkio / "blkio.throttle.read_bps_device").exists():
        return "the kernel's blkio hierarchy has no throttle"
    return "" if os.access(blkio, os.W_OK) else f"{blkio} may not be written"


def _no_loop() -> str:
    if os.geteuid() != 0:
        return "only root can set up loop devices"
    if not os.access("/dev/loop-control", os.R_OK | os.W_OK):
        return "there is no /dev/loop-control (load the loop module)"
    path: Any = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    if shutil.which("mkfs.ext4", path=path) is None:
        return "mkfs.ext4 (Debian package e2fsprogs) is not installed"
    return ""
