"""Durable writes by every method: their survival of a power cut, and the cost of each flush."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import itertools
import json
import mmap
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.analyse.fidelity.fidelity_log import columns, schedule
from tests.integration.disk_bench import (  # noqa: F401 - fixtures
    BOTH_TRANSPORTS,
    HOST,
    Bench,
    each_transport,
    flat,
    one_bench,
)

pytestmark = [*HOST, BOTH_TRANSPORTS]
libc = ctypes.CDLL(None, use_errno=True)

WRITE_S, FLUSH_S = 0.0004, 0.005
PROFILE = flat(WRITE_S, flush={"overhead": {"kind": "constant", "value_s": FLUSH_S}})
PAGE = 4096
OPEN_FLAGS = {"O_DSYNC": os.O_DSYNC, "O_SYNC": os.O_SYNC}
CALL_FLAGS = {"RWF_DSYNC": os.RWF_DSYNC, "RWF_SYNC": os.RWF_SYNC}
DURABILITY = ["none", *OPEN_FLAGS, *CALL_FLAGS]
PATHS = ["direct", "buffered", "mapped", "made direct"]
#: sync calls, and the number of flushes of each that a FUSE server receives
CALLS = {"none": 0, "fsync": 1, "fdatasync": 1, "sync_file_range": 0, "syncfs": 0}


@dataclass(frozen=True)
class Case:
    """One way of writing a page."""

    durability: str
    path: str
    call: str

    @property
    def name(self) -> str:
        return f"{self.durability}-{self.path}-{self.call}".replace(" ", "_")

    @property
    def flushes(self) -> int:
        """Number of flushes of the device; with at least one the page is durable.

        A write through a descriptor that was switched to direct I/O after opening is flushed twice: by the
        kernel and by the disk, which cannot detect the switch.
        """
        by_write = 0 if self.durability == "none" or self.path == "mapped" else 1
        if self.path == "made direct":
            by_write *= 2
        return by_write + (self.path == "mapped") + CALLS[self.call]


CASES = [Case(*each) for each in itertools.product(DURABILITY, PATHS, CALLS)]


def write(path: Path, case: Case, page: mmap.mmap) -> int:
    """Write the page at the beginning of a file as `case` specifies; return the open descriptor."""
    flags = os.O_RDWR | OPEN_FLAGS.get(case.durability, 0)
    fd = os.open(path, flags | (os.O_DIRECT if case.path == "direct" else 0))
    if case.path == "made direct":
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_DIRECT)
    if case.path == "mapped":
        with mmap.mmap(fd, PAGE) as mapped:
            mapped[:] = page[:]
            mapped.flush()
    else:
        assert os.pwritev(fd, [page], 0, CALL_FLAGS.get(case.durability, 0)) == PAGE
    if case.call == "sync_file_range":
        assert libc.sync_file_range(fd, ctypes.c_int64(0), ctypes.c_int64(0), 7) == 0
    elif case.call != "none":
        call = {"fsync": os.fsync, "fdatasync": os.fdatasync, "syncfs": libc.syncfs}[case.call]
        assert not call(fd)
    return fd


def final_stats(bench: Bench) -> dict[str, Any]:
    """Counters after all requests; an answer is sent shortly before its request is counted."""
    deadline = time.monotonic() + 60
    while (stats := bench.server.stats("d"))["in_flight"]:
        assert time.monotonic() < deadline, stats
        time.sleep(0.001)
    return stats


@contextlib.contextmanager
def closing() -> Iterator[list[int]]:
    """Descriptors that are closed at the end, also those of a disk without power."""
    fds: list[int] = []
    yield fds
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


@pytest.mark.parametrize("exact", [False, True], ids=["cached", "exact"])
def test_durable_writes_survive_and_every_flush_is_charged(bench: Bench, exact: bool):
    bench.up(PROFILE, volatile=True)
    for case in CASES:
        (bench.backing / case.name).write_bytes(b"o" * PAGE)
    bench.server.daemon.call("exact", disk_id="d", on=exact)
    page, flushes = mmap.mmap(-1, PAGE), {}
    page[:] = b"n" * PAGE
    with closing() as fds:
        for case in CASES:
            bench.server.reset("d")
            fds.append(write(bench.mount / case.name, case, page))
            stats = final_stats(bench)
            assert stats["flush_service_ns"] == stats["flushes"] * round(FLUSH_S * 1e9)
            flushes[case] = stats["flushes"]
        bench.server.power_cut("d")
    # without a cache a descriptor that was switched to direct I/O is flushed once
    flushed_once = {
        c for c in CASES if exact and c.path == "made direct" and c.durability != "none"
    }
    assert flushes == {c: c.flushes - (c in flushed_once) for c in CASES}
    durable = {c for c in CASES if (bench.mount / c.name).read_bytes() == b"n" * PAGE}
    assert durable == {c for c in CASES if c.flushes}


def test_sync_of_the_complete_host_flushes_nothing(bench: Bench):
    """FUSE does not pass sync(2) to its server (docs/emulation.md)."""
    bench.up(PROFILE, volatile=True)
    (bench.backing / "f").write_bytes(b"old")
    with closing() as fds:
        fds.append(os.open(bench.mount / "f", os.O_RDWR))
        os.pwrite(fds[0], b"new", 0)
        bench.server.reset("d")
        os.sync()
        assert final_stats(bench)["flushes"] == 0
        bench.server.power_cut("d")
    assert (bench.mount / "f").read_bytes() == b"old"


def test_a_durable_write_takes_the_time_of_write_and_flush(bench: Bench):
    """The device serves the write and then its flush."""
    bench.up(PROFILE)
    path, page, count = bench.file("f", 64 * PAGE), mmap.mmap(-1, PAGE), 31
    with bench.logged(PROFILE) as run:
        fd = os.open(path, os.O_RDWR | os.O_DIRECT | os.O_DSYNC)
        for i in range(count):
            os.pwritev(fd, [page], PAGE * i)
        os.close(fd)
    frame = run["requests"].to_pandas()
    assert list(frame["op"]) == ["write", "flush"] * count
    writes, flushes = (frame[frame["op"] == op].reset_index() for op in ("write", "flush"))
    # the flush arrives when the write is due, and takes the time of a flush
    assert ((flushes["t_ns"] - flushes["compensation_ns"]) == writes["due_ns"]).all()
    assert (flushes["due_ns"] - writes["due_ns"] == round(FLUSH_S * 1e9)).all()
    stats = run["stats"]
    assert stats["flush_service_ns"] == count * round(FLUSH_S * 1e9)
    assert stats["write_service_ns"] == count * round(WRITE_S * 1e9)


@pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")
@pytest.mark.parametrize("engine", ["psync", "libaio", "io_uring", "posixaio"])
def test_a_durable_direct_write_of_every_engine_is_flushed(bench: Bench, engine: str):
    bench.up(PROFILE)
    path = bench.file("f", 64 * PAGE)
    options = {"filename": path, "size": "256k", "bs": "4k", "rw": "randwrite", "direct": 1}
    options |= {"ioengine": engine, "iodepth": 4, "sync": "dsync", "number_ios": 53}
    fio = ["fio", "--name=t", "--output-format=json", *(f"--{k}={v}" for k, v in options.items())]
    with bench.logged(PROFILE) as run:
        result = subprocess.run(fio, capture_output=True, text=True, check=True, timeout=60)
        final_stats(bench)
    job = json.loads(result.stdout[result.stdout.index("{") :])["jobs"][0]
    stats = run["stats"]
    assert job["write"]["total_ios"] == stats["writes"] == stats["flushes"] == 53
    # the model gives the same due times for the logged requests
    logged = columns(run["requests"], 0.0)
    simulated = schedule(logged, PROFILE, stats["seed"])
    assert np.abs(simulated.done - logged.due).max() < 1000


def test_a_flush_that_fails_fails_the_write(bench: Bench):
    bench.up(PROFILE, volatile=True, patch={"faults": [{"op": "flush", "error": "EIO"}]})
    (bench.backing / "f").write_bytes(b"o" * PAGE)
    page = mmap.mmap(-1, PAGE)
    with closing() as fds:
        fds.append(os.open(bench.mount / "f", os.O_RDWR | os.O_DIRECT | os.O_DSYNC))
        with pytest.raises(OSError, match="Input/output error"):
            os.pwritev(fds[0], [page], 0)
        bench.server.power_cut("d")
    assert (bench.mount / "f").read_bytes() == b"o" * PAGE
