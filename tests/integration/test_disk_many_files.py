"""The server of a disk holds no descriptors for files that the kernel knows, and reaches each of them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import socket
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.emulate.backends.fuse import INSTANT_PROFILE
from penstock.errors import PenstockError
from penstock.host.storage.mounts import unmount
from tests.integration.disk_bench import (  # noqa: F401 - fixtures
    BOTH_TRANSPORTS,
    HOST,
    Bench,
    each_transport,
    one_bench,
)

pytestmark = [*HOST, BOTH_TRANSPORTS]
#: limit of open descriptors of the server
LIMIT = 600


@pytest.fixture(name="disk")
def one_disk(bench: Bench) -> Iterator[Path]:
    bench.up(INSTANT_PROFILE, calibrate=False)
    return bench.mount


def limited(bench: Bench) -> None:
    resource.prlimit(bench.server.daemon.pid, resource.RLIMIT_NOFILE, (LIMIT, LIMIT))


def make(directory: Path, count: int) -> None:
    for number in range(count):
        os.close(os.open(directory / f"f{number}", os.O_CREAT | os.O_WRONLY))


def test_files_of_one_disk_take_no_descriptors_from_it_or_from_another(
    bench: Bench, disk: Path, tmp_path: Path
) -> None:
    for name in ("mount2", "backing2"):
        (tmp_path / name).mkdir()
    (tmp_path / "backing2" / "other").write_text("hello")
    bench.server.add(
        "e", tmp_path / "mount2", tmp_path / "backing2", INSTANT_PROFILE, calibrate=False
    )
    limited(bench)
    make(disk, 3 * LIMIT)
    for number in range(LIMIT):
        (disk / f"d{number}").mkdir()
        (disk / f"d{number}" / "inside").touch()
    assert len(os.listdir(bench.backing)) == 4 * LIMIT
    assert (tmp_path / "mount2" / "other").read_text() == "hello"
    assert sum(os.stat(disk / f"f{n}").st_size for n in range(3 * LIMIT)) == 0
    assert all((disk / f"d{n}" / "inside").exists() for n in range(LIMIT))
    assert len(os.listdir(f"/proc/{bench.server.daemon.pid}/fd")) < LIMIT


def test_a_large_directory_is_listed_in_pieces(disk: Path) -> None:
    make(disk, 3000)
    (disk / "a").symlink_to("f1")
    with os.scandir(disk) as entries:
        kinds = {e.name: (e.is_file(follow_symlinks=False), e.is_symlink()) for e in entries}
    assert kinds.pop("a") == (False, True)
    assert set(kinds) == {f"f{n}" for n in range(3000)}
    assert set(kinds.values()) == {(True, False)}
    assert {e.inode() for e in os.scandir(disk)} == {
        os.lstat(disk / n).st_ino for n in os.listdir(disk)
    }
    subprocess.run(["rm", "-r", *(str(disk / n) for n in ("a", "f1"))], check=True)
    for name in os.listdir(disk):
        (disk / name).unlink()
    assert os.listdir(disk) == []


def test_an_open_file_survives_changes_of_its_names(disk: Path) -> None:
    (disk / "one" / "deep").mkdir(parents=True)
    (disk / "two").mkdir()
    path = disk / "one" / "deep" / "f"
    path.write_text("first")
    number = path.stat().st_ino
    os.link(path, disk / "two" / "g")
    with open(path, "r+") as file:
        os.rename(disk / "one", disk / "moved")
        assert os.fstat(file.fileno()).st_ino == number
        (disk / "moved" / "deep" / "f").unlink()
        assert os.fstat(file.fileno()).st_nlink == 1
        assert (disk / "two" / "g").read_text() == "first"
        (disk / "two" / "new").write_text("second")
        os.replace(disk / "two" / "new", disk / "two" / "g")
        assert (disk / "two" / "g").read_text() == "second"
        state = os.fstat(file.fileno())
        assert (state.st_ino, state.st_nlink, file.read()) == (number, 0, "first")
        os.fchmod(file.fileno(), 0o640)
        os.ftruncate(file.fileno(), 2)
        os.utime(file.fileno(), ns=(1, 2))
        state = os.fstat(file.fileno())
        assert (stat.S_IMODE(state.st_mode), state.st_size, state.st_mtime_ns) == (0o640, 2, 2)
        assert state.st_atime_ns == 1
        again = os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDONLY)
        assert os.read(again, 10) == b"fi"
        os.close(again)


def test_a_removed_open_directory_remains_usable(disk: Path) -> None:
    (disk / "d").mkdir()
    inside = os.open(disk / "d", os.O_RDONLY)
    (disk / "d").rmdir()
    assert os.fstat(inside).st_nlink == 0
    with pytest.raises(FileNotFoundError):
        os.open("f", os.O_CREAT, dir_fd=inside)
    (disk / "d").mkdir()
    (disk / "d" / "f").touch()
    assert os.listdir(inside) == []
    os.close(inside)


def test_exchanged_directories_keep_their_files(disk: Path) -> None:
    for name in ("a", "b"):
        (disk / name).mkdir()
        (disk / name / "f").write_text(name)
    with open(disk / "a" / "f") as in_a, open(disk / "b" / "f") as in_b:
        os.rename(disk / "a", disk / "c")
        os.rename(disk / "b", disk / "a")
        os.rename(disk / "c", disk / "b")
        assert [(disk / n / "f").read_text() for n in "ab"] == ["b", "a"]
        assert os.fstat(in_a.fileno()).st_ino == os.stat(disk / "b" / "f").st_ino
        assert (in_a.read(), in_b.read()) == ("a", "b")


def test_locks_and_special_files_survive_renames(disk: Path) -> None:
    (disk / "d").mkdir()
    os.mkfifo(disk / "d" / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(disk / "d" / "s"))
        os.rename(disk / "d", disk / "e")
        assert stat.S_ISSOCK(os.stat(disk / "e" / "s").st_mode)
        assert stat.S_ISFIFO(os.stat(disk / "e" / "pipe").st_mode)
    with open(disk / "lock", "w") as locked, open(disk / "lock") as second:
        fcntl.flock(locked, fcntl.LOCK_EX)
        os.rename(disk / "lock", disk / "lock2")
        with pytest.raises(BlockingIOError):
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_no_symbolic_link_leads_the_server_out_of_the_backing_directory(
    bench: Bench, disk: Path, tmp_path: Path
) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "f").write_text("secret")
    (disk / "d").mkdir()
    (disk / "d" / "f").write_text("own")
    descriptor = os.open(disk / "d", os.O_RDONLY)
    # the backing directory is changed outside of the mount
    os.rename(bench.backing / "d", tmp_path / "away")
    (bench.backing / "d").symlink_to(tmp_path / "secret")
    assert (bench.backing / "d" / "f").read_text() == "secret"  # planted: the link leads there
    for path in (disk / "d" / "f", Path(f"/proc/self/fd/{descriptor}/f")):
        with contextlib.suppress(OSError):
            assert path.read_text() == "own"
    os.close(descriptor)
    (bench.backing / "d").unlink()
    (disk / "new").mkdir()
    assert (bench.backing / "new").is_dir()  # the server refused the reads and continues


def test_concurrent_changes_of_names_in_use(disk: Path) -> None:
    """Descriptors keep working while names are moved, linked, replaced and removed by other threads."""
    stop = threading.Event()
    errors: list[str] = []
    for name in ("x", "y"):
        (disk / name / "sub").mkdir(parents=True)
    path = disk / "x" / "sub" / "f"
    path.write_text("content")
    fd = os.open(path, os.O_RDWR)
    number = os.fstat(fd).st_ino
    os.link(path, disk / "other")

    def repeat(work, *expected: type[OSError]):
        def run() -> None:
            while not stop.is_set():
                try:
                    work()
                except expected:
                    pass
                except Exception as error:
                    errors.append(f"{work.__name__}: {error!r}")
                    return

        return threading.Thread(target=run)

    def move() -> None:
        os.rename(disk / "x", disk / "z")
        os.rename(disk / "z", disk / "x")

    def link() -> None:
        os.link(disk / "other", disk / "y" / "sub" / "g")
        os.unlink(disk / "y" / "sub" / "g")

    def replace() -> None:
        (disk / "y" / "new").write_text("content")
        os.replace(disk / "y" / "new", disk / "y" / "old")

    def state() -> None:
        os.fchmod(fd, 0o600)
        status = os.fstat(fd)
        assert status.st_ino == number
        assert os.pread(fd, 7, 0) == b"content"
        again = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
        assert os.fstat(again).st_ino == number
        os.close(again)

    def look() -> None:
        assert (disk / "x" / "sub" / "f").read_text() == "content"

    def read() -> None:
        text = (disk / "y" / "old").read_text()
        assert text == "content"

    replace()
    threads = [
        repeat(move),
        repeat(link),
        repeat(replace),
        repeat(state),
        repeat(look, FileNotFoundError),
        repeat(read),
    ]
    for thread in threads:
        thread.start()
    stop.wait(2.0)
    stop.set()
    for thread in threads:
        thread.join()
    os.close(fd)
    assert errors == []


def test_a_backing_directory_belongs_to_one_disk(bench: Bench, disk: Path, tmp_path: Path) -> None:
    (bench.backing / "below").mkdir()
    for name in ("m2", "bound"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to(bench.backing)
    subprocess.run(["mount", "--bind", bench.backing / "below", tmp_path / "bound"], check=True)
    try:
        for backing in ("backing", "link", "backing/below", "bound", "."):
            with pytest.raises(PenstockError, match="backing directory"):
                bench.server.add("e", tmp_path / "m2", tmp_path / backing, INSTANT_PROFILE)
    finally:
        unmount(tmp_path / "bound")
    (tmp_path / "m2" / "precious").write_text("x")
    (tmp_path / "b2").mkdir()
    with pytest.raises(PenstockError, match="not empty: the disk would hide precious"):
        bench.server.add("e", tmp_path / "m2", tmp_path / "b2", INSTANT_PROFILE)
    assert [d["disk_id"] for d in bench.server.list()] == ["d"]


def test_a_backing_directory_is_free_again_when_its_disk_is_down(bench: Bench, disk: Path) -> None:
    bench.server.remove("d")
    bench.up(INSTANT_PROFILE, calibrate=False)
    assert os.listdir(disk) == []
