"""Initial state of a run: written back, cold (or warm) as declared, and verified."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from penstock.host.storage.residency import drop_file_cache, residency

#: longest wait for write-back [s]
DRAINED_WITHIN_S = 30.0
_LOOK_EVERY_S = 0.02
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Settled:
    """Share of each disk's pages in the page cache, and the deviation from the declared state ('' if
    none)."""

    resident_share: dict[str, float]
    fault: str


def sync_file_systems(paths: Iterable[Path]) -> None:
    """Write back the file systems of these paths only (syncfs(2))."""
    done = set()
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            device = os.fstat(fd).st_dev
            if device not in done and _libc.syncfs(fd) != 0:
                error = ctypes.get_errno()
                raise OSError(error, os.strerror(error), str(path))
            done.add(device)
        finally:
            os.close(fd)


def undrained(
    limit_bytes: int,
    within_s: float = DRAINED_WITHIN_S,
    dirty: Callable[[], int] | None = None,
) -> str:
    """Wait until at most `limit_bytes` of this host remain to be written back; returns a message on time-out,
    else ''. `dirty` returns the bytes (default: the kernel's count)."""
    count = dirty or dirty_bytes
    until = time.monotonic() + within_s
    while (unwritten := count()) > limit_bytes:
        if time.monotonic() > until:
            return (
                f"{unwritten / 2**20:.1f} MiB of this host still to be written back at the start, at most "
                f"{limit_bytes / 2**20:g} MiB allowed"
            )
        time.sleep(_LOOK_EVERY_S)
    return ""


def dirty_bytes() -> int:
    """Bytes of the host's page cache that are dirty or under write-back (proc_meminfo(5))."""
    counts = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return sum(int(counts[name].split()[0]) * 1024 for name in ("Dirty", "Writeback"))


def warm(path: Path) -> None:
    """Read every file of a tree into the page cache."""
    for top, _, names in os.walk(path):
        for name in names:
            with open(os.path.join(top, name), "rb", buffering=0) as file:
                while file.read(1 << 20):
                    pass


def settle_caches(
    mounts: dict[str, Path],
    drop: bool,
    at_most: float | None,
    at_least: float | None,
) -> Settled:
    """Bring the page cache of each mount to the declared share, and measure the result.

    A new mount has an empty cache; files are dropped only from others.
    """
    shares: dict[str, float] = {}
    faults = []
    for disk_id, mount in mounts.items():
        share = residency(mount).fraction
        if drop and at_least is None and share > 0:
            share = drop_file_cache(mount).fraction
        if at_least is not None and share < at_least:
            warm(mount)
            share = residency(mount).fraction
        shares[disk_id] = share
        if at_most is not None and share > at_most:
            faults.append(
                f"{disk_id}: {100 * share:.1f} % of its files in the page cache at the start, "
                f"at most {100 * at_most:g} % allowed"
            )
        if at_least is not None and share < at_least:
            faults.append(
                f"{disk_id}: {100 * share:.1f} % of its files in the page cache at the start; "
                f"expected at least {100 * at_least:g} %"
            )
    return Settled(shares, "; ".join(faults))
