"""Augmentation of a design: rivals that a step separates, and the analysis of all stages."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from penstock.analyse.statistics.effects import effects
from penstock.analyse.statistics.staged import CONFOUNDED
from penstock.design.additions.stages import Stage, stage_from_json, stage_of, with_stages
from penstock.design.additions.two_levels import (
    Step,
    make_step,
    questions,
    recommended,
    steps,
    variance,
)
from penstock.design.generators import defining_relation, parse_generator, term_of, word_of
from penstock.design.matrix import two_level
from penstock.design.plan import make_plan
from penstock.design.planned import Plan, coded_matrix, plan_from_json
from penstock.errors import BadInput, PenstockError
from penstock.spec.study import Study
from penstock.study.load import read_study

NAMES = list("ABCDEF")
GENERATORS = ["D = A*B", "E = A*C", "F = B*C"]
#: coefficients of the published case: six factors of a network file system
TRUTH = {"E": 40, "B": 30, "C": -25, "F": 20, "CF": -12, "BF": -8, "BCF": 6, "D": -2, "A": 1.5}


def study_of(
    names: list[str] = NAMES,
    generators: list[str] = GENERATORS,
    replicates: int = 1,
    order: str = "interleaved",
    dear: str = "",
) -> Study:
    """`dear`: factors whose settings are expensive to change."""
    changes = {n: ", change: redeploy" if n in dear else "" for n in names}
    factors = "\n".join(f'  "{n}": {{levels: [low, high]{changes[n]}}}' for n in names)
    kind = f"{{fraction: {len(generators)}}}" if generators else "full"
    text = f"""penstock: 1
name: plain
question: Which?
factors:
{factors}
design: {{kind: {kind}, generators: {generators}, replicates: {replicates}, order: {order}, seed: 9}}
platform: {{nodes: [{{name: n}}]}}
workload: {{command: 'echo {" ".join(f"{{{n}}}" for n in names)}'}}
responses: {{y: {{from: wall_s, unit: s, better: lower}}}}
"""
    return read_study(text.encode(), Path("plain.study.yaml"))


def truth(coded: dict[str, int]) -> float:
    return 150 + sum(q * float(np.prod([coded[c] for c in word])) for word, q in TRUTH.items())


def runs_of(plan: Plan, noise: float = 0.0, seed: int = 1, model=truth) -> pd.DataFrame:
    random_numbers = np.random.default_rng(seed)
    return pd.DataFrame(
        [
            {
                "run_id": r.run_id,
                "replicate": r.replicate,
                **r.levels,
                "y": model(r.coded) + noise * random_numbers.normal(),
                "valid": True,
            }
            for r in plan.rows
        ]
    )


def augmented(
    study: Study, kind: str, active: str = "EBCF", *, again: bool = False
) -> tuple[Plan, Step]:
    plan = make_plan(study)
    names = [f.name for f in plan.factors]
    matrix = coded_matrix(plan)
    open_questions = questions(matrix, [word_of(t, names) for t in active])
    step = make_step(kind, matrix, [1] * len(matrix), open_questions, names, again=again)
    return with_stages(plan, study, [stage_of(step, plan, "to tell", again=again)]), step


def coefficients(table: pd.DataFrame) -> pd.Series:
    return table.set_index("term")["coefficient"]


def test_the_published_fraction_reports_aliased_sums() -> None:
    plan = make_plan(study_of())
    runs = runs_of(plan).merge(
        pd.DataFrame([{"run_id": r.run_id, "at": r.standard_order} for r in plan.rows])
    )
    expected = [227.5, 41.5, 227.5, 121.5, 154.5, 128.5, 146.5, 200.5]
    assert runs.sort_values("at")["y"].tolist() == expected
    assert runs["y"].mean() == 156
    q = coefficients(effects(runs, plan, "y"))
    for term, value in {"E": 40, "C": -33, "F": 20, "B": 18, "D": -2, "A": 1.5}.items():
        assert q[term] == pytest.approx(value, abs=1e-9)


def test_the_foldover_frees_the_main_effects_and_names_the_stage() -> None:
    plan, _ = augmented(study_of(), "foldover")
    assert (plan.treatments, plan.resolution, plan.fraction) == (16, 4, 2)
    assert set(plan.defining_relation) == {"I", "A*B*E*F", "A*C*D*F", "B*C*D*E"}
    runs = runs_of(plan)
    table = effects(runs, plan, "y").set_index("term")
    for term in NAMES:
        assert table["coefficient"][term] == pytest.approx(TRUTH[term], abs=1e-9)
    assert table["coefficient"]["A:E"] == pytest.approx(-8, abs=1e-9)
    assert table["coefficient"]["A:D"] == pytest.approx(-12, abs=1e-9)
    stage = table[table["method"] == CONFOUNDED]
    assert list(stage.index) == ["A:B:D"]
    assert stage["coefficient"].isna().all()
    assert {"A:B:D", "A:C:E", "B:C:F", "D:E:F"} == set(plan.stages[0]["confounded"])
    rows = {r.run_id: r.stage for r in plan.rows}
    means = runs.groupby(runs["run_id"].map(rows))["y"].mean()
    assert (means[1] - means[2]) / 2 == pytest.approx(6)
    assert means.mean() == pytest.approx(150)
    assert "stages" in " ".join(plan.cautions)


def test_repeated_earlier_rows_leave_no_stage_confounded() -> None:
    plan, _ = augmented(study_of(), "foldover", again=True)
    assert plan.stages[0]["confounded"] == []
    assert len(plan.rows) == 8 + 16
    q = coefficients(effects(runs_of(plan), plan, "y"))
    assert q["A:B:D"] == pytest.approx(6, abs=1e-9)


def test_a_drift_between_stages_is_no_effect() -> None:
    """A constant added to all of stage 2 changes no estimate."""
    plan, _ = augmented(study_of(replicates=2), "foldover")
    runs = runs_of(plan, noise=1.0)
    late = runs["run_id"].map({r.run_id: r.stage == 2 for r in plan.rows})
    moved = runs.assign(y=runs["y"] + 1000.0 * late)
    before, after = (coefficients(effects(r, plan, "y")) for r in (runs, moved))
    pd.testing.assert_series_equal(before, after, atol=1e-6)


def test_rivals_of_the_published_case() -> None:
    matrix = coded_matrix(make_plan(study_of()))
    open_questions = questions(matrix, [word_of(t, NAMES) for t in "EBCF"])
    named = {
        term_of(q.term, NAMES): {term_of(w, NAMES) for w in q.plausible} for q in open_questions
    }
    assert "C:F" in named["B"]
    assert "A:D" not in named["B"]  # neither A nor D is active
    assert {"B:F", "A:E"} <= named["C"]
    assert all(
        {term_of(w, NAMES) for w in q.other}
        == ({"A:D"} if term_of(q.term, NAMES) == "B" else set())
        for q in open_questions
    )


@pytest.mark.parametrize("kind", ["foldover", "foldover:C", "semifold:C", "coset", "optimal:8"])
def test_separated_rivals_are_estimable_by_least_squares(kind: str) -> None:
    """The rank of the model verifies the claims: mean, stages, main effects, term and rival."""
    study = study_of()
    plan, step = augmented(study, kind)
    rows = [r for r in plan.rows if r.replicate == 1]
    x = np.array([[r.coded[n] for n in NAMES] for r in rows], dtype=float)
    stage = np.array([[r.stage == 1, r.stage == 2] for r in rows], dtype=float)

    def columns(model_words: set[int]) -> np.ndarray:
        return np.column_stack(
            [
                stage,
                *(np.prod(x[:, [i for i in range(6) if w >> i & 1]], axis=1) for w in model_words),
            ]
        )

    assert step.broken or kind == "optimal:8"
    for term, rival in step.broken:
        terms = {1 << i for i in range(6)} | {term, rival}
        full_model = columns(terms)
        rank = np.linalg.matrix_rank(full_model)
        assert rank == 1 + np.linalg.matrix_rank(columns(terms - {term}))
        assert rank == 1 + np.linalg.matrix_rank(columns(terms - {rival}))


@pytest.mark.parametrize("kind", ["foldover", "semifold:C", "optimal:8"])
def test_shares_of_the_variation_are_of_their_sum_after_an_augmentation(kind: str) -> None:
    before = effects(runs_of(first_plan := make_plan(study_of())), first_plan, "y").set_index(
        "term"
    )
    plan, _ = augmented(study_of(), kind)
    table = effects(runs_of(plan), plan, "y").set_index("term")
    assert before["variation_share"].sum() == pytest.approx(100)
    assert table["variation_share"].sum() == pytest.approx(100)


def test_the_recommended_step_breaks_all_rivals_of_two_factors() -> None:
    matrix = coded_matrix(make_plan(study_of()))
    open_questions = questions(matrix, [word_of(t, NAMES) for t in "EBCF"])
    best = recommended(steps(matrix, [1] * 8, open_questions, NAMES))
    assert best is not None
    assert not [p for p in best.remaining if p[1].bit_count() == 2]


def test_half_a_foldover_is_the_cheapest_for_two_interactions() -> None:
    """2^(4-1), I = ABCD: 4 rows separate AB from CD (Mee & Peralta 2000)."""
    names = list("ABCD")
    study = study_of(names, ["D = A*B*C"], replicates=2)
    matrix = coded_matrix(make_plan(study))
    open_questions = questions(matrix, [word_of(t, names) for t in ("A", "C", "A:B")])
    assert {term_of(q.term, names) for q in open_questions} == {"A", "C", "A:B"}
    best = recommended(steps(matrix, [1] * 8, open_questions, names))
    assert best is not None
    assert best.kind.startswith("semifold")
    assert len(best.rows) == 4
    assert (word_of("A:B", names), word_of("C:D", names)) in best.broken
    plan = with_stages(make_plan(study), study, [stage_of(best, make_plan(study), "")])
    model = lambda c: 100 + 20 * c["A"] - 9 * c["C"] + 8 * c["C"] * c["D"]  # noqa: E731
    table = effects(runs_of(plan, 0.3, model=model), plan, "y").set_index("term")
    assert table["coefficient"]["C:D"] == pytest.approx(8, abs=0.6)
    assert table["coefficient"]["A:B"] == pytest.approx(0, abs=0.6)


@pytest.mark.parametrize("kind", ["semifold:B", "optimal:4"])
def test_a_step_without_a_fraction_is_judged_by_whole_plots(kind: str) -> None:
    """Settings of A vary and A has no effect; judged by runs alone (planted) it has one."""
    names = list("ABCD")
    study = study_of(names, ["D = A*B*C"], replicates=3, order="split-plot", dear="A")
    plan, _ = augmented(study, kind, "BC")
    assert len({r.whole_plot for r in plan.rows}) >= 9
    part = plan.with_runs([replace(r, whole_plot=0) for r in plan.rows])
    random_numbers = np.random.default_rng(4)
    runs = runs_of(plan, model=lambda c: 100 + 5 * c["B"] - 3 * c["C"])
    false_effects, false_effects_of_runs, true_effects = 0, 0, 0
    studies = 80
    for _ in range(studies):
        of_plot = random_numbers.normal(0, 2, 99)
        noise = [of_plot[r.whole_plot] + 0.5 * random_numbers.normal() for r in plan.rows]
        data = runs.assign(y=runs["y"] + noise)
        table = effects(data, plan, "y").set_index("term")
        false_effects += table["p_value"]["A"] < 0.05
        true_effects += table["p_holm"]["B"] < 0.05
        false_effects_of_runs += effects(data, part, "y").set_index("term")["p_value"]["A"] < 0.05
    assert false_effects_of_runs > 0.3 * studies
    assert false_effects <= stats.binom.ppf(0.999, studies, 0.05)
    assert true_effects > 0.95 * studies
    assert table["stratum"]["A"] == "whole_plot"
    assert 0 < table["df_error"]["A"] < table["df_error"]["B"]


def test_a_strip_plot_without_a_fraction_is_refused() -> None:
    names = list("ABCD")
    study = study_of(names, ["D = A*B*C"], replicates=3, order="strip-plot", dear="AB")
    plan, _ = augmented(study, "semifold:C", "BC")
    assert any(r.strip for r in plan.rows)
    with pytest.raises(PenstockError, match="settings are retained in two directions"):
        effects(runs_of(plan, 1.0, model=lambda c: 100 + c["B"]), plan, "y")


def test_one_more_row_separates_no_rival() -> None:
    """Two terms that differ in one row are separate, but less precise than before."""
    names = list("ABCD")
    matrix = coded_matrix(make_plan(study_of(names, ["D = A*B*C"])))
    open_questions = questions(matrix, [word_of(t, names) for t in ("A", "A:B")])
    step = make_step("optimal:1", matrix, [1] * 8, open_questions, names)
    assert not step.broken


def test_no_plausible_rival_stops() -> None:
    names = list("ABCD")
    matrix = coded_matrix(make_plan(study_of(names, ["D = A*B*C"])))
    open_questions = questions(matrix, [word_of("A:B", names)])  # no factor is active by itself
    assert all(not q.plausible for q in open_questions)


def test_completed_runs_do_not_change() -> None:
    study = study_of(replicates=2)
    before = make_plan(study)
    plan, _ = augmented(study, "foldover")
    assert plan.rows[: len(before.rows)] == before.rows
    assert [r.run_order for r in plan.rows] == list(range(1, 33))
    assert len({r.run_id for r in plan.rows}) == 32
    assert {r.block for r in plan.rows if r.stage == 2} == {3, 4}
    again, _ = augmented(study, "foldover")
    assert again.rows == plan.rows
    assert plan_from_json(plan.to_json()) == plan


def test_replicates_are_a_stage() -> None:
    study = study_of()
    plan, step = augmented(study, "replicates:2")
    assert not step.broken
    assert (len(plan.rows), plan.treatments) == (24, 8)
    assert {r.replicate for r in plan.rows if r.stage == 2} == {2, 3}
    table = effects(runs_of(plan, noise=1.0), plan, "y")
    assert table["df_error"].iloc[0] == 24 - 8 - 2  # two more blocks than one


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("fold", "expected foldover"),
        ("foldover:Z", "'Z'"),
        ("semifold", "found no factor"),
        ("optimal:0", "a number from 1"),
        ("replicates:x", "a number from 1"),
        ("optimal:60", "have not been run"),
    ],
)
def test_unknown_steps_are_refused(kind: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        augmented(study_of(), kind)


def test_a_full_design_has_nothing_to_fold() -> None:
    with pytest.raises(BadInput, match="in the plan already"):
        augmented(study_of(list("ABC"), []), "foldover", "A")


def test_an_invalid_stage_is_refused() -> None:
    study = study_of()
    with pytest.raises(BadInput, match="found a stage"):
        stage_from_json({"purpose": "x"})
    invalid = Stage("augment", "foldover", (dict.fromkeys(NAMES, "none"),), 1, "")
    with pytest.raises(BadInput, match="the level 'none' of A"):
        with_stages(make_plan(study), study, [invalid])


@settings(max_examples=60)
@given(
    y=st.lists(st.floats(-1e3, 1e3), min_size=64, max_size=64),
    signs=st.lists(st.sampled_from(["", "-"]), min_size=3, max_size=3),
)
def test_a_fraction_reports_the_signed_sum_over_the_coset(y: list[float], signs: list[str]) -> None:
    """For any full data, q of the fraction = Σ sign × q of the full design over the coset."""
    generators = [
        parse_generator(g.replace("= ", f"= {s}"), NAMES)
        for g, s in zip(GENERATORS, signs, strict=True)
    ]
    relation = defining_relation(g.relation for g in generators)
    full = two_level(6, [])
    values = dict(zip(map(bytes, full), y, strict=True))
    everything = np.array(y)

    def q(matrix: np.ndarray, responses: np.ndarray, word: int) -> float:
        x = np.prod(matrix[:, [i for i in range(6) if word >> i & 1]], axis=1, dtype=np.int64)
        return float(np.mean(x * responses))

    part = two_level(6, generators)
    part_values = np.array([values[bytes(row)] for row in part])
    for word in range(64):
        coset = sum(s * q(full, everything, word ^ w) for w, s in relation.items())
        assert q(part, part_values, word) == pytest.approx(coset, abs=1e-9)


def test_variance_of_half_a_foldover_by_matrix_inverse() -> None:
    """8 rows where two terms agree and 4 where they do not, in blocks: by the inverse of X'X."""
    names = list("ABCD")
    matrix = coded_matrix(make_plan(study_of(names, ["D = A*B*C"])))
    step = make_step("semifold:A", matrix, [1] * 8, questions(matrix, [1, 3]), names)
    augmented_matrix = np.vstack([matrix, step.rows]).astype(float)
    stages = [1] * 8 + [2] * 4
    labels = np.array([[s == 1, s == 2] for s in stages], dtype=float)
    ab, cd = (
        augmented_matrix[:, 0] * augmented_matrix[:, 1],
        augmented_matrix[:, 2] * augmented_matrix[:, 3],
    )
    x = np.column_stack([labels, augmented_matrix, ab, cd])
    by_hand = np.linalg.inv(x.T @ x)[6, 6]
    computed = variance(
        augmented_matrix.astype(np.int8), stages, word_of("A:B", names), word_of("C:D", names)
    )
    assert computed == pytest.approx(by_hand)


def test_every_pair_of_a_coset_is_listed() -> None:
    """The rivals equal those of brute force over all words of up to three factors."""
    matrix = coded_matrix(make_plan(study_of()))
    rivals = {
        q.term: {*q.plausible, *q.other} for q in questions(matrix, [1 << i for i in range(6)])
    }
    for i in range(6):
        column = matrix[:, i]
        same = {
            sum(1 << j for j in c)
            for n in (1, 2, 3)
            for c in itertools.combinations(range(6), n)
            if abs(int(np.prod(matrix[:, c], axis=1) @ column)) == 8
        }
        assert rivals[1 << i] == same - {1 << i}
