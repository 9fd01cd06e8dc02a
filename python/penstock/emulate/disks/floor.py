"""Speed limits of disk emulation on this host, measured once per boot with a disk without service time."""

from __future__ import annotations

import functools
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.emulate.disks.transport import DEVICE, IO_URING, required
from penstock.host.processes.processes import boot_id
from penstock.state import state_dir
from penstock.version import version

if TYPE_CHECKING:
    from penstock.profile.model import StorageProfile

#: share of the processors that other programs may use during the measurement
QUIET = 0.25


@dataclass(frozen=True)
class HostFloor:
    """Best performance of an emulated disk on this host.

    `service_floor_ns`: shortest sustainable service time; `read_bps`, `write_bps`: bytes per second;
    `iops`: 4 KiB requests per second.

    The others are of threads in a closed loop, each with one request in flight, that get 96 % of the disk's
    nominal rate; they include the processor time of the threads and the disk server. `loop_service_ns`:
    shortest service time for one thread and for four; `loaded_iops`: most requests per second for sixteen;
    `flushed_iops`: most writes through the page cache per second, each flushed, for sixteen with a file each.
    `busy_share`: share of the processors that other programs used just before. They are the best of
    `measurements` runs, the last at `measured_s` [s since 1970].
    """

    service_floor_ns: float
    read_bps: float
    write_bps: float
    iops: float
    loop_service_ns: float
    loaded_iops: float
    flushed_iops: float
    busy_share: float = 0.0
    measurements: float = field(default=1.0, compare=False)
    measured_s: float = field(default=0.0, compare=False)
    #: floors over io_uring; None if unavailable. All other values are of `/dev/fuse`.
    io_uring: HostFloor | None = None

    def transport(self, profile: StorageProfile) -> str:
        """Transport of a profile's disk: `$PENSTOCK_TRANSPORT`, or the faster one while programs keep the
        disk fully busy. `loop_service_ns` is ignored: it is 24 times the difference of two times, and varies
        more than the transports differ."""
        if self.io_uring is None:
            return DEVICE
        if (name := required()) is not None:
            return name
        device, rings = (
            _hardest(profile.json, replace(floor, io_uring=None, loop_service_ns=0.0))
            for floor in (self, self.io_uring)
        )
        return IO_URING if rings < device else DEVICE

    def of(self, profile: StorageProfile) -> HostFloor:
        """Floors of the faster transport for a profile."""
        if self.io_uring is not None and self.transport(profile) == IO_URING:
            return self.io_uring
        return self

    @property
    def quiet(self) -> bool:
        """True if other programs used little processor time during the measurement."""
        return self.busy_share <= QUIET


@functools.lru_cache(maxsize=64)
def _hardest(profile: str, floor: HostFloor) -> tuple[float, float]:
    """Rank of a transport for a profile (JSON), smaller is faster: the hardest demand, then the requests per
    second. Moments of a profile with seeks take a tenth of a second."""
    from penstock.profile.honour import demands
    from penstock.profile.model import StorageProfile

    demand, _ = demands(StorageProfile.from_json(profile), floor, loaded=True)[0]
    return demand, -floor.loaded_iops


def record_path() -> Path:
    """File of the recorded floors."""
    return state_dir() / "host-floor.json"


def record_key() -> dict[str, str]:
    """Conditions under which recorded floors are valid."""
    return {"boot_id": boot_id(), "kernel": platform.release(), "penstock": version()}


def stored_floor() -> HostFloor | None:
    """The floors if they have been measured since boot."""
    try:
        record = json.loads(record_path().read_text())
    except (OSError, ValueError):
        return None
    if any(record.get(name) != value for name, value in record_key().items()):
        return None
    if HostFloor.__dataclass_fields__.keys() - record.keys():
        return None
    return _floor(record)


def _floor(record: Mapping[str, Any]) -> HostFloor:
    rings = record["io_uring"]
    numbers = {name: record[name] for name in HostFloor.__dataclass_fields__}
    values: dict[str, Any] = {name: float(v) for name, v in numbers.items() if name != "io_uring"}
    return HostFloor(**values, io_uring=_floor(rings) if rings else None)
