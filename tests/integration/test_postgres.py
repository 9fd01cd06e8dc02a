"""Unmodified PostgreSQL on an emulated disk: the example study at its smallest size."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pandas as pd
import pytest

from penstock.archive.runs import bundles
from penstock.campaign.run import run_study
from penstock.study_prediction.predict import predict_study

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = [
    pytest.mark.timed,
    pytest.mark.host,
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts, control groups, tracing"),
    pytest.mark.skipif(not Path("/usr/lib/postgresql").is_dir(), reason="needs PostgreSQL"),
    pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv"),
]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("postgres")
    text = (EXAMPLES / "postgres.study.yaml").read_text()
    smaller = {
        "{study_dir}": str(EXAMPLES),
        "replicates: 2": "replicates: 1",
        "{data} 8 40000": "{data} 1 10000",
        "{run_dir} 12 2": "{run_dir} 4 1",
    }
    for old, new in smaller.items():
        assert old in text
        text = text.replace(old, new)
    study = directory / "postgres.study.yaml"
    study.write_text(text)
    run_study(study, directory / "out", quiet=True)
    return directory / "out"


def test_every_run_finishes(out: Path) -> None:
    runs = pd.read_parquet(out / "runs.parquet")
    assert len(runs) == 4
    assert set(runs["state"]) == {"finished"}
    assert (runs["tps"] > 0).all()


def test_the_effect_of_the_disk_is_measured_on_a_busy_host(out: Path) -> None:
    runs = pd.read_parquet(out / "runs.parquet")
    by_disk = runs.groupby("disk")["scan_rate"].mean()
    assert by_disk["sata-ssd"] > 2 * by_disk["hdd-7200"]
    assert (out / "report.html").is_file()


def test_three_sources_agree_on_the_bytes_of_a_scan(out: Path) -> None:
    """PostgreSQL, the tracer and the disk report equal bytes of a cold scan, within 2 %."""
    for bundle in bundles(out):
        for row in bundle.table("agreement").to_pylist():
            assert row["claimed_bytes"] > 0
            assert row["traced_ratio"] == pytest.approx(1.0, abs=0.02)
            assert row["disk_ratio"] == pytest.approx(1.0, abs=0.02)
            assert row["agrees"]


def predictions_of(out: Path, directory: Path, disks: str = "[hdd-7200, sata-ssd]") -> pd.DataFrame:
    """Predictions of measured treatments other than the basis, from a copy of the archive."""
    copy = directory / "archive"
    shutil.copytree(out, copy)
    text = (copy / "study.yaml").read_text()
    assert "{levels: [hdd-7200, sata-ssd]}" in text
    (copy / "study.yaml").write_text(text.replace("[hdd-7200, sata-ssd]", disks))
    frame = predict_study(copy)
    return frame[~frame["is_basis"] & frame["ratio"].notna()]


def test_the_trace_of_one_treatment_predicts_the_others(out: Path, tmp_path: Path) -> None:
    """Half of the predictions are within 15 %: a run on the hard disk is about 50 transactions.

    tests/unit/test_predict_study_postgres.py evaluates the study at its full size.
    """
    runs = pd.read_parquet(out / "runs.parquet")
    if len(set(runs.loc[runs["validity"].eq("valid"), "disk"])) < 2:
        pytest.skip("busy host: one of the disks missed its specification in all runs")
    errors = (predictions_of(out, tmp_path)["ratio"] - 1).abs()
    assert len(errors) >= 2
    assert (errors <= 0.15).mean() >= 0.5, errors


def test_swapped_profiles_do_not_predict(out: Path, tmp_path: Path) -> None:
    """Planted failure: each disk is predicted with the other's profile."""
    runs = pd.read_parquet(out / "runs.parquet")
    if len(set(runs.loc[runs["validity"].eq("valid"), "disk"])) < 2:
        pytest.skip("busy host: one of the disks missed its specification in all runs")
    swapped = predictions_of(out, tmp_path, "{hdd-7200: sata-ssd, sata-ssd: hdd-7200}")
    errors = (swapped["ratio"] - 1).abs()
    assert (errors <= 0.15).mean() < 0.5, errors
    assert (errors > 0.4).any(), errors
