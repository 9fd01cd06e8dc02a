"""The validation grid's quick cells on throttled disks of this host."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.host.storage.disk_backends import no_cgroup1

STUDY = Path(__file__).parents[2] / "studies" / "validation_grid.py"
pytestmark = [
    pytest.mark.timed,
    pytest.mark.host,
    pytest.mark.long,
    pytest.mark.skipif(os.geteuid() != 0, reason="loop devices need root"),
    pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed"),
]


def test_quick_cells_hold_and_a_planted_limit_is_found(tmp_path: Path) -> None:
    lacking = no_cgroup1()
    if lacking:
        pytest.skip(lacking)
    line = [sys.executable, str(STUDY), "--quick", "--only", "cgroup1", "--json", "-o"]
    done = subprocess.run([*line, str(tmp_path / "out")], capture_output=True, text=True)
    assert done.returncode in (0, 3), done.stderr
    said = json.loads(done.stdout)
    rows = {r["cell"]: r for r in said["rows"] if not r["planted"]}
    assert len(rows) == 3
    for row in rows.values():
        # faster than the limit has no excuse; slower may be a busy host
        assert row["program"] < 1.1, row
        assert row["verdict"] in ("honoured", "host-saturated", "demand-bound"), row
    assert list(said["planted"].values()) == [True], said["planted"]
