"""Disks over io_uring: many requests in progress, power cuts, a server that dies, a kernel that refuses."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import resource
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.emulate.disks.transport import DEVICE, IO_URING, SETTING, missing
from penstock.errors import BadInput
from penstock.host.journal.undo import undo
from penstock.host.storage.mounts import mounts_at
from tests.integration.disk_bench import HOST, MIB, Bench, flat, one_bench  # noqa: F401 - a fixture

# Other tests with disks change the same setting of the host: these run alone, as timed tests do.
pytestmark = [pytest.mark.timed, *HOST]
_MISSING = missing()
needs_rings = pytest.mark.skipif(bool(_MISSING), reason=f"kernel: {_MISSING}")


def ring_threads(pid: int) -> int:
    names = [(p / "comm").read_text() for p in Path(f"/proc/{pid}/task").iterdir()]
    return sum(name.startswith("ring-") for name in names)


@needs_rings
def test_requests_come_over_io_uring_and_the_setting_is_restored(bench: Bench) -> None:
    before = SETTING.read_text()
    bench.up(flat(0.0), transport=IO_URING)
    assert bench.server.disks["d"].transport == IO_URING
    assert [d["transport"] for d in bench.server.list()] == [IO_URING]
    assert ring_threads(bench.server.daemon.pid) == len(os.sched_getaffinity(0))
    assert SETTING.read_text() == before
    path = bench.file("f", 3 * MIB)
    assert path.read_bytes() == (bench.backing / "f").read_bytes()
    data = os.urandom(2 * MIB + 5)
    path.write_bytes(data)
    os.sync()
    assert (bench.backing / "f").read_bytes() == data
    bench.server.remove("d")
    assert ring_threads(bench.server.daemon.pid) == 0


@needs_rings
def test_more_requests_wait_than_a_queue_has_entries(bench: Bench) -> None:
    """600 threads wait at the queue of one processor, which has fewer entries."""
    bench.up(flat(0.02, servers=600), transport=IO_URING, calibrate=False)
    path = bench.file("f", 600 * 4096)
    content = (bench.backing / "f").read_bytes()
    start = threading.Barrier(600)
    cpu = min(os.sched_getaffinity(0))

    def read(page: int) -> bytes:
        os.sched_setaffinity(0, {cpu})
        fd = os.open(path, os.O_RDONLY)
        try:
            start.wait(60)
            return os.pread(fd, 4096, page * 4096)
        finally:
            os.close(fd)

    with ThreadPoolExecutor(600) as pool:
        pages = list(pool.map(read, range(600)))
    assert b"".join(pages) == content


@needs_rings
def test_a_mount_after_a_power_cut_uses_io_uring_again(bench: Bench) -> None:
    before = SETTING.read_text()
    bench.up(flat(0.0), transport=IO_URING, volatile=True)
    (bench.mount / "f").write_bytes(b"x" * 100)
    bench.server.power_cut("d")
    assert [d["transport"] for d in bench.server.list()] == [IO_URING]
    assert os.listdir(bench.mount) == []
    bench.server.remove("d")
    assert SETTING.read_text() == before


@needs_rings
def test_undo_after_the_server_was_killed(bench: Bench) -> None:
    before = SETTING.read_text()
    bench.up(flat(30.0), transport=IO_URING, volatile=True, calibrate=False)
    path = bench.file("f", MIB)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    failed: list[OSError] = []

    def wait() -> None:
        try:
            os.preadv(fd, [mmap.mmap(-1, 4096)], 0)
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    end = time.monotonic() + 20
    while not bench.server.daemon.call("list")["waiting"]:
        assert time.monotonic() < end
        time.sleep(0.01)
    os.kill(bench.server.daemon.pid, signal.SIGKILL)
    bench.server.daemon.hang_up()
    undo(bench.journal, own=True)
    thread.join(20)
    with contextlib.suppress(OSError):
        os.close(fd)
    assert not thread.is_alive()
    assert failed
    assert not mounts_at(bench.mount)
    assert bench.journal.open_entries() == []
    assert SETTING.read_text() == before


@needs_rings
def test_a_disk_whose_rings_cannot_be_set_up_uses_the_device(bench: Bench) -> None:
    bench.up(flat(0.0), transport=DEVICE)
    bench.server.remove("d")
    pid = bench.server.daemon.pid
    used = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.prlimit(pid, resource.RLIMIT_AS, (used + 100 * MIB, resource.RLIM_INFINITY))
    bench.up(flat(0.0), transport=IO_URING)
    assert bench.server.disks["d"].transport == DEVICE
    path = bench.file("f", MIB)
    assert path.read_bytes() == (bench.backing / "f").read_bytes()


#: errors of requests after the abort of the connection, and of a request in the ring (fs/fuse/dev_uring.c)
FAILED = (errno.ECONNABORTED, errno.ENOTCONN, errno.EIO, errno.ECANCELED)


@needs_rings
def test_requests_fail_once_a_ring_has_failed(bench: Bench) -> None:
    """strace makes every io_uring_enter of the server fail; no program waits forever."""
    bench.up(flat(0.0), transport=IO_URING)
    path = bench.file("f", MIB)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    buffer = mmap.mmap(-1, 4096)
    assert os.preadv(fd, [buffer], 0) == 4096
    inject = ["-e", "trace=io_uring_enter", "-e", "inject=io_uring_enter:error=EBADF"]
    with subprocess.Popen(
        ["strace", "-f", "-qq", *inject, "-p", str(bench.server.daemon.pid)],
        stderr=subprocess.DEVNULL,
    ) as strace:
        try:
            with ThreadPoolExecutor(1) as pool:
                reads = pool.submit(_read_until_an_error, fd, buffer)
                assert reads.result(30).errno in FAILED
            # the ring's requests fail first, then the connection is aborted
            with pytest.raises(OSError, match=r"not connected|abort"):
                _list_for(30, bench.mount)
        finally:
            strace.kill()
    os.close(fd)
    bench.server.remove("d")
    assert not mounts_at(bench.mount)


def _list_for(duration_s: float, directory: Path) -> None:
    end = time.monotonic() + duration_s
    while time.monotonic() < end:
        os.listdir(directory)


def _read_until_an_error(fd: int, buffer: mmap.mmap) -> OSError:
    while True:
        try:
            os.preadv(fd, [buffer], 0)
        except OSError as error:
            return error


def test_an_unknown_transport_is_refused(bench: Bench) -> None:
    with pytest.raises(BadInput, match="transport: found 'tcp'; expected device or io_uring"):
        bench.up(flat(0.0), transport="tcp")
