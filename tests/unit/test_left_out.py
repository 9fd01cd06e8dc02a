"""Runs are left out for a reason on record only, and both analyses are told."""

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
    """An effect of 2 that one run, 40 too large, hides."""
    drawn = np.random.default_rng(3)
    text = study_text({"a": "{levels: [x, y]}"}, "{kind: full, replicates: 8, order: random}")
    return record(
        tmp_path,
        text,
        lambda r: {"y": 50 + 2 * r.coded["a"] + drawn.normal() + 40 * (r.run_id == _far(r))},
    )


def _far(run) -> str:
    return run.run_id if run.levels["a"] == "x" and run.replicate == 3 else ""


def run(out: Path, *words: str):
    return CliRunner().invoke(_build(), ["analyse", str(out), *words])


def test_a_run_is_left_out_by_its_reason_and_taken_back(out: Path) -> None:
    first = analyse(out, report=False)
    (flagged,) = (f.evidence["run_id"] for f in first.findings if f.code == "outlier")
    assert first.valid_runs == 16
    (name,) = flagged
    manifest = (out / "runs" / name / "manifest.json").read_bytes()
    told = run(out, "--leave-out", f"{name}=the array was being rebuilt")
    assert told.exception is None
    table = pd.read_parquet(out / "runs.parquet").set_index("run_id")
    assert not table.loc[name, "valid"]
    assert table.loc[name, "reason"] == "left out: the array was being rebuilt"
    assert (out / "runs" / name / "manifest.json").read_bytes() == manifest
    assert Bundle.open(out / "runs" / name).manifest["valid"]
    again = analyse(out, report=False)
    assert again.valid_runs == 15
    said = {f.code: f.statement for f in again.findings}
    assert f"{name} (the array was being rebuilt)" in said["run-left-out"]
    assert "With it for y a is not significant" in said["run-left-out"]
    assert "outlier" not in said
    assert "run-invalid" not in said
    assert run(out, "--take-back", name).exception is None
    assert analyse(out, report=False).valid_runs == 16


@pytest.mark.parametrize(
    "words",
    [
        ("--leave-out", "r999=gone"),
        ("--leave-out", "r001"),
        ("--leave-out", "r001= "),
        ("--leave-out", "r001=" + "x" * 501),
        ("--take-back", "r001"),
    ],
)
def test_without_a_run_or_a_reason_nothing_is_written(out: Path, words: tuple[str, str]) -> None:
    assert isinstance(run(out, *words).exception, BadInput)
    assert not (out / "left_out.json").exists()


def test_a_record_that_is_none_is_refused(out: Path) -> None:
    (out / "left_out.json").write_text("[1]")
    with pytest.raises(BadInput, match="expected run: reason"):
        analyse(out, report=False)
