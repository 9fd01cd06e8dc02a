"""A separate state for clusters of virtual nodes, and the objects on the host that belong to it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from penstock.host.cgroups.cgroup import hierarchies
from penstock.host.journal.journal import Journal
from penstock.host.journal.undo import undo
from penstock.host.storage.mounts import mounts
from tests.integration.known_host import with_known_host
from tests.support import commands

#: marks of a module of tests with virtual nodes
NODES = [
    pytest.mark.host,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: namespaces and control groups"),
    pytest.mark.skipif(hierarchies().layout == "none", reason="kernel: no control groups"),
    pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="kernel: no /dev/fuse"),
]


#: run a test with each node runtime
RUNTIMES = pytest.mark.parametrize(
    "runtime",
    [
        "namespaces",
        pytest.param(
            "runc", marks=pytest.mark.skipif(shutil.which("runc") is None, reason="needs runc")
        ),
    ],
)


@dataclass
class Ground:
    """A directory with its own state, runtime directory and files."""

    where: Path
    environment: dict[str, str]
    #: tokens of the journal so far
    tokens: set[str] = field(default_factory=set)

    @classmethod
    def create(cls, where: Path) -> Ground:
        """Create a ground in an empty directory; its path is short because paths of sockets are limited."""
        environment = {
            **os.environ,
            "PENSTOCK_STATE": str(with_known_host(where / "state")),
            "PENSTOCK_RUNTIME": str(where / "run"),
        }
        return cls(where, environment)

    def penstock(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command of penstock and return its result."""
        argv = [sys.executable, "-m", "penstock", *arguments]
        return commands.run(
            argv, env=self.environment, capture_output=True, text=True, timeout=120, **options
        )

    def journal(self) -> Journal:
        """The undo journal."""
        return Journal(self.where / "state" / "journal.jsonl")

    def host_objects(self) -> dict[str, object]:
        """Mounts, groups, namespaces, links, processes and files that belong to this state."""
        self.tokens |= tokens_in(self.journal().path)
        foreign_tokens = self._tokens_of_others()
        layout = hierarchies()
        roots = {*layout.v1.values(), *([layout.unified] if layout.unified else [])}
        mark = f"PENSTOCK_STATE={self.where / 'state'}".encode()
        processes = [p for p in Path("/proc").glob("[0-9]*") if _carries(p, mark)]
        groups = sorted(str(p) for r in roots for p in r.glob("penstock-gt*"))
        # tests of other workers have groups with the same names
        foreign_tokens |= self._tokens_of_others()
        return {
            "mounts": sorted(m.point for m in mounts() if m.point.startswith(str(self.where))),
            "groups": [g for g in groups if not any(t in g for t in foreign_tokens)],
            "processes": sorted(_line(p) for p in processes),
            "files": sorted(
                str(p) for p in (self.where / "state-passable" / "clusters").glob("*") if p.exists()
            ),
            "sockets": sorted(
                p.name
                for p in (self.where / "run").glob("*")
                if p.suffix not in (".lock", ".log") and not p.name.startswith("standing")
            ),
            # other tests create namespaces and interfaces too; tokens identify those of this state
            "links": [n for n in os.listdir("/sys/class/net") if any(t in n for t in self.tokens)],
            "tokens": [m.point for m in mounts() if any(t in m.source for t in self.tokens)],
        }

    def assert_host_objects(self, expected: dict[str, object], context: str = "") -> None:
        """Compare the objects on the host; interfaces disappear shortly after their namespace."""
        deadline_s = time.monotonic() + 60
        while (objects := self.host_objects()) != expected and time.monotonic() < deadline_s:
            time.sleep(0.05)
        assert objects == expected, context

    def _tokens_of_others(self) -> set[str]:
        """Tokens in the journals of other existing grounds."""
        journals = [p / "state" / "journal.jsonl" for p in self.where.parent.glob("gt-*")]
        return {t for path in journals if path.parents[1] != self.where for t in tokens_in(path)}

    def processes(self, command: str) -> list[int]:
        """Pids of the processes with this command name in nodes of this state.

        Their groups have its tokens; a parallel run may have groups with the same names.
        """
        tokens, pids = tokens_in(self.journal().path), []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                name, groups = ((process / entry).read_text() for entry in ("comm", "cgroup"))
                if name.strip() == command[:15] and any(token in groups for token in tokens):
                    pids.append(int(process.name))
        return pids


def tokens_in(journal: Path) -> set[str]:
    """Tokens of the objects in a journal."""
    try:
        return set(re.findall(r'"token":"(\w+)"', journal.read_text()))
    except OSError:
        return set()


@pytest.fixture(name="ground")
def one_ground(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:
    """A ground for one test, with its state in the environment; the teardown runs undo."""
    directory = Path(tempfile.mkdtemp(prefix="gt-", dir="/var/tmp"))
    ground = Ground.create(directory)
    (directory / "run").mkdir()
    for key in ("PENSTOCK_STATE", "PENSTOCK_RUNTIME"):
        monkeypatch.setenv(key, ground.environment[key])
    yield ground
    undo(ground.journal(), own=True, everything=True)
    shutil.rmtree(directory)


def _carries(process: Path, mark: bytes) -> bool:
    try:
        if process.name == str(os.getpid()):
            return False
        return mark in (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _line(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


PLATFORM = """
penstock_platform: 1
name: gt
hosts:
  - group: n
    count: {count}
    roles: [client, storage, manager]
    manager: {{service: 0.5ms}}
    memory: 256MiB
    cpus: 1
    disks: [{{name: data, profile: hdd-7200, time_scale: 20}}]
    storage: {{disk: data}}
network: {{bandwidth: 1 Gbit/s, loopback: 2 GB/s}}
"""
