"""Deduplicating mounts for tests, with a separate state."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.host.journal.journal import Journal
from penstock.host.journal.undo import undo
from penstock.host.storage.mounts import mounts_at
from penstock.parts.dedup import stores
from penstock.parts.dedup.mounts import DedupMount, mount, unmount
from penstock.parts.dedup.options import MountOptions

HOST = [
    pytest.mark.host,
    pytest.mark.skipif(
        os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="needs root and FUSE"
    ),
]


@dataclass
class Ground:
    """A store and its mount point."""

    store: Path
    point: Path

    def mount(self, **options: Any) -> DedupMount:
        return mount(self.store, self.point, MountOptions(**options), outlive=False)

    def unmount(self) -> None:
        unmount(self.point, force=True)

    def remount(self, **options: Any) -> DedupMount:
        self.unmount()
        return self.mount(**options)

    def chunks(self) -> list[Path]:
        return [path for path in (self.store / "chunks").rglob("*") if path.is_file()]

    def verify(self) -> stores.Verified:
        return stores.verify(self.store)

    def collect(self) -> stores.Collected:
        return stores.collect(self.store)

    def clear(self) -> None:
        """Remove all mounts."""
        undo(Journal(), own=True)


@pytest.fixture
def ground(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Ground]:
    base = tmp_path_factory.mktemp("dedup")
    for name in ("STATE", "RUNTIME"):
        (base / name).mkdir(mode=0o700)
        monkeypatch.setenv(f"PENSTOCK_{name}", str(base / name))
    for name in ("store", "mount"):
        (base / name).mkdir()
    ground = Ground(base / "store", base / "mount")
    yield ground
    ground.clear()
    assert not mounts_at(ground.point)
    assert not Journal().open_entries()


def content_of(size: int, seed: int) -> bytes:
    """Pseudo-random bytes that depend on the seed only."""
    return np.random.Generator(np.random.SFC64(seed)).bytes(size)


def kill(mounted: DedupMount) -> None:
    """Kill the server, as the kernel does when memory is short."""
    os.kill(mounted.daemon.pid, signal.SIGKILL)
    assert mounted.daemon.gone(60.0)


def records(mounted: DedupMount, count: int) -> list[dict[str, Any]]:
    """Wait for `count` records of the mount: the kernel reports the last close after it has returned."""
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        rows: list[dict[str, Any]] = mounted.status()["records"]
        if len(rows) >= count:
            return rows
        time.sleep(0.01)
    raise AssertionError(f"{len(rows)} records; expected {count}")
