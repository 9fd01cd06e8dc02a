"""The PostgreSQL study predicts itself: a recorded archive, its truth measured on the emulated disks.

tests/golden/postgres-archive is the archive of examples/postgres.study.yaml as it was run (8 valid runs), cut
down to what a prediction reads: all responses, the traces of both runs of one treatment. postgres-later is
the same of a campaign made when the model was finished.
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


def archive(where: Path, **replaced: str) -> Path:
    """A copy of the archive, texts of the study file replaced."""
    out = where / "archive"
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


def test_every_other_treatment_from_the_traces_of_one(
    predicted: tuple[Path, pd.DataFrame],
) -> None:
    """85 % of (treatment, response) within 15 %; disk and memory both matter to the truth."""
    _, frame = predicted
    found = score(frame)
    assert found.treatments == 6
    assert found.share >= BAR, frame[["treatment_id", "response", "ratio"]]
    assert set(frame["basis_treatment"]) == {"t04"}
    by = frame[frame["response"] == "tps"].set_index(["disk", "memory"])
    truth, ours = by["measured_mean"], by["predicted"]
    for values in (truth, ours):
        assert values["hdd-7200", "512MiB"] > 2 * values["hdd-7200", "96MiB"]
        assert values["sata-ssd", "512MiB"] < 1.1 * values["sata-ssd", "96MiB"]
        assert values["sata-ssd", "512MiB"] > 5 * values["hdd-7200", "512MiB"]


def test_a_response_is_of_the_part_that_it_is_about(
    predicted: tuple[Path, pd.DataFrame],
) -> None:
    notes = predicted[1].groupby("response")["note"].first()
    assert notes.str.startswith(REPLAY_NOTE).all()
    assert "flushes per second" in notes["tps"]
    assert "for 12 s" in notes["tps"]
    assert "bytes read per second" in notes["scan_rate"]
    assert not re.search(r"for \d", notes["scan_rate"])


@pytest.mark.parametrize("factor", [1.4, 0.6])
def test_a_profile_that_is_40_percent_off_falls_below_the_bar(
    tmp_path: Path, factor: float
) -> None:
    """Planted failure: the hard disk's service times are not what the measured disk had."""
    wrong = scaled(read_profile("./hdd.json", ARCHIVE), factor)
    out = archive(tmp_path, disk="{hdd-7200: ./wrong.json, sata-ssd: sata-ssd}")
    (out / "wrong.json").write_text(json.dumps(wrong))
    assert score(predict_study(out, seeds=7)).share < BAR


def test_swapped_disks_fall_below_the_bar(tmp_path: Path) -> None:
    """Planted failure: each disk has the other's profile."""
    out = archive(tmp_path, disk="{hdd-7200: sata-ssd, sata-ssd: ./hdd.json}")
    found = score(predict_study(out, "t04", seeds=3))
    assert found.share < 0.5
    assert found.worst > 1


def test_memory_that_is_not_limited_falls_below_the_bar(tmp_path: Path) -> None:
    """Planted failure: without the memory limit the page cache holds all, and memory has no effect."""
    out = archive(tmp_path, memory="{96MiB: 1GiB, 512MiB: 2GiB}")
    frame = predict_study(out, seeds=7)
    assert score(frame).share < BAR
    by = frame[frame["response"] == "tps"].set_index(["disk", "memory"])["ratio"]
    assert by["hdd-7200", "96MiB"] > 2


def test_residuals_are_kept_and_too_few_to_calibrate(
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


def test_two_bases_are_each_used_where_they_are_nearer(tmp_path: Path) -> None:
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
def test_what_is_recorded_is_what_both_campaigns_give() -> None:
    """The model was made on the first campaign; the later one is kept whatever came of it."""
    postgres = importlib.import_module("studies.postgres")
    scores = postgres.scores(LATER)
    given = postgres.kept(scores)
    # of the later campaign no run on the solid-state drive is valid
    first, *later = postgres.claims_of(scores)
    assert first.result is Result.MET
    assert {one.result for one in later} == {Result.NOT_MEASURED}
    assert all("sata-ssd" in treatment for one in later for treatment in one.missing)
    assert status([first, *later]) == 3
    recorded = json.loads((ROOT / "bench" / "results" / "postgres-campaigns.json").read_text())[
        "rows"
    ]
    for made, kept in zip(given, recorded, strict=True):
        assert (made["case"], made.get("verdict")) == (kept["case"], kept.get("verdict"))
        same = kept["value"]
        assert made["value"] == (same if isinstance(same, str) else pytest.approx(same, rel=1e-5))
    shares = [int(row["value"].split(" of ")[0]) / row["n"] for row in recorded if "n" in row]
    assert len(shares) == 4
    assert shares[-1] == min(shares)
