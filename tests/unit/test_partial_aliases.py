"""Designs that are no regular fraction: plan, table, findings and next step say what they mix in part."""

from __future__ import annotations

import dataclasses
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
    said = "\n".join(f"  {name}: {text}" for name, text in factors.items())
    words = " ".join(f"{{{name}}}" for name in factors)
    text = f"""penstock: 1
name: mixed
question: Which factor matters most?
factors:
{said}
design: {design}
platform: {{nodes: [{{name: n}}]}}
workload: {{command: 'echo {words}', expected: 1s}}
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


def test_the_alias_matrix_is_that_of_the_normal_equations() -> None:
    draws = np.random.default_rng(1)
    x = draws.choice([-1.0, 1.0], (14, 4))
    z = draws.choice([-1.0, 1.0], (14, 3))
    base = np.ones((14, 1))
    found = shares(
        base,
        [(f"x{i}", x[:, i : i + 1]) for i in range(4)],
        [(f"z{i}", z[:, i : i + 1]) for i in range(3)],
    )
    full = np.hstack([base, x])
    expected = np.linalg.solve(full.T @ full, full.T @ z)[1:]
    for i in range(4):
        held = {s.rival: s.share for s in found[f"x{i}"]}
        for j in range(3):
            assert held.get(f"z{j}", 0.0) == pytest.approx(expected[i, j], abs=1e-9)


def test_shares_of_factors_of_more_levels_are_cosines() -> None:
    """Columns of several degrees of freedom: the share of an interaction that lies in a main effect is 1."""
    plan = make_plan(
        study_of(dict.fromkeys("ABCD", "{levels: [p, q, r]}"), "{kind: orthogonal-array}")
    )
    held = of_treatments(plan.factors, "main", numbers_of(plan.factors, coded_matrix(plan)))
    # L9: the interaction of two columns is spread over the other two, half of its variation in each
    assert {s.rival for s in held["A"]} == {"B:C", "B:D", "C:D"}
    assert all(s.share == pytest.approx(1.0) and not s.signed for s in held["A"])


def test_the_plan_says_what_it_mixes_in_part(plackett_burman) -> None:
    _, plan, _ = plackett_burman
    said = {a.term: a for a in plan.aliases}
    assert set(said) == set(ELEVEN)
    assert len(said["C"].with_terms) == 45
    assert "+0.33 A:B" in said["C"].with_terms
    assert any(c.startswith("Partly aliased") for c in plan.cautions)
    assert plan_from_json(plan.to_json()) == plan
    table = alias_section(outcome_of(plan, runs_of(plan, lambda r: 0.0)))
    assert "full design" not in table["sentence"]


def test_a_third_of_an_interaction_is_no_effect(plackett_burman) -> None:
    _, plan, runs = plackett_burman
    left, finding = doubt_of(plan, runs)
    assert len(left.active) == 11
    assert left.explained.sets == [("A", "B", "A:B")]
    told = {term_of(q.term, left.names): q for q in left.doubted}
    assert set(told) == set("CDEFGHIJK")
    ab = word_of("A:B", left.names)
    assert all(q.plausible == (ab,) for q in told.values())
    assert all(abs(q.shares[ab]) == pytest.approx(1 / 3) for q in told.values())
    assert "A, B and A × B explain y as well as the 11 effects do" in finding.statement
    assert "0.33 of A × B" in finding.statement
    text = augment_text(left, left.proposals())
    assert "nothing needs to be added" not in text
    assert left.best() is not None
    table = effects(runs, plan, "y").set_index("term")
    assert "+0.33 A:B" in table.loc["C", "aliases"].split(", ")


def test_the_recommended_step_shows_which_it_is(plackett_burman) -> None:
    study, plan, runs = plackett_burman
    left = Open(outcome_of(plan, runs), plan, "y", None)
    best = left.best()
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


def test_an_exact_alias_is_named_although_no_factor_of_it_shows(d_optimal: Plan) -> None:
    plan = d_optimal
    runs = runs_of(plan, lambda r: 8 * r.coded["F"] + 6 * r.coded["C"] * r.coded["D"])
    assert len(plan.rows) == 33
    left, finding = doubt_of(plan, runs)
    assert set(left.active) == {"F", "E"}
    assert "C × D" in finding.statement
    assert "C:D" in finding.evidence["rivals"]["E"]
    # optimal rows are chosen around what is forbidden
    assert any(p.step.kind.startswith("optimal") for p in left.proposals())


def test_of_a_regular_fraction_too() -> None:
    """2^(7-4): D = AB; a pure interaction of A and B is reported as D, and named."""
    study = study_of(SEVEN, "{kind: {fraction: 4}, replicates: 2}")
    plan = make_plan(study)
    runs = runs_of(plan, lambda r: 6 * r.coded["A"] * r.coded["B"])
    left, finding = doubt_of(plan, runs)
    assert left.active == ["D"]
    assert (finding.code, finding.severity) == ("effect-aliased", "info")
    assert "A × B" in finding.statement
    assert "not excluded" in finding.statement
    text = " ".join(augment_text(left, left.proposals()).split())
    assert "A × B" in text
    assert "nothing needs to be added" not in text
    table = effects(runs, plan, "y").set_index("term")
    assert "A × B" in inseparable(table.loc["D"])


def test_what_main_effects_do_not_explain_is_named() -> None:
    study = study_of(MIXED, "{kind: orthogonal-array, replicates: 2}")
    plan = make_plan(study)
    runs = runs_of(plan, lambda r: 12.0 * (r.levels["B"] == "y" and r.levels["C"] == "q"), 0.5)
    left, finding = doubt_of(plan, runs)
    assert set(left.explained.terms) == {"B", "C", "B:C"}
    assert not left.explained.main_alone
    assert "B × C" in finding.statement
    assert "B × C" in augment_text(left, left.proposals())


def test_no_doubt_where_main_effects_explain_the_runs() -> None:
    study = study_of(ELEVEN, PLACKETT_BURMAN)
    plan = make_plan(study)
    left, finding = doubt_of(plan, runs_of(plan, lambda r: 5 * r.coded["A"] + 4 * r.coded["F"]))
    assert not left.doubted
    assert finding.code == "effect-unambiguous"
    assert "without an interaction" in finding.statement
    assert "0.33" in finding.statement


def test_a_lost_treatment_mixes_what_the_design_keeps_apart() -> None:
    study = study_of({n: ELEVEN[n] for n in "ABC"}, "{kind: full, replicates: 3}")
    plan = make_plan(study)
    runs = runs_of(plan, lambda r: 5 * r.coded["A"])
    runs.loc[runs["treatment_id"] == "t03", "valid"] = False
    table = effects(runs, plan, "y").set_index("term")
    assert "A:B:C" in table.loc["A", "aliases"]


def test_a_treatment_that_was_lost_counts_in_the_alias_matrix(plackett_burman) -> None:
    _, plan, runs = plackett_burman
    lost = runs.assign(valid=runs["treatment_id"] != "t05")
    six = dataclasses.replace(plan)
    table = effects(lost, six, "y").set_index("term")
    whole = effects(runs, six, "y").set_index("term")
    assert table.loc["A", "aliases"] != whole.loc["A", "aliases"]


def test_regular_is_told_from_the_rows() -> None:
    from penstock.design.generators import choose_generators

    assert regular(two_level(7, choose_generators(7, 4)))
    assert regular(two_level(4, []))
    assert not regular(two_level(4, [])[:12])
    assert not regular(coded_matrix(make_plan(study_of(ELEVEN, PLACKETT_BURMAN))))


def test_a_step_is_judged_by_how_sure_the_term_is_now(d_optimal: Plan) -> None:
    """Of a design that is not orthogonal the variance of a term is more than 1/N before the step already."""
    matrix = coded_matrix(d_optimal)
    names = list(SEVEN)
    asked = questions(matrix, [word_of("E", names)])
    step = make_step("foldover", matrix, [1] * len(matrix), asked, names)
    assert len(step.broken) + len(step.remaining) == sum(len(q.plausible) for q in asked)


def test_a_stage_of_a_plan_tells_its_partial_aliases() -> None:
    study = study_of({n: ELEVEN[n] for n in "ABCD"}, "{kind: {fraction: 1}, replicates: 2}")
    plan = make_plan(study)
    step = make_step("semifold:A", coded_matrix(plan), [1] * 8, [], list("ABCD"))
    stage = stage_of(step, plan, "asked for")
    assert isinstance(stage, Stage)
    longer = with_stages(plan, study, [stage])
    assert not any(a.words.endswith("alone.") for a in longer.aliases)
