"""Planted faults of a disk, seen by programs through the mount."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.emulate.disks.request_log import read_disk_log
from penstock.emulate.disks.server import DiskServer
from penstock.errors import PenstockError
from penstock.host.journal.journal import Journal
from penstock.host.journal.undo import undo
from penstock.host.storage.mounts import mounts_at
from penstock.host.storage.residency import drop_file_cache
from tests.integration.disk_bench import (  # noqa: F401 - fixtures
    BOTH_TRANSPORTS,
    HOST,
    MIB,
    Bench,
    each_transport,
    flat,
    one_bench,
)

pytestmark = [*HOST, BOTH_TRANSPORTS]
BLOCK = 4096


def error_of(call: Callable[..., Any], *arguments: Any) -> str:
    """Name of the error of a call; empty without an error."""
    try:
        call(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return ""


def bad_blocks(path: Path, order: range, *, direct: bool = False) -> set[int]:
    """Read blocks of 4 KiB in the given order; return those that fail with EIO."""
    drop_file_cache(path)
    fd = os.open(path, os.O_RDONLY | (os.O_DIRECT if direct else 0))
    page = mmap.mmap(-1, BLOCK)
    bad = set()
    for block in order:
        name = error_of(os.preadv, fd, [page], block * BLOCK)
        assert name in ("", "EIO")
        if name:
            bad.add(block)
    os.close(fd)
    return bad


def test_half_of_the_space_is_bad_the_same_half_after_a_remount(bench: Bench):
    """Half of 32 MiB is bad; `bench/bad_space.py` tests 256 MiB."""
    blocks = 8192
    (bench.backing / "f").write_bytes(os.urandom(blocks * BLOCK))
    bad_space = {"share": 0.5, "mode": "error", "seed": 11}
    bench.up(flat(0.0), patch={"bad_space": bad_space})
    first = bad_blocks(bench.mount / "f", range(blocks), direct=True)
    assert len(first) == blocks // 2
    bench.server.remove("d")
    bench.up(flat(0.0), patch={"bad_space": bad_space})
    assert bad_blocks(bench.mount / "f", range(blocks - 1, -1, -1), direct=True) == first
    # reads through the page cache with readahead fail for the same blocks only
    subset = range(1024)
    assert bad_blocks(bench.mount / "f", subset) == {b for b in first if b in subset}
    # planted: another seed gives another set
    bench.server.patch("d", {"bad_space": {**bad_space, "seed": 12}})
    other = bad_blocks(bench.mount / "f", subset, direct=True)
    assert other != {b for b in first if b in subset}
    bench.server.patch("d", {"bad_space": None})
    assert not bad_blocks(bench.mount / "f", subset, direct=True)
    assert (bench.mount / "f").read_bytes() == (bench.backing / "f").read_bytes()


def test_corrupted_space_returns_other_bytes(bench: Bench):
    content = b"\xff" * (256 * BLOCK)
    (bench.backing / "f").write_bytes(content)
    for mode in ("flip", "zero"):
        if "d" in bench.server.disks:
            bench.server.remove("d")
        bench.up(flat(0.0), patch={"bad_space": {"share": 1.0, "mode": mode, "seed": 1}})
        stored = (bench.mount / "f").read_bytes()
        flipped_bits = [bin(a ^ b).count("1") for a, b in zip(stored, content, strict=True)]
        assert sum(flipped_bits) == (256 if mode == "flip" else 8 * len(content))
    assert (bench.backing / "f").read_bytes() == content


def test_a_bad_page_of_a_mapping_raises_a_bus_error(bench: Bench):
    bench.up(flat(0.0))
    path = bench.file("f", 16 * BLOCK)
    bench.server.patch("d", {"faults": [{"op": "read", "from": 8 * BLOCK, "to": 9 * BLOCK}]})
    script = """
import mmap, sys
with open(sys.argv[1], "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    mapped.madvise(mmap.MADV_RANDOM)
    print(mapped[7 * 4096], flush=True)
    mapped[8 * 4096]
"""
    result = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True)
    assert result.stdout.strip().isdigit()
    assert result.returncode == -signal.SIGBUS


def test_a_failed_write_back_is_reported_by_fsync_and_logged(bench: Bench, tmp_path: Path):
    bench.up(flat(0.0))
    path = bench.file("f", MIB)
    bench.server.log("d", tmp_path / "log")
    bench.server.patch("d", {"faults": [{"op": "write", "error": "EIO", "file": "f"}]})
    with open(path, "r+b", buffering=0) as file:
        file.write(b"x" * 100)  # into the page cache
        assert error_of(os.fsync, file.fileno()) == "EIO"
        bench.server.patch("d", {"faults": None})
        os.pwrite(file.fileno(), b"y" * 100, 200_000)
        assert error_of(os.fsync, file.fileno()) == ""
    stored = (bench.backing / "f").read_bytes()
    assert stored[200_000:200_100] == b"y" * 100
    bench.server.log("d", None)
    log = read_disk_log(tmp_path / "log").to_pandas()
    assert set(log.loc[log["op"] == "write", "error"]) == {errno.EIO, 0}
    assert bench.server.stats("d")["errors"] >= 1


def test_an_error_rate_is_met(bench: Bench):
    bench.up(flat(0.0))
    path = bench.file("f", 2000 * BLOCK)
    rule = {"op": "read", "probability": 0.2, "error": "ETIMEDOUT", "seed": 3}
    bench.server.patch("d", {"faults": [rule]})
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    page = mmap.mmap(-1, BLOCK)
    errors = [error_of(os.preadv, fd, [page], b * BLOCK) for b in range(2000)]
    os.close(fd)
    assert set(errors) == {"", "ETIMEDOUT"}
    assert 320 <= errors.count("ETIMEDOUT") <= 480  # 400 ± five standard deviations


def test_a_torn_write_is_reported_as_complete(bench: Bench):
    bench.up(flat(0.0))
    (bench.backing / "f").write_bytes(b"a" * 8 * BLOCK)
    bench.server.patch("d", {"faults": [{"op": "write", "mode": "torn"}]})
    page = mmap.mmap(-1, 8 * BLOCK)
    page[:] = b"b" * 8 * BLOCK
    fd = os.open(bench.mount / "f", os.O_RDWR | os.O_DIRECT)
    assert os.pwritev(fd, [page], 0) == 8 * BLOCK
    os.close(fd)
    stored = (bench.backing / "f").read_bytes()
    new = len(stored) - len(stored.lstrip(b"b"))
    assert new < 8 * BLOCK
    assert new % 512 == 0
    assert stored[new:] == b"a" * (8 * BLOCK - new)


def test_read_only_full_and_failed_disks(bench: Bench):
    bench.up(flat(0.0))
    path = bench.file("f", MIB)
    path.read_bytes()
    (bench.mount / "directory").mkdir()
    fd = os.open(path, os.O_RDWR | os.O_DIRECT)
    page = mmap.mmap(-1, BLOCK)
    patch = bench.server.patch
    patch("d", {"read_only": True})
    assert error_of(os.pwritev, fd, [page], 0) == "EROFS"
    assert error_of(os.open, path, os.O_WRONLY) == "EROFS"
    for call, name in ((os.mkdir, "new"), (os.unlink, "f"), (os.rmdir, "directory")):
        assert error_of(call, bench.mount / name) == "EROFS"
    assert error_of(os.truncate, path, 5) == "EROFS"
    assert error_of(os.chmod, path, 0o600) == "EROFS"
    assert error_of(os.preadv, fd, [page], 0) == ""
    patch("d", {"read_only": False, "full": True})
    assert error_of(os.pwritev, fd, [page], 0) == ""  # overwrites existing data
    assert error_of(os.pwritev, fd, [page], MIB) == "ENOSPC"
    assert error_of(os.mkdir, bench.mount / "new") == "ENOSPC"
    assert os.statvfs(bench.mount).f_bavail == 0
    patch("d", {"full": None, "fail_stop": True})
    assert error_of(os.preadv, fd, [page], 0) == "EIO"
    assert error_of(os.pwritev, fd, [page], 0) == "EIO"
    assert error_of(os.fsync, fd) == "EIO"
    assert sorted(bench.server.events("d")["active"]) == ["fail_stop"]
    patch("d", {"fail_stop": None})
    assert error_of(os.preadv, fd, [page], 0) == ""
    assert error_of(os.pwritev, fd, [page], MIB) == ""
    os.close(fd)


def test_a_disk_has_the_specified_size(bench: Bench):
    (bench.backing / "old").write_bytes(b"x" * MIB)
    bench.up(flat(0.0), size_bytes=8 * MIB)
    status = os.statvfs(bench.mount)
    assert status.f_blocks * status.f_frsize == 8 * MIB
    assert status.f_bfree * status.f_frsize == 7 * MIB
    page = mmap.mmap(-1, MIB)
    fd = os.open(bench.mount / "f", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    errors = [error_of(os.pwritev, fd, [page], i * MIB) for i in range(9)]
    assert errors == [""] * 7 + ["ENOSPC"] * 2
    assert error_of(os.pwritev, fd, [page], 0) == ""  # needs no additional space
    os.ftruncate(fd, 5 * MIB)
    assert os.statvfs(bench.mount).f_bfree * 4096 == 2 * MIB
    os.unlink(bench.mount / "f")  # still open: its space remains allocated
    assert os.statvfs(bench.mount).f_bfree * 4096 == 2 * MIB
    os.close(fd)
    os.rename(bench.mount / "old", bench.mount / "new")
    (bench.mount / "new").unlink()
    status = os.statvfs(bench.mount)
    assert status.f_bfree == status.f_blocks
    bench.server.remove("d")
    (bench.backing / "big").write_bytes(b"x" * 2 * MIB)
    with pytest.raises(PenstockError, match="more than the disk's size"):
        bench.server.add("e", _directory(bench, "m2"), bench.backing, flat(0.0), size_bytes=MIB)


def _allocate(fd: int, mode: int, offset: int, length: int) -> str:
    """Name of the error of fallocate(2); empty without an error."""
    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.fallocate64(fd, mode, ctypes.c_int64(offset), ctypes.c_int64(length))
    return errno.errorcode[ctypes.get_errno()] if failed else ""


def test_allocations_count_once_and_within_the_size(bench: Bench):
    keep_size, zero_range = 1, 0x10
    bench.up(flat(0.0), size_bytes=8 * MIB)
    fd = os.open(bench.mount / "f", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    assert _allocate(fd, zero_range, 0, 100 * MIB) == "ENOSPC"
    assert os.stat(bench.backing / "f").st_blocks == 0
    assert _allocate(fd, keep_size, 0, 7 * MIB) == ""
    assert _allocate(fd, keep_size, 0, 7 * MIB) == ""  # needs no additional space
    assert _allocate(fd, keep_size, 6 * MIB, 3 * MIB) == "ENOSPC"
    page = mmap.mmap(-1, MIB)
    errors = [error_of(os.pwritev, fd, [page], i * MIB) for i in range(9)]
    assert errors == [""] * 8 + ["ENOSPC"]
    assert os.statvfs(bench.mount).f_bfree == 0
    os.close(fd)


def test_extended_attributes_take_and_free_space(bench: Bench):
    bench.up(flat(0.0), size_bytes=8 * MIB)

    def free_bytes() -> int:
        status = os.statvfs(bench.mount)
        return status.f_bfree * status.f_frsize

    (bench.mount / "kept").write_bytes(b"x" * MIB)
    fd = os.open(bench.mount / "kept", os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    before = free_bytes()
    for _ in range(20):
        (bench.mount / "f").write_bytes(b"x")
        os.setxattr(bench.mount / "f", "user.k", b"v" * 3000)
        os.removexattr(bench.mount / "f", "user.k")
        os.setxattr(bench.mount / "f", "user.k", b"v" * 3000)
        (bench.mount / "f").unlink()
    assert free_bytes() == before == 7 * MIB


def _directory(bench: Bench, name: str) -> Path:
    (bench.base / name).mkdir()
    return bench.base / name


# A power cut


def test_a_power_cut_keeps_exactly_the_synced_data(bench: Bench):
    (bench.backing / "old").write_bytes(b"o" * 100_000)
    bench.up(flat(0.0), volatile=True)
    m = bench.mount
    fd = os.open(m / "synced", os.O_RDWR | os.O_CREAT)
    os.write(fd, b"s" * 50_000)
    os.fsync(fd)
    synced_names = sorted(os.listdir(m))
    os.pwrite(fd, b"L" * 30_000, 40_000)  # overlaps synced bytes and extends beyond them
    with open(m / "old", "r+b", buffering=0) as old:
        old.truncate(10)
        old.seek(50_000)
        old.write(b"L" * 100)
    (m / "never").write_bytes(b"L" * 5000)  # closed and written back, but not flushed
    os.rename(m / "old", m / "renamed")
    os.mkdir(m / "dir")
    lost = bench.server.power_cut("d")["lost"]
    assert lost["failed"] == []
    assert error_of(os.fsync, fd) in ("EIO", "ENOTCONN", "ECONNABORTED")
    os.close(fd)
    assert sorted(os.listdir(m)) == synced_names == ["old", "synced"]
    assert (m / "synced").read_bytes() == b"s" * 50_000
    assert (m / "old").read_bytes() == b"o" * 100_000
    # the disk is usable after the cut
    (m / "again").write_bytes(b"y")
    event = bench.server.events("d")["events"][-1]
    assert event["asked"]["power_cut"]["mode"] == "lost"
    assert event["error"] is None


def test_a_power_cut_restores_names_links_attributes_and_holes(bench: Bench):
    b, m = os.fsencode(bench.backing), os.fsencode(bench.mount)
    os.mkdir(b + b"/old\xff")
    for name in (b"/one", b"/old\xff/two"):
        Path(os.fsdecode(b + name)).write_bytes(b"synced")
    bench.up(flat(0.0), volatile=True)
    os.link(m + b"/one", m + b"/other")
    os.setxattr(m + b"/one", "user.k", b"v")
    os.setxattr(m + b"/old\xff", "user.k", b"d")
    with open(m + b"/one", "r+b") as file:
        file.truncate(64 * MIB)
        file.seek(32 * MIB)
        file.write(b"middle")
        file.flush()
        os.fsync(file.fileno())
    synced = Path(os.fsdecode(m + b"/one")).read_bytes()
    os.mkdir(m + b"/new\xfe")
    os.rename(m + b"/old\xff/two", m + b"/new\xfe/\xfd")
    os.rmdir(m + b"/old\xff")
    for name in (b"/one", b"/other"):
        os.unlink(m + name)
    lost = bench.server.power_cut("d")["lost"]
    assert lost["failed"] == []
    assert sorted(os.listdir(m)) == [b"old\xff", b"one", b"other"]
    assert Path(os.fsdecode(m + b"/old\xff/two")).read_bytes() == b"synced"
    assert os.getxattr(m + b"/old\xff", "user.k") == b"d"
    one, other = os.stat(m + b"/one"), os.stat(m + b"/other")
    assert (one.st_ino, one.st_nlink) == (other.st_ino, 2)
    assert os.getxattr(m + b"/other", "user.k") == b"v"
    assert Path(os.fsdecode(m + b"/one")).read_bytes() == synced
    assert os.stat(bench.backing / "one").st_blocks * 512 < MIB


def test_data_synced_before_a_rename_survive(bench: Bench):
    """The pattern of databases: write a new file, fsync, rename, fsync the directory."""
    (bench.backing / "f").write_bytes(b"old")
    bench.up(flat(0.0), volatile=True)
    m = bench.mount
    for step in ("renamed", "directory synced"):
        with open(m / "f.new", "wb") as new:
            new.write(step.encode())
            new.flush()
            os.fsync(new.fileno())
        os.rename(m / "f.new", m / "f")
        if step == "directory synced":
            fd = os.open(m, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
        bench.server.power_cut("d")
        contents = {p.name: p.read_bytes() for p in m.iterdir()}
        if step == "renamed":
            assert contents == {"f": b"old", "f.new": b"renamed"}
            (m / "f.new").unlink()
        else:
            assert contents == {"f": b"directory synced"}


def test_a_stop_loses_nothing_and_a_torn_power_cut_mixes_sectors(bench: Bench):
    (bench.backing / "f").write_bytes(b"a" * 256 * BLOCK)
    bench.up(flat(0.0), volatile=True)
    path = bench.mount / "f"
    path.write_bytes(b"b" * 256 * BLOCK)
    bench.server.remove("d")
    assert (bench.backing / "f").read_bytes() == b"b" * 256 * BLOCK
    bench.up(flat(0.0), volatile=True)
    path.write_bytes(b"b" * 256 * BLOCK)
    fd = os.open(path, os.O_RDWR)
    os.fsync(fd)
    os.pwrite(fd, b"c" * 256 * BLOCK, 0)
    os.close(fd)  # written back but not flushed
    bench.server.power_cut("d", mode="torn", seed=4)
    content = path.read_bytes()
    assert {content[i : i + 512] for i in range(0, len(content), 512)} == {b"b" * 512, b"c" * 512}
    blocks = [content[i : i + BLOCK] for i in range(0, len(content), BLOCK)]
    assert any(len(set(block)) == 2 for block in blocks)


def test_a_power_cut_by_schedule(bench: Bench):
    import time

    bench.up(flat(0.0), volatile=True)
    (bench.mount / "f").write_bytes(b"x" * 1000)
    at = time.monotonic_ns() + 200_000_000
    bench.server.schedule("d", [{"at_ns": at, "patch": {"power_cut": True}}])
    deadline = time.monotonic() + 20
    while not bench.server.events("d")["events"]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert bench.server.events("d")["events"][0]["planned_ns"] == at
    assert os.listdir(bench.mount) == []


def test_synced_data_survive_a_kill_of_the_server(tmp_path: Path):
    for name in ("mount", "backing"):
        (tmp_path / name).mkdir()
    journal = Journal(tmp_path / "journal.jsonl")
    for volatile in (False, True):
        server = DiskServer(journal, tmp_path / "state")
        server.add("d", tmp_path / "mount", tmp_path / "backing", flat(0.0), volatile=volatile)
        fd = os.open(tmp_path / "mount" / f"f{volatile}", os.O_RDWR | os.O_CREAT)
        os.write(fd, b"s" * 300_000)
        os.fsync(fd)
        os.kill(server.daemon.pid, signal.SIGKILL)
        assert (tmp_path / "backing" / f"f{volatile}").read_bytes() == b"s" * 300_000
        os.close(fd)
        server.daemon.hang_up()
        undo(journal, own=True)
        assert not mounts_at(tmp_path / "mount")


# Owners and namespaces


def test_a_disk_belongs_to_its_owner(bench: Bench):
    """Root and the owner are swapped between the backing directory and the mount."""
    os.chmod(bench.backing, 0o750)
    (bench.backing / "f").write_text("root's")
    os.chmod(bench.backing / "f", 0o600)
    bench.up(flat(0.0), owner=(4321, 1234))
    status = os.stat(bench.mount / "f")
    assert (status.st_uid, status.st_gid) == (4321, 1234)
    script = """
import os
print(open("f").read())
open("own", "w").write("mine")
os.chmod("own", 0o640)
os.mkdir("d")
"""
    result = _as_user(bench.mount, script)
    assert result.stdout == "root's\n", result.stderr
    stored = os.stat(bench.backing / "own")
    assert (stored.st_uid, stored.st_gid) == (0, 0)
    os.chown(bench.mount / "own", 0, 0)
    assert os.stat(bench.backing / "own").st_uid == 4321


def _as_user(directory: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script as user 4321 in a directory whose parents that user cannot traverse."""
    fd = os.open(directory, os.O_PATH)
    program = f"import os; os.fchdir({fd})\n{script}"
    argv = ["/usr/bin/python3", "-c", program]
    try:
        return subprocess.run(
            argv, user=4321, group=1234, extra_groups=[], capture_output=True, text=True,
            pass_fds=(fd,), cwd="/",
        )  # fmt: skip
    finally:
        os.close(fd)


def test_a_shared_disk_appears_in_other_mount_namespaces(bench: Bench):
    bench.up(flat(0.0), shared=True, volatile=True, owner=(4321, 1234))
    (bench.mount / "f").write_text("hello")
    os.sync()
    foreign = subprocess.Popen(
        ["unshare", "--mount", "--propagation", "slave", "setpriv", "--reuid=4321", "--regid=1234",
         "--clear-groups", "sh", "-c", "echo up; while read line; do eval \"$line\"; echo .; done"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
    )  # fmt: skip
    assert foreign.stdin is not None
    assert foreign.stdout is not None
    assert foreign.stdout.readline() == "up\n"
    root = f"/proc/{foreign.pid}/root{bench.mount}"
    mountinfo = Path(f"/proc/{foreign.pid}/mountinfo")
    mount_point = str(bench.mount)

    def foreign_mounts() -> int:
        return sum(mount_point == line.split(" ")[4] for line in mountinfo.read_text().splitlines())

    try:
        assert foreign_mounts() == 2  # the shared tmpfs and the disk
        assert (Path(root) / "f").read_text() == "hello"
        bench.server.power_cut("d")
        assert foreign_mounts() == 2
        assert os.listdir(root) == []
        bench.server.remove("d")
        assert foreign_mounts() == 1  # the shared tmpfs, now empty
        assert os.listdir(root) == []
        bench.up(flat(0.0))  # not shared: not visible in the other namespace
        assert foreign_mounts() == 1
    finally:
        foreign.stdin.close()
        foreign.wait(10)
    assert not [m for m in mounts_at(bench.mount) if m.fstype == "tmpfs"]


def test_undo_unmounts_the_shared_disk_of_a_killed_server(tmp_path: Path):
    for name in ("mount", "backing"):
        (tmp_path / name).mkdir()
    journal = Journal(tmp_path / "journal.jsonl")
    server = DiskServer(journal, tmp_path / "state")
    server.add("d", tmp_path / "mount", tmp_path / "backing", flat(0.0), shared=True)
    assert len(mounts_at(tmp_path / "mount")) == 2
    os.kill(server.daemon.pid, signal.SIGKILL)
    server.daemon.hang_up()
    undo(journal, own=True)
    assert not mounts_at(tmp_path / "mount")
    assert journal.open_entries() == []
