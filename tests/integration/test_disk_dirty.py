"""Dirty pages that the disk has not received: copies contain them and sizes include them."""

from __future__ import annotations

import contextlib
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.disk_bench import HOST, MIB, Bench, flat, one_bench  # noqa: F401 - a fixture

pytestmark = HOST


#: writes its input to a file at an offset, prints the size, and holds the file open until its next input
HOLDER = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
os.pwrite(fd, bytes.fromhex(sys.stdin.readline()), int(sys.argv[2]))
print(os.fstat(fd).st_size, flush=True)
sys.stdin.readline()
"""


@contextlib.contextmanager
def dirty_pages(path: Path, content: bytes, offset: int = 0) -> Iterator[int]:
    """A file that a process holds open with `content` only in the page cache; yields its size.

    A separate process: closing a descriptor writes back, also in a child that inherited it.
    """
    argv = [sys.executable, "-c", HOLDER, str(path), str(offset)]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        print(content.hex(), file=holder.stdin, flush=True)
        yield int(holder.stdout.readline())
        holder.stdin.close()


def copy_of(argv: list[str], source: Path, directory: Path) -> bytes:
    """Content of a copy of `source` by the command `argv`."""
    if argv[0] == "tar":
        archive = directory / "a.tar"
        subprocess.run([*argv, "-cf", archive, "-C", source.parent, source.name], check=True)
        subprocess.run(["tar", "-xf", archive, "-C", directory], check=True)
        return (directory / source.name).read_bytes()
    subprocess.run([*argv, source, directory / "copy"], check=True)
    return (directory / "copy").read_bytes()


COPIES = [["cp"], ["cp", "--sparse=always"], ["cp", "--sparse=never"], ["tar"], ["tar", "-S"]]


@pytest.mark.parametrize("kind", ["new", "empty", "hole", "short"])
@pytest.mark.parametrize("argv", COPIES, ids=" ".join)
def test_a_copy_contains_dirty_pages_of_another_process(
    bench: Bench, tmp_path: Path, argv: list[str], kind: str
):
    bench.up(flat(0.0))
    path, content = bench.mount / "f", os.urandom(300_001)
    if kind != "new":
        path.write_bytes(b"old" if kind == "short" else b"")
        if kind == "hole":
            os.truncate(path, MIB)
        os.stat(path)  # the kernel caches the number of blocks
    with dirty_pages(path, content) as size:
        expected = content.ljust(size, b"\0")
        assert copy_of(argv, path, tmp_path) == expected


def test_data_is_never_reported_as_a_hole(bench: Bench):
    bench.up(flat(0.0))
    path = bench.mount / "f"
    with dirty_pages(path, b"x" * 4096, 100_000) as size:
        fd = os.open(path, os.O_RDONLY)
        try:
            assert os.lseek(fd, 0, os.SEEK_DATA) <= 100_000
            assert os.lseek(fd, 100_000, os.SEEK_DATA) == 100_000
            assert os.lseek(fd, 100_000, os.SEEK_HOLE) == size
            assert os.fstat(fd).st_blocks > 0
            with pytest.raises(OSError, match="No such device or address"):
                os.lseek(fd, size, os.SEEK_DATA)
        finally:
            os.close(fd)


def test_a_direct_read_of_a_hole_before_dirty_pages_is_zeros(bench: Bench):
    """The page cache determines the end of the file, also for reads past it."""
    bench.up(flat(0.0))
    path, page = bench.mount / "f", mmap.mmap(-1, 8192)
    path.touch()
    direct = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        with dirty_pages(path, b"x" * 5000, 20_000):
            assert os.preadv(direct, [page], 0) == 8192
            assert page[:] == bytes(8192)
            assert os.preadv(direct, [page], 24_576) == 424
            assert os.preadv(direct, [page], 28_672) == 0
    finally:
        os.close(direct)


def test_copying_ranges_makes_no_requests_to_the_disk(bench: Bench):
    """Ranges are copied within the page cache, as in file systems of the kernel."""
    bench.up(flat(0.0))
    content = os.urandom(100_000)
    path, copy = bench.mount / "f", bench.mount / "g"
    with dirty_pages(path, content):
        source, target = os.open(path, os.O_RDONLY), os.open(copy, os.O_RDWR | os.O_CREAT)
        os.copy_file_range(source, target, 10, 0, 0)
        for _ in range(5):  # tests in parallel call sync(2), which writes all dirty pages
            bench.server.reset("d")
            copied_bytes = os.copy_file_range(source, target, len(content), 0, 0)
            writes = bench.server.stats("d")["writes"]
            if not writes:
                break
        assert writes == 0
        assert os.pread(target, copied_bytes, 0) == content[:copied_bytes]
        os.close(source)
        os.close(target)
