"""Rare uses of a deduplicating mount: lost chunks, removed files, foreign links, an external umount."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from penstock.errors import BadInput, PenstockError
from tests.integration.dedup_ground import (  # noqa: F401 - a fixture
    HOST,
    Ground,
    content_of,
    ground,
)

pytestmark = HOST

MIB = 1 << 20


def test_a_writer_may_read_beyond_the_end(ground: Ground) -> None:  # noqa: F811
    ground.mount()
    with open(ground.point / "f", "w+b", buffering=0) as file:
        file.write(b"0123456789")
        for _ in range(8):  # more than the server has threads
            assert os.pread(file.fileno(), 10, 4096) == b""
    assert (ground.point / "f").read_bytes() == b"0123456789"


@pytest.mark.parametrize("damage", ["shortened", "missing"])
def test_chunks_lost_by_a_power_cut_are_sent_again(ground: Ground, damage: str) -> None:  # noqa: F811
    ground.mount(chunking="fixed:64KiB")
    content = content_of(MIB, 1)
    (ground.point / "f.1").write_bytes(content)
    ground.unmount()
    for chunk in ground.chunks()[:3]:
        if damage == "shortened":
            os.truncate(chunk, 0)
        else:
            chunk.unlink()
    ground.mount(chunking="fixed:64KiB")
    (ground.point / "f.2").write_bytes(content)  # of the same family; nothing was read before
    assert (ground.point / "f.2").read_bytes() == content


def test_a_removed_open_file_keeps_its_content(ground: Ground) -> None:  # noqa: F811
    ground.mount()
    path = ground.point / "f"
    path.write_bytes(b"a" * 100)
    with open(path, "r+b", buffering=0) as file:
        path.unlink()
        os.pwrite(file.fileno(), b"b", 50)
        assert os.pread(file.fileno(), 200, 0) == b"a" * 50 + b"b" + b"a" * 49


def test_entries_removed_during_a_listing_hide_no_others(ground: Ground) -> None:  # noqa: F811
    ground.mount()
    for number in range(1000):
        (ground.point / f"{number:05d}").touch()
    with os.scandir(ground.point) as entries:
        for entry in entries:
            os.unlink(entry.path)
    assert list(ground.point.iterdir()) == []


def test_a_chunk_is_not_replaced_by_the_same_content(ground: Ground) -> None:  # noqa: F811
    ground.mount(chunking="fixed:64KiB")
    (ground.point / "a").write_bytes(bytes(MIB))
    (before,) = ground.chunks()
    inode = before.stat().st_ino
    (ground.point / "b").write_bytes(bytes(MIB))  # of another family
    assert before.stat().st_ino == inode


def test_commits_of_an_open_file_leave_no_garbage_after_a_collection(ground: Ground) -> None:  # noqa: F811
    ground.mount(chunking="off")
    with open(ground.point / "f", "wb", buffering=0) as file:
        for _ in range(20):
            file.write(b"x" * 1000)
            os.fsync(file)
        ground.collect()
        assert len(ground.chunks()) == 1


def test_access_control_lists_are_refused(ground: Ground) -> None:  # noqa: F811
    ground.mount()
    (ground.point / "f").touch(mode=0o600)
    acl = bytes.fromhex("0200000001000600ffffffff04000600ffffffff20000600ffffffff")
    with pytest.raises(OSError, match="not supported"):
        os.setxattr(ground.point / "f", "system.posix_acl_access", acl)


def test_a_deep_tree_can_be_mounted_again(ground: Ground) -> None:  # noqa: F811
    ground.mount()
    os.makedirs(ground.point / "/".join(["d"] * 300))
    ground.remount()


def test_the_server_ends_with_its_mount(ground: Ground) -> None:  # noqa: F811
    served = ground.mount()
    subprocess.run(["umount", ground.point], check=True)
    assert served.daemon.gone(10.0)
    ground.collect()


def test_a_store_that_another_user_can_change_is_refused(ground: Ground, tmp_path: Path) -> None:  # noqa: F811
    os.chown(ground.store, 65534, 65534)
    with pytest.raises((BadInput, PenstockError), match="found user 65534"):
        ground.mount()
    os.chown(ground.store, 0, 0)
    ground.mount()
    (ground.point / "d").mkdir()
    (ground.point / "d" / "f").write_bytes(b"content")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_bytes(b"of others")
    # a directory that another client has replaced by a link is not followed
    moved = ground.store / "files" / "d"
    moved.rename(ground.store / "files" / "e")
    moved.symlink_to(outside)
    with pytest.raises(OSError, match=r"Input/output error|Too many levels"):
        (ground.point / "d" / "f").write_bytes(b"changed")
    assert (outside / "f").read_bytes() == b"of others"
    moved.unlink()


def test_a_mount_point_in_the_store_is_refused(ground: Ground) -> None:  # noqa: F811
    ground.point = ground.store / "files"
    ground.point.mkdir()
    with pytest.raises(BadInput, match="not above or in the store"):
        ground.mount()
    ground.point.rmdir()
