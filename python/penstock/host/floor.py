"""How fast an emulated disk can be on this host: measured once a boot with a disk of no service time."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
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
#: programs of a closed loop, each with one request under way, and how long they go on [s]
_DEPTHS = (4, 16)
_LOOP_S = 0.3
#: so short that the disk's timers are part of the way, and the way is most of the time [s]
_SHORT_S = 20e-6
#: share of the measured ceilings that is promised
_PROMISED = 0.8


@dataclass(frozen=True)
class HostFloor:
    """The best an emulated disk can do here.

    `service_floor_ns`: shortest service time that can be kept; `read_bps`, `write_bps`: bytes per second;
    `iops`: 4 KiB requests per second; `loaded_iops`: those that programs get in a closed loop, each with one
    under way, at the depth that gets least: their own processor time and the disk server's are in it.
    """

    service_floor_ns: float
    read_bps: float
    write_bps: float
    iops: float
    loaded_iops: float


def host_floor(journal: Journal | None = None, *, refresh: bool = False) -> HostFloor:
    """The host's floors; measured in a few seconds, then remembered until the next boot or kernel.

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
            loaded_iops=max(floor.loaded_iops, found.loaded_iops),
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
    names = HostFloor.__dataclass_fields__
    if (
        any(record.get(name) != value for name, value in key.items())
        or names.keys() - record.keys()
    ):
        return None
    return HostFloor(**{name: float(record[name]) for name in names})


def _disk(name: str, service_s: float) -> dict[str, Any]:
    constant = {"overhead": {"kind": "constant", "value_s": service_s}}
    return {
        "schema": "penstock/storage-profile/1",
        "name": name,
        "description": "A disk that measures the host's own path.",
        "source": [{"what": "all", "where": "chosen"}],
        "time_scale": 1.0,
        "servers": 64,
        "read": {"sequential": constant, "random": constant},
        "write": {"sequential": constant, "random": constant},
        "flush": constant,
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
        file = where / "mount" / "file"
        with DiskServer(journal, where / "state") as server:

            def put_up(name: str, service_s: float) -> None:
                disk = _disk(name, service_s)
                server.add(name, where / "mount", where / "backing", disk, calibrate=False)

            put_up("no-service", 0.0)
            alone = _passes(file)
            server.remove("no-service")
            put_up("short", _SHORT_S)
            loaded = min(max(_closed_loop(file, d) for _ in range(_PASSES)) for d in _DEPTHS)
            return replace(alone, loaded_iops=_PROMISED * loaded)
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
        loaded_iops=0.0,
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


_LOOP = """
import mmap, os, sys, time
fd, state, buffer = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT), int(sys.argv[2]), mmap.mmap(-1, 4096)
print(flush=True)
sys.stdin.readline()
end, done = time.monotonic() + float(sys.argv[3]), 0
while time.monotonic() < end:
    state = (1664525 * state + 1013904223) % 2**32
    os.preadv(fd, [buffer], (state >> 8) % int(sys.argv[4]) * 4096)
    done += 1
print(done)
"""


def _closed_loop(path: Path, depth: int) -> float:
    """Small direct reads per second of so many programs, each of which waits for its own request."""
    words = [sys.executable, "-I", "-S", "-c", _LOOP, str(path)]
    rest = [str(_LOOP_S), str(_FILE_BYTES // _SMALL_BYTES)]
    with contextlib.ExitStack() as stack:
        programs = []
        for number in range(depth):
            program = subprocess.Popen(
                [*words, str(number), *rest],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
            programs.append(stack.enter_context(program))
            stack.callback(program.kill)
        for program in programs:
            program.stdout.readline()  # type: ignore[union-attr]
        for program in programs:
            program.stdin.write("\n")  # type: ignore[union-attr]
        said = [program.communicate()[0] for program in programs]
    if not all(one.strip().isdigit() for one in said):
        raise PenstockError("a program that measures the disk did not come to its end")
    return sum(map(int, said)) / _LOOP_S


def _rate(transfer: Callable[[mmap.mmap, int], int]) -> float:
    """Bytes per second of large direct transfers, one after the other."""
    buffer = mmap.mmap(-1, _LARGE_BYTES)
    before = time.monotonic()
    for at in range(0, _FILE_BYTES, _LARGE_BYTES):
        if transfer(buffer, at) != _LARGE_BYTES:
            raise PenstockError("the disk did not take a whole request")
    return _FILE_BYTES / (time.monotonic() - before)
