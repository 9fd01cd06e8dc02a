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

#: marks of a module of tests with disks
HOST = [
    pytest.mark.host,
    pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="kernel: no /dev/fuse"),
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting in tests needs root"),
]
#: mark of a module whose tests use each transport; it imports `each_transport`
BOTH_TRANSPORTS = pytest.mark.usefixtures("transport")
MIB = 1 << 20


def flat(service_s: float, name: str = "flat", **fields: Any) -> str:
    overhead = {"overhead": {"kind": "constant", "value_s": service_s}}
    both = {"sequential": overhead, "random": overhead}
    profile = {"schema": "penstock/storage-profile/1", "name": name, "servers": 1}
    return json.dumps({**profile, "read": both, "write": both, **fields})


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
        """Log the requests in the block; at its end, set `certificate` and its inputs in the result."""
        result: dict[str, Any] = {}
        log = self.base / "requests"
        self.server.reset("d")
        self.server.log("d", log)
        yield result
        self.server.log("d", None)
        result["stats"] = self.server.stats("d", closing=True)
        result["requests"] = read_disk_log(log, disk_id="d")
        result["host_waits"] = self.server.host_waits("d")
        result["certificate"] = certificate(
            result["requests"], result["stats"], profile, host_waits=result["host_waits"]
        ).overall


@pytest.fixture(name="transport", params=TRANSPORTS)
def each_transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test with each transport for all of its disks."""
    transport = str(request.param)
    if transport == IO_URING and (reason := missing()):
        pytest.skip(f"kernel: {reason}")
    monkeypatch.setenv(VARIABLE, transport)
    return transport


@contextlib.contextmanager
def bench_in(base: Path) -> Iterator[Bench]:
    """Start a disk server in an empty directory; at the end, assert that no mounts or changes remain."""
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
