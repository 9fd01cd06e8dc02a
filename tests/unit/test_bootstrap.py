"""The wild bootstrap compared with the usual intervals, and detectable effects of a study."""

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


def study(plan: Plan, random: np.random.Generator, spread: dict[str, float]) -> pd.DataFrame:
    """A true coefficient of 1 (half the effect); all but six runs of `x` are lost."""
    rows, remaining = [], 6
    for r in plan.rows:
        level = r.levels["a"]
        remaining -= level == "x"
        rows.append(
            {"run_id": r.run_id, "replicate": r.replicate, "a": level}
            | {"valid": level == "y" or remaining >= 0}
            | {"y": 10 + r.coded["a"] + spread[level] * random.normal()}
        )
    return pd.DataFrame(rows)


def test_unequal_spread_is_covered_unlike_with_pooling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails with the plain standard error, or with random signs for treatments instead of runs."""
    plan = plan_of_text(TWO, tmp_path)
    random = np.random.default_rng(6)
    pooled = by_level = by_bootstrap = 0
    studies = 200
    for _ in range(studies):
        runs = study(plan, random, {"x": 4.0, "y": 0.5})
        table = effects(runs, plan, "y").set_index("term")
        by_level += table.loc["a", "ci_low"] <= 1 <= table.loc["a", "ci_high"]
        with monkeypatch.context() as patch:
            patch.setattr(Fit, "unequal", None)
            pooled_table = effects(runs, plan, "y").set_index("term")
        pooled += pooled_table.loc["a", "ci_low"] <= 1 <= pooled_table.loc["a", "ci_high"]
        row = wild(fitted(runs, plan, "y"), "y").iloc[0]
        assert row["coefficient"] == pytest.approx(table.loc["a", "coefficient"])
        by_bootstrap += row["ci_low"] <= 1 <= row["ci_high"]
    assert pooled / studies < 0.85
    assert by_level / studies > 0.9
    assert by_bootstrap / studies > 0.88


def test_with_equal_spread_both_intervals_agree(tmp_path: Path) -> None:
    text = study_text(
        dict.fromkeys("abc", "{levels: [x, y]}"), "{kind: full, replicates: 6, order: random}"
    )
    plan = plan_of_text(text, tmp_path)
    random = np.random.default_rng(7)
    runs = pd.DataFrame(
        [
            {"run_id": r.run_id, "replicate": r.replicate, **r.levels, "valid": True}
            | {"y": 3 * r.coded["a"] + random.normal()}
            for r in plan.rows
        ]
    )
    table = effects(runs, plan, "y").set_index("term")
    bootstrap = wild(fitted(runs, plan, "y"), "y").set_index("term")
    terms = list(bootstrap.index)
    assert len(terms) == 7
    widths = (bootstrap["ci_high"] - bootstrap["ci_low"]) / (table["ci_high"] - table["ci_low"])[
        terms
    ]
    assert widths.between(0.75, 1.35).all()
    assert bootstrap.loc["a", "p_value"] < 0.002
    pd.testing.assert_frame_equal(
        bootstrap.reset_index(), wild(fitted(runs, plan, "y"), "y")[["term", *bootstrap.columns]]
    )


def test_retained_settings_are_refused(tmp_path: Path) -> None:
    text = study_text(
        {"a": "{levels: [x, y], change: redeploy}", "b": "{levels: [x, y]}"},
        "{kind: full, replicates: 6, order: split-plot-random}",
    )
    plan = plan_of_text(text, tmp_path)
    random = np.random.default_rng(8)
    runs = pd.DataFrame(
        [
            {"run_id": r.run_id, "replicate": r.replicate, **r.levels, "valid": True}
            | {"y": random.normal()}
            for r in plan.rows
        ]
    )
    with pytest.raises(PenstockError, match="not independent"):
        wild(fitted(runs, plan, "y"), "y")


def test_unequal_spread_is_reported_with_both_tests(tmp_path: Path) -> None:
    random = np.random.default_rng(9)
    text = study_text(
        {"a": "{levels: [x, y]}", "b": "{levels: [x, y]}"}, "{kind: full, replicates: 12}"
    )
    out = record(
        tmp_path,
        text,
        lambda r: {
            "y": 100 + 8 * r.coded["b"] + (9.0 if r.levels["a"] == "y" else 0.5) * random.normal()
        },
    )
    residual_findings = [f for f in analyse(out, report=False).findings if f.code == "residuals"]
    assert len(residual_findings) == 1
    assert "By the wild bootstrap" in residual_findings[0].statement
    assert "ranks" in residual_findings[0].statement


def test_detectable_effects_agree_with_the_plan(tmp_path: Path) -> None:
    """Power in the plan and detectable effects in the report agree for a balanced design."""
    for runs, replicates in ((8, 4), (8, 5), (16, 5)):
        df = runs * (replicates - 1)
        assert 2 * beyond(df) / (runs * replicates) ** 0.5 == pytest.approx(
            detectable(0.8, runs, replicates), rel=1e-4
        )
    random = np.random.default_rng(3)
    text = study_text(
        dict.fromkeys("abc", "{levels: [x, y]}"), "{kind: full, replicates: 5, order: random}"
    )
    out = record(tmp_path, text, lambda r: {"y": 50 + random.normal()})
    analyse(out, report=False)
    outcome = Outcome.read(out)
    assert outcome.effects is not None
    error = float(outcome.effects.set_index("term").loc["a", "standard_error"])
    (line,) = (t for t in methods(outcome) if "80 % probability" in t)
    assert f"tested individually one of {2 * error * beyond(32):.3g} s and more" in line
    family_wise = 2 * error * beyond(32, level=0.05 / 7)
    assert (
        f"Among all 7 terms an effect of {family_wise:.3g} s and more would have been found" in line
    )
