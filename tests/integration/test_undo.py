"""Kill a process that changes the host at many points; undo restores the host exactly."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.host.cgroups.cgroup import hierarchies
from penstock.host.journal.journal import Journal
from penstock.host.journal.undo import undo
from penstock.host.storage.mounts import mounts

CHILD = Path(__file__).with_name("crash_child.py")
POINTS = 32

pytestmark = [
    pytest.mark.host,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts and control groups"),
    pytest.mark.skipif(hierarchies().layout == "none", reason="kernel: no control groups"),
]


@dataclass
class Ground:
    """A directory for the child, and the objects on the host that belong to it."""

    where: Path
    label: str
    environment: dict[str, str]

    def start(self, lines: int) -> subprocess.Popen[str]:
        argv = [sys.executable, str(CHILD), str(lines), self.label, str(self.where)]
        return subprocess.Popen(argv, env=self.environment, stdout=subprocess.PIPE, text=True)

    def journal(self) -> Journal:
        return Journal(Path(self.environment["PENSTOCK_STATE"]) / "journal.jsonl")

    def host_objects(self) -> dict[str, object]:
        layout = hierarchies()
        roots = {*layout.v1.values(), *([layout.unified] if layout.unified else [])}
        state = self.environment["PENSTOCK_STATE"].encode()
        return {
            "mounts": [m for m in mounts() if m.point.startswith(str(self.where))],
            "groups": sorted(str(p) for r in roots for p in r.glob(f"*{self.label}*")),
            "processes": [p for p in Path("/proc").glob("[0-9]*") if _carries(p, state)],
            "files": sorted(str(p) for p in self.where.rglob("*")),
            "setting": (self.where / "setting").read_text().strip(),
        }


def _carries(process: Path, state: bytes) -> bool:
    try:
        return b"PENSTOCK_STATE=" + state in (process / "environ").read_bytes()
    except OSError:
        return False


@pytest.fixture
def ground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:
    where = tmp_path / "where"
    where.mkdir()
    (where / "setting").write_text("theirs\n")
    environment = {
        **os.environ,
        "PENSTOCK_STATE": str(tmp_path / "state"),
        "PENSTOCK_RUNTIME": str(tmp_path / "run"),
    }
    monkeypatch.setenv("PENSTOCK_RUNTIME", str(tmp_path / "run"))
    yield Ground(where, f"t{uuid.uuid4().hex[:10]}", environment)
    undo(Journal(tmp_path / "state" / "journal.jsonl"))


def test_undo_after_a_kill_at_many_points(ground: Ground) -> None:
    before = ground.host_objects()
    complete = ground.start(0)
    output, _ = complete.communicate(timeout=60)
    assert complete.returncode == 0
    assert ground.host_objects() == before
    total = int(output)
    assert total > 300
    rng = random.Random(20261121)
    step = total // POINTS
    with_changes = 0
    for first in range(1, total, step):
        child = ground.start(first + rng.randrange(step))
        child.wait(timeout=60)
        if child.returncode == 0:
            continue  # the point was after the end
        assert child.returncode == -9
        with_changes += ground.host_objects() != before
        outcomes = undo(ground.journal())
        assert [u for u in outcomes if u.outcome in ("failed", "left")] == []
        assert ground.host_objects() == before
        assert undo(ground.journal()) == []
    assert with_changes > POINTS // 3, "too few kills left something to undo"


def test_undo_spares_a_living_owner(ground: Ground) -> None:
    before = ground.host_objects()
    child = ground.start(-1)
    assert child.stdout is not None
    assert child.stdout.readline() == "up\n"
    during = ground.host_objects()
    assert undo(ground.journal()) == []
    assert ground.host_objects() == during != before
    child.kill()
    child.wait()
    kinds = {u.kind for u in undo(ground.journal()) if u.outcome == "undone"}
    assert kinds == {"directory", "mount", "setting", "process", "cgroup"}
    assert ground.host_objects() == before


def test_undo_keeps_a_setting_that_was_changed_since(ground: Ground) -> None:
    child = ground.start(-1)
    assert child.stdout is not None
    child.stdout.readline()
    child.kill()
    child.wait()
    (ground.where / "setting").write_text("somebody else's")
    skipped = [u for u in undo(ground.journal()) if u.outcome == "left"]
    assert [u.kind for u in skipped] == ["setting"]
    assert "somebody else's" in skipped[0].note
    assert ground.host_objects()["setting"] == "somebody else's"
    assert undo(ground.journal()) == []
