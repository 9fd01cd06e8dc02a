"""Residency: written files are in the page cache, dropped ones are not, and both system calls agree."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.host.storage import residency as module
from penstock.host.storage.mounts import mount_of
from penstock.host.storage.residency import drop_file_cache, residency

PAGE = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    mount = mount_of(tmp_path)
    if mount is None or mount.fstype in ("tmpfs", "ramfs"):
        pytest.skip("the files of a tmpfs cannot leave memory")
    (tmp_path / "inner").mkdir()
    (tmp_path / "a").write_bytes(b"x" * (64 * PAGE))
    (tmp_path / "inner" / "b").write_bytes(b"x" * (31 * PAGE + 1))
    (tmp_path / "empty").touch()
    (tmp_path / "link").symlink_to("a")
    return tmp_path


def test_a_tree_in_and_out_of_the_cache(tree: Path) -> None:
    cached = residency(tree)
    assert (cached.files, cached.pages) == (3, 96)
    assert cached.fraction == 1.0
    assert cached.resident_bytes == 96 * PAGE
    assert drop_file_cache(tree).resident_pages == 0
    assert residency(tree).fraction == 0.0


def test_part_of_a_file(tree: Path) -> None:
    file = tree / "a"
    drop_file_cache(file)
    with open(file, "rb") as handle:
        os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # no readahead
        os.pread(handle.fileno(), 1, 0)
        os.pread(handle.fileno(), 1, 40 * PAGE)
    assert residency(file).resident_pages == 2


def test_cachestat_and_mincore_agree(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_cachestat = residency(tree)
    monkeypatch.setattr(module, "_CACHESTAT", 100_000)  # no such call: ENOSYS
    assert residency(tree) == by_cachestat


def test_an_empty_directory_is_not_resident(tmp_path: Path) -> None:
    assert residency(tmp_path).fraction == 0.0
