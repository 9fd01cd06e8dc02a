"""Measurement of the speed limits of disk emulation on this host."""

from __future__ import annotations

import contextlib
import importlib
import json
import mmap
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from penstock.emulate.disks.floor import QUIET, HostFloor, record_key, record_path, stored_floor
from penstock.emulate.disks.server import DiskServer
from penstock.emulate.disks.transport import DEVICE, IO_URING, missing
from penstock.errors import PenstockError
from penstock.host.cgroups.busy import current_share
from penstock.host.journal.directories import make_directory, remove_directory
from penstock.host.journal.journal import Journal
from penstock.writing import write_atomic

native: Any = importlib.import_module("penstock._native")

_SMALL_BYTES = 4096
_LARGE_BYTES = 1 << 20
_FILE_BYTES = 64 << 20
_OWN_BYTES = 1 << 20
_PASSES = 3
_THREADS = 4
_SMALL_REQUESTS = 2000
#: threads of a closed loop with one request in flight each: few, bounded by the round trip, and many, bounded
#: by processors; duration [s] and number of loops
_FEW, _MANY = (1, 4), 16
_LOOP_S = 0.15
_LOOPS = 2
#: sustainable share of a disk's nominal rate; service times tried with few, and many [s]
_GOT = 0.96
_SHORT_S = (250e-6, 400e-6, 630e-6)
_SERVICES_S = tuple(50e-6 * 1.25**n for n in range(18))
#: promised share of the measured maxima
_PROMISED = 0.8
#: figures for which smaller is better, and all
_LEAST = ("service_floor_ns", "loop_service_ns")
_FIGURES = (*_LEAST, "read_bps", "write_bps", "iops", "loaded_iops", "flushed_iops")


def host_floor(journal: Journal | None = None, *, refresh: bool = False) -> HostFloor:
    """Floors of the host; measured in a few seconds, then cached until the next boot or kernel.

    Those of a busy host are measured again once it is quiet.

    `refresh`: measure again and keep the better values, as other load of the host is not part of its floor.
    Raises PenstockError if no disk can be started.
    """
    stored = stored_floor()
    if stored is not None and not refresh and (stored.quiet or current_share() > QUIET):
        return stored
    busy_share = current_share()
    conditions: dict[str, Any] = {"busy_share": busy_share, "measured_s": time.time()}
    journal = journal or Journal()
    floor = replace(_measure(journal), **conditions)
    if not missing():
        with contextlib.suppress(PenstockError):
            floor = replace(floor, io_uring=replace(_measure(journal, IO_URING), **conditions))
    if stored is not None:
        floor = _best(floor, stored)
    write_atomic(record_path(), json.dumps({**record_key(), **asdict(floor)}))
    return floor


def _best(new: HostFloor, old: HostFloor) -> HostFloor:
    """The better of two measurements, for each figure."""
    better = {
        name: (min if name in _LEAST else max)(getattr(new, name), getattr(old, name))
        for name in _FIGURES
    }
    both = new.io_uring and old.io_uring and _best(new.io_uring, old.io_uring)
    return HostFloor(
        **better,
        busy_share=min(new.busy_share, old.busy_share),
        measurements=old.measurements + 1,
        measured_s=new.measured_s,
        io_uring=both or new.io_uring,
    )


def _disk(name: str, service_s: float, servers: int = 64) -> dict[str, Any]:
    constant = {"overhead": {"kind": "constant", "value_s": service_s}}
    return {
        "schema": "penstock/storage-profile/1",
        "name": name,
        "description": "A disk that measures the host's own path.",
        "source": [{"what": "all", "where": "chosen"}],
        "time_scale": 1.0,
        "servers": servers,
        "read": {"sequential": constant, "random": constant},
        "write": {"sequential": constant, "random": constant},
        "flush": constant,
    }


def _measure(journal: Journal, transport: str = DEVICE) -> HostFloor:
    where = Path(tempfile.gettempdir()) / f"penstock-floor-{os.getpid()}"
    entry = make_directory(where, journal)
    try:
        for name in ("backing", "mount", "state"):
            (where / name).mkdir()
        (where / "backing" / "file").write_bytes(b"\1" * _FILE_BYTES)
        own = [f"own-{thread}" for thread in range(_MANY)]
        for name in own:
            (where / "backing" / name).write_bytes(b"\1" * _OWN_BYTES)
        file = where / "mount" / "file"
        with DiskServer(journal, where / "state") as server:

            @contextlib.contextmanager
            def disk(service_s: float, servers: int = 64) -> Iterator[None]:
                profile = _disk("floor", service_s, servers)
                at = (where / "mount", where / "backing")
                calibrate = service_s > 0
                up = server.add("floor", *at, profile, calibrate=calibrate, transport=transport)
                if up.transport != transport:
                    raise PenstockError(f"the kernel does not offer {transport}")
                try:
                    yield
                finally:
                    server.remove("floor")

            def got(depth: int, service_s: float) -> float:
                """Best share of the disk's nominal rate with `depth` threads."""
                with disk(service_s, depth):
                    best = max(_closed_loop(file, depth) for _ in range(_LOOPS))
                return best * service_s / depth

            def flushed(service_s: float) -> float:
                """Best share of the nominal rate of sixteen threads' flushed writes; write and flush take
                `service_s` each."""
                paths = [where / "mount" / name for name in own]
                with disk(service_s, _MANY):
                    best = max(_flushed_writes(paths) for _ in range(_LOOPS))
                return best * 2 * service_s / _MANY

            def more(depth: int) -> float:
                """Time per request in excess of the service time, with `depth` threads [s]."""
                return statistics.median(s / got(depth, s) - s for s in _SHORT_S)

            with disk(0.0):
                alone = _alone(file)
            return HostFloor(
                **alone,
                loop_service_ns=1e9 * max(map(more, _FEW)) * _GOT / (1 - _GOT),
                loaded_iops=_MANY / _shortest(partial(got, _MANY)),
                flushed_iops=_MANY / (2 * _shortest(flushed)),
            )
    finally:
        remove_directory(entry, journal)


def _shortest(got: Callable[[float], float]) -> float:
    """Shortest of the tried service times at which programs get the nominal rate, by bisection; the longest
    if there is none [s]."""
    first, last = 0, len(_SERVICES_S) - 1
    while first < last:
        middle = (first + last) // 2
        if got(_SERVICES_S[middle]) >= _GOT:
            last = middle
        else:
            first = middle + 1
    return _SERVICES_S[first]


def _alone(path: Path) -> dict[str, Any]:
    """All figures but those of the closed loop; best of several passes, to exclude other load of the host."""
    fd = os.open(path, os.O_RDWR | os.O_DIRECT)
    try:
        small = [_round_trips(fd) for _ in range(_PASSES)]
        many = [_many(fd) for _ in range(_PASSES)]
        read = [_rate(lambda b, at: os.preadv(fd, [b], at)) for _ in range(_PASSES)]
        write = [_rate(lambda b, at: os.pwritev(fd, [b], at)) for _ in range(_PASSES)]
    finally:
        os.close(fd)
    alone_iops = max(1e9 / mean for _, mean in small)
    return {
        "service_floor_ns": float(min(p90 for p90, _ in small)),
        "read_bps": _PROMISED * max(read),
        "write_bps": _PROMISED * max(write),
        "iops": _PROMISED * max(alone_iops, *many),
    }


def _offsets(count: int, seed: int) -> list[int]:
    """Pseudo-random 4 KiB offsets by a linear congruence (Numerical Recipes' constants)."""
    state, offsets = seed, []
    for _ in range(count):
        state = (1664525 * state + 1013904223) % 2**32
        offsets.append((state >> 8) % (_FILE_BYTES // _SMALL_BYTES) * _SMALL_BYTES)
    return offsets


def _round_trips(fd: int) -> tuple[float, float]:
    """90th percentile and mean of the time of a small direct read at queue depth 1 [ns]."""
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


def _closed_loop(path: Path, depth: int) -> float:
    """Small direct reads per second of `depth` threads, each of which waits for its own request."""
    done: int = native.disk_closed_loop(path, _FILE_BYTES, depth, _LOOP_S)
    return done / _LOOP_S


def _flushed_writes(paths: list[Path]) -> float:
    """Small writes per second through the page cache, each flushed, with one thread per file."""
    done: int = native.disk_flushed_writes(paths, _OWN_BYTES, _LOOP_S)
    return done / _LOOP_S


def _rate(transfer: Callable[[mmap.mmap, int], int]) -> float:
    """Bytes per second of sequential large direct transfers."""
    buffer = mmap.mmap(-1, _LARGE_BYTES)
    before = time.monotonic()
    for at in range(0, _FILE_BYTES, _LARGE_BYTES):
        if transfer(buffer, at) != _LARGE_BYTES:
            raise PenstockError("the disk did not take a complete request")
    return _FILE_BYTES / (time.monotonic() - before)
