"""Space that a campaign needs on the file systems it writes to, and the check for it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.campaign.preparation.prepared import PreparedData, data_key
from penstock.design.planned import PlannedRun
from penstock.errors import PenstockError
from penstock.spec.study import Study
from penstock.study.resolve import ResolvedRun

#: estimated size of the first bundle [bytes]: a traced run of some hundred thousand events
FIRST_BUNDLE_BYTES = 32 << 20
#: estimate without records of single events or requests
FIRST_PLAIN_BUNDLE_BYTES = 1 << 20

#: reserve: this share of the file system, or this many bytes if that is less
RESERVE_SHARE = 0.02
RESERVE_BYTES = 1 << 30

_MIB = 1 << 20


@dataclass(frozen=True)
class Need:
    """Bytes still to be written: prepared data, one run's own copy, bundles."""

    prepared_bytes: int
    copy_bytes: int
    bundle_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.prepared_bytes + self.copy_bytes + self.bundle_bytes

    def __str__(self) -> str:
        return (
            f"{self.prepared_bytes / _MIB:.0f} MiB of prepared data, {self.copy_bytes / _MIB:.0f} MiB for a "
            f"run's own copy, {self.bundle_bytes / _MIB:.0f} MiB of results"
        )


def bundles_need(
    runs: int, finished_bytes: list[int], first_bytes: int = FIRST_BUNDLE_BYTES
) -> int:
    """Bytes of `runs` more bundles: each the largest so far, plus a tenth."""
    one = max(finished_bytes) * 1.1 if finished_bytes else first_bytes
    return int(runs * one)


def free_bytes(path: Path) -> tuple[int, int]:
    """Free bytes for us and the reserve, of the file system of `path`."""
    space = os.statvfs(path)
    reserve = min(int(space.f_blocks * space.f_frsize * RESERVE_SHARE), RESERVE_BYTES)
    return space.f_bavail * space.f_frsize, reserve


def by_file_system(needs: Iterable[tuple[Path, Need]]) -> list[tuple[Path, Need]]:
    """Sum of the needs by file system, under its first path."""
    by_device: dict[int, tuple[Path, Need]] = {}
    for path, need in needs:
        place, so_far = by_device.get(path.stat().st_dev, (path, Need(0, 0, 0)))
        by_device[path.stat().st_dev] = (
            place,
            Need(
                so_far.prepared_bytes + need.prepared_bytes,
                so_far.copy_bytes + need.copy_bytes,
                so_far.bundle_bytes + need.bundle_bytes,
            ),
        )
    return list(by_device.values())


def check(path: Path, need: Need, runs: int) -> None:
    """Raises PenstockError, with the numbers, if `runs` more runs would fill the file system."""
    free, reserve = free_bytes(path)
    if need.total_bytes + reserve > free:
        raise PenstockError(
            f"{path}: {free / _MIB:.0f} MiB free, {(need.total_bytes + reserve) / _MIB:.0f} MiB needed for "
            f"{runs} more runs ({need}; {reserve / _MIB:.0f} MiB left free). Finished runs are stored; free "
            "some space and run again with --resume, or choose another -o"
        )


def forecast(
    study: Study,
    treatments: Mapping[str, ResolvedRun],
    remaining: list[PlannedRun],
    work_dir: Path,
    out: Path,
    prepared: PreparedData,
    finished_bytes: list[int],
) -> None:
    """Raises PenstockError, with the numbers, if the remaining runs would fill a file system."""
    disks = [disk for node in study.platform.nodes for disk in node.disks]
    by_event = study.observers.trace is not None or any(d.profile is not None for d in disks)
    first_bytes = FIRST_BUNDLE_BYTES if by_event else FIRST_PLAIN_BUNDLE_BYTES
    results = bundles_need(len(remaining), finished_bytes, first_bytes)
    needs = [(out, Need(0, 0, results))]
    still: dict[tuple[str, Path], int] = {}
    copies: dict[Path, int] = {}
    for treatment_id in dict.fromkeys(r.treatment_id for r in remaining):
        resolved = treatments[treatment_id]
        key = data_key(resolved)
        for place in dict.fromkeys(d.directory or work_dir for d in resolved.disks):
            here = [d for d in resolved.disks if (d.directory or work_dir) == place]
            declared = sum(d.size_bytes or 0 for d in here)
            size = declared or max(prepared.sizes_bytes, default=0)
            if prepared.has(key):
                if len(here) == len(resolved.disks):
                    size = prepared.get(key, [], lambda _: None).size_bytes
            else:
                still[key, place] = declared
            if resolved.mutates is True:
                copies[place] = max(copies.get(place, 0), size)
    needs += [(place, Need(size, 0, 0)) for (_, place), size in still.items()]
    needs += [(place, Need(0, size, 0)) for place, size in copies.items()]
    for path, need in by_file_system(needs):
        check(path, need, len(remaining))
