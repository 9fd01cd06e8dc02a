"""penstock as a Python package: names, results, and agreement with the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pandas as pd
import pytest

import penstock
from penstock.analyse.statistics.calibration import Pair, add_pairs
from penstock.campaign.analysis import analyse
from penstock.errors import BadInput
from tests.model.explore_files import write_files
from tests.support import commands
from tests.unit.planted_study import Planted

PROJECT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> penstock.Campaign:
    rates = {"slow": 100.0, "fast": 900.0}
    study = Planted(
        "Which disk?", {"disk": list(rates)}, lambda v: {"throughput": rates[v["disk"]]}
    )
    out = study.write(tmp_path_factory.mktemp("api") / "out")
    analyse(out, report=False)
    return penstock.Campaign(out)


def test_tables_are_those_of_the_directory(campaign: penstock.Campaign) -> None:
    for name in ("runs", "means", "effects", "findings"):
        table = getattr(campaign, name)
        pd.testing.assert_frame_equal(table, pd.read_parquet(campaign.out / f"{name}.parquet"))
        assert len(table)
    assert campaign.predictions.empty
    assert campaign.result is None


def test_the_answer_is_that_of_the_command_line(campaign: penstock.Campaign) -> None:
    assert campaign.answer[0].startswith("Choose fast: ")
    line = [sys.executable, "-m", "penstock", "analyse", str(campaign.out), "--json"]
    result = commands.run(line, capture_output=True, text=True, check=True)
    assert json.loads(result.stdout)["answer"] == campaign.answer


def test_a_directory_without_a_campaign(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="found no campaign"):
        penstock.Campaign(tmp_path)


def test_a_plan_has_a_column_for_each_factor() -> None:
    study = penstock.Study.load(PROJECT / "examples" / "access-patterns.study.yaml")
    plan = study.plan()
    assert len(plan) == 32
    assert {"run_id", "treatment_id", "disk", "pattern", "block_size", "jobs"} <= set(plan)
    assert study.design.estimated_s > 0
    with_replicates = penstock.Study.load(study.checked.source_path, ["design.replicates=3"])
    assert len(with_replicates.plan()) == 48


def test_a_mistake_in_a_study_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("penstock: 1\nname: x\n")
    with pytest.raises(BadInput, match=r"s\.yaml"):
        penstock.Study.load(tmp_path / "s.yaml")


def test_predict_and_explore(tmp_path: Path) -> None:
    _, workflow, _, platform = write_files(tmp_path)
    prediction = penstock.predict_workflow(workflow, platform, seeds=20)
    assert prediction.makespan_s > 0
    exploration = penstock.explore(
        workflow, platform, ["hosts.app.count=2..3"], objective="time", seeds=4
    )
    assert len(exploration.record.space.axes) == 1
    assert exploration.calibration is None
    pairs = [Pair(f"w{i}", "cluster", 10.0, 10.5 + i / 100) for i in range(9)]
    add_pairs(tmp_path / "pairs.json", pairs)
    calibrated = penstock.explore(
        workflow,
        platform,
        ["hosts.app.count=2..3"],
        objective="time",
        seeds=4,
        calibration=tmp_path / "pairs.json",
    )
    assert calibrated.calibration is not None
    assert calibrated.calibration.half_width == pytest.approx(0.058)


def test_modules_are_imported_on_demand() -> None:
    code = "import sys, penstock; assert not {'pandas', 'numpy', 'penstock.api'} & set(sys.modules)"
    commands.run([sys.executable, "-c", code], check=True)
    assert set(dir(penstock)) >= {
        "Study",
        "run",
        "Campaign",
        "trace",
        "predict_workflow",
        "explore",
        "Disk",
    }
    for name in dir(penstock):
        assert getattr(penstock, name) is not None or name.startswith("__")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = penstock.nothing
