"""A state directory that is full or takes no writes: nothing is changed that the journal does not hold."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PenstockError
from penstock.host.cgroups.cgroup import hierarchies
from penstock.host.journal.journal import Journal
from penstock.host.storage.fault_around import single_page_faults
from penstock.host.storage.mounts import mounts, mounts_at
from tests.integration.known_host import with_known_host
from tests.support import commands

PENSTOCK = Path(sys.executable).with_name("penstock")
PLATFORM = """\
penstock_platform: 1
name: full
hosts:
- group: n
  count: 1
  memory: 128MiB
  disks: [{name: data, limits: {read: 4MB/s}}]
network: {}
"""
STUDY = """\
penstock: 1
name: full
question: does it run?
factors: {size: {levels: [1, 2]}}
design: {kind: full, replicates: 1}
platform:
  nodes:
  - {name: n, memory: 64MiB, disks: [{name: data, limits: {read: 4MB/s}}]}
workload: {command: "touch {data}/ran {size}"}
responses: {took: {from: wall_s, unit: s, better: lower}}
"""
_libc = ctypes.CDLL(None, use_errno=True)
_RDONLY, _REMOUNT, _DETACH = 1, 32, 2

pytestmark = [
    pytest.mark.host,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts and control groups"),
]


@dataclass
class Ground:
    """A state directory on a file system of its own of a few pages, and places beside it."""

    where: Path

    @property
    def state(self) -> Path:
        return self.where / "state"

    def run(self, *words: object) -> subprocess.CompletedProcess[str]:
        return commands.run(
            [PENSTOCK, *map(str, words)],
            capture_output=True,
            text=True,
            timeout=100,
            env=os.environ,
            cwd=self.where,
        )

    def done(self, *words: object) -> dict[str, Any]:
        done = self.run(*words, "--json")
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    def refused(self, *words: object, status: int = 1, full: str = "journal") -> None:
        """One line that says what is full, and the status of a failure."""
        done = self.run(*words)
        assert done.returncode == status, done.stderr
        said = [line for line in done.stderr.splitlines() if line.startswith("penstock: ")]
        lines = [
            line
            for line in said
            if "measuring the cost of tracing" not in line and "too busy for it" not in line
        ]
        assert len(lines) == 1, done.stderr
        assert "Traceback" not in done.stderr
        assert full in lines[0]
        assert any(why in lines[0] for why in ("No space left", "Read-only", "disk is full"))

    def fill(self) -> None:
        with open(self.state / "filler", "ab", buffering=0) as file:
            for size in (65536, 4096, 512, 1):
                try:
                    while True:
                        file.write(b"x" * size)
                except OSError:
                    continue

    def take_writes(self, takes: bool) -> None:
        flags = _REMOUNT | (0 if takes else _RDONLY)
        assert _libc.mount(b"t", os.fsencode(self.state), b"tmpfs", flags, None) == 0

    def seen(self) -> dict[str, Any]:
        """What is on the host because of it."""
        found = hierarchies()
        roots = {*found.v1.values(), *([found.unified] if found.unified else [])}
        mark = os.fsencode(self.state)
        return {
            "mounts": [m for m in mounts() if self._ours(m.point)],
            "groups": sorted(str(p) for r in roots for p in r.glob("penstock-full-*")),
            "processes": [p for p in Path("/proc").glob("[0-9]*") if _carries(p, mark)],
            "namespaces": sorted((self.where / "run").glob("netns-*")),
        }

    def _ours(self, point: str) -> bool:
        return point.startswith(f"{self.where}/") and point != str(self.state)


def _carries(process: Path, mark: bytes) -> bool:
    if process.name == str(os.getpid()):
        return False
    try:
        return b"PENSTOCK_STATE=" + mark in (process / "environ").read_bytes()
    except OSError:
        return False


@pytest.fixture
def ground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:
    for name in ("state", "run", "backing", "disk", "other-backing", "other"):
        (tmp_path / name).mkdir(mode=0o700)
    (tmp_path / "platform.yaml").write_text(PLATFORM)
    point = os.fsencode(tmp_path / "state")
    assert _libc.mount(b"t", point, b"tmpfs", 0, b"size=512k,mode=700") == 0
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("PENSTOCK_RUNTIME", str(tmp_path / "run"))
    with_known_host(tmp_path / "state")
    there = Ground(tmp_path)
    yield there
    there.take_writes(True)
    (tmp_path / "state" / "filler").unlink(missing_ok=True)
    there.run("undo", "--all")
    _libc.umount2(point, _DETACH)


def test_nothing_is_put_up_with_a_full_journal(ground: Ground) -> None:
    ground.fill()
    before = ground.seen()
    ground.refused("disk", "up", "none", "--backing", "backing", "--mount", "disk")
    ground.refused("nodes", "up", "platform.yaml")
    ran = ("--", "touch", ground.where / "ran")
    ground.refused("trace", *ran, status=125)
    assert not (ground.where / "ran").exists()
    # a command is no less worth for not being recorded
    monitored = ground.run("monitor", "run", *ran)
    assert (monitored.returncode, (ground.where / "ran").exists()) == (0, True), monitored.stderr
    assert "nothing is recorded" in monitored.stderr
    assert "the command runs without being sampled" in monitored.stderr
    (ground.where / "s.study.yaml").write_text(STUDY)
    done = ground.run("run", "s.study.yaml", "-o", "out")
    assert done.returncode == 1, done.stderr
    assert "disk is full" in done.stderr or "journal" in done.stderr
    assert "Traceback" not in done.stderr
    assert ground.seen() == before


def test_a_setting_of_the_host_is_not_changed_with_a_full_journal(ground: Ground) -> None:
    setting = ground.where / "fault_around_bytes"
    setting.write_text("65536\n")
    ground.fill()
    with (
        pytest.raises(PenstockError, match="No space left"),
        single_page_faults(Journal(), ground.where),
    ):
        pass
    assert setting.read_text() == "65536\n"


def test_a_disk_is_not_changed_with_a_full_journal_and_can_be_taken_down(ground: Ground) -> None:
    ground.done("disk", "up", "none", "--backing", "backing", "--mount", "disk")
    (ground.where / "plan.yaml").write_text("- {at: 30s, limits.read: 1MB/s}\n")
    ground.done("disk", "set", "disk", "limits.read=9MB/s", "volatile=true")
    ground.fill()
    for words in (
        ("set", "disk", "limits.read=1MB/s"),
        ("set", "disk", "none"),
        ("schedule", "disk", "plan.yaml"),
        ("cut", "disk"),
        ("up", "none", "--backing", "other-backing", "--mount", "other"),
    ):
        ground.refused("disk", *words)
    found = ground.done("disk", "events", "disk")
    assert found["settings"]["limits"]["read_bps"] == 9e6
    assert found["pending"] == []
    assert [e["asked"] for e in found["events"]] == [
        {"limits": {"read_bps": 9e6}, "volatile": True}
    ]
    assert mounts_at(ground.where / "other") == []
    ground.done("disk", "down", "disk")
    assert ground.seen()["mounts"] == []
    assert Journal().open_entries() == []


def test_a_disk_comes_down_though_the_journal_takes_no_writes(ground: Ground) -> None:
    ground.done("disk", "up", "none", "--backing", "backing", "--mount", "disk")
    ground.take_writes(False)
    ground.refused("disk", "set", "disk", "limits.read=1MB/s")
    ground.refused("disk", "down", "disk")
    assert ground.seen()["mounts"] == []
    ground.take_writes(True)
    assert {u["outcome"] for u in ground.done("undo")["undone"]} == {"gone"}
    assert Journal().open_entries() == []


def test_nodes_are_not_changed_with_a_full_journal_and_can_be_taken_down(ground: Ground) -> None:
    before = ground.seen()
    up = ground.done("nodes", "up", "platform.yaml")
    group = up["nodes"][0]["paths"]
    ground.fill()
    then = _values(ground, group)
    for word in (
        "cpus=0.3",
        "cpuset=0",
        "memory=64MiB",
        "memory_soft=32MiB",
        "state=frozen",
        "disk.data.limits.read=1MB/s",
        "link.net.out=1MB/s",
    ):
        ground.refused("nodes", "set", "n-0", word)
        assert _values(ground, group) == then, word
    ground.done("nodes", "down")
    after = ground.seen()
    until = time.monotonic() + 10
    while after["processes"] and time.monotonic() < until:
        time.sleep(0.1)
        after = ground.seen()
    assert after == before
    assert Journal().open_entries() == []


def _values(ground: Ground, group: dict[str, str]) -> dict[str, Any]:
    node = ground.done("nodes", "status")["clusters"][0]["nodes"][0]
    texts = {}
    for place in set(group.values()):
        for path in Path(place).glob("*"):
            if path.name.endswith((".max", ".high", "limit_in_bytes", "_us", ".freeze", ".cpus")):
                texts[str(path)] = path.read_text()
    links = {name: link["asked"] for name, link in node["links"].items()}
    return {"texts": texts, "disk": node["disks"]["data"]["now"], "links": links}


def test_undo_names_what_somebody_else_has_set_with_all_values(ground: Ground) -> None:
    up = ground.done("nodes", "up", "platform.yaml")
    ground.done("nodes", "set", "n-0", "memory=96MiB", "cpus=0.5")
    assert ground.done("undo") == {"undone": [], "failed": 0}
    memory = Path(up["nodes"][0]["paths"]["memory"])
    limit = memory / "memory.max"
    if not limit.exists():
        limit = memory / "memory.limit_in_bytes"
    limit.write_text(str(80 << 20))
    rows = ground.done("undo")["undone"]
    assert [(row["target"], row["outcome"]) for row in rows] == [(str(limit), "left")]
    for value in (80 << 20, 96 << 20):
        assert str(value) in rows[0]["note"]
    assert limit.read_text().strip() == str(80 << 20)
    for supervisor in {e.owner.pid for e in Journal().open_entries()}:
        os.kill(supervisor, 9)
    rows = ground.done("undo")["undone"]
    assert [row["target"] for row in rows if row["outcome"] == "left"] == [str(limit)]
    assert ground.done("undo") == {"undone": [], "failed": 0}
    assert not memory.exists()
