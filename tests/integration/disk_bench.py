"""A disk server with one disk's directories, for tests."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.analyse.fidelity.fidelity import certificate
from penstock.emulate.disks.request_log import read_disk_log
from penstock.emulate.disks.server import DiskServer
from penstock.emulate.disks.transport import IO_URING, TRANSPORTS, VARIABLE, missing
from penstock.host.journal.journal import Journal
from penstock.host.storage.mounts import mounts_at

#: what a module of tests with disks is marked with
HOST = [
    pytest.mark.host,
    pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="kernel: no /dev/fuse"),
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting in tests needs root"),
]
#: what a module is marked with whose tests use each transport; it imports `each_transport`
BOTH_TRANSPORTS = pytest.mark.usefixtures("transport")
MIB = 1 << 20


def flat(service_s: float, name: str = "flat", **more: Any) -> str:
    overhead = {"overhead": {"kind": "constant", "value_s": service_s}}
    both = {"sequential": overhead, "random": overhead}
    profile = {"schema": "penstock/storage-profile/1", "name": name, "servers": 1}
    return json.dumps({**profile, "read": both, "write": both, **more})


@dataclass
class Bench:
    """A disk server with one disk's directories."""

    base: Path
    server: DiskServer
    journal: Journal

    @property
    def mount(self) -> Path:
        return self.base / "mount"

    @property
    def backing(self) -> Path:
        return self.base / "backing"

    def up(self, profile: str, **options: Any) -> None:
        self.server.add("d", self.mount, self.backing, profile, **options)

    def file(self, name: str, size: int) -> Path:
        (self.backing / name).write_bytes(os.urandom(size))
        return self.mount / name

    @contextlib.contextmanager
    def logged(self, profile: str) -> Iterator[dict[str, Any]]:
        """Log the requests in the block; afterwards the value has `certificate`, and its inputs."""
        out: dict[str, Any] = {}
        log = self.base / "requests"
        self.server.reset("d")
        self.server.log("d", log)
        yield out
        self.server.log("d", None)
        out["stats"] = self.server.stats("d", closing=True)
        out["requests"] = read_disk_log(log, disk_id="d")
        out["host_waits"] = self.server.host_waits("d")
        out["certificate"] = certificate(
            out["requests"], out["stats"], profile, host_waits=out["host_waits"]
        ).overall


@pytest.fixture(name="transport", params=TRANSPORTS)
def each_transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The transport of all disks of a test, one after the other."""
    transport = str(request.param)
    if transport == IO_URING and (why := missing()):
        pytest.skip(f"kernel: {why}")
    monkeypatch.setenv(VARIABLE, transport)
    return transport


@contextlib.contextmanager
def bench_in(base: Path) -> Iterator[Bench]:
    """Start a disk server in an empty directory; afterwards nothing of it may be left."""
    for name in ("mount", "backing"):
        (base / name).mkdir()
    journal = Journal(base / "journal.jsonl")
    with DiskServer(journal, base / "state") as server:
        yield Bench(base, server, journal)
    assert not mounts_at(base / "mount")
    assert journal.open_entries() == []


@pytest.fixture(name="bench")
def one_bench(tmp_path: Path) -> Iterator[Bench]:
    with bench_in(tmp_path) as bench:
        yield bench
