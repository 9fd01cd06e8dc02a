"""A deduplicating mount whose server is killed: committed versions stay, and no part of others is visible."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest

from penstock.host.storage.mounts import mounts_at
from tests.integration import dedup_writer
from tests.integration.dedup_ground import HOST, Ground, ground, kill  # noqa: F401 - a fixture
from tests.integration.dedup_writer import FILES, name_of, version_of

pytestmark = HOST

CONFIGURATIONS = ("off", "fixed:16KiB", "fastcdc:4KiB,16KiB,64KiB", "seqcdc:4KiB,16KiB,64KiB")
VERSIONS = 24


def kill_at_step(ground: Ground, seed: int) -> int:  # noqa: F811
    """Kill the server at a step of a writer, by `seed`; return the last committed version, or -1."""
    draws = random.Random(seed)
    served = ground.mount(chunking=CONFIGURATIONS[seed % len(CONFIGURATIONS)])
    steps = draws.randrange(1, VERSIONS * 9)
    argv = [sys.executable, dedup_writer.__file__, str(ground.point), str(seed), str(VERSIONS)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        committed = -1
        for step, line in enumerate(writer.stdout, start=1):
            event, _, number = line.partition(" ")
            if event == "committed":
                committed = int(number)
            if step == steps:
                kill(served)
    ground.clear()
    assert not mounts_at(ground.point)
    return committed


def assert_committed_versions(ground: Ground, seed: int, committed: int) -> None:  # noqa: F811
    """Each file has its last committed version, or the one in progress, completely."""
    for index in range(FILES):
        path = ground.point / f"v{index}"
        versions = [number for number in range(committed + 1) if name_of(number) == path.name]
        if not path.exists():
            assert not versions
            continue
        content = path.read_bytes()
        if not content:
            assert not versions, "a committed version is lost"
            continue
        number = int.from_bytes(content[:8], "little")
        assert content == version_of(seed, number), f"{path.name} has a part of version {number}"
        assert number in (versions[-1] if versions else None, committed + 1)


def recover(ground: Ground, seed: int) -> None:  # noqa: F811
    committed = kill_at_step(ground, seed)
    served = ground.mount()
    assert_committed_versions(ground, seed, committed)
    assert ground.verify().damaged_files == 0
    ground.collect()
    assert list((ground.store / "tmp").iterdir()) == []
    assert_committed_versions(ground, seed, committed)
    verified = ground.verify()
    assert verified.damaged_files == 0
    assert len(ground.chunks()) == verified.chunks
    assert served.daemon.alive
    # versions continue after it
    path = ground.point / "v0"
    path.write_bytes(version_of(seed, 1000))
    assert path.read_bytes() == version_of(seed, 1000)
    for file in ground.point.iterdir():
        file.unlink()
    ground.collect()
    assert ground.chunks() == []
    ground.unmount()


def test_committed_versions_outlast_the_server(ground: Ground) -> None:  # noqa: F811
    for seed in range(8):
        recover(ground, seed)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_committed_versions_outlast_the_server_at_fifty_points(ground: Ground) -> None:  # noqa: F811
    for seed in range(100, 150):
        recover(ground, seed)


def test_an_open_file_keeps_its_committed_version(ground: Ground) -> None:  # noqa: F811
    served = ground.mount()
    path = ground.point / "f"
    path.write_bytes(b"old" * 100_000)
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC)
    os.write(descriptor, b"new" * 50_000)
    kill(served)
    for operation in (
        lambda: os.write(descriptor, b"new"),
        lambda: os.close(descriptor),
        path.read_bytes,
    ):
        with pytest.raises(OSError, match=r"not connected|Software caused"):
            operation()
    ground.clear()
    ground.mount()
    assert path.read_bytes() == b"old" * 100_000
