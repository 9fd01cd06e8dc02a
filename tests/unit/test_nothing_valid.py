"""A study without a valid run: the answer is the reason and the next step."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.campaign.analysis import analyse
from penstock.plugins import STUDY_FINDINGS
from tests.unit.planted_study import Planted
from tests.unit.recorded_study import plan_of_text, record, study_text

TEXT = study_text({"a": "{levels: [x, z]}"}, "{kind: full, replicates: 2}")


def disk_study(**more: object) -> Planted:
    return Planted(
        "Which is the fastest?",
        {"disk": ["hdd-7200", "sata-ssd"]},
        lambda levels: {"throughput": 10.0},
        **more,  # type: ignore[arg-type]
    )


def test_all_runs_invalid(tmp_path: Path) -> None:
    runs = [row.run_id for row in plan_of_text(TEXT, tmp_path).rows]
    out = record(tmp_path, TEXT, lambda row: {"y": 1.0}, lost=runs)
    assert analyse(out, report=False).answer == [
        "No run is usable: planted (4 of 4 runs).",
        "Next step: Free the host of other work, or raise the disks' time_scale, then repeat the runs: "
        "`penstock run STUDY -o OUT --resume`.",
    ]
    # one valid run allows an answer
    (tmp_path / "more").mkdir()
    out = record(tmp_path / "more", TEXT, lambda row: {"y": 1.0}, lost=runs[1:])
    assert "No run is usable" not in " ".join(analyse(out, report=False).answer)


def test_all_runs_failed(tmp_path: Path) -> None:
    out = disk_study(failed=lambda _: True).write(tmp_path / "out")
    answer, step = analyse(out, report=False).answer
    assert answer == "No run is usable: the workload ended with status 1 (6 of 6 runs)."
    assert re.fullmatch(
        r"Next step: Read `OUT/runs/r\d+/stderr\.txt`, correct the study, then repeat the runs: "
        r"`penstock run STUDY -o OUT --resume`\.",
        step,
    )


def test_report_begins_with_the_reason(tmp_path: Path) -> None:
    out = disk_study(failed=lambda _: True).write(tmp_path / "out")
    page = (analyse(out).report or out).read_text()
    assert '<div class="answer">No run is usable: the workload ended with status 1' in page
    assert page.count("<dt>Next step</dt>") == 1
    assert "nothing_valid" in STUDY_FINDINGS
