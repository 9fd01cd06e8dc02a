"""`penstock profile list|show|check`, and warnings about operations that a profile misses."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from penstock.campaign.speed import what_run_says
from penstock.cli import main
from penstock.design.plan import make_plan
from penstock.design.planned import treatments_of
from penstock.parts.prediction.queue_network.applies import Conditions, judge
from penstock.parts.prediction.queue_network.conditions import profiles_of
from penstock.profile import describe, load_profile, ready_names
from penstock.profile.advice import JudgedCell, not_to_be_used, verdict
from penstock.profile.cells import Cell
from penstock.profile.model import NOT_MET, ruled_out
from penstock.study.load import load_study
from penstock.study.resolve import resolvable
from tests.unit.test_speed import FLOOR, STUDY, keep

MISSED = "random reads of 4 KiB, 16 in flight (fitted 0.60 of what was measured)"


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    keep(tmp_path / "state", FLOOR)
    monkeypatch.setattr(
        "penstock.emulate.disks.measure_floor._measure", lambda *_: FLOOR
    )  # no disk is emulated


def penstock(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["penstock", "profile", *arguments])
    with pytest.raises(SystemExit) as exited:
        main()
    return exited.value.code


def fitted(folder: Path) -> Path:
    """Write a profile that excludes one operation."""
    values = load_profile("service-5ms").to_dict()
    values["name"] = "mine"
    values["source"].append({"what": MISSED, "where": NOT_MET})
    path = folder / "mine.json"
    path.write_text(json.dumps(values))
    return path


def test_list_has_all_built_in_profiles(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert penstock(monkeypatch, "list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ready_names()
    (line,) = (line for line in lines if line.startswith("service-5ms"))
    assert line.split()[1:3] == ["5", "ms"]
    assert line.endswith("at full speed")
    assert penstock(monkeypatch, "list", "--json") == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["service-5ms"]["random_read_s"] == pytest.approx(0.005)
    assert rows["sata-ssd"]["honest_time_scale"] > 8


def test_show_has_sources_and_misses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ready_names():
        assert penstock(monkeypatch, "show", name) == 0
        text = capsys.readouterr().out
        assert max(map(len, text.splitlines())) <= 100
        assert text.startswith(f"{name}: ")
        assert "Not to be used" not in text
        for source in load_profile(name).to_dict()["source"]:
            assert " ".join(source["where"].split()) in " ".join(text.split())
    assert penstock(monkeypatch, "show", str(fitted(tmp_path))) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert f"Not to be used for - {MISSED}" in output
    assert "random reads, 4 KiB 5 ms 5 ms 5 ms 200" in output


def test_check_compares_with_this_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert penstock(monkeypatch, "check", str(fitted(tmp_path))) == 0
    capsys.readouterr()
    assert penstock(monkeypatch, "check", "nvme", "--json") == 3
    report = json.loads(capsys.readouterr().out)
    assert "too fast for this host" in report["too_fast"]
    (tmp_path / "broken.json").write_text(
        '{\n "schema": "penstock/storage-profile/1",\n "name": 3\n}'
    )
    assert penstock(monkeypatch, "check", "broken.json") == 2
    assert "broken.json:3:" in capsys.readouterr().err


def test_contradictory_arguments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert penstock(monkeypatch, "list", "--quick") == 2
    assert penstock(monkeypatch, "show", "hdd-7200", "-o", "x.json") == 2
    assert penstock(monkeypatch, "hdd-7200", "show") == 2


def test_fit_that_misses_depth_or_tail_is_reported() -> None:
    ones = np.ones(1)
    cell = Cell("read", False, 4096, 16, 16, 1e6, ones, ones)
    rows = [JudgedCell(cell, 0.6, None, 1.02, 1.5), JudgedCell(cell, 1.01, None, 0.99, 1.1)]
    assert not_to_be_used(rows) == [
        MISSED,
        "the 99th percentile of random reads of 4 KiB, 16 in flight (fitted 1.50 of what was measured)",
    ]
    summary = verdict(rows)
    assert "rates of the 2 cells of the fit agree within 67 %" in summary
    assert "of 2 medians 2 are within 15 %, the worst is off by 2 %" in summary
    assert "of 2 99th percentiles 1 are within 15 %, the worst is off by 50 %" in summary
    assert "medians" not in verdict([JudgedCell(cell, 1.0, None)])


def test_plan_and_predict_report_misses(tmp_path: Path) -> None:
    path = tmp_path / "s.study.yaml"
    text = STUDY.replace("[sata-ssd, service-5ms]", "[mine.json, service-5ms]")
    path.write_text(text.replace("SCALE", "1"))
    fitted(tmp_path)
    study = load_study(path)
    (warning,) = what_run_says(resolvable(study, treatments_of(make_plan(study))))
    assert warning == f"profile mine is not to be used for {MISSED}"
    values = json.loads((tmp_path / "mine.json").read_text())
    profiles = profiles_of({"hosts": [{"storage": {"profile": values}}]})
    misses = {name: ruled_out(p) for name, p in profiles.items()}
    judgement = judge(Conditions(ruled_out=misses))
    assert judgement.verdict == "caution"
    assert [r.text for r in judgement.reasons if r.code == "profile-misses"] == [
        f"mine is not to be used for {MISSED}"
    ]


def test_details_of_a_profile_without_a_host() -> None:
    values = load_profile("service-5ms").to_dict()
    details = describe.details(load_profile("service-5ms"), None)
    assert details["honest_time_scale"] is None
    assert json.loads(json.dumps(details, allow_nan=False))["servers"] == values["servers"]
