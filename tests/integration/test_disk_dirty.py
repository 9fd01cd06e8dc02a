"""What the page cache holds and the disk has not seen yet: copies must have it, sizes must be right."""

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


#: writes its input to a file at an offset, says so, and holds the file open until it is told to end
HOLDER = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
os.pwrite(fd, bytes.fromhex(sys.stdin.readline()), int(sys.argv[2]))
print(os.fstat(fd).st_size, flush=True)
sys.stdin.readline()
"""


@contextlib.contextmanager
def held_dirty(path: Path, content: bytes, offset: int = 0) -> Iterator[int]:
    """A file that a process holds open with `content` in the page cache alone; gives its size.

    A process of its own: closing a descriptor writes back, and so does a child that closes what it
    was born with.
    """
    words = [sys.executable, "-c", HOLDER, str(path), str(offset)]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        print(content.hex(), file=holder.stdin, flush=True)
        yield int(holder.stdout.readline())
        holder.stdin.close()


def copied(words: list[str], source: Path, into: Path) -> bytes:
    """The content of a copy of `source` that the command `words` makes."""
    if words[0] == "tar":
        archive = into / "a.tar"
        subprocess.run([*words, "-cf", archive, "-C", source.parent, source.name], check=True)
        subprocess.run(["tar", "-xf", archive, "-C", into], check=True)
        return (into / source.name).read_bytes()
    subprocess.run([*words, source, into / "copy"], check=True)
    return (into / "copy").read_bytes()


COPIES = [["cp"], ["cp", "--sparse=always"], ["cp", "--sparse=never"], ["tar"], ["tar", "-S"]]


@pytest.mark.parametrize("kind", ["new", "empty", "hole", "short"])
@pytest.mark.parametrize("words", COPIES, ids=" ".join)
def test_a_copy_has_what_another_process_holds_dirty(
    bench: Bench, tmp_path: Path, words: list[str], kind: str
):
    bench.up(flat(0.0))
    path, content = bench.mount / "f", os.urandom(300_001)
    if kind != "new":
        path.write_bytes(b"old" if kind == "short" else b"")
        if kind == "hole":
            os.truncate(path, MIB)
        os.stat(path)  # and the kernel knows its blocks
    with held_dirty(path, content) as size:
        expected = content.ljust(size, b"\0")
        assert copied(words, path, tmp_path) == expected


def test_data_is_never_reported_as_a_hole(bench: Bench):
    bench.up(flat(0.0))
    path = bench.mount / "f"
    with held_dirty(path, b"x" * 4096, 100_000) as size:
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
    """The file ends where the page cache says, also for who reads past it."""
    bench.up(flat(0.0))
    path, page = bench.mount / "f", mmap.mmap(-1, 8192)
    path.touch()
    direct = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        with held_dirty(path, b"x" * 5000, 20_000):
            assert os.preadv(direct, [page], 0) == 8192
            assert page[:] == bytes(8192)
            assert os.preadv(direct, [page], 24_576) == 424
            assert os.preadv(direct, [page], 28_672) == 0
    finally:
        os.close(direct)


def test_copying_ranges_asks_nothing_of_the_disk(bench: Bench):
    """As in a file system of the kernel's: the ranges go from page cache to page cache."""
    bench.up(flat(0.0))
    content = os.urandom(100_000)
    path, to = bench.mount / "f", bench.mount / "g"
    with held_dirty(path, content):
        source, target = os.open(path, os.O_RDONLY), os.open(to, os.O_RDWR | os.O_CREAT)
        os.copy_file_range(source, target, 10, 0, 0)
        bench.server.reset("d")
        done = os.copy_file_range(source, target, len(content), 0, 0)
        assert bench.server.stats("d")["writes"] == 0
        assert os.pread(target, done, 0) == content[:done]
        os.close(source)
        os.close(target)
