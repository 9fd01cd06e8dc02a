"""A full or read-only state directory: nothing is changed without an entry in the journal."""

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
from tests.support.waiting import wait_for_end

PENSTOCK = Path(sys.executable).with_name("penstock")
#: name of the cluster and of the study; parallel runs of the suite have other ones
NAME = f"full-{os.getpid()}"
PLATFORM = f"""\
penstock_platform: 1
name: {NAME}
hosts:
- group: n
  count: 1
  memory: 128MiB
  disks: [{{name: data, limits: {{read: 4MB/s}}}}]
network: {{}}
"""
STUDY = """\
penstock: 1
name: NAME
question: does it run?
factors: {size: {levels: [1, 2]}}
design: {kind: full, replicates: 1}
platform:
  nodes:
  - {name: n, memory: 64MiB, disks: [{name: data, limits: {read: 4MB/s}}]}
workload: {command: "touch {data}/ran {size}"}
responses: {took: {from: wall_s, unit: s, better: lower}}
""".replace("NAME", NAME)
_libc = ctypes.CDLL(None, use_errno=True)
_RDONLY, _REMOUNT, _DETACH = 1, 32, 2

pytestmark = [
    pytest.mark.host,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts and control groups"),
]


@dataclass
class Ground:
    """A state directory on a small separate file system, and directories next to it."""

    where: Path

    @property
    def state(self) -> Path:
        return self.where / "state"

    def run(self, *argv: object) -> subprocess.CompletedProcess[str]:
        return commands.run(
            [PENSTOCK, *map(str, argv)],
            capture_output=True,
            text=True,
            timeout=100,
            env=os.environ,
            cwd=self.where,
        )

    def document(self, *argv: object) -> dict[str, Any]:
        result = self.run(*argv, "--json")
        assert result.returncode == 0, result.stderr
        return dict(json.loads(result.stdout))

    def refused(self, *argv: object, status: int = 1, subject: str = "journal") -> None:
        """Assert one line of stderr that names the full file, and the exit status."""
        result = self.run(*argv)
        assert result.returncode == status, result.stderr
        messages = [line for line in result.stderr.splitlines() if line.startswith("penstock: ")]
        lines = [
            line
            for line in messages
            if "measuring the cost of tracing" not in line and "too busy for it" not in line
        ]
        assert len(lines) == 1, result.stderr
        assert "Traceback" not in result.stderr
        assert subject in lines[0]
        assert any(reason in lines[0] for reason in ("No space left", "Read-only", "disk is full"))

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

    def host_objects(self) -> dict[str, Any]:
        """Mounts, groups, processes and namespaces of this state directory."""
        layout = hierarchies()
        roots = {*layout.v1.values(), *([layout.unified] if layout.unified else [])}
        mark = os.fsencode(self.state)
        return {
            "mounts": [m for m in mounts() if self._below(m.point)],
            "groups": sorted(str(p) for r in roots for p in r.glob(f"penstock-{NAME}-*")),
            "processes": [p for p in Path("/proc").glob("[0-9]*") if _carries(p, mark)],
            "namespaces": sorted((self.where / "run").glob("netns-*")),
        }

    def assert_host_objects(self, expected: dict[str, Any]) -> None:
        """Compare the objects on the host; processes end shortly after their command."""
        deadline = time.monotonic() + 60
        while (seen := self.host_objects()) != expected and time.monotonic() < deadline:
            time.sleep(0.1)
        assert seen == expected

    def _below(self, point: str) -> bool:
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
    created = Ground(tmp_path)
    yield created
    created.take_writes(True)
    (tmp_path / "state" / "filler").unlink(missing_ok=True)
    created.run("undo", "--all")
    _libc.umount2(point, _DETACH)


def test_nothing_is_started_with_a_full_journal(ground: Ground) -> None:
    ground.fill()
    before = ground.host_objects()
    ground.refused("disk", "up", "none", "--backing", "backing", "--mount", "disk")
    ground.refused("nodes", "up", "platform.yaml")
    command = ("--", "touch", ground.where / "ran")
    ground.refused("trace", *command, status=125)
    assert not (ground.where / "ran").exists()
    # the command of a monitor runs nevertheless
    monitored = ground.run("monitor", "run", *command)
    assert (monitored.returncode, (ground.where / "ran").exists()) == (0, True), monitored.stderr
    assert "nothing is recorded" in monitored.stderr
    assert "the command runs without being sampled" in monitored.stderr
    (ground.where / "s.study.yaml").write_text(STUDY)
    result = ground.run("run", "s.study.yaml", "-o", "out")
    assert result.returncode == 1, result.stderr
    assert "disk is full" in result.stderr or "journal" in result.stderr
    assert "Traceback" not in result.stderr
    ground.assert_host_objects(before)


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


def test_a_full_journal_allows_only_the_stop_of_a_disk(ground: Ground) -> None:
    ground.document("disk", "up", "none", "--backing", "backing", "--mount", "disk")
    (ground.where / "plan.yaml").write_text("- {at: 30s, limits.read: 1MB/s}\n")
    ground.document("disk", "set", "disk", "limits.read=9MB/s", "volatile=true")
    ground.fill()
    for argv in (
        ("set", "disk", "limits.read=1MB/s"),
        ("set", "disk", "none"),
        ("schedule", "disk", "plan.yaml"),
        ("cut", "disk"),
        ("up", "none", "--backing", "other-backing", "--mount", "other"),
    ):
        ground.refused("disk", *argv)
    events = ground.document("disk", "events", "disk")
    assert events["settings"]["limits"]["read_bps"] == 9e6
    assert events["pending"] == []
    assert [e["asked"] for e in events["events"]] == [
        {"limits": {"read_bps": 9e6}, "volatile": True}
    ]
    assert mounts_at(ground.where / "other") == []
    ground.document("disk", "down", "disk")
    assert ground.host_objects()["mounts"] == []
    assert Journal().open_entries() == []


def test_a_disk_can_be_stopped_with_a_read_only_journal(ground: Ground) -> None:
    ground.document("disk", "up", "none", "--backing", "backing", "--mount", "disk")
    ground.take_writes(False)
    ground.refused("disk", "set", "disk", "limits.read=1MB/s")
    ground.refused("disk", "down", "disk")
    assert ground.host_objects()["mounts"] == []
    ground.take_writes(True)
    assert {u["outcome"] for u in ground.document("undo")["undone"]} == {"gone"}
    assert Journal().open_entries() == []


def test_a_full_journal_allows_only_the_stop_of_nodes(ground: Ground) -> None:
    before = ground.host_objects()
    up = ground.document("nodes", "up", "platform.yaml")
    group = up["nodes"][0]["paths"]
    ground.fill()
    values = _values(ground, group)
    for setting in (
        "cpus=0.3",
        "cpuset=0",
        "memory=64MiB",
        "memory_soft=32MiB",
        "state=frozen",
        "disk.data.limits.read=1MB/s",
        "link.net.out=1MB/s",
    ):
        ground.refused("nodes", "set", "n-0", setting)
        assert _values(ground, group) == values, setting
    ground.document("nodes", "down")
    ground.assert_host_objects(before)
    assert Journal().open_entries() == []


def _values(ground: Ground, group: dict[str, str]) -> dict[str, Any]:
    node = ground.document("nodes", "status")["clusters"][0]["nodes"][0]
    texts = {}
    for directory in set(group.values()):
        for path in Path(directory).glob("*"):
            if path.name.endswith((".max", ".high", "limit_in_bytes", "_us", ".freeze", ".cpus")):
                texts[str(path)] = path.read_text()
    links = {name: link["asked"] for name, link in node["links"].items()}
    return {"texts": texts, "disk": node["disks"]["data"]["now"], "links": links}


def test_undo_reports_all_values_of_a_setting_changed_by_others(ground: Ground) -> None:
    up = ground.document("nodes", "up", "platform.yaml")
    ground.document("nodes", "set", "n-0", "memory=96MiB", "cpus=0.5")
    assert ground.document("undo") == {"undone": [], "failed": 0}
    memory = Path(up["nodes"][0]["paths"]["memory"])
    limit = memory / "memory.max"
    if not limit.exists():
        limit = memory / "memory.limit_in_bytes"
    limit.write_text(str(80 << 20))
    rows = ground.document("undo")["undone"]
    assert [(row["target"], row["outcome"]) for row in rows] == [(str(limit), "left")]
    for value in (80 << 20, 96 << 20):
        assert str(value) in rows[0]["note"]
    assert limit.read_text().strip() == str(80 << 20)
    for supervisor in {e.owner.pid for e in Journal().open_entries()}:
        os.kill(supervisor, 9)
        wait_for_end(supervisor)
    rows = ground.document("undo")["undone"]
    assert [row["target"] for row in rows if row["outcome"] == "left"] == [str(limit)]
    assert ground.document("undo") == {"undone": [], "failed": 0}
    assert not memory.exists()
