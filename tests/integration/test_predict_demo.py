"""Predict the demo study from the trace of one treatment, and run it at a smaller size."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from penstock.archive.runs import bundles, validity_of
from penstock.campaign.run import run_study
from penstock.study_prediction.predict import Score, predict_study, score

EXAMPLES = Path(__file__).parents[2] / "examples"
BAR = 0.85

pytestmark = [
    pytest.mark.timed,
    pytest.mark.host,
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts, control groups, tracing"),
    pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="kernel: no /dev/fuse"),
    pytest.mark.skipif(shutil.which("fio") is None, reason="needs fio"),
]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("demo")
    text = (EXAMPLES / "access-patterns.study.yaml").read_text()
    smaller = {
        "replicates: 2": "replicates: 1",
        "--runtime=5": "--runtime=3",
        "  block_size: {levels: {4KiB: 4k, 64KiB: 64k}, unit: B}\n": "",
        "{block_size}": "4k",
    }
    for old, new in smaller.items():
        assert old in text
        text = text.replace(old, new)
    study = directory / "demo.study.yaml"
    study.write_text(text)
    run_study(study, directory / "out", quiet=True, report=False)
    valid = [b for b in bundles(directory / "out") if validity_of(b.manifest) == "valid"]
    if len(valid) < 6:
        pytest.skip(f"busy host: the disk met its specification in only {len(valid)} of 8 runs")
    return directory / "out"


def score_of(out: Path, directory: Path, **replaced: str) -> Score:
    """Score the predictions on a copy of the archive, with texts of the study file replaced."""
    copy = directory / "archive"
    shutil.copytree(out, copy)
    text = (copy / "study.yaml").read_text()
    for old, new in {"{levels: [hdd-7200, sata-ssd]}": replaced.get("disk")}.items():
        assert old in text
        text = text.replace(old, new) if new else text
    (copy / "study.yaml").write_text(text)
    frame = predict_study(copy)
    return score(frame[frame["response"] == "bandwidth"])


def test_predictions_of_other_treatments_are_within_15_percent(out: Path, tmp_path: Path) -> None:
    result = score_of(out, tmp_path)
    assert result.treatments >= 5
    assert result.share >= BAR, result


def test_swapped_profiles_fail(out: Path, tmp_path: Path) -> None:
    """Planted failure: each disk is predicted with the other's profile."""
    swapped = "{levels: {hdd-7200: sata-ssd, sata-ssd: hdd-7200}}"
    assert score_of(out, tmp_path, disk=swapped).share < BAR
