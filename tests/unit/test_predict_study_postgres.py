"""Predictions of the recorded PostgreSQL study, compared with its measurements on emulated disks.

tests/golden/postgres-archive is the archive of examples/postgres.study.yaml (8 valid runs), reduced to the
input of a prediction: all responses, and the traces of both runs of one treatment. postgres-later is the
same of a campaign after completion of the model.
"""

from __future__ import annotations

import importlib
import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from penstock.analyse.statistics.calibration import read_pairs
from penstock.platform.profiles import read_profile, scaled
from penstock.study_prediction.predict import REPLAY_NOTE, predict_study, score
from studies.claims import Result, status

ROOT = Path(__file__).parents[2]
ARCHIVE = ROOT / "tests" / "golden" / "postgres-archive"
LATER = ROOT / "tests" / "golden" / "postgres-later"
BAR = 0.85


def archive(folder: Path, **replaced: str) -> Path:
    """Copy the archive and replace values of the study file."""
    out = folder / "archive"
    shutil.copytree(ARCHIVE, out)
    text = (out / "study.yaml").read_text()
    for old, new in replaced.items():
        old = {"disk": "{hdd-7200: ./hdd.json, sata-ssd: sata-ssd}", "memory": "[96MiB, 512MiB]"}[
            old
        ]
        assert old in text
        text = text.replace(old, new)
    (out / "study.yaml").write_text(text)
    return out


@pytest.fixture(scope="module")
def predicted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pd.DataFrame]:
    out = archive(tmp_path_factory.mktemp("postgres"))
    return out, predict_study(out)


def test_other_treatments_from_the_traces_of_one(
    predicted: tuple[Path, pd.DataFrame],
) -> None:
    """85 % of predictions are within 15 %. Disk and memory both have an effect."""
    _, frame = predicted
    result = score(frame)
    assert result.treatments == 6
    assert result.share >= BAR, frame[["treatment_id", "response", "ratio"]]
    assert set(frame["basis_treatment"]) == {"t04"}
    by = frame[frame["response"] == "tps"].set_index(["disk", "memory"])
    truth, predictions = by["measured_mean"], by["predicted"]
    for values in (truth, predictions):
        assert values["hdd-7200", "512MiB"] > 2 * values["hdd-7200", "96MiB"]
        assert values["sata-ssd", "512MiB"] < 1.1 * values["sata-ssd", "96MiB"]
        assert values["sata-ssd", "512MiB"] > 5 * values["hdd-7200", "512MiB"]


def test_notes_name_the_part_of_each_response(
    predicted: tuple[Path, pd.DataFrame],
) -> None:
    notes = predicted[1].groupby("response")["note"].first()
    assert notes.str.startswith(REPLAY_NOTE).all()
    assert "flushes per second" in notes["tps"]
    assert "for 12 s" in notes["tps"]
    assert "bytes read per second" in notes["scan_rate"]
    assert not re.search(r"for \d", notes["scan_rate"])


@pytest.mark.parametrize("factor", [1.4, 0.6])
def test_profile_40_percent_off_fails(tmp_path: Path, factor: float) -> None:
    """Negative control: the profile of the hard disk has wrong service times."""
    wrong = scaled(read_profile("./hdd.json", ARCHIVE), factor)
    out = archive(tmp_path, disk="{hdd-7200: ./wrong.json, sata-ssd: sata-ssd}")
    (out / "wrong.json").write_text(json.dumps(wrong))
    assert score(predict_study(out, seeds=7)).share < BAR


def test_swapped_disks_fail(tmp_path: Path) -> None:
    """Negative control: each disk has the other disk's profile."""
    out = archive(tmp_path, disk="{hdd-7200: sata-ssd, sata-ssd: ./hdd.json}")
    result = score(predict_study(out, "t04", seeds=3))
    assert result.share < 0.5
    assert result.worst > 1


def test_unlimited_memory_fails(tmp_path: Path) -> None:
    """Negative control: without the limit the page cache has all data, and memory has no effect."""
    out = archive(tmp_path, memory="{96MiB: 1GiB, 512MiB: 2GiB}")
    frame = predict_study(out, seeds=7)
    assert score(frame).share < BAR
    by = frame[frame["response"] == "tps"].set_index(["disk", "memory"])["ratio"]
    assert by["hdd-7200", "96MiB"] > 2


def test_residuals_are_stored_and_too_few_to_calibrate(
    predicted: tuple[Path, pd.DataFrame],
) -> None:
    """k = ceil((n+1) · 0.9) = 3 of n = 2 other treatments: the simulated interval stays."""
    out, frame = predicted
    pairs = read_pairs(out / "calibration.parquet")
    assert len(pairs) == 6
    assert {p.workload for p in pairs} == {"postgres: tps", "postgres: scan_rate"}
    assert {p.platform for p in pairs} == {"t01", "t02", "t03"}
    assert {p.model for p in pairs} == {"replay"}
    assert set(frame["calibration"]) == {"insufficient calibration"}
    stored = pq.read_table(out / "predictions.parquet")
    assert stored.schema.field("calibration").metadata[b"meaning"]


def test_nearest_of_two_bases_is_used(tmp_path: Path) -> None:
    """A treatment is predicted from the basis that differs from it in the fewest factors."""
    out = archive(tmp_path)
    source, target = out / "runs" / "r001", out / "runs" / "r003"
    for path in source.glob("*.parquet"):
        shutil.copy(path, target / path.name)
    shutil.copy(source / "stdout.txt", target / "stdout.txt")
    frame = predict_study(out, ["t04", "t03"], seeds=3).drop_duplicates("treatment_id")
    used = dict(zip(frame["treatment_id"], frame["basis_treatment"], strict=True))
    assert used == {"t01": "t03", "t02": "t04", "t03": "t03", "t04": "t04"}
    assert set(frame.loc[frame["is_basis"], "treatment_id"]) == {"t03", "t04"}


@pytest.mark.long
def test_recorded_results_are_reproduced() -> None:
    """The model was developed with the first campaign. The later one is independent."""
    postgres = importlib.import_module("studies.postgres")
    scores = postgres.scores(LATER)
    computed = postgres.record_rows(scores)
    # the later campaign has no valid run on the SSD
    first, *later = postgres.claims_of(scores)
    assert first.result is Result.MET
    assert {claim.result for claim in later} == {Result.NOT_MEASURED}
    assert all("sata-ssd" in treatment for claim in later for treatment in claim.missing)
    assert status([first, *later]) == 3
    recorded = json.loads((ROOT / "bench" / "results" / "postgres-campaigns.json").read_text())[
        "rows"
    ]
    for row, expected in zip(computed, recorded, strict=True):
        assert (row["case"], row.get("verdict")) == (expected["case"], expected.get("verdict"))
        value = expected["value"]
        assert row["value"] == (value if isinstance(value, str) else pytest.approx(value, rel=1e-5))
    shares = [int(row["value"].split(" of ")[0]) / row["n"] for row in recorded if "n" in row]
    assert len(shares) == 4
    assert shares[-1] == min(shares)
