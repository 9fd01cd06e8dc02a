"""A virtual machine for runs, in numbers. Units: bytes, bytes/s, requests/s."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class GuestDisk:
    """A disk of a guest: its size, and its limits of bytes and requests per second (None: those of the host).
    The first is /dev/vdb."""

    size_bytes: int
    rate_bps: int | None = None
    iops: int | None = None


@dataclass(frozen=True)
class GuestSpec:
    """A guest: kernel of a Debian `suite` (empty: this host's), modules to load, programs copied from this
    host with their libraries, memory, processors, disks, and files by their path in /job."""

    suite: str = ""
    modules: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    memory_bytes: int = 1 << 30
    cpus: int = 2
    disks: tuple[GuestDisk, ...] = ()
    files: tuple[tuple[str, Path], ...] = ()
