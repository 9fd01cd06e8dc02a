"""A virtual machine in which runs take place, as numbers. Units: bytes, bytes/s, requests/s."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class GuestDisk:
    """A disk of a guest: its size, and the most bytes and requests a second that it gives (None: as many as
    the host's). The first is /dev/vdb."""

    size_bytes: int
    rate_bps: int | None = None
    iops: int | None = None


@dataclass(frozen=True)
class GuestSpec:
    """A guest: kernel of a Debian `suite` (empty: this host's), modules that are loaded, programs of
    this host that are carried in with their libraries, memory, processors, disks, and files by their path in
    /job."""

    suite: str = ""
    modules: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    memory_bytes: int = 1 << 30
    cpus: int = 2
    disks: tuple[GuestDisk, ...] = ()
    files: tuple[tuple[str, Path], ...] = ()
