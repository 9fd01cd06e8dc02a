"""Quick cells of the validation grid on throttled disks of this host."""

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


def test_quick_cells_are_honoured_and_a_planted_limit_is_detected(tmp_path: Path) -> None:
    reason = no_cgroup1()
    if reason:
        pytest.skip(reason)
    argv = [sys.executable, str(STUDY), "--quick", "--only", "cgroup1", "--json", "-o"]
    result = subprocess.run([*argv, str(tmp_path / "out")], capture_output=True, text=True)
    assert result.returncode in (0, 3), result.stderr
    document = json.loads(result.stdout)
    rows = {r["cell"]: r for r in document["rows"] if not r["planted"]}
    assert len(rows) == 3
    for row in rows.values():
        # faster than the limit is a defect; slower may be a busy host
        assert row["program"] < 1.1, row
        assert row["verdict"] in ("honoured", "host-saturated", "demand-bound"), row
    assert list(document["planted"].values()) == [True], document["planted"]
