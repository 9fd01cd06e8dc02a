"""Replicates divided into blocks: drift between blocks affects only the confounded terms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom

from penstock.analyse.sequential.identical import ANSWER, HOLM, identical
from penstock.analyse.statistics.effect_table import CONFOUNDED_WITH_BLOCKS
from penstock.analyse.statistics.effects import effects
from penstock.analyse.statistics.fit import NOT_ESTIMABLE
from penstock.design.additions.stages import Stage, with_stages
from penstock.design.blocks import confounded
from penstock.design.generators import choose_generators, defining_relation, word_of
from penstock.design.matrix import column
from penstock.design.order import BLOCKS, INTERLEAVED
from penstock.design.plan import make_plan
from penstock.design.planned import Plan, PlannedRun, coded_matrix, plan_from_json
from penstock.design.show import plan_text
from penstock.errors import BadInput
from penstock.spec.study import Study
from penstock.study.load import read_study


def study_of(
    factors: int, size: int, kind: str = "full", replicates: int = 2, options: str = ""
) -> Study:
    names = "ABCDEFGH"[:factors]
    factor_lines = "\n".join(f"  {n}: {{levels: [low, high]}}" for n in names)
    text = f"""penstock: 1
name: blocked
question: Which?
factors:
{factor_lines}
design: {{kind: {kind}, replicates: {replicates}, block_size: {size}{options}}}
platform: {{nodes: [{{name: n}}]}}
workload: {{command: 'echo {" ".join(f"{{{n}}}" for n in names)}'}}
responses: {{y: {{from: wall_s, unit: s, better: lower}}}}
"""
    return read_study(text.encode(), Path("blocked.study.yaml"))


def lengths(groups: list[list[int]]) -> Counter[int]:
    return Counter(min(w.bit_count() for w in group) for group in groups)


#: words of the published blocks of full designs, generators of the group (Montgomery, Design and
#: Analysis of Experiments, 7th edition, table 7.9)
PUBLISHED = {
    (3, 4): ["ABC"],
    (4, 8): ["ABCD"],
    (4, 4): ["ABC", "ACD"],
    (5, 16): ["ABCDE"],
    (5, 8): ["ABC", "CDE"],
    (5, 4): ["ABE", "BCE", "CDE"],
    (6, 32): ["ABCDEF"],
    (6, 16): ["ABCF", "CDEF"],
    (6, 8): ["ABEF", "ABCD", "ACE"],
    (6, 4): ["ABF", "ACF", "BDF", "DEF"],
    (7, 32): ["ABCFG", "CDEFG"],
    (7, 16): ["ABC", "DEF", "AFG"],
    (7, 8): ["ABCD", "EFG", "CDE", "ADG"],
}


@pytest.mark.parametrize(("factors", "size"), PUBLISHED)
def test_confounded_words_are_as_long_as_published(factors: int, size: int) -> None:
    generators = PUBLISHED[factors, size]
    masks = [sum(1 << "ABCDEFG".index(c) for c in word) for word in generators]
    published = Counter(w.bit_count() for w in defining_relation((m, 1) for m in masks) if w)
    ((*groups,),) = confounded(factors, [0], (1 << factors) // size, 1)
    counts = lengths(groups)
    every = range(1, factors + 1)
    assert sum(counts.values()) == (1 << factors) // size - 1
    assert [counts[n] for n in every] <= [published[n] for n in every]


@pytest.mark.parametrize(
    ("factors", "added"), [(5, 2), (6, 2), (6, 3), (7, 3), (7, 4), (8, 3), (8, 4)]
)
def test_words_of_full_designs_are_those_of_the_best_fraction(factors: int, added: int) -> None:
    relation = defining_relation(g.relation for g in choose_generators(factors, added))
    ((*groups,),) = confounded(factors, [0], 1 << added, 1)
    assert lengths(groups) == Counter(w.bit_count() for w in relation if w)


@pytest.mark.parametrize(
    ("factors", "size", "kind", "replicates"),
    [(3, 4, "full", 3), (5, 8, "full", 2), (6, 8, "{fraction: 1}", 2), (6, 4, "{fraction: 2}", 3)],
)
def test_a_replicate_is_complete_and_its_blocks_are_balanced(
    factors: int, size: int, kind: str, replicates: int
) -> None:
    plan = make_plan(study_of(factors, size, kind, replicates))
    assert plan.order == BLOCKS
    by_pass = Counter((r.replicate, r.treatment_id) for r in plan.rows)
    assert len(by_pass) == len(plan.rows) == plan.treatments * replicates
    blocks = [r.block for r in plan.rows]
    assert blocks == sorted(blocks)
    assert set(Counter(blocks).values()) == {size}
    for number in set(blocks):
        in_block = [r for r in plan.rows if r.block == number]
        assert len({r.replicate for r in in_block}) == 1
        for factor in "ABCDEF"[:factors]:
            assert sum(r.coded[factor] for r in in_block) == 0
        for term in plan.between_blocks[in_block[0].replicate - 1]:
            assert len({int(np.prod([r.coded[n] for n in term.split(":")])) for r in in_block}) == 1
    restored = plan_from_json(plan.to_json())
    assert (restored.between_blocks, restored.rows) == (plan.between_blocks, plan.rows)


def test_replicates_confound_different_words_where_possible() -> None:
    first, second = make_plan(study_of(4, 4)).between_blocks
    assert set(first).isdisjoint(second)
    # with three factors in two blocks no other word is as long
    assert make_plan(study_of(3, 4)).between_blocks == [["A:B:C"], ["A:B:C"]]


def runs_of(plan: Plan, value: Callable[[PlannedRun], float]) -> pd.DataFrame:
    keys = ("run_id", "run_order", "replicate", "treatment_id")
    return pd.DataFrame(
        [
            {k: getattr(r, k) for k in keys} | r.levels | {"y": value(r), "valid": True}
            for r in plan.rows
        ]
    )


def drifted(plan: Plan, shift: float) -> pd.DataFrame:
    """Runs without noise: A, B and A:B have effects, and each block has a higher level."""
    return runs_of(plan, lambda r: _value(r) + shift * r.block**2)


def _value(run: PlannedRun) -> float:
    a, b = run.coded["A"], run.coded["B"]
    return 100 + 5 * a - 3 * b + 2 * a * b


def test_drift_between_blocks_is_in_no_effect() -> None:
    plan = make_plan(study_of(3, 4, replicates=3))
    table = effects(drifted(plan, 7.0), plan, "y").set_index("term")
    for term, q in {"A": 5, "B": -3, "A:B": 2, "C": 0, "A:C": 0, "B:C": 0}.items():
        assert table.loc[term, "coefficient"] == pytest.approx(q, abs=1e-9)
    lost = table.loc["A:B:C"]
    assert (lost["method"], lost["aliases"]) == (
        CONFOUNDED_WITH_BLOCKS,
        "the difference between blocks",
    )
    assert np.isnan(lost["coefficient"])
    assert table.loc["block", "df"] == 5
    # 24 runs less 7 estimated coefficients and 5 of blocks
    assert table.loc["residual", "df"] == 12 == plan.power["degrees_of_freedom"]
    shares = table["variation_share"].dropna()
    assert shares.sum() == pytest.approx(100)
    # planted: the same drift within complete replicates affects effects
    unblocked = make_plan(study_of(3, 8, replicates=3))
    assert unblocked.order == INTERLEAVED
    moved = runs_of(unblocked, lambda r: _value(r) + 7.0 * ((r.run_order - 1) // 4 + 1) ** 2)
    assert abs(effects(moved, unblocked, "y").set_index("term").loc["A", "coefficient"] - 5) > 1


def test_a_term_confounded_in_one_replicate_is_estimated_in_another() -> None:
    plan = make_plan(study_of(4, 4, replicates=2))
    table = effects(drifted(plan, 7.0), plan, "y").set_index("term")
    terms = table.drop(index=["block", "residual"])
    assert len(terms) == 15
    assert terms["coefficient"].notna().all()
    assert terms.loc["A:B", "coefficient"] == pytest.approx(2)
    assert table.loc["residual", "df"] == plan.power["degrees_of_freedom"] == 32 - 1 - 7 - 15
    cautions = " ".join(plan.cautions)
    for number, groups in enumerate(plan.between_blocks, start=1):
        for term in groups:
            name = term.replace(":", " × ")
            assert f"{name} is confounded with blocks in pass {number}" in cautions


def test_without_replicates_lenths_method_applies() -> None:
    plan = make_plan(study_of(5, 8, replicates=1))
    draws = np.random.default_rng(3)
    table = effects(runs_of(plan, lambda r: _value(r) + draws.normal(0, 0.3)), plan, "y")
    table = table.set_index("term")
    assert set(table.index[table["method"] == CONFOUNDED_WITH_BLOCKS]) == set(
        plan.between_blocks[0]
    )
    assert set(table.index[table["p_holm"] < 0.05]) == {"A", "B", "A:B"}
    assert table.loc["A", "method"] == "lenth"


def test_blocks_of_a_fraction_confound_a_set_of_aliases() -> None:
    plan = make_plan(study_of(6, 8, "{fraction: 2}", 2))
    signs = coded_matrix(plan)
    names = list("ABCDEF")
    for groups in plan.between_blocks:
        (term,) = groups
        assert set(np.abs(column(signs, word_of(term, names)))) == {1}
        assert abs(int(column(signs, word_of(term, names)).sum())) == 0
    table = effects(drifted(plan, 3.0), plan, "y").set_index("term")
    assert table.loc["A", "coefficient"] == pytest.approx(5)
    # planted: with one replicate the term is lost, whatever alias the table names
    once = make_plan(study_of(6, 8, "{fraction: 2}", 1))
    table = effects(drifted(once, 3.0), once, "y")
    lost = table[table["method"] == CONFOUNDED_WITH_BLOCKS]
    assert len(lost) == 1


def test_the_plan_describes_its_blocks() -> None:
    study = study_of(3, 4)
    text = " ".join(plan_text(make_plan(study), study).split())
    assert "pass 1: block = A × B × C" in text
    assert "confounded with the difference between blocks" in text


@pytest.mark.parametrize(
    ("study", "message"),
    [
        (study_of(3, 3), "block_size 3; expected a power of two"),
        (study_of(3, 4, options=", order: random"), "expected order interleaved or auto"),
        (study_of(6, 4, "{plackett-burman: {}}"), "expected factors of two levels"),
    ],
)
def test_invalid_block_sizes_are_refused(study: Study, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        make_plan(study)


def test_added_replicates_are_their_own_blocks() -> None:
    study = study_of(3, 4)
    plan = make_plan(study)
    levels = tuple({r.treatment_id: r.levels for r in plan.rows}.values())
    extended = with_stages(plan, study, [Stage("replicates", "replicates:1", levels, 1, "more")])
    added = [r for r in extended.rows if r.stage == 2]
    assert {r.block for r in added} == {5}
    orders = [r.standard_order for r in added]
    assert sorted(orders) == list(range(1, 9))
    assert orders != sorted(orders)
    assert any("block = A × B × C" in caution for caution in extended.cautions)
    # the added replicate is one block and estimates the term that is lost in the others
    table = effects(drifted(extended, 7.0), extended, "y").set_index("term")
    assert table.loc["A", "coefficient"] == pytest.approx(5)
    assert table.loc["A:B:C", "coefficient"] == pytest.approx(0, abs=1e-9)


def test_identical_treatments_in_blocks_have_few_false_alarms() -> None:
    study = study_of(3, 4, replicates=3)
    result = identical(study, make_plan(study), 80, seed=11)
    bounded = [rate for rate in result.rates if rate.name in (ANSWER, HOLM)]
    assert {rate.name for rate in bounded} == {ANSWER, HOLM}
    for rate in bounded:
        assert rate.said <= binom.ppf(0.999, 80, 0.05), rate


def test_a_stage_keeps_all_terms_estimable() -> None:
    study = study_of(5, 8, "{fraction: 1}", 2)
    plan = make_plan(study)
    opposite = {"low": "high", "high": "low"}
    levels = [
        {n: opposite[v] if n == "E" else v for n, v in treatment.items()}
        for treatment in {r.treatment_id: r.levels for r in plan.rows}.values()
    ]
    extended = with_stages(
        plan, study, [Stage("augment", "foldover:E", tuple(levels), 2, "to tell")]
    )
    table = effects(runs_of(extended, _value), extended, "y").set_index("term")
    for term, q in {"A": 5, "B": -3, "A:B": 2, "C": 0, "E": 0}.items():
        assert table.loc[term, "coefficient"] == pytest.approx(q, abs=1e-9)
    assert not table["method"].eq(NOT_ESTIMABLE).any()
