"""Partial aliases of non-regular designs in the plan, table, findings and proposed next step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from penstock.analyse.findings.effect_findings import inseparable
from penstock.analyse.findings.finding import Finding
from penstock.analyse.outcome import Outcome
from penstock.analyse.sequential.aliased import Open, aliased
from penstock.analyse.sequential.augment_text import augment_text
from penstock.analyse.statistics.effects import effects
from penstock.design.additions.more_levels import numbers_of
from penstock.design.additions.stages import Stage, stage_of, with_stages
from penstock.design.additions.two_levels import make_step, questions
from penstock.design.alias_matrix import of_treatments, shares
from penstock.design.generators import term_of, word_of
from penstock.design.matrix import regular, two_level
from penstock.design.plan import make_plan
from penstock.design.planned import Plan, coded_matrix, plan_from_json
from penstock.report.sections import aliases as alias_section
from penstock.spec.study import Study
from penstock.study.load import read_study

ELEVEN = {n: f"{{levels: [{n.lower()}0, {n.lower()}1]}}" for n in "ABCDEFGHIJK"}
SEVEN = {n: ELEVEN[n] for n in "ABCDEFG"}
PLACKETT_BURMAN = "{kind: plackett-burman, replicates: 2, order: random}"
D_OPTIMAL = "{purpose: screen, replicates: 3, forbidden: [{A: a1, B: b1}, {C: c1, D: d1, E: e1}]}"
MIXED = {
    "A": "{levels: [a0, a1]}",
    "B": "{levels: [x, y, z]}",
    "C": "{levels: [p, q, r]}",
    "D": "{levels: [u, v, w]}",
}


def study_of(factors: dict[str, str], design: str) -> Study:
    levels = "\n".join(f"  {name}: {text}" for name, text in factors.items())
    placeholders = " ".join(f"{{{name}}}" for name in factors)
    text = f"""penstock: 1
name: mixed
question: Which factor matters most?
factors:
{levels}
design: {design}
platform: {{nodes: [{{name: n}}]}}
workload: {{command: 'echo {placeholders}', expected: 1s}}
responses: {{y: {{from: {{regex: 'y=(.*)'}}, unit: requests, better: higher, scale: linear}}}}
"""
    return read_study(text.encode(), Path("mixed.study.yaml"))


def runs_of(plan: Plan, truth, noise: float = 1.0, seed: int = 2) -> pd.DataFrame:
    draws = np.random.default_rng(seed)
    return pd.DataFrame(
        [
            {
                "run_id": r.run_id,
                "treatment_id": r.treatment_id,
                "replicate": r.replicate,
                **r.levels,
                "valid": True,
                "y": 100 + truth(r) + draws.normal(0, noise),
            }
            for r in plan.rows
        ]
    )


def outcome_of(plan: Plan, runs: pd.DataFrame) -> Outcome:
    document = {"responses": {"y": {"unit": "requests", "better": "higher"}}}
    return Outcome(
        Path("mixed"), plan.to_json(), document, runs, effects(runs, plan, "y"), None, None
    )


def doubt_of(plan: Plan, runs: pd.DataFrame) -> tuple[Open, Finding]:
    outcome = outcome_of(plan, runs)
    (finding,) = aliased(outcome)
    return Open(outcome, plan, "y", None), finding


@pytest.fixture(scope="module")
def plackett_burman() -> tuple[Study, Plan, pd.DataFrame]:
    study = study_of(ELEVEN, PLACKETT_BURMAN)
    plan = make_plan(study)
    return (
        study,
        plan,
        runs_of(
            plan, lambda r: 10 * r.coded["A"] + 8 * r.coded["B"] + 6 * r.coded["A"] * r.coded["B"]
        ),
    )


def test_alias_matrix_follows_the_normal_equations() -> None:
    draws = np.random.default_rng(1)
    x = draws.choice([-1.0, 1.0], (14, 4))
    z = draws.choice([-1.0, 1.0], (14, 3))
    base = np.ones((14, 1))
    by_term = shares(
        base,
        [(f"x{i}", x[:, i : i + 1]) for i in range(4)],
        [(f"z{i}", z[:, i : i + 1]) for i in range(3)],
    )
    full = np.hstack([base, x])
    expected = np.linalg.solve(full.T @ full, full.T @ z)[1:]
    for i in range(4):
        by_rival = {s.rival: s.share for s in by_term[f"x{i}"]}
        for j in range(3):
            assert by_rival.get(f"z{j}", 0.0) == pytest.approx(expected[i, j], abs=1e-9)


def test_shares_of_factors_with_three_levels() -> None:
    """Columns of several degrees of freedom: a main effect within an interaction has a share of 1."""
    plan = make_plan(
        study_of(dict.fromkeys("ABCD", "{levels: [p, q, r]}"), "{kind: orthogonal-array}")
    )
    by_term = of_treatments(plan.factors, "main", numbers_of(plan.factors, coded_matrix(plan)))
    # L9: each of the other two columns has half of the variation of an interaction
    assert {s.rival for s in by_term["A"]} == {"B:C", "B:D", "C:D"}
    assert all(s.share == pytest.approx(1.0) and not s.signed for s in by_term["A"])


def test_plan_lists_partial_aliases(plackett_burman) -> None:
    _, plan, _ = plackett_burman
    by_term = {a.term: a for a in plan.aliases}
    assert set(by_term) == set(ELEVEN)
    assert len(by_term["C"].with_terms) == 45
    assert "+0.33 A:B" in by_term["C"].with_terms
    assert any(c.startswith("Partly aliased") for c in plan.cautions)
    assert plan_from_json(plan.to_json()) == plan
    table = alias_section(outcome_of(plan, runs_of(plan, lambda r: 0.0)))
    assert "full design" not in table["sentence"]


def test_interaction_is_not_reported_as_main_effects(plackett_burman) -> None:
    _, plan, runs = plackett_burman
    doubt, finding = doubt_of(plan, runs)
    assert len(doubt.active) == 11
    assert doubt.explained.sets == [("A", "B", "A:B")]
    doubted = {term_of(q.term, doubt.names): q for q in doubt.doubted}
    assert set(doubted) == set("CDEFGHIJK")
    ab = word_of("A:B", doubt.names)
    assert all(q.plausible == (ab,) for q in doubted.values())
    assert all(abs(q.shares[ab]) == pytest.approx(1 / 3) for q in doubted.values())
    assert "A, B and A × B explain y as well as the 11 effects do" in finding.statement
    assert "0.33 of A × B" in finding.statement
    text = augment_text(doubt, doubt.proposals())
    assert "nothing needs to be added" not in text
    assert doubt.best() is not None
    table = effects(runs, plan, "y").set_index("term")
    assert "+0.33 A:B" in table.loc["C", "aliases"].split(", ")


def test_recommended_step_separates_the_interaction(plackett_burman) -> None:
    study, plan, runs = plackett_burman
    doubt = Open(outcome_of(plan, runs), plan, "y", None)
    best = doubt.best()
    assert best is not None
    assert len(best.step.broken) == 9
    longer = with_stages(plan, study, [stage_of(best.step, plan, "asked for")])
    after = runs_of(
        longer, lambda r: 10 * r.coded["A"] + 8 * r.coded["B"] + 6 * r.coded["A"] * r.coded["B"]
    )
    table = effects(after, longer, "y").set_index("term")
    assert table.loc["A:B", "p_holm"] < 0.05
    assert table.loc["A:B", "coefficient"] == pytest.approx(6, abs=1.5)
    assert table.loc[list("CDEFGHIJK"), "coefficient"].abs().max() < 1.5


@pytest.fixture(scope="module")
def d_optimal() -> Plan:
    return make_plan(study_of(SEVEN, D_OPTIMAL))


def test_exact_alias_of_inactive_factors_is_named(d_optimal: Plan) -> None:
    plan = d_optimal
    runs = runs_of(plan, lambda r: 8 * r.coded["F"] + 6 * r.coded["C"] * r.coded["D"])
    assert len(plan.rows) == 33
    doubt, finding = doubt_of(plan, runs)
    assert set(doubt.active) == {"F", "E"}
    assert "C × D" in finding.statement
    assert "C:D" in finding.evidence["rivals"]["E"]
    # optimal rows avoid the forbidden combinations
    assert any(p.step.kind.startswith("optimal") for p in doubt.proposals())


def test_alias_of_a_regular_fraction_is_named() -> None:
    """2^(7-4), D = AB: a pure interaction A × B appears as D and is named as its alias."""
    study = study_of(SEVEN, "{kind: {fraction: 4}, replicates: 2}")
    plan = make_plan(study)
    runs = runs_of(plan, lambda r: 6 * r.coded["A"] * r.coded["B"])
    doubt, finding = doubt_of(plan, runs)
    assert doubt.active == ["D"]
    assert (finding.code, finding.severity) == ("effect-aliased", "info")
    assert "A × B" in finding.statement
    assert "not excluded" in finding.statement
    text = " ".join(augment_text(doubt, doubt.proposals()).split())
    assert "A × B" in text
    assert "nothing needs to be added" not in text
    table = effects(runs, plan, "y").set_index("term")
    assert "A × B" in inseparable(table.loc["D"])


def test_interaction_of_three_levels_is_named() -> None:
    study = study_of(MIXED, "{kind: orthogonal-array, replicates: 2}")
    plan = make_plan(study)
    runs = runs_of(plan, lambda r: 12.0 * (r.levels["B"] == "y" and r.levels["C"] == "q"), 0.5)
    doubt, finding = doubt_of(plan, runs)
    assert set(doubt.explained.terms) == {"B", "C", "B:C"}
    assert not doubt.explained.main_alone
    assert "B × C" in finding.statement
    assert "B × C" in augment_text(doubt, doubt.proposals())


def test_main_effects_that_explain_the_runs_are_unambiguous() -> None:
    study = study_of(ELEVEN, PLACKETT_BURMAN)
    plan = make_plan(study)
    doubt, finding = doubt_of(plan, runs_of(plan, lambda r: 5 * r.coded["A"] + 4 * r.coded["F"]))
    assert not doubt.doubted
    assert finding.code == "effect-unambiguous"
    assert "without an interaction" in finding.statement
    assert "0.33" in finding.statement


def test_lost_treatment_aliases_terms_of_a_full_design() -> None:
    study = study_of({n: ELEVEN[n] for n in "ABC"}, "{kind: full, replicates: 3}")
    plan = make_plan(study)
    runs = runs_of(plan, lambda r: 5 * r.coded["A"])
    runs.loc[runs["treatment_id"] == "t03", "valid"] = False
    table = effects(runs, plan, "y").set_index("term")
    assert "A:B:C" in table.loc["A", "aliases"]


def test_lost_treatment_changes_the_aliases(plackett_burman) -> None:
    _, plan, runs = plackett_burman
    lost = runs.assign(valid=runs["treatment_id"] != "t05")
    table = effects(lost, plan, "y").set_index("term")
    complete = effects(runs, plan, "y").set_index("term")
    # eleven runs cannot have eleven effects and a mean
    assert table.loc["A", "aliases"] == "not estimable from the runs that are valid"
    assert "+0.33 B:C" in complete.loc["A", "aliases"]


def test_regular_follows_from_the_rows() -> None:
    from penstock.design.generators import choose_generators

    assert regular(two_level(7, choose_generators(7, 4)))
    assert regular(two_level(4, []))
    assert not regular(two_level(4, [])[:12])
    assert not regular(coded_matrix(make_plan(study_of(ELEVEN, PLACKETT_BURMAN))))


def test_step_counts_every_plausible_alias(d_optimal: Plan) -> None:
    """In a non-orthogonal design the variance of a term exceeds 1/N before the step."""
    matrix = coded_matrix(d_optimal)
    names = list(SEVEN)
    open_questions = questions(matrix, [word_of("E", names)])
    step = make_step("foldover", matrix, [1] * len(matrix), open_questions, names)
    assert len(step.broken) + len(step.remaining) == sum(len(q.plausible) for q in open_questions)


def test_stage_of_a_plan_lists_partial_aliases() -> None:
    study = study_of({n: ELEVEN[n] for n in "ABCD"}, "{kind: {fraction: 1}, replicates: 2}")
    plan = make_plan(study)
    step = make_step("semifold:A", coded_matrix(plan), [1] * 8, [], list("ABCD"))
    stage = stage_of(step, plan, "asked for")
    assert isinstance(stage, Stage)
    longer = with_stages(plan, study, [stage])
    assert not any(a.words.endswith("alone.") for a in longer.aliases)
