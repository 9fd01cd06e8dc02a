"""How fast an emulated disk can be on this host: measured once a boot with a disk of no service time."""

from __future__ import annotations

import json
import mmap
import os
import platform
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from penstock import __version__
from penstock.errors import PenstockError
from penstock.host.journal import Journal
from penstock.host.processes import boot_id
from penstock.host.state import state_dir
from penstock.writing import write_whole

_SMALL_BYTES = 4096
_LARGE_BYTES = 1 << 20
_FILE_BYTES = 64 << 20
_PASSES = 3
_THREADS = 4
_SMALL_REQUESTS = 2000
#: share of the measured ceilings that is promised: what is left serves the program itself
_PROMISED = 0.8


@dataclass(frozen=True)
class HostFloor:
    """The best an emulated disk can do here.

    `service_floor_ns`: shortest service time that can be kept; `read_bps`, `write_bps`: bytes per second;
    `iops`: 4 KiB requests per second.
    """

    service_floor_ns: float
    read_bps: float
    write_bps: float
    iops: float


def host_floor(journal: Journal | None = None, *, refresh: bool = False) -> HostFloor:
    """The host's floors; measured in about two seconds, then remembered until the next boot or kernel.

    `refresh`: measured again; what was better before stays, for what else the host does is not its floor.
    Raises PenstockError if no disk can be put up here.
    """
    kept = state_dir() / "host-floor.json"
    key = {"boot_id": boot_id(), "kernel": platform.release(), "penstock": __version__}
    found = _kept(kept, key)
    if found is not None and not refresh:
        return found
    floor = _measure(journal or Journal())
    if found is not None:
        floor = HostFloor(
            service_floor_ns=min(floor.service_floor_ns, found.service_floor_ns),
            read_bps=max(floor.read_bps, found.read_bps),
            write_bps=max(floor.write_bps, found.write_bps),
            iops=max(floor.iops, found.iops),
        )
    write_whole(kept, json.dumps({**key, **asdict(floor)}))
    return floor


def kept_floor() -> HostFloor | None:
    """The floors if they have been measured since boot."""
    key = {"boot_id": boot_id(), "kernel": platform.release(), "penstock": __version__}
    return _kept(state_dir() / "host-floor.json", key)


def _kept(path: Path, key: dict[str, str]) -> HostFloor | None:
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    if any(record.get(name) != value for name, value in key.items()):
        return None
    return HostFloor(**{name: float(record[name]) for name in HostFloor.__dataclass_fields__})


def _no_service() -> dict[str, Any]:
    none = {"overhead": {"kind": "constant", "value_s": 0.0}}
    return {
        "schema": "penstock/storage-profile/1",
        "name": "no-service",
        "description": "A disk that answers at once, to measure the host's own path.",
        "source": [{"what": "all", "where": "chosen"}],
        "time_scale": 1.0,
        "servers": 64,
        "read": {"sequential": none, "random": none},
        "write": {"sequential": none, "random": none},
        "flush": none,
    }


def _measure(journal: Journal) -> HostFloor:
    from penstock.emulate.disk import DiskServer
    from penstock.host.directories import make_directory, remove_directory

    where = Path(tempfile.gettempdir()) / f"penstock-floor-{os.getpid()}"
    entry = make_directory(where, journal)
    try:
        for name in ("backing", "mount", "state"):
            (where / name).mkdir()
        (where / "backing" / "file").write_bytes(b"\1" * _FILE_BYTES)
        with DiskServer(journal, where / "state") as server:
            server.add("floor", where / "mount", where / "backing", _no_service(), calibrate=False)
            return _passes(where / "mount" / "file")
    finally:
        remove_directory(entry, journal)


def _passes(path: Path) -> HostFloor:
    """The best of several passes: what else the host was doing is not its floor."""
    fd = os.open(path, os.O_RDWR | os.O_DIRECT)
    try:
        small = [_round_trips(fd) for _ in range(_PASSES)]
        many = [_many(fd) for _ in range(_PASSES)]
        read = [_rate(lambda b, at: os.preadv(fd, [b], at)) for _ in range(_PASSES)]
        write = [_rate(lambda b, at: os.pwritev(fd, [b], at)) for _ in range(_PASSES)]
    finally:
        os.close(fd)
    alone_iops = max(1e9 / mean for _, mean in small)
    return HostFloor(
        service_floor_ns=float(min(p90 for p90, _ in small)),
        read_bps=_PROMISED * max(read),
        write_bps=_PROMISED * max(write),
        iops=_PROMISED * max(alone_iops, *many),
    )


def _offsets(count: int, seed: int) -> list[int]:
    """Distinct-looking 4 KiB offsets by a linear congruence (Numerical Recipes' constants)."""
    state, found = seed, []
    for _ in range(count):
        state = (1664525 * state + 1013904223) % 2**32
        found.append((state >> 8) % (_FILE_BYTES // _SMALL_BYTES) * _SMALL_BYTES)
    return found


def _round_trips(fd: int) -> tuple[float, float]:
    """90th percentile and mean of the time one small direct read takes alone [ns]."""
    buffer = mmap.mmap(-1, _SMALL_BYTES)
    times = []
    for at in _offsets(_SMALL_REQUESTS, 1):
        before = time.monotonic_ns()
        os.preadv(fd, [buffer], at)
        times.append(time.monotonic_ns() - before)
    times.sort()
    return float(times[len(times) * 9 // 10]), sum(times) / len(times)


def _many(fd: int) -> float:
    """Small direct reads per second from several threads."""
    lists = [_offsets(_SMALL_REQUESTS, 2 + n) for n in range(_THREADS)]

    def work(offsets: list[int]) -> None:
        buffer = mmap.mmap(-1, _SMALL_BYTES)
        for at in offsets:
            os.preadv(fd, [buffer], at)

    threads = [threading.Thread(target=work, args=(offsets,)) for offsets in lists]
    before = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return _THREADS * _SMALL_REQUESTS / (time.monotonic() - before)


def _rate(transfer: Callable[[mmap.mmap, int], int]) -> float:
    """Bytes per second of large direct transfers, one after the other."""
    buffer = mmap.mmap(-1, _LARGE_BYTES)
    before = time.monotonic()
    for at in range(0, _FILE_BYTES, _LARGE_BYTES):
        if transfer(buffer, at) != _LARGE_BYTES:
            raise PenstockError("the disk did not take a whole request")
    return _FILE_BYTES / (time.monotonic() - before)
