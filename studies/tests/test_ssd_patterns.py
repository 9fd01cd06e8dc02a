"""The published shapes of flash drives in virtual time, and a planted drive that lacks one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd

from penstock.design.plan import make_plan
from penstock.study.load import load_study
from studies.claims import Result, status

STUDIES = Path(__file__).parents[2] / "studies"
sys.path.insert(0, str(STUDIES))

import ssd_patterns  # noqa: E402


def test_shapes_hold_in_virtual_time_and_a_planted_drive_is_detected() -> None:
    line = [sys.executable, STUDIES / "ssd_patterns.py", "--virtual", "--json"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    document = json.loads(done.stdout)
    assert len(document["claims"]) == 28
    assert {claim["result"] for claim in document["claims"]} == {"met"}
    assert "ordered over random, 4k, one job" in document["planted_found"]


def tables(removed: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Runs of the study files at the simulator's rates; `removed` has no valid run at 4 KiB."""
    rate = ssd_patterns.simulated()
    result = []
    for name in ("", "-readahead"):
        rows = []
        for row in make_plan(load_study(STUDIES / f"ssd-patterns{name}.study.yaml")).rows:
            at = {"drive": "px05smb040", "ahead": "on", "jobs": "1", **row.levels}
            cell = (at["drive"], at["ahead"], at["pattern"], at["size"], int(at["jobs"]))
            valid = (at["drive"], at["pattern"], at["size"], str(at["jobs"])) != (
                removed, "read", "4k", "1",
            )  # fmt: skip
            scaled = rate(*cell) / ssd_patterns.SCALE
            rows.append({**row.levels, "valid": valid, "bandwidth": scaled})
        result.append(pd.DataFrame(rows))
    return result[0], result[1]


def test_a_removed_cell_is_not_measured() -> None:
    complete = ssd_patterns.shapes("disk", ssd_patterns.measured(*tables("")))
    assert {s.claim.result for s in complete} == {Result.MET}
    incomplete = ssd_patterns.shapes("disk", ssd_patterns.measured(*tables("px02ssf020")))
    missing = [s.claim for s in incomplete if s.claim.result is Result.NOT_MEASURED]
    assert [c.wording for c in missing] == ["px02ssf020 read 4k: MB/s"]
    assert status(s.claim for s in incomplete) == 3


def test_without_runs_no_shape_of_the_disk_is_met() -> None:
    without_runs = [table.assign(valid=False) for table in tables("")]
    shapes = ssd_patterns.shapes("disk", ssd_patterns.measured(*without_runs))
    assert {s.claim.result for s in shapes} == {Result.NOT_MEASURED}
    (share, *_) = ssd_patterns.record_rows(shapes, [])
    assert share["verdict"] == "missed"
    assert "not measured" in share["value"]


def test_the_study_files_are_valid() -> None:
    for name in ("", "-readahead"):
        study = load_study(STUDIES / f"ssd-patterns{name}.study.yaml")
        assert study.name == f"ssd-patterns{name}"
