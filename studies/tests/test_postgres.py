"""The evaluation of PostgreSQL's predictions: campaigns without a valid run are not measured."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from penstock.study_prediction.predict import Score
from studies import postgres
from studies.claims import Result, status
from studies.postgres import LATER, NO_RUN, Evaluation


def evaluation(hits: int, treatments: int, worst: float = 0.1) -> Evaluation:
    return Evaluation("t01", Score(0.15, treatments, hits, worst), {"a": 1, "b": 1})


def test_a_campaign_without_a_valid_run_is_not_measured() -> None:
    evaluations = {"first": evaluation(6, 6), "later": NO_RUN}
    first, later = postgres.claims_of(evaluations)
    assert (first.result, later.result) == (Result.MET, Result.NOT_MEASURED)
    assert later.missing == ("every treatment",)
    assert status([first, later]) == 3
    assert postgres.worst(evaluations) is NO_RUN
    rows = postgres.record_rows(evaluations)
    assert [(row["case"], row["metric"], row.get("verdict")) for row in rows] == [
        ("first", "within 15 %", "met"),
        ("first", "farthest off", None),
        ("later", "within 15 %", "not measured"),
        ("the worst of these", "within 15 %", "not measured"),
    ]


def test_the_worst_evaluation_has_the_smallest_share() -> None:
    few, many = evaluation(5, 6), evaluation(3, 6)
    assert postgres.worst({"a": few, "b": many}) is many
    assert postgres.record_rows({"a": few, "b": many})[-1]["value"] == "3 of 6"


@pytest.mark.parametrize("valid", [True, False])
def test_valid_runs_are_read_from_the_manifests(tmp_path: Path, valid: bool) -> None:
    assert postgres.has_valid_run(LATER)
    for path, manifest in postgres.manifests(LATER):
        place = tmp_path / "runs" / path.parent.name
        place.mkdir(parents=True)
        changed = {} if valid else {"valid": False, "validity": "invalid"}
        (place / "manifest.json").write_text(json.dumps(manifest | changed))
    assert postgres.has_valid_run(tmp_path) is valid
    shutil.rmtree(tmp_path / "runs")
    assert not postgres.has_valid_run(tmp_path)
