"""Predictions rank treatments and never enter an analysis of runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from penstock.analyse.statistics.effects import effects
from penstock.cli import _build
from penstock.errors import BadInput
from tests.unit.recorded_study import plan_of_text, study_text

TEXT = study_text(
    {"a": "{levels: [x, y]}", "b": "{levels: [1, 2, 4]}"}, "{kind: full, replicates: 2, seed: 4}"
)


def test_predicted_rows_never_enter_an_analysis(tmp_path: Path) -> None:
    """Fails if predicted rows, whose values are 100 times too large, count as runs."""
    plan = plan_of_text(TEXT, tmp_path)
    rng = np.random.default_rng(1)
    runs = pd.DataFrame(
        [
            {"run_id": r.run_id, "replicate": r.replicate, **r.levels, "valid": True}
            | {"y": 5 + 2 * (r.levels["a"] == "y") + rng.normal()}
            for r in plan.rows
        ]
    )
    predicted = runs.assign(y=500.0, source="station")
    mixed = pd.concat([runs.assign(source="measured"), predicted], ignore_index=True)
    pd.testing.assert_frame_equal(effects(mixed, plan, "y"), effects(runs, plan, "y"))
    unmarked = effects(mixed.drop(columns="source"), plan, "y")
    assert unmarked["n"].iloc[0] == 2 * len(runs)  # without the column `source` they count


def predictions(folder: Path, **more: object) -> Path:
    rows = [
        {"a": a, "b": b, "response": "y", "predicted": 10 * b + (a == "x"), "ci_low": 0.0}
        | {"ci_high": 99.0, "source": "station"}
        for a in "xy"
        for b in (1, 2, 4)
    ]
    table = pd.DataFrame(rows).assign(**more)
    path = folder / "predictions.csv"
    table[(table["a"] != "y") | (table["b"] != 4)].to_csv(path, index=False)
    return path


def test_ranking_does_not_change_the_order_of_runs(tmp_path: Path) -> None:
    plan = plan_of_text(TEXT, tmp_path)
    table = predictions(tmp_path)
    study = str(tmp_path / "recorded.study.yaml")
    run = lambda *options: CliRunner().invoke(_build(), ["plan", study, *options])  # noqa: E731
    ranked = json.loads(run("--rank-by-prediction", str(table), "--json").stdout)
    assert [tuple(r["levels"].values()) for r in ranked] == [
        ("y", "1"), ("x", "1"), ("y", "2"), ("x", "2"), ("x", "4"), ("y", "4"),
    ]  # fmt: skip
    assert ranked[-1]["predicted"] is None
    output = run("--rank-by-prediction", str(table)).output
    assert "predicted, not measured" in output
    assert "no prediction" in output
    assert [r["run_id"] for r in json.loads(run("--json").stdout)["rows"]] == [
        r.run_id for r in plan.rows
    ]


@pytest.mark.parametrize("text", ["1,234.5", "980,5", "12 ms"])
def test_a_prediction_that_is_no_number_is_refused(tmp_path: Path, text: str) -> None:
    """Only the values above 999 had a comma: the best treatments were ranked last, "no prediction"."""
    plan_of_text(TEXT, tmp_path)
    path = predictions(tmp_path)
    table = pd.read_csv(path, dtype=str)
    table.loc[2, "predicted"] = text
    table.to_csv(path, index=False)
    argv = ["plan", str(tmp_path / "recorded.study.yaml"), "--rank-by-prediction", str(path)]
    error = CliRunner().invoke(_build(), argv).exception
    assert isinstance(error, BadInput)
    assert f"found {text!r}; expected a number" in str(error)
    table.loc[2, "predicted"] = "NaN"
    table.to_csv(path, index=False)
    assert "no prediction" in CliRunner().invoke(_build(), argv).output


def test_tables_without_predictions_are_refused(tmp_path: Path) -> None:
    plan_of_text(TEXT, tmp_path)
    study = str(tmp_path / "recorded.study.yaml")
    (tmp_path / "no.csv").write_text("a,b\nx,1\n")
    (tmp_path / "other.csv").write_text("predicted,b\n1,1\n")
    (tmp_path / "odd.parquet").write_bytes(b"PAR1")
    other_levels = predictions(tmp_path, a="z")
    for path in ("no.csv", "other.csv", "odd.parquet", "none.csv", other_levels.name):
        argv = ["plan", study, "--rank-by-prediction", str(tmp_path / path)]
        assert isinstance(CliRunner().invoke(_build(), argv).exception, BadInput)


def test_level_names_in_a_table_are_text(tmp_path: Path) -> None:
    names = ["007", "true", "none", "1.0"]
    plan = plan_of_text(
        study_text({"a": f"{{levels: {json.dumps(names)}}}"}, "{kind: full, seed: 4}"), tmp_path
    )
    table = tmp_path / "predictions.csv"
    table.write_text("a,predicted\n" + "".join(f"{name},{n}\n" for n, name in enumerate(names)))
    argv = ["plan", str(tmp_path / "recorded.study.yaml"), "--rank-by-prediction", str(table)]
    ranking = json.loads(CliRunner().invoke(_build(), [*argv, "--json"]).stdout)
    assert {r["levels"]["a"]: r["predicted"] for r in ranking} == dict(
        zip(names, range(4), strict=True)
    )
    assert len(ranking) == plan.treatments
    table.write_text(table.read_text() + "007,9\n")
    error = CliRunner().invoke(_build(), argv).exception
    assert "found two of 007; expected one for each treatment" in str(error)


def test_treatments_without_a_predicted_value_are_last(tmp_path: Path) -> None:
    plan_of_text(TEXT, tmp_path)
    table = pd.read_csv(predictions(tmp_path), dtype={"b": str})
    table.loc[table["predicted"] == table["predicted"].min(), "predicted"] = np.nan
    table.to_parquet(tmp_path / "predictions.parquet")
    study = str(tmp_path / "recorded.study.yaml")
    argv = ["plan", study, "--rank-by-prediction", str(tmp_path / "predictions.parquet"), "--json"]
    treatments = json.loads(CliRunner().invoke(_build(), argv).stdout)
    last = {tuple(t["levels"].values()): t["predicted"] for t in treatments[-2:]}
    assert last == {("y", "1"): None, ("y", "4"): None}
