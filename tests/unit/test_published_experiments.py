"""docs/experiments.md: published experiments have the verdict of their recorded goals, and no other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tools import experiments
from tools.experiments import EXPERIMENTS, PAGE, ROOT, Experiment

ALL = [one for some in EXPERIMENTS.values() for one in some]
ONE = Experiment("figure 1", "rate", "10 %", "it", (r"^a: rate", r"^b: rate"))


def row(case: str, verdict: str | None, metric: str = "rate") -> dict[str, Any]:
    goal = {"bar": "10 %", "verdict": verdict} if verdict else {}
    return {"case": case, "metric": metric, "value": 9.0, "unit": "%", "n": 3, **goal}


def result_of(rows: list[dict[str, Any]], one: Experiment = ONE) -> list[str]:
    recorded = {"recorded": "by the command", "date": "2026-01-02", "command": "studies/it.py"}
    return experiments.line(one, {"it": [{**recorded, "rows": rows}]})


def test_the_page_is_that_of_the_results() -> None:
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
def test_the_verdict_of_goals(verdicts: tuple[str | None, str | None], expected: str) -> None:
    rows = [row(case, verdict) for case, verdict in zip("ab", verdicts, strict=True)]
    assert result_of(rows)[3] == expected


def test_a_removed_goal_is_not_measured() -> None:
    assert result_of([row("a", "met")])[3] == "**not measured**"
    assert result_of([])[3] == "**not measured**"
    assert experiments.line(ONE, {})[3:6] == ["**not measured**", "", ""]
    # a relaxed criterion is none of the experiment
    relaxed = [row("a", "met"), row("b", "met", "rate (relaxed)")]
    assert result_of(relaxed)[3] == "**not measured**"


def test_a_line_names_figures_runs_date_and_command() -> None:
    cells = result_of([row("a", "met"), row("b", "missed")])
    assert cells[0] == "figure 1: rate"
    assert cells[2] == "a: rate: 9 % (n = 3); b: rate: 9 % (n = 3) (1 of 2 goals met)"
    assert cells[4:] == ["3", "2026-01-02", "`studies/it.py`"]


def test_a_page_without_results_reproduces_nothing(tmp_path: Path) -> None:
    text = experiments.page(tmp_path)
    assert f"Of {len(ALL)} experiments: {len(ALL)} **not measured**." in text


def test_a_missed_goal_changes_the_page(tmp_path: Path) -> None:
    one = json.loads((ROOT / "bench" / "results" / "load_balance.json").read_text("utf-8"))
    for missed, expected in ((False, "reproduced"), (True, "**not reproduced**")):
        if missed:
            one["rows"][0]["verdict"] = "missed"
        (tmp_path / "load_balance.json").write_text(json.dumps(one), "utf-8")
        (line,) = [x for x in experiments.page(tmp_path).splitlines() if "listing 3.1" in x]
        assert f"| {expected} |" in line


@pytest.mark.parametrize("one", ALL, ids=lambda one: f"{one.where}: {one.what}")
def test_an_experiment_names_a_program_or_why_there_is_none(one: Experiment) -> None:
    assert bool(one.script) == bool(one.rows)
    if not one.script:
        assert one.note
    elif one.script != "stores_cephfs":  # a second result of `stores`
        folders = [ROOT / folder / f"{one.script}.py" for folder in ("studies", "bench")]
        assert any(path.exists() for path in folders)
