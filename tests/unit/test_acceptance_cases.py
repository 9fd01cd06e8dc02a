"""Acceptance cases of design and analysis: the tests of each case, and two complete simulations."""

from __future__ import annotations

import ast
import dataclasses
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from penstock.analyse.statistics.effects import effects
from tests.unit.recorded_study import plan_of_text, study_text
from tests.unit.test_effects import SIX, TRUTH, plan_of, runs_of, truth

HERE = Path(__file__).parents[2]
UNIT = "tests/unit"

#: acceptance case → tests that verify it
CASES = {
    "published tables, every cell": {
        f"{UNIT}/test_design.py": ["test_full_design_is_table_6_1", "test_fraction_is_table_6_2"]
    },
    "a flipped sign is refused": {
        f"{UNIT}/test_design.py": ["test_one_flipped_sign_is_refused_by_name"]
    },
    "interactions are counted": {f"{UNIT}/test_design.py": ["test_interactions_are_counted"]},
    "choice of generators": {
        f"{UNIT}/test_design.py": ["test_choice_of_generators"],
        f"{UNIT}/test_design_kinds.py": ["test_fractions_have_minimum_aberration"],
    },
    "smallest designs": {f"{UNIT}/test_design.py": ["test_smallest_design"]},
    "aliases in words": {f"{UNIT}/test_design.py": ["test_aliases_of_table_6_2"]},
    "known truth, fraction and foldover": {
        f"{UNIT}/test_effects.py": [
            "test_known_truth_in_the_full_design",
            "test_known_truth_in_the_fraction",
        ],
        f"{UNIT}/test_augment.py": ["test_the_foldover_frees_the_main_effects_and_names_the_stage"],
    },
    "two factors, three replicates": {
        f"{UNIT}/test_effects.py": ["test_two_factors_three_replicates"]
    },
    "three factors": {f"{UNIT}/test_effects.py": ["test_three_factors"]},
    "one replicate, Lenth": {
        f"{UNIT}/test_effects.py": ["test_one_replicate_is_judged_by_lenth"]
    },
    "power": {f"{UNIT}/test_design.py": ["test_power"]},
    "split-plot": {
        f"{UNIT}/test_strata.py": [
            "test_whole_plot_factors_use_the_whole_plot_error",
            "test_without_whole_plots_the_same_effect_is_significant",
        ]
    },
    "contrasts of unequal levels": {
        f"{UNIT}/test_effects_reference.py": ["test_contrasts_of_unequal_levels"],
        f"{UNIT}/test_design_kinds.py": ["test_contrasts_of_unequal_latencies"],
    },
    "coverage of 63 terms": {
        f"{UNIT}/test_acceptance_cases.py": ["test_intervals_of_a_thousand_studies"]
    },
    "identical systems that drift": {
        f"{UNIT}/test_acceptance_cases.py": ["test_identical_systems_of_a_thousand_studies"],
        "bench/tests/test_effect_intervals.py": ["test_a_wrong_analysis_is_detected"],
    },
    "names and levels do not matter": {
        f"{UNIT}/test_effects.py": [
            "test_two_factors_three_replicates",
            "test_swapped_levels_change_signs_only",
        ]
    },
    "three kills of forty runs": {
        "tests/integration/test_campaign_policy.py": [
            "test_three_kills_leave_forty_runs_in_the_order_of_the_plan"
        ]
    },
    "repeated by cause, flagged and kept": {
        "tests/integration/test_campaign_policy.py": [
            "test_what_goes_wrong_is_met_as_was_decided_before"
        ],
        f"{UNIT}/test_campaign_parts.py": ["test_each_cause_has_its_own_number_of_retries"],
        f"{UNIT}/test_effects_reference.py": [
            "test_an_outlier_is_flagged_kept_and_reported_both_ways"
        ],
    },
    "a straight line": {
        f"{UNIT}/test_effects_reference.py": ["test_a_straight_line_is_linear_and_nothing_else"]
    },
    "aliases in the plan": {
        f"{UNIT}/test_design.py": ["test_aliases_of_table_6_2"]
    },
    "bad input: three million treatments": {
        f"{UNIT}/test_design_kinds.py": [
            "test_three_million_treatments_are_refused_with_an_alternative"
        ]
    },
    "bad input: a model that is aliased": {
        f"{UNIT}/test_design_kinds.py": [
            "test_bad_tables_are_refused",
            "test_models_without_enough_allowed_combinations_are_refused",
        ]
    },
    "bad input: no variance, NaN, one level": {
        f"{UNIT}/test_effects_reference.py": ["test_no_variance_no_number_one_level"],
        f"{UNIT}/test_acceptance_cases.py": ["test_factors_that_cannot_be_varied_are_refused"],
    },
    "bad input: lost runs": {
        f"{UNIT}/test_effects.py": [
            "test_a_lost_treatment_is_reported_and_not_imputed",
            "test_a_fraction_with_lost_cells_estimates_no_effect",
        ]
    },
    "bad input: unbalanced runs": {
        f"{UNIT}/test_acceptance_cases.py": ["test_unbalanced_runs_report_correlated_estimates"],
        f"{UNIT}/test_effects_reference.py": ["test_types_of_sums_of_squares_equal_car"],
    },
    "bad input: factors called C, I, Q": {
        f"{UNIT}/test_design_purpose.py": ["test_factors_may_have_any_name"],
        f"{UNIT}/test_effects.py": ["test_two_factors_three_replicates"],
    },
    "bad input: responses of opposite direction": {
        f"{UNIT}/test_surface.py": ["test_responses_of_opposite_direction_are_weighed"]
    },
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_every_case_names_existing_tests_that_can_fail(case: str) -> None:
    """Fails if a test is renamed, removed, always skipped, or has no assertion."""
    for path, names in CASES[case].items():
        fault = faults_of((HERE / path).read_text(), names)
        assert not fault, f"{path}: {fault}"


def faults_of(source: str, names: list[str]) -> list[str]:
    """Faults of the tests of these names in a module."""
    tests = {n.name: n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef)}
    faults = [f"{name} is not there" for name in names if name not in tests]
    for test in (tests[name] for name in names if name in tests):
        marks = {ast.unparse(d.func if isinstance(d, ast.Call) else d) for d in test.decorator_list}
        if marks & {"pytest.mark.skip", "pytest.mark.xfail"}:
            faults.append(f"{test.name} never fails")
        if not any(_expects(node) for node in ast.walk(test)):
            faults.append(f"{test.name} expects nothing")
    return faults


def _expects(node: ast.AST) -> bool:
    """True if a node can fail a test: an assertion that is not constant, or a call that checks."""
    if isinstance(node, ast.Assert):
        return not isinstance(node.test, ast.Constant)
    called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    return called == "pytest.raises" or called.startswith(("np.testing.", "assert_"))


def test_a_case_without_a_test_that_can_fail_is_detected() -> None:
    source = """
def test_good(): assert f() == 1
def test_raises():
    with pytest.raises(ValueError): f()
def test_empty(): f()
def test_constant(): assert True
@pytest.mark.skip(reason="later")
def test_skipped(): assert f() == 1
"""
    assert not faults_of(source, ["test_good", "test_raises"])
    assert faults_of(source, ["test_gone"]) == ["test_gone is not there"]
    assert faults_of(source, ["test_empty"]) == ["test_empty expects nothing"]
    assert faults_of(source, ["test_constant"]) == ["test_constant expects nothing"]
    assert faults_of(source, ["test_skipped"]) == ["test_skipped never fails"]


def test_intervals_of_a_thousand_studies() -> None:
    """The full 2^6 design, noise 10, five replicates: coverage of all terms together and of each.

    The analysis of the first studies must equal least squares on the same columns. All further
    studies use least squares alone.
    """
    plan = plan_of(SIX, 5)
    runs = runs_of(plan, model=truth)
    random = np.random.default_rng(14)
    planted = {":".join(w): q for w, q in TRUTH.items()}
    table = effects(runs.assign(y=runs["y"] + random.normal(0, 10, len(runs))), plan, "y")
    terms = [t for t in table["term"] if t not in ("residual", "block")]
    assert len(terms) == 63
    coded = pd.DataFrame([r.coded for r in plan.rows])
    x = np.column_stack([coded[t.split(":")].prod(axis=1) for t in terms]).astype(float)
    blocks = "block" in set(table["term"])
    member = pd.get_dummies(runs["replicate"] if blocks else runs["valid"]).to_numpy(float)
    basis = np.linalg.qr(np.hstack([member, x]))[0]
    df = len(runs) - basis.shape[1]
    t = stats.t.ppf(0.975, df)
    q = np.array([planted.get(term, 0.0) for term in terms])
    inside = np.zeros(63)
    studies = 1000
    for study in range(studies):
        y = runs["y"].to_numpy() + random.normal(0, 10, len(runs))
        estimates = x.T @ y / len(y)
        residuals = y - basis @ (basis.T @ y)
        half = t * np.sqrt(residuals @ residuals / df / len(y))
        if study < 5:
            analysed = effects(runs.assign(y=y), plan, "y").set_index("term").loc[terms]
            np.testing.assert_allclose(analysed["ci_low"], estimates - half, atol=1e-8)
            np.testing.assert_allclose(analysed["ci_high"], estimates + half, atol=1e-8)
        inside += np.abs(estimates - q) <= half
    shares = 100 * inside / studies
    assert 94.5 <= shares.mean() <= 95.5
    assert (shares >= 92.2).all()
    assert (shares <= 97.8).all()


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_identical_systems_of_a_thousand_studies(tmp_path: Path) -> None:
    """Two identical systems, 20 runs each, noise 1 and a random walk of 0.6 a run.

    Shuffled replicates as blocks, and all runs of one system before those of the other.
    """
    text = study_text({"system": "{levels: [a, b]}"}, "{kind: full, replicates: 20}")
    plan = plan_of_text(text, tmp_path)
    by_system = sorted(plan.rows, key=lambda r: (r.levels["system"], r.run_order))
    sequential = dataclasses.replace(plan, order="standard").with_runs(by_system)
    random = np.random.default_rng(15)
    significant = {"shuffled": 0, "one after the other": 0}
    for _ in range(1000):
        y = random.normal(0, 1, 40) + np.cumsum(random.normal(0, 0.6, 40))
        for name, order in (("shuffled", plan), ("one after the other", sequential)):
            runs = pd.DataFrame(
                {
                    "run_id": [r.run_id for r in order.rows],
                    "replicate": [r.replicate for r in order.rows],
                    "system": [r.levels["system"] for r in order.rows],
                    "valid": True,
                    "y": y,
                }
            )
            significant[name] += (
                effects(runs, order, "y").set_index("term").loc["system", "p_value"] < 0.05
            )
    assert 29 <= significant["shuffled"] <= 71
    assert significant["one after the other"] > 500


@pytest.mark.parametrize(
    ("factor", "message"),
    [
        ("{levels: [a]}", "at least 2 levels"),
        ("{levels: []}", "at least 2 levels"),
        ("{levels: [1, .nan]}", "a finite number"),
        ("{levels: [1, .inf]}", "a finite number"),
        ("{levels: [a, a]}", "each level once"),
        ("{levels: {one: 1, two: 1}}", "levels that differ"),
    ],
)
def test_factors_that_cannot_be_varied_are_refused(
    factor: str, message: str, tmp_path: Path
) -> None:
    from penstock.errors import BadInput

    with pytest.raises(BadInput, match=message):
        plan_of_text(study_text({"f": factor}, "{kind: full}"), tmp_path)


def test_unbalanced_runs_report_correlated_estimates(tmp_path: Path) -> None:
    """Fails if correlations are not reported, intervals do not widen, or a lost run is imputed."""
    text = study_text(
        dict.fromkeys("ab", "{levels: [x, y]}"), "{kind: full, replicates: 6, order: random}"
    )
    plan = plan_of_text(text, tmp_path)
    random = np.random.default_rng(4)
    balanced = pd.DataFrame(
        [
            {"run_id": r.run_id, "replicate": r.replicate, **r.levels, "valid": True}
            | {"y": 10 + 2 * r.coded["a"] + random.normal()}
            for r in plan.rows
        ]
    )
    cell = (balanced["a"] == "x") & (balanced["b"] == "x")
    unbalanced = balanced.assign(valid=~(cell & (balanced.groupby(["a", "b"]).cumcount() > 0)))
    before = effects(balanced, plan, "y").set_index("term")
    after = effects(unbalanced, plan, "y").set_index("term")
    assert (before["correlations"] == "").all()
    assert "b" in after.loc["a", "correlations"]
    assert after["n"].iloc[0] == 19
    assert after.loc["a", "standard_error"] > 1.2 * before.loc["a", "standard_error"] * math.sqrt(
        after.loc["residual", "mean_square"] / before.loc["residual", "mean_square"]
    )
    x = np.column_stack(
        [
            np.ones(19),
            *(np.where(unbalanced.loc[unbalanced["valid"], n] == "y", 1.0, -1.0) for n in "ab"),
        ]
    )
    x = np.column_stack([x, x[:, 1] * x[:, 2]])
    by_hand = np.linalg.lstsq(x, unbalanced.loc[unbalanced["valid"], "y"].to_numpy(), rcond=None)[0]
    assert after.loc[["a", "b", "a:b"], "coefficient"].tolist() == pytest.approx(by_hand[1:])
