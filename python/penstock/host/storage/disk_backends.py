"""Devices, hierarchies, programs and rights that this host lacks for the back ends of disks."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from penstock.host.cgroups.cgroup import Hierarchies, hierarchies


def no_fuse() -> str:
    """Reason why the disk server cannot be used; empty if it can."""
    device = Path("/dev/fuse")
    if not device.exists():
        return "there is no /dev/fuse"
    if not os.access(device, os.R_OK | os.W_OK):
        return "/dev/fuse may not be opened"
    if os.geteuid() != 0 and shutil.which("fusermount3") is None:
        return "fusermount3 (Debian package fuse3) is not installed"
    return ""


def no_cgroup2(host: Hierarchies | None = None) -> str:
    """Reason why `io.max` cannot be used; empty if it can. `host`: the hierarchies, else read here."""
    mounted = host or hierarchies()
    if mounted.unified is None:
        return "no cgroup v2 hierarchy is mounted"
    lacking = [c for c in ("io", "memory") if c not in mounted.v2]
    if lacking:
        return f"the cgroup v2 hierarchy has no {' and no '.join(lacking)} controller"
    if not os.access(mounted.unified, os.W_OK):
        return f"{mounted.unified} may not be written"
    return _no_loop()


def no_cgroup1(host: Hierarchies | None = None) -> str:
    """Reason why the blkio throttle cannot be used; empty if it can."""
    mounted = host or hierarchies()
    blkio = mounted.v1.get("blkio")
    if blkio is None:
        return "no blkio hierarchy is mounted"
    if not (blkio / "blkio.throttle.read_bps_device").exists():
        return "the kernel's blkio hierarchy has no throttle"
    return _no_loop() if os.access(blkio, os.W_OK) else f"{blkio} may not be written"


def _no_loop() -> str:
    if os.geteuid() != 0:
        return "only root can set up loop devices"
    if not os.access("/dev/loop-control", os.R_OK | os.W_OK):
        return "there is no /dev/loop-control (load the loop module)"
    path: Any = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    if shutil.which("mkfs.ext4", path=path) is None:
        return "mkfs.ext4 (Debian package e2fsprogs) is not installed"
    return ""
