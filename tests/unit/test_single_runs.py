"""Designs of one replicate: effects tested without an error of runs, and notes about untested ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from penstock.analyse.outcome import Outcome
from penstock.analyse.statistics.effect_table import effects_of
from penstock.analyse.statistics.effects import effects
from penstock.analyse.statistics.fit import fitted
from penstock.analyse.statistics.significance import is_sure, limits
from penstock.campaign.analysis import analyse
from penstock.design.planned import Plan
from penstock.design.show import plan_text
from penstock.report.methods import methods
from penstock.study.load import load_study
from tests.unit.recorded_study import plan_of_text, record, study_text

TWO = "{levels: [x, z]}"
NUMBERS = "{levels: [1, 2, 4]}"
NAMES = "{levels: [u, v, w]}"
ONCE = "{kind: full, replicates: 1}"


def planned(place: Path, *factors: str, design: str = ONCE) -> Plan:
    return plan_of_text(study_text(dict(zip("abcdefgh", factors, strict=False)), design), place)


def runs_of(plan: Plan, y: np.ndarray) -> pd.DataFrame:
    rows = [{"run_id": r.run_id, "replicate": r.replicate, **r.levels} for r in plan.rows]
    return pd.DataFrame(rows).assign(valid=True, y=y)


def test_numbers_of_three_levels_are_tested_by_their_contrasts(tmp_path: Path) -> None:
    plan = planned(tmp_path, NUMBERS, TWO, TWO)
    draws = np.random.default_rng(1)
    hump = np.array([{"1": 0.0, "2": 6.0, "4": 0.0}[r.levels["a"]] for r in plan.rows])
    noise = draws.normal(0, 0.5, len(plan.rows))
    table = effects(runs_of(plan, hump + noise), plan, "y").set_index("term")
    terms = table.drop("residual")
    assert set(terms["method"]) == {"lenth"}
    assert terms["p_value"].notna().all()
    assert is_sure(terms)["a"]
    assert not is_sure(terms).drop("a").any()
    # planted: without their contrasts only three terms of one column are tested, and not the hump
    without_contrasts = effects_of(fitted(runs_of(plan, hump + noise), plan, "y"), "y").set_index(
        "term"
    )
    assert without_contrasts["p_value"].notna().sum() == 3
    assert np.isnan(without_contrasts.loc["a", "p_value"])


def test_studies_without_effects_have_few_false_positives(tmp_path: Path) -> None:
    plan = planned(tmp_path, NUMBERS, TWO, NUMBERS)
    draws = np.random.default_rng(2)
    studies, false_positives, raw_positives = 300, 0, 0
    for _ in range(studies):
        table = effects(runs_of(plan, draws.normal(size=len(plan.rows))), plan, "y")
        terms = table[table["term"] != "residual"]
        false_positives += bool(is_sure(terms).any())
        raw_positives += bool((terms["p_value"] < 0.05).any())
    assert false_positives <= stats.binom.ppf(0.999, studies, 0.05)
    assert raw_positives > 0.1 * studies, "separate tests have many more false positives"


def test_levels_without_numbers_are_reported_as_untested(tmp_path: Path) -> None:
    factors = {"a": NAMES, "b": TWO, "c": TWO}
    text = study_text(factors, ONCE)
    plan = plan_of_text(text, tmp_path)
    assert any("Effects with a are not tested" in c for c in plan.cautions)
    numbers = planned(tmp_path, NUMBERS, TWO, TWO)
    assert any("Effects of a are tested by the largest" in c for c in numbers.cautions)
    draws = np.random.default_rng(3)
    out = record(tmp_path, text, lambda r: {"y": 50 + draws.normal()})
    analyse(out, report=False)
    (paragraph,) = (t for t in methods(Outcome.read(out)) if "was analysed" in t)
    assert "Not tested, because there is no error estimate: a, " in paragraph


HARD_TO_CHANGE = "{levels: [x, z], change: redeploy}"


def of_two_strata(place: Path) -> Plan:
    design = "{kind: full, replicates: 1, order: split-plot}"
    plan = planned(place, HARD_TO_CHANGE, HARD_TO_CHANGE, TWO, TWO, design=design)
    assert plan.whole_plot_factors == ["a", "b"]
    return plan


def test_limits_match_the_tests_if_two_strata_lack_an_error(tmp_path: Path) -> None:
    plan = of_two_strata(tmp_path)
    draws = np.random.default_rng(4)
    significant = 0
    for _ in range(60):
        y = draws.normal(size=16) + 1.5 * np.array([r.coded["c"] for r in plan.rows])
        table = effects(runs_of(plan, y), plan, "y")
        terms = table[~table["term"].isin(["residual", "whole_plot"])]
        assert set(terms["method"]) == {"lenth"}
        assert terms.groupby("stratum").size().to_dict() == {"run": 12, "whole_plot": 3}
        beyond_limit = terms["effect"].abs() > limits(terms)
        assert beyond_limit.tolist() == is_sure(terms).tolist()
        significant += int(beyond_limit.sum())
    assert significant > 20


def test_unrepeated_settings_are_tested_against_each_other(tmp_path: Path) -> None:
    plan = of_two_strata(tmp_path)
    cautions = " ".join(plan.cautions)
    assert "the 3 contrasts of settings are tested only against each other (Lenth)" in cautions
    assert "neither an interval nor a test" not in cautions
    design = "{kind: full, replicates: 1, order: split-plot}"
    single = planned(tmp_path, HARD_TO_CHANGE, TWO, TWO, design=design)
    assert "neither an interval nor a test" in " ".join(single.cautions)


@pytest.mark.parametrize(("replicates", "reason"), [(1, "no replicates"), (2, "use them all")])
def test_the_plan_has_the_reason_for_a_missing_error(
    tmp_path: Path, replicates: int, reason: str
) -> None:
    plan = replace(planned(tmp_path, TWO, TWO), replicates=replicates)
    shown = plan_text(plan, load_study(tmp_path / "recorded.study.yaml", [], False))
    assert f"{reason}: no degrees of freedom for the error" in " ".join(shown.split())
