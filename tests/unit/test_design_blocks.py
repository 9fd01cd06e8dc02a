"""Passes cut into blocks: what the difference between blocks holds, and that drift falls on it alone."""

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
    factors: int, size: int, kind: str = "full", replicates: int = 2, more: str = ""
) -> Study:
    names = "ABCDEFGH"[:factors]
    said = "\n".join(f"  {n}: {{levels: [low, high]}}" for n in names)
    text = f"""penstock: 1
name: blocked
question: Which?
factors:
{said}
design: {{kind: {kind}, replicates: {replicates}, block_size: {size}{more}}}
platform: {{nodes: [{{name: n}}]}}
workload: {{command: 'echo {" ".join(f"{{{n}}}" for n in names)}'}}
responses: {{y: {{from: wall_s, unit: s, better: lower}}}}
"""
    return read_study(text.encode(), Path("blocked.study.yaml"))


def lengths(groups: list[list[int]]) -> Counter[int]:
    return Counter(min(w.bit_count() for w in group) for group in groups)


#: of a full design, the words of the published blocks: the group that the independent ones generate
#: (Montgomery, Design and Analysis of Experiments, 7th edition, table 7.9)
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
def test_no_shorter_words_than_the_published_blocks_have(factors: int, size: int) -> None:
    told = PUBLISHED[factors, size]
    words = [sum(1 << "ABCDEFG".index(c) for c in word) for word in told]
    published = Counter(w.bit_count() for w in defining_relation((w, 1) for w in words) if w)
    ((*groups,),) = confounded(factors, [0], (1 << factors) // size, 1)
    found = lengths(groups)
    every = range(1, factors + 1)
    assert sum(found.values()) == (1 << factors) // size - 1
    assert [found[n] for n in every] <= [published[n] for n in every]


@pytest.mark.parametrize(
    ("factors", "added"), [(5, 2), (6, 2), (6, 3), (7, 3), (7, 4), (8, 3), (8, 4)]
)
def test_of_full_designs_they_are_the_words_of_the_best_fraction(factors: int, added: int) -> None:
    relation = defining_relation(g.relation for g in choose_generators(factors, added))
    ((*groups,),) = confounded(factors, [0], 1 << added, 1)
    assert lengths(groups) == Counter(w.bit_count() for w in relation if w)


@pytest.mark.parametrize(
    ("factors", "size", "kind", "replicates"),
    [(3, 4, "full", 3), (5, 8, "full", 2), (6, 8, "{fraction: 1}", 2), (6, 4, "{fraction: 2}", 3)],
)
def test_a_pass_is_whole_and_its_blocks_are_balanced(
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
        mine = [r for r in plan.rows if r.block == number]
        assert len({r.replicate for r in mine}) == 1
        for factor in "ABCDEF"[:factors]:
            assert sum(r.coded[factor] for r in mine) == 0
        for term in plan.between_blocks[mine[0].replicate - 1]:
            assert len({int(np.prod([r.coded[n] for n in term.split(":")])) for r in mine}) == 1
    again = plan_from_json(plan.to_json())
    assert (again.between_blocks, again.rows) == (plan.between_blocks, plan.rows)


def test_passes_confound_different_words_where_some_are_as_good() -> None:
    first, second = make_plan(study_of(4, 4)).between_blocks
    assert set(first).isdisjoint(second)
    # of three factors in two blocks no other word is as long
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
    """Runs without noise: A, B and A:B matter, and every block is further up."""
    return runs_of(plan, lambda r: _value(r) + shift * r.block**2)


def _value(run: PlannedRun) -> float:
    a, b = run.coded["A"], run.coded["B"]
    return 100 + 5 * a - 3 * b + 2 * a * b


def test_what_changes_from_block_to_block_is_in_no_effect() -> None:
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
    # 24 runs less 7 coefficients told and 5 of blocks
    assert table.loc["residual", "df"] == 12 == plan.power["degrees_of_freedom"]
    told = table["variation_share"].dropna()
    assert told.sum() == pytest.approx(100)
    # planted: the same drift in whole passes falls on effects
    whole = make_plan(study_of(3, 8, replicates=3))
    assert whole.order == INTERLEAVED
    moved = runs_of(whole, lambda r: _value(r) + 7.0 * ((r.run_order - 1) // 4 + 1) ** 2)
    assert abs(effects(moved, whole, "y").set_index("term").loc["A", "coefficient"] - 5) > 1


def test_what_one_pass_gives_to_blocks_another_tells() -> None:
    plan = make_plan(study_of(4, 4, replicates=2))
    table = effects(drifted(plan, 7.0), plan, "y").set_index("term")
    terms = table.drop(index=["block", "residual"])
    assert len(terms) == 15
    assert terms["coefficient"].notna().all()
    assert terms.loc["A:B", "coefficient"] == pytest.approx(2)
    assert table.loc["residual", "df"] == plan.power["degrees_of_freedom"] == 32 - 1 - 7 - 15
    said = " ".join(plan.cautions)
    for number, groups in enumerate(plan.between_blocks, start=1):
        for term in groups:
            name = term.replace(":", " × ")
            assert f"{name} is confounded with blocks in pass {number}" in said


def test_without_replicates_the_others_are_judged_against_each_other() -> None:
    plan = make_plan(study_of(5, 8, replicates=1))
    draws = np.random.default_rng(3)
    table = effects(runs_of(plan, lambda r: _value(r) + draws.normal(0, 0.3)), plan, "y")
    table = table.set_index("term")
    assert set(table.index[table["method"] == CONFOUNDED_WITH_BLOCKS]) == set(
        plan.between_blocks[0]
    )
    assert set(table.index[table["p_holm"] < 0.05]) == {"A", "B", "A:B"}
    assert table.loc["A", "method"] == "lenth"


def test_a_fraction_gives_blocks_a_set_of_aliases() -> None:
    plan = make_plan(study_of(6, 8, "{fraction: 2}", 2))
    signs = coded_matrix(plan)
    names = list("ABCDEF")
    for groups in plan.between_blocks:
        (term,) = groups
        assert set(np.abs(column(signs, word_of(term, names)))) == {1}
        assert abs(int(column(signs, word_of(term, names)).sum())) == 0
    table = effects(drifted(plan, 3.0), plan, "y").set_index("term")
    assert table.loc["A", "coefficient"] == pytest.approx(5)
    # planted: of one pass alone the term is lost, and is found though the table may call it otherwise
    once = make_plan(study_of(6, 8, "{fraction: 2}", 1))
    table = effects(drifted(once, 3.0), once, "y")
    lost = table[table["method"] == CONFOUNDED_WITH_BLOCKS]
    assert len(lost) == 1


def test_the_plan_says_it() -> None:
    study = study_of(3, 4)
    text = " ".join(plan_text(make_plan(study), study).split())
    assert "pass 1: block = A × B × C" in text
    assert "confounded with the difference between blocks" in text


@pytest.mark.parametrize(
    ("study", "words"),
    [
        (study_of(3, 3), "block_size 3; expected a power of two"),
        (study_of(3, 4, more=", order: random"), "expected order interleaved or auto"),
        (study_of(6, 4, "{plackett-burman: {}}"), "expected factors of two levels"),
    ],
)
def test_what_cannot_be_cut_is_told(study: Study, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        make_plan(study)


def test_more_passes_are_blocks_of_their_own() -> None:
    study = study_of(3, 4)
    plan = make_plan(study)
    levels = tuple({r.treatment_id: r.levels for r in plan.rows}.values())
    whole = with_stages(plan, study, [Stage("replicates", "replicates:1", levels, 1, "more")])
    added = [r for r in whole.rows if r.stage == 2]
    assert {r.block for r in added} == {5}
    orders = [r.standard_order for r in added]
    assert sorted(orders) == list(range(1, 9))
    assert orders != sorted(orders)
    assert any("block = A × B × C" in said for said in whole.cautions)
    # the pass that was added is one block, and tells what the others do not
    table = effects(drifted(whole, 7.0), whole, "y").set_index("term")
    assert table.loc["A", "coefficient"] == pytest.approx(5)
    assert table.loc["A:B:C", "coefficient"] == pytest.approx(0, abs=1e-9)


def test_identical_treatments_in_blocks_are_called_alike() -> None:
    study = study_of(3, 4, replicates=3)
    found = identical(study, make_plan(study), 80, seed=11)
    for one in found.rates:
        if one.name in (ANSWER, HOLM):
            assert one.said <= binom.ppf(0.999, 80, 0.05), one


def test_a_stage_leaves_what_blocks_hold_named() -> None:
    study = study_of(5, 8, "{fraction: 1}", 2)
    plan = make_plan(study)
    other = {"low": "high", "high": "low"}
    levels = [
        {n: other[v] if n == "E" else v for n, v in one.items()}
        for one in {r.treatment_id: r.levels for r in plan.rows}.values()
    ]
    whole = with_stages(plan, study, [Stage("augment", "foldover:E", tuple(levels), 2, "to tell")])
    table = effects(runs_of(whole, _value), whole, "y").set_index("term")
    for term, q in {"A": 5, "B": -3, "A:B": 2, "C": 0, "E": 0}.items():
        assert table.loc[term, "coefficient"] == pytest.approx(q, abs=1e-9)
    assert not table["method"].eq(NOT_ESTIMABLE).any()
