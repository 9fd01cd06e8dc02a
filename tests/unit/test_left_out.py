"""Excluded runs need a recorded reason; the report has the analysis with and without them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from penstock.archive.bundle import Bundle
from penstock.campaign.analysis import analyse
from penstock.cli import _build
from penstock.errors import BadInput
from tests.unit.recorded_study import record, study_text


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Study with an effect of 2 and one outlier that is 40 too large."""
    rng = np.random.default_rng(3)
    text = study_text({"a": "{levels: [x, y]}"}, "{kind: full, replicates: 8, order: random}")
    return record(
        tmp_path,
        text,
        lambda r: {"y": 50 + 2 * r.coded["a"] + rng.normal() + 40 * (r.run_id == _outlier(r))},
    )


def _outlier(run) -> str:
    return run.run_id if run.levels["a"] == "x" and run.replicate == 3 else ""


def run(out: Path, *options: str):
    return CliRunner().invoke(_build(), ["analyse", str(out), *options])


def test_run_is_left_out_with_a_reason_and_taken_back(out: Path) -> None:
    first = analyse(out, report=False)
    (flagged,) = (f.evidence["run_id"] for f in first.findings if f.code == "outlier")
    assert first.valid_runs == 16
    (name,) = flagged
    assert "a becomes significant" in dict(first.conclusion.points)["Runs"]
    manifest = (out / "runs" / name / "manifest.json").read_bytes()
    result = run(out, "--leave-out", f"{name}=the array was being rebuilt")
    assert result.exception is None
    table = pd.read_parquet(out / "runs.parquet").set_index("run_id")
    assert not table.loc[name, "valid"]
    assert table.loc[name, "reason"] == "left out: the array was being rebuilt"
    assert (out / "runs" / name / "manifest.json").read_bytes() == manifest
    assert Bundle.open(out / "runs" / name).manifest["valid"]
    again = analyse(out, report=False)
    assert again.valid_runs == 15
    statements = {f.code: f.statement for f in again.findings}
    assert f"{name} (the array was being rebuilt)" in statements["run-left-out"]
    assert "With it for y a is not significant" in statements["run-left-out"]
    assert "With it for y a is not significant" in dict(again.conclusion.points)["Runs"]
    assert "outlier" not in statements
    assert "run-invalid" not in statements
    assert run(out, "--take-back", name).exception is None
    assert analyse(out, report=False).valid_runs == 16


@pytest.mark.parametrize(
    "options",
    [
        ("--leave-out", "r999=gone"),
        ("--leave-out", "r001"),
        ("--leave-out", "r001= "),
        ("--leave-out", "r001=" + "x" * 501),
        ("--take-back", "r001"),
    ],
)
def test_missing_run_or_reason_is_refused(out: Path, options: tuple[str, str]) -> None:
    assert isinstance(run(out, *options).exception, BadInput)
    assert not (out / "left_out.json").exists()


def test_bad_record_is_refused(out: Path) -> None:
    (out / "left_out.json").write_text("[1]")
    with pytest.raises(BadInput, match="expected run: reason"):
        analyse(out, report=False)
