"""Answers: every study gets one that says which, why and how sure, as the planted truth has it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from penstock.campaign.analysis import analyse
from penstock.cli.analyse import command
from tests.unit.planted_study import Planted

DISKS = {"hdd-7200": 130.0, "network-volume": 900.0, "sata-ssd": 5200.0}


def three_disks(**more: object) -> Planted:
    return Planted(
        "Which of the three disks is the fastest for this program?",
        {"disk": list(DISKS)},
        lambda levels: {"throughput": DISKS[levels["disk"]]},
        **more,  # type: ignore[arg-type]
    )


def test_which_of_three_disks(tmp_path: Path) -> None:
    out = three_disks().write(tmp_path / "out")
    result = analyse(out, report=False)
    first = result.answer[0]
    assert first.startswith("Choose sata-ssd: ")
    assert "5.8 times" in first
    assert "network-volume" in first
    assert "Yes" not in first


def told(out: Path) -> Result:
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, [str(out)])


def test_command_tells_answer_and_table(tmp_path: Path) -> None:
    done = told(three_disks().write(tmp_path / "out"))
    assert done.exit_code == 0
    assert done.stdout.startswith("Choose sata-ssd")
    assert re.search(r"^3\s+hdd-7200 .* 40×", done.stdout, re.MULTILINE)
    assert "could not" not in done.output


def test_no_valid_run_is_no_success(tmp_path: Path) -> None:
    done = told(three_disks(failed=lambda _: True).write(tmp_path / "out"))
    assert done.exit_code == 1
    assert "no valid run" in done.output


def test_means_are_ranked_with_intervals(tmp_path: Path) -> None:
    out = three_disks().write(tmp_path / "out")
    analyse(out, report=False)
    table = pd.read_parquet(out / "means.parquet")
    ranked = table[table["kind"] == "treatment"]
    assert list(ranked["rank"]) == [1, 2, 3]
    disks = [json.loads(levels)["disk"] for levels in ranked["levels"]]
    assert disks == ["sata-ssd", "network-volume", "hdd-7200"]
    assert list(ranked["n"]) == [3, 3, 3]
    for row in ranked.to_dict("records"):
        truth = DISKS[json.loads(row["levels"])["disk"]]
        assert row["ci_low"] < truth < row["ci_high"]
        assert row["times_best"] == pytest.approx(5200 / truth, rel=0.05)
    levels = table[table["kind"] == "level"]
    assert set(levels["factor"]) == {"disk"}
    assert len(levels) == 3
