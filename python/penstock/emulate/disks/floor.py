"""The fastest disk that this host can emulate: measured once a boot with a disk of no service time."""

from __future__ import annotations

import functools
import json
import platform
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.emulate.disks.transport import DEVICE, IO_URING, required
from penstock.host.processes.processes import boot_id
from penstock.state import state_dir
from penstock.version import version

if TYPE_CHECKING:
    from penstock.profile.model import StorageProfile

#: share of the processors that other programs may use while the floors are measured
QUIET = 0.25


@dataclass(frozen=True)
class HostFloor:
    """The best an emulated disk can do here.

    `service_floor_ns`: shortest service time that can be kept; `read_bps`, `write_bps`: bytes per second;
    `iops`: 4 KiB requests per second.

    The others are of threads in a closed loop, each with one request under way, that get 96 % of what the
    disk promises; their own processor time and the disk server's are in it. `loop_service_ns`: shortest
    service time for one of them and for four; `loaded_iops`: most requests per second for sixteen;
    `flushed_iops`: most writes through the page cache per second, each flushed, for sixteen with a file each.
    `busy_share`: share of the processors that other programs used just before. They are the best of so many
    `measurements`, the last at `measured_s` [s since 1970].
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
    #: the same over io_uring; None where that cannot be used. All else is of `/dev/fuse`.
    io_uring: HostFloor | None = None

    def transport(self, profile: StorageProfile) -> str:
        """The transport of a profile's disk: `$PENSTOCK_TRANSPORT`, or the one that is faster while programs
        keep the disk fully busy. `loop_service_ns` does not count: it is 24 times the difference of two
        times, and spreads more than the transports differ."""
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
        """The floors over the transport that is faster for a profile."""
        if self.io_uring is not None and self.transport(profile) == IO_URING:
            return self.io_uring
        return self

    @property
    def quiet(self) -> bool:
        """True if the host was quiet enough for the floors to be its own."""
        return self.busy_share <= QUIET


@functools.lru_cache(maxsize=64)
def _hardest(profile: str, floor: HostFloor) -> tuple[float, float]:
    """Rank of a transport for a profile (JSON), the smaller the faster: the hardest demand, then the requests
    per second. The moments of a profile with seeks take a tenth of a second."""
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


def _floor(record: dict[str, Any]) -> HostFloor:
    rings = record["io_uring"]
    numbers = {name: record[name] for name in HostFloor.__dataclass_fields__}
    values: dict[str, Any] = {name: float(v) for name, v in numbers.items() if name != "io_uring"}
    return HostFloor(**values, io_uring=_floor(rings) if rings else None)
