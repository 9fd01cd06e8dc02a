"""The wild bootstrap beside the usual intervals, and what a study could have found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from penstock.analyse.outcome import Outcome
from penstock.analyse.statistics.bootstrap import wild
from penstock.analyse.statistics.effects import effects
from penstock.analyse.statistics.fit import Fit, fitted
from penstock.campaign.analysis import analyse
from penstock.design.planned import Plan
from penstock.design.power import beyond, detectable
from penstock.errors import PenstockError
from penstock.report.methods import methods
from tests.unit.recorded_study import plan_of_text, record, study_text

TWO = study_text({"a": "{levels: [x, y]}"}, "{kind: full, replicates: 20, order: random}")


def study(plan: Plan, drawn: np.random.Generator, spread: dict[str, float]) -> pd.DataFrame:
    """Half an effect of 1; of `x` all but six runs are lost."""
    rows, left = [], 6
    for r in plan.rows:
        level = r.levels["a"]
        left -= level == "x"
        rows.append(
            {"run_id": r.run_id, "replicate": r.replicate, "a": level}
            | {"valid": level == "y" or left >= 0}
            | {"y": 10 + r.coded["a"] + spread[level] * drawn.normal()}
        )
    return pd.DataFrame(rows)


def test_unequal_spread_is_covered_where_one_spread_for_all_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks with the plain standard error, or with signs that are drawn for treatments instead of runs."""
    plan = plan_of_text(TWO, tmp_path)
    drawn = np.random.default_rng(6)
    pooled = by_level = ours = 0
    studies = 200
    for _ in range(studies):
        runs = study(plan, drawn, {"x": 4.0, "y": 0.5})
        table = effects(runs, plan, "y").set_index("term")
        by_level += table.loc["a", "ci_low"] <= 1 <= table.loc["a", "ci_high"]
        with monkeypatch.context() as patch:
            patch.setattr(Fit, "unequal", None)
            one = effects(runs, plan, "y").set_index("term")
        pooled += one.loc["a", "ci_low"] <= 1 <= one.loc["a", "ci_high"]
        row = wild(fitted(runs, plan, "y"), "y").iloc[0]
        assert row["coefficient"] == pytest.approx(table.loc["a", "coefficient"])
        ours += row["ci_low"] <= 1 <= row["ci_high"]
    assert pooled / studies < 0.85
    assert by_level / studies > 0.9
    assert ours / studies > 0.88


def test_of_equal_spread_both_say_the_same(tmp_path: Path) -> None:
    text = study_text(
        dict.fromkeys("abc", "{levels: [x, y]}"), "{kind: full, replicates: 6, order: random}"
    )
    plan = plan_of_text(text, tmp_path)
    drawn = np.random.default_rng(7)
    runs = pd.DataFrame(
        [
            {"run_id": r.run_id, "replicate": r.replicate, **r.levels, "valid": True}
            | {"y": 3 * r.coded["a"] + drawn.normal()}
            for r in plan.rows
        ]
    )
    table = effects(runs, plan, "y").set_index("term")
    found = wild(fitted(runs, plan, "y"), "y").set_index("term")
    terms = list(found.index)
    assert len(terms) == 7
    widths = (found["ci_high"] - found["ci_low"]) / (table["ci_high"] - table["ci_low"])[terms]
    assert widths.between(0.75, 1.35).all()
    assert found.loc["a", "p_value"] < 0.002
    pd.testing.assert_frame_equal(
        found.reset_index(), wild(fitted(runs, plan, "y"), "y")[["term", *found.columns]]
    )


def test_settings_that_were_kept_are_refused(tmp_path: Path) -> None:
    text = study_text(
        {"a": "{levels: [x, y], change: redeploy}", "b": "{levels: [x, y]}"},
        "{kind: full, replicates: 6, order: split-plot-random}",
    )
    plan = plan_of_text(text, tmp_path)
    drawn = np.random.default_rng(8)
    runs = pd.DataFrame(
        [
            {"run_id": r.run_id, "replicate": r.replicate, **r.levels, "valid": True}
            | {"y": drawn.normal()}
            for r in plan.rows
        ]
    )
    with pytest.raises(PenstockError, match="not independent"):
        wild(fitted(runs, plan, "y"), "y")


def test_a_spread_that_depends_on_a_factor_is_told_with_both_judgements(tmp_path: Path) -> None:
    drawn = np.random.default_rng(9)
    text = study_text(
        {"a": "{levels: [x, y]}", "b": "{levels: [x, y]}"}, "{kind: full, replicates: 12}"
    )
    out = record(
        tmp_path,
        text,
        lambda r: {
            "y": 100 + 8 * r.coded["b"] + (9.0 if r.levels["a"] == "y" else 0.5) * drawn.normal()
        },
    )
    said = [f for f in analyse(out, report=False).findings if f.code == "residuals"]
    assert len(said) == 1
    assert "By the wild bootstrap" in said[0].statement
    assert "ranks" in said[0].statement


def test_what_would_have_been_found_is_as_in_the_plan(tmp_path: Path) -> None:
    """The formula of the plan's power and that of the report are one where the design is balanced."""
    for runs, replicates in ((8, 4), (8, 5), (16, 5)):
        df = runs * (replicates - 1)
        assert 2 * beyond(df) / (runs * replicates) ** 0.5 == pytest.approx(
            detectable(0.8, runs, replicates), rel=1e-4
        )
    drawn = np.random.default_rng(3)
    text = study_text(
        dict.fromkeys("abc", "{levels: [x, y]}"), "{kind: full, replicates: 5, order: random}"
    )
    out = record(tmp_path, text, lambda r: {"y": 50 + drawn.normal()})
    analyse(out, report=False)
    outcome = Outcome.read(out)
    assert outcome.effects is not None
    error = float(outcome.effects.set_index("term").loc["a", "standard_error"])
    (line,) = (t for t in methods(outcome) if "80 % probability" in t)
    assert f"tested individually one of {2 * error * beyond(32):.3g} s and more" in line
    every = 2 * error * beyond(32, level=0.05 / 7)
    assert f"Among all 7 terms an effect of {every:.3g} s and more would have been found" in line
