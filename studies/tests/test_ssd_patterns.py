"""The published shapes of flash drives in virtual time, and a planted drive that lacks one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from penstock.study.load import load_study

STUDIES = Path(__file__).parents[2] / "studies"


def test_shapes_hold_in_virtual_time_and_a_planted_drive_is_found() -> None:
    line = [sys.executable, STUDIES / "ssd_patterns.py", "--virtual", "--json"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads(done.stdout)
    assert len(found["claims"]) == 28
    assert all(claim["holds"] for claim in found["claims"])
    assert "ordered over random, 4k, one job" in found["planted_found"]


def test_the_studies_are_studies() -> None:
    for name in ("", "-readahead"):
        study = load_study(STUDIES / f"ssd-patterns{name}.study.yaml")
        assert study.name == f"ssd-patterns{name}"
