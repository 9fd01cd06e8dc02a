"""Acceptance cases of design and analysis: which test holds which, and the two that are simulated in full."""

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

#: what is expected → the tests that would break
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
            "test_whole_plots_are_judged_by_whole_plots",
            "test_ignoring_whole_plots_would_call_it_significant",
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
        "bench/tests/test_effect_intervals.py": ["test_a_wrong_analysis_is_found"],
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
        f"{UNIT}/test_campaign_parts.py": ["test_each_cause_is_repeated_as_often_as_was_said"],
        f"{UNIT}/test_effects_reference.py": [
            "test_a_run_twenty_deviations_off_is_flagged_kept_and_told_both_ways"
        ],
    },
    "a straight line": {
        f"{UNIT}/test_effects_reference.py": ["test_a_straight_line_is_linear_and_nothing_else"]
    },
    "the plan says what it cannot tell": {
        f"{UNIT}/test_design.py": ["test_aliases_of_table_6_2"]
    },
    "bad input: three million treatments": {
        f"{UNIT}/test_design_kinds.py": [
            "test_three_million_treatments_are_answered_with_a_better_design"
        ]
    },
    "bad input: a model that is aliased": {
        f"{UNIT}/test_design_kinds.py": [
            "test_bad_tables_are_refused",
            "test_what_cannot_be_told_of_allowed_combinations_is_refused",
        ]
    },
    "bad input: no variance, NaN, one level": {
        f"{UNIT}/test_effects_reference.py": ["test_no_variance_no_number_one_level"],
        f"{UNIT}/test_acceptance_cases.py": ["test_factors_that_cannot_be_varied_are_refused"],
    },
    "bad input: lost runs": {
        f"{UNIT}/test_effects.py": [
            "test_a_lost_treatment_is_said_and_not_imputed",
            "test_a_fraction_with_lost_cells_tells_no_effect",
        ]
    },
    "bad input: leftovers out of balance": {
        f"{UNIT}/test_acceptance_cases.py": ["test_leftovers_out_of_balance_say_what_depends_on_what"],
        f"{UNIT}/test_effects_reference.py": ["test_types_of_sums_of_squares_equal_car"],
    },
    "bad input: factors called C, I, Q": {
        f"{UNIT}/test_design_purpose.py": ["test_factors_may_be_called_as_they_like"],
        f"{UNIT}/test_effects.py": ["test_two_factors_three_replicates"],
    },
    "bad input: responses of opposite direction": {
        f"{UNIT}/test_surface.py": ["test_responses_of_opposite_direction_are_weighed"]
    },
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_every_case_names_tests_that_there_are_and_that_can_fail(case: str) -> None:
    """Breaks where a test is renamed, taken away, always skipped, or expects nothing; what it expects is its
    own matter."""
    for path, names in CASES[case].items():
        fault = faults_of((HERE / path).read_text(), names)
        assert not fault, f"{path}: {fault}"


def faults_of(source: str, names: list[str]) -> list[str]:
    """What is wrong with the tests of these names in a module."""
    there = {n.name: n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef)}
    found = [f"{name} is not there" for name in names if name not in there]
    for test in (there[name] for name in names if name in there):
        marks = {ast.unparse(d.func if isinstance(d, ast.Call) else d) for d in test.decorator_list}
        if marks & {"pytest.mark.skip", "pytest.mark.xfail"}:
            found.append(f"{test.name} never fails")
        if not any(_expects(node) for node in ast.walk(test)):
            found.append(f"{test.name} expects nothing")
    return found


def _expects(node: ast.AST) -> bool:
    """Whether a node may fail a test: an assertion that is no constant, or a call that expects something."""
    if isinstance(node, ast.Assert):
        return not isinstance(node.test, ast.Constant)
    called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    return called == "pytest.raises" or called.startswith(("np.testing.", "assert_"))


def test_a_case_without_a_test_that_can_fail_is_found() -> None:
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

    The first studies go through the analysis, which must give what least squares on the same columns gives;
    then all of them through least squares alone.
    """
    plan = plan_of(SIX, 5)
    runs = runs_of(plan, model=truth)
    drawn = np.random.default_rng(14)
    sure = {":".join(w): q for w, q in TRUTH.items()}
    table = effects(runs.assign(y=runs["y"] + drawn.normal(0, 10, len(runs))), plan, "y")
    terms = [t for t in table["term"] if t not in ("residual", "block")]
    assert len(terms) == 63
    coded = pd.DataFrame([r.coded for r in plan.rows])
    x = np.column_stack([coded[t.split(":")].prod(axis=1) for t in terms]).astype(float)
    blocks = "block" in set(table["term"])
    member = pd.get_dummies(runs["replicate"] if blocks else runs["valid"]).to_numpy(float)
    basis = np.linalg.qr(np.hstack([member, x]))[0]
    df = len(runs) - basis.shape[1]
    t = stats.t.ppf(0.975, df)
    q = np.array([sure.get(term, 0.0) for term in terms])
    inside = np.zeros(63)
    studies = 1000
    for study in range(studies):
        y = runs["y"].to_numpy() + drawn.normal(0, 10, len(runs))
        found = x.T @ y / len(y)
        rest = y - basis @ (basis.T @ y)
        half = t * np.sqrt(rest @ rest / df / len(y))
        if study < 5:
            judged = effects(runs.assign(y=y), plan, "y").set_index("term").loc[terms]
            np.testing.assert_allclose(judged["ci_low"], found - half, atol=1e-8)
            np.testing.assert_allclose(judged["ci_high"], found + half, atol=1e-8)
        inside += np.abs(found - q) <= half
    shares = 100 * inside / studies
    assert 94.5 <= shares.mean() <= 95.5
    assert (shares >= 92.2).all()
    assert (shares <= 97.8).all()


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_identical_systems_of_a_thousand_studies(tmp_path: Path) -> None:
    """Two systems that are one, 20 runs each, noise 1 and a random walk of 0.6 a run: shuffled passes as
    blocks, and all runs of one before those of the other."""
    text = study_text({"system": "{levels: [a, b]}"}, "{kind: full, replicates: 20}")
    plan = plan_of_text(text, tmp_path)
    in_turn = sorted(plan.rows, key=lambda r: (r.levels["system"], r.run_order))
    after = dataclasses.replace(plan, order="standard").with_runs(in_turn)
    drawn = np.random.default_rng(15)
    found = {"shuffled": 0, "one after the other": 0}
    for _ in range(1000):
        y = drawn.normal(0, 1, 40) + np.cumsum(drawn.normal(0, 0.6, 40))
        for name, one in (("shuffled", plan), ("one after the other", after)):
            runs = pd.DataFrame(
                {
                    "run_id": [r.run_id for r in one.rows],
                    "replicate": [r.replicate for r in one.rows],
                    "system": [r.levels["system"] for r in one.rows],
                    "valid": True,
                    "y": y,
                }
            )
            found[name] += effects(runs, one, "y").set_index("term").loc["system", "p_value"] < 0.05
    assert 29 <= found["shuffled"] <= 71
    assert found["one after the other"] > 500


@pytest.mark.parametrize(
    ("factor", "says"),
    [
        ("{levels: [a]}", "at least 2 levels"),
        ("{levels: []}", "at least 2 levels"),
        ("{levels: [1, .nan]}", "a finite number"),
        ("{levels: [1, .inf]}", "a finite number"),
        ("{levels: [a, a]}", "each level once"),
        ("{levels: {one: 1, two: 1}}", "levels that differ"),
    ],
)
def test_factors_that_cannot_be_varied_are_refused(factor: str, says: str, tmp_path: Path) -> None:
    from penstock.errors import BadInput

    with pytest.raises(BadInput, match=says):
        plan_of_text(study_text({"f": factor}, "{kind: full}"), tmp_path)


def test_leftovers_out_of_balance_say_what_depends_on_what(tmp_path: Path) -> None:
    """Breaks where estimates of unbalanced runs are told as if they did not depend on each other, where an
    interval does not widen, or where a lost run is made up."""
    text = study_text(
        dict.fromkeys("ab", "{levels: [x, y]}"), "{kind: full, replicates: 6, order: random}"
    )
    plan = plan_of_text(text, tmp_path)
    drawn = np.random.default_rng(4)
    whole = pd.DataFrame(
        [
            {"run_id": r.run_id, "replicate": r.replicate, **r.levels, "valid": True}
            | {"y": 10 + 2 * r.coded["a"] + drawn.normal()}
            for r in plan.rows
        ]
    )
    cell = (whole["a"] == "x") & (whole["b"] == "x")
    left = whole.assign(valid=~(cell & (whole.groupby(["a", "b"]).cumcount() > 0)))
    before = effects(whole, plan, "y").set_index("term")
    after = effects(left, plan, "y").set_index("term")
    assert (before["correlations"] == "").all()
    assert "b" in after.loc["a", "correlations"]
    assert after["n"].iloc[0] == 19
    assert after.loc["a", "standard_error"] > 1.2 * before.loc["a", "standard_error"] * math.sqrt(
        after.loc["residual", "mean_square"] / before.loc["residual", "mean_square"]
    )
    x = np.column_stack(
        [
            np.ones(19),
            *(np.where(left.loc[left["valid"], n] == "y", 1.0, -1.0) for n in "ab"),
        ]
    )
    x = np.column_stack([x, x[:, 1] * x[:, 2]])
    by_hand = np.linalg.lstsq(x, left.loc[left["valid"], "y"].to_numpy(), rcond=None)[0]
    assert after.loc[["a", "b", "a:b"], "coefficient"].tolist() == pytest.approx(by_hand[1:])
