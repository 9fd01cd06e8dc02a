"""The answer of a screening: factors that matter, factors that do not, open ones; no treatment to choose."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from penstock.analyse.findings.screening import screened as by_verdict
from penstock.analyse.outcome import Outcome
from penstock.analyse.statistics.effects import effects
from penstock.campaign.analysis import Analysis, analyse
from penstock.design.plan import make_plan
from tests.unit.planted_study import Planted
from tests.unit.test_spread import study_of

SEVEN = {name: ["off", "on"] for name in "ABCDEFG"}
QUESTION = "Which of seven options matter?"


def high(levels: Mapping[str, str], name: str) -> int:
    return 1 if levels[name] == "on" else -1


def truth(levels: Mapping[str, str]) -> dict[str, float]:
    a, b, c = (high(levels, name) for name in "ABC")
    return {"time": 100.0 + 10 * a - 6 * b + 2.5 * c + 5 * a * b}


def screened(out: Path, report: bool = False, **changes: object) -> Analysis:
    options: dict[str, object] = {
        "question": QUESTION,
        "factors": SEVEN,
        "truth": truth,
        "responses": {"time": ("s", "lower")},
        "noise": 0.005,
        "replicates": 2,
        "fraction": 0 if "kind" in changes else 3,
        **changes,
    }
    return analyse(Planted(**options).write(out), report=report)  # type: ignore[arg-type]


def test_factors_that_matter_and_those_that_do_not(tmp_path: Path) -> None:
    result = screened(tmp_path / "out")
    assert result.conclusion is not None
    assert result.conclusion.headline.startswith("3 of 7 factors matter for time: A on (+19.")
    assert "C on (+5.0" in result.conclusion.headline
    assert result.conclusion.headline.endswith(
        "also A × B or an alias (+9.98 s). Clear, unless three factors interact."
    )
    points = dict(result.conclusion.points)
    assert points["Not shown"].startswith("D, E, F and G: each less than 0.8")
    unknown = "A × B cannot be separated from C × E or D × F; A from B × C × E, "
    assert points["Unknown"].startswith(unknown)
    (doubt,) = (f for f in result.findings if f.code == "effect-aliased")
    assert set(doubt.evidence["named"]) == {"A", "B", "C", "A:B"}
    for term, rivals in doubt.evidence["named"].items():
        for rival in rivals:
            assert rival in points["Unknown"]
            assert rival in doubt.statement, term
    assert "--augment" in points["Next step"]
    assert not any("Choose" in line for line in result.lines())
    assert not [f for f in result.findings if f.code == "recommendation"]


def test_the_headline_has_amounts_and_the_better_levels(tmp_path: Path) -> None:
    def planted(levels: Mapping[str, str]) -> dict[str, float]:
        return {"time": 10.0 + 6 * (levels["A"] == "on") - 3 * (levels["B"] == "on")}

    result = screened(tmp_path / "out", truth=planted, fraction=2)
    assert result.conclusion is not None
    assert re.fullmatch(
        r"2 of 7 factors matter for time: A \(on adds 6\.0\d s to 8\.\d+ s\) and B \(on takes "
        r"3\.0\d s from 13\.0 s\)\. Choose A off and B on\. Clear\b.*",
        result.conclusion.headline,
    )


def test_no_effect_is_claimed_only_with_a_smallest_effect(tmp_path: Path) -> None:
    """Without `detect` an effect is "not shown"; with it, the effect is smaller or open."""
    kind = "{fraction: 3}"
    for declared, label in (("", "Not shown"), (", detect: 3%", "No effect")):
        result = screened(tmp_path / label / "out", kind=kind + declared)
        assert result.conclusion is not None
        text = dict(result.conclusion.points)[label]
        assert text.startswith("D, E, F and G: each less than 0.")
        assert " s (0.8 % of the mean, 99.8 s)" in text
        assert [line for line in result.ranked if line.startswith("G ") and label.lower() in line]
        (bound,) = re.findall(r"less than (.*), 95 %", text)
        (rest,) = (f for f in result.findings if f.code == "effect-bound")
        assert f"up to {bound}." in rest.statement
    result = screened(tmp_path / "small" / "out", kind=f"{kind}, detect: 0.5%")
    assert result.conclusion is not None
    assert (
        "E, D, G and F may matter as well (up to 0.8" in dict(result.conclusion.points)["Unknown"]
    )


def test_an_interaction_of_the_model_is_no_explanation_without_one(tmp_path: Path) -> None:
    def product(levels: Mapping[str, str]) -> dict[str, float]:
        a, b = (int(levels[name]) - 2 for name in "AB")
        return {"time": 100.0 + 10 * a + 6 * b + 5 * a * b}

    factors = {name: [1, 2, 3] for name in "ABC"}
    kind = "{central-composite: {centre: 3}}"
    result = screened(tmp_path / "out", kind=kind, factors=factors, truth=product)
    (finding,) = (f for f in result.findings if f.code == "effect-unambiguous")
    assert finding.statement.startswith("A, B and A × B explain time; no other term is needed.")


def test_plot_and_table_of_effects_are_on_the_terminal(tmp_path: Path) -> None:
    result = screened(tmp_path / "out")
    assert result.plot[0] == "effect on time (s)"
    assert [line.split("  ")[0] for line in result.plot[2:5]] == ["A", "B", "A × B"]
    head, first, *rest = (line.split() for line in result.ranked)
    assert head[:4] == ["effect", "of", "from", "to"]
    assert first == ["A", "off", "on", "+19.9", "19.6–20.2", "matters"]
    assert [row[-2:] for row in rest if row[0] in "DEFG"] == [["not", "shown"]] * 4
    assert rest[1][-6:] == "matters C × E or D × F".split()[-6:]


def test_an_effect_that_may_be_large_is_open(tmp_path: Path) -> None:
    result = screened(tmp_path / "out", noise=0.08)
    assert result.conclusion is not None
    points = dict(result.conclusion.points)
    assert points["Not shown"].startswith("D, F and G: each less than ")
    assert "C and E may matter as well (up to 13.9 s)" in points["Unknown"]


def test_where_nothing_is_shown_no_factor_is_without_effect(tmp_path: Path) -> None:
    result = screened(tmp_path / "out", noise=0.5, truth=lambda _: {"time": 100.0})
    assert result.conclusion is not None
    assert result.conclusion.headline == (
        "Open: none of 7 factors is shown to matter for time; effects of up to 69.7 s are possible."
    )
    assert [label for label, _ in result.conclusion.points] == ["Next step"]


def test_a_main_effect_that_an_interaction_explains_is_not_claimed(tmp_path: Path) -> None:
    result = screened(tmp_path / "out", kind="plackett-burman", replicates=3)
    assert result.conclusion is not None
    assert result.conclusion.headline.startswith("3 of 7 factors matter for time: A (on adds ")
    assert "C (on adds " in result.conclusion.headline
    points = dict(result.conclusion.points)
    assert "may be parts of A × B" in points["Unknown"]
    assert not {"No effect", "Not shown"} & set(points)
    assert sum("may be A × B" in line for line in result.ranked) == 4


def test_clear_effects_that_are_all_aliased_are_named_with_the_step(tmp_path: Path) -> None:
    """Fails if the headline denies them, or if replicates are recommended, which separate no aliases."""
    result = screened(
        tmp_path / "out",
        fraction=4,
        truth=lambda v: {
            "time": 100.0 + 10 * high(v, "A") + 8 * high(v, "B") + 6 * high(v, "A") * high(v, "B")
        },
    )
    assert result.conclusion is not None
    headline = result.conclusion.headline
    assert re.match(r"Open: A on \(\+.* D on \(\+.*\) affect time, or interactions of ", headline)
    step = dict(result.conclusion.points)["Next step"]
    assert "replicates" not in step
    assert re.search("separates .* pairs", step)


def test_a_curved_factor_of_a_definitive_screening_matters(tmp_path: Path) -> None:
    names = ("alpha", "beta", "gamma", "delta", "eps", "zeta")

    def curved(levels: Mapping[str, str]) -> dict[str, float]:
        alpha, gamma = int(levels["alpha"]), int(levels["gamma"])
        return {"time": 50.0 + 10 * alpha + 6 * (gamma - 2) ** 2}

    factors = {name: [1, 2, 3] for name in names}
    result = screened(tmp_path / "out", kind="definitive-screening", factors=factors, truth=curved)
    assert result.conclusion is not None
    assert result.conclusion.headline.startswith("2 of 6 factors matter for time: alpha (3 adds 2")
    assert result.conclusion.headline.endswith("also gamma². Clear.")
    assert dict(result.conclusion.points)["Not shown"].startswith("beta, delta, eps and zeta: each")


@pytest.mark.parametrize(
    ("question", "screens"),
    [
        (QUESTION, True),
        ("What affects the time?", True),
        ("Which combination is fastest?", False),
        ("Does A cost anything?", False),
    ],
)
def test_a_question_for_the_best_setting_gets_one(
    tmp_path: Path, question: str, screens: bool
) -> None:
    result = screened(tmp_path / "out", question=question)
    assert result.conclusion is not None
    assert (result.conclusion.first.code == "screening") is screens


def test_the_report_ranks_effects(tmp_path: Path) -> None:
    result = screened(tmp_path / "out", report=True)
    assert result.report is not None
    page = result.report.read_text()
    assert "Effects, the largest first" in page
    assert "Treatments, the best first" not in page
    # absent sections of a study without traces are one line
    for name in ("prediction", "patterns", "utilisation"):
        assert f'id="{name}"' not in page
        assert f'href="#{name}"' not in page
    assert page.count("Not shown: predictions (") == 1


def test_bounds_in_ranks_are_not_compared_with_a_range_of_means() -> None:
    """A factor of three levels differs by 5,000 1/s: an effect of up to 11 ranks was "less" than that."""
    study = study_of(
        {"disk": "{levels: [x, y, z]}", "b": "{levels: [lo, hi]}", "c": "{levels: [lo, hi]}"},
        "{kind: full, replicates: 2}",
    )
    plan, draws = make_plan(study), np.random.default_rng(2)
    rate = {"x": 1000.0, "y": 3000.0, "z": 6000.0}
    runs = pd.DataFrame(
        {"run_id": r.run_id, "treatment_id": r.treatment_id, "replicate": r.replicate, **r.levels}
        | {"y": rate[r.levels["disk"]] + 300 * draws.normal(), "valid": True}
        for r in plan.rows
    )
    table = effects(runs, plan, "y", scale="rank")
    document = {"question": "?", "responses": {"y": {"unit": "1/s", "better": "higher"}}}
    outcome = Outcome(Path("ranks"), plan.to_json(), document, runs, table, None, None)
    result = by_verdict(outcome, outcome.responses[0])
    assert result is not None
    assert [r["term"] for r in result.main] == ["disk"]
    assert {r["term"] for r in result.open} == {"b", "c"}
    assert not result.small
