"""docs/experiments.md: published experiments have the verdicts of their recorded goals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tools import experiments
from tools.experiments import EXPERIMENTS, PAGE, ROOT, Experiment

ALL = [experiment for group in EXPERIMENTS.values() for experiment in group]
EXPERIMENT = Experiment("figure 1", "rate", "10 %", "it", (r"^a: rate", r"^b: rate"))


def row(case: str, verdict: str | None, metric: str = "rate") -> dict[str, Any]:
    goal = {"bar": "10 %", "verdict": verdict} if verdict else {}
    return {"case": case, "metric": metric, "value": 9.0, "unit": "%", "n": 3, **goal}


def result_of(rows: list[dict[str, Any]], experiment: Experiment = EXPERIMENT) -> list[str]:
    recorded = {"recorded": "by the command", "date": "2026-01-02", "command": "studies/it.py"}
    return experiments.line(experiment, {"it": [{**recorded, "rows": rows}]})


def test_page_is_current() -> None:
    assert PAGE.read_text("utf-8") == experiments.page()


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (("met", "met"), "reproduced"),
        (("met", "missed"), "**not reproduced**"),
        (("missed", "undecided"), "**not reproduced**"),
        (("met", "undecided"), "*undecided*"),
        (("met", "not measured"), "*undecided*"),
        (("met", "not comparable"), "*not comparable*"),
        (("met", None), "**not measured**"),
        ((None, None), "**not measured**"),
    ],
)
def test_verdict_of_goals(verdicts: tuple[str | None, str | None], expected: str) -> None:
    rows = [row(case, verdict) for case, verdict in zip("ab", verdicts, strict=True)]
    assert result_of(rows)[3] == expected


def test_a_removed_goal_is_not_measured() -> None:
    assert result_of([row("a", "met")])[3] == "**not measured**"
    assert result_of([])[3] == "**not measured**"
    assert experiments.line(EXPERIMENT, {})[3:6] == ["**not measured**", "", ""]
    # a relaxed criterion does not count
    relaxed = [row("a", "met"), row("b", "met", "rate (relaxed)")]
    assert result_of(relaxed)[3] == "**not measured**"


def test_line_has_figures_runs_date_and_command() -> None:
    cells = result_of([row("a", "met"), row("b", "missed")])
    assert cells[0] == "figure 1: rate"
    assert cells[2] == "a: rate: 9 % (n = 3); b: rate: 9 % (n = 3) (1 of 2 goals met)"
    assert cells[4:] == ["3", "2026-01-02", "`studies/it.py`"]


def test_page_without_results(tmp_path: Path) -> None:
    text = experiments.page(tmp_path)
    assert f"Of {len(ALL)} experiments: {len(ALL)} **not measured**." in text


def test_a_missed_goal_changes_the_page(tmp_path: Path) -> None:
    results = json.loads((ROOT / "bench" / "results" / "load_balance.json").read_text("utf-8"))
    for missed, expected in ((False, "reproduced"), (True, "**not reproduced**")):
        if missed:
            results["rows"][0]["verdict"] = "missed"
        (tmp_path / "load_balance.json").write_text(json.dumps(results), "utf-8")
        (line,) = [x for x in experiments.page(tmp_path).splitlines() if "listing 3.1" in x]
        assert f"| {expected} |" in line


@pytest.mark.parametrize("experiment", ALL, ids=lambda e: f"{e.where}: {e.what}")
def test_experiment_has_a_program_or_a_note(experiment: Experiment) -> None:
    assert bool(experiment.script) == bool(experiment.rows)
    if not experiment.script:
        assert experiment.note
    elif experiment.script != "stores_cephfs":  # a second result of `stores`
        folders = [ROOT / folder / f"{experiment.script}.py" for folder in ("studies", "bench")]
        assert any(path.exists() for path in folders)
