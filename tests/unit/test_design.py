"""Designs compared with mathematics: published tables, resolutions, aliases, power."""

from __future__ import annotations

import itertools
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.design.generators import (
    Generator,
    NoFraction,
    choose_generators,
    defining_relation,
    largest_fraction,
    parse_generator,
    resolution,
    word_lengths,
    words_up_to,
)
from penstock.design.matrix import (
    alias_words,
    check_columns,
    column,
    constant_words,
    two_level,
    verify,
)
from penstock.design.order import run_order
from penstock.design.plan import make_plan
from penstock.design.planned import plan_from_json
from penstock.design.power import cautious_sigma, detectable, power
from penstock.design.show import plan_text
from penstock.errors import PenstockError
from penstock.study.load import read_study

LETTERS = "ABCDEF"
TABLE_6_2 = "---+++- --++--+ -+--+-+ -++--+- +----++ +-+-+-- ++-+--- +++++++".split()


def study(names: list[str], kind: str = "full", extra: str = "", levels: str = "[1, 2]"):
    factors = "\n".join(f'  "{n}": {{levels: {levels}}}' for n in names)
    placeholders = " ".join(f"{{{n}}}" for n in names)
    text = f"""penstock: 1
name: plain
question: Which?
factors:
{factors}
design:
  kind: {kind}
{extra}
platform: {{nodes: [{{name: n}}]}}
workload: {{command: 'echo {placeholders}', expected: 2s}}
responses: {{wall: {{from: wall_s, unit: s, better: lower}}}}
"""
    return read_study(text.encode(), Path("plain.study.yaml"))


def signs(matrix: np.ndarray) -> list[str]:
    return ["".join("+" if v > 0 else "-" for v in row) for row in matrix]


def generators(text: str, names: str = LETTERS) -> list[Generator]:
    return [parse_generator(t, list(names)) for t in text.split(",")]


def test_full_design_is_table_6_1():
    matrix = two_level(3, [])
    masks = [0, 1, 2, 4, 3, 5, 6, 7]
    table = np.column_stack([column(matrix, m) for m in masks])
    expected = "+---+++- +--++--+ +-+--+-+ +-++--+- ++----++ ++-+-+-- +++-+--- ++++++++".split()
    assert signs(table) == expected


@pytest.mark.parametrize(
    "chosen",
    [generators("D = A*B, E = A*C, F = B*C"), choose_generators(6, 3)],
    ids=["given", "chosen"],
)
def test_fraction_is_table_6_2(chosen):
    matrix = two_level(6, chosen)
    assert signs(np.column_stack([matrix, column(matrix, 0b111)])) == TABLE_6_2


@pytest.mark.parametrize("table", [6, 3])
@pytest.mark.parametrize("row", range(8))
def test_one_flipped_sign_is_refused_by_name(table: int, row: int):
    matrix = two_level(table, choose_generators(6, 3) if table == 6 else [])
    for place in range(table):
        broken = matrix.copy()
        broken[row, place] *= -1
        with pytest.raises(PenstockError, match=f"column {LETTERS[place]} "):
            check_columns(broken, list(LETTERS[:table]))


def test_two_flipped_signs_are_refused_too():
    matrix = two_level(3, [])
    matrix[0, 0] *= -1
    matrix[7, 0] *= -1
    with pytest.raises(PenstockError, match="columns A and"):
        check_columns(matrix, ["A", "B", "C"])


def test_verify_refuses_a_lower_resolution_than_requested():
    matrix = two_level(4, generators("D = A*B", "ABCD"))
    with pytest.raises(PenstockError, match="resolution 3, 4 was requested"):
        verify(matrix, 8, 4)


def test_interactions_are_counted():
    count = [sum(w.bit_count() == n for w in words_up_to(6, 6)) for n in range(2, 7)]
    assert count == [15, 20, 15, 6, 1]
    assert len(words_up_to(6, 6)) == 63
    assert [math.comb(4, n) for n in (2, 3, 4)] == [
        sum(w.bit_count() == n for w in words_up_to(4, 4)) for n in (2, 3, 4)
    ]


@pytest.mark.parametrize(
    ("factors", "added", "grade", "pattern"),
    [
        (4, 1, 4, {4: 1}),
        (5, 1, 5, {5: 1}),
        (5, 2, 3, {3: 2, 4: 1}),
        (6, 1, 6, {6: 1}),
        (6, 2, 4, {4: 3}),
        (6, 3, 3, {3: 4, 4: 3}),
        (7, 3, 4, {4: 7}),
        (7, 4, 3, {3: 7, 4: 7, 7: 1}),
        (8, 4, 4, {4: 14, 8: 1}),
        (8, 2, 5, {5: 2, 6: 1}),
        (9, 2, 6, {6: 3}),
        (15, 11, 3, None),
    ],
)
def test_choice_of_generators(factors: int, added: int, grade: int, pattern: dict[int, int] | None):
    chosen = choose_generators(factors, added)
    relation = defining_relation(g.relation for g in chosen)
    matrix = two_level(factors, chosen)
    assert verify(matrix, 2 ** (factors - added), grade).resolution == grade
    if pattern is not None:
        lengths = enumerate(word_lengths(relation, factors), 3)
        assert {n: count for n, count in lengths if count} == pattern


@pytest.mark.parametrize(
    ("factors", "grade", "runs"), [(4, 4, 8), (7, 3, 8), (15, 3, 16), (9, 5, 128), (11, 5, 128)]
)
def test_smallest_design(factors: int, grade: int, runs: int):
    def reaches(added: int) -> bool:
        try:
            chosen = choose_generators(factors, added)
        except NoFraction:
            return False
        return (resolution(defining_relation(g.relation for g in chosen)) or 99) >= grade

    best = max(added for added in range(factors) if reaches(added))
    assert 2 ** (factors - best) == runs
    chosen = choose_generators(factors, best)
    best_resolution = resolution(defining_relation(g.relation for g in chosen))
    verify(two_level(factors, chosen), runs, best_resolution)


def test_a_fraction_with_too_few_runs_is_refused():
    with pytest.raises(NoFraction):
        choose_generators(4, 2)


def test_pydoe_gives_the_same_half_fraction():
    from pydoe import fracfact

    of_pydoe = {tuple(row) for row in fracfact("a b c abc").astype(int).tolist()}
    of_penstock = {tuple(row) for row in two_level(4, choose_generators(4, 1)).tolist()}
    assert of_pydoe == of_penstock


# ---------------------------------------------------------------- aliases


def test_aliases_of_table_6_2():
    names = ["Version", "Storage", "Synchronicity", "IO size", "File size", "Latency"]
    declared = (
        '["IO size = Version*Storage", "File size = Version*Synchronicity", '
        '"Latency = Storage*Synchronicity"]'
    )
    plan = make_plan(study(names, "{fraction: 3}", f"  generators: {declared}\n  replicates: 5"))
    assert plan.resolution == 3
    assert len(plan.rows) == 40
    assert plan.word_lengths == {3: 4, 4: 3}
    letters = dict(zip(names, LETTERS, strict=True))

    def short(term: str) -> str:
        return "".join(letters[n] for n in term.lstrip("+-").split(":"))

    table = {a.term: {short(t) for t in a.with_terms} for a in plan.aliases}
    pairs = {k: {t for t in v if len(t) == 2} for k, v in table.items()}
    assert pairs["Version"] == {"BD", "CE"}
    assert pairs["Storage"] == {"AD", "CF"}
    assert pairs["Synchronicity"] == {"AE", "BF"}
    assert pairs["IO size"] == {"AB", "EF"}
    assert pairs["File size"] == {"AC", "DF"}
    assert pairs["Latency"] == {"BC", "DE"}
    assert table["mean"] == {"ABD", "ACE", "BCF", "DEF"}
    (free,) = [a for a in plan.aliases if a.term.count(":") == 1]
    assert {short(free.term), *(short(t) for t in free.with_terms)} >= {"AF", "BE", "CD", "ABC"}
    storage = next(a for a in plan.aliases if a.term == "Storage")
    assert "+ Synchronicity × Latency" in storage.words
    cautions = " ".join(plan.cautions)
    assert "Resolution III" in cautions
    assert "Storage with Synchronicity × Latency" in cautions
    assert "Synchronicity with Storage × Latency" in cautions
    assert "Storage × Synchronicity × Latency" in cautions
    # t intervals with 28 and 252 degrees of freedom with replicates as blocks; 32 and 256 without
    assert "2.942 times as wide as the full design's" in cautions
    assert "2.926 times without blocks" in cautions


def test_signs_of_generators_reach_the_aliases():
    plan = make_plan(study(list("ABC"), "{fraction: 1}", '  generators: ["C = -A*B"]'))
    assert plan.defining_relation == ["I", "-A*B*C"]
    (a,) = [a for a in plan.aliases if a.term == "A"]
    assert a.with_terms == ["-B:C"]


@st.composite
def fractions(draw: st.DrawFn) -> tuple[int, list[Generator]]:
    basic = draw(st.integers(2, 5))
    masks = [w for w in words_up_to(basic, basic) if w.bit_count() >= 2]
    chosen = draw(st.lists(st.sampled_from(masks), min_size=1, max_size=4, unique=True))
    chosen_generators = [
        Generator(basic + i, w, draw(st.sampled_from([-1, 1]))) for i, w in enumerate(chosen)
    ]
    return basic + len(chosen_generators), chosen_generators


@settings(max_examples=60)
@given(fractions())
def test_relation_by_algebra_equals_that_of_the_matrix(case: tuple[int, list[Generator]]):
    factors, chosen = case
    matrix = two_level(factors, chosen)
    relation = defining_relation(g.relation for g in chosen)
    assert constant_words(matrix) == relation
    by_enumeration = {
        w: int(np.prod(matrix[0, [i for i in range(factors) if w >> i & 1]], initial=1))
        for w in range(1 << factors)
        if len(np.unique(np.prod(matrix[:, [i for i in range(factors) if w >> i & 1]], axis=1)))
        == 1
    }
    assert by_enumeration == relation
    for group in alias_words(matrix, 3):
        first = group[0][0]
        for word, sign in group:
            assert relation[first ^ word] == sign


@settings(max_examples=25)
@given(st.integers(3, 6).flatmap(lambda k: st.tuples(st.just(k), st.integers(1, k - 2))))
def test_no_choice_of_generators_is_better(case: tuple[int, int]):
    factors, added = case
    basic = factors - added
    masks = [w for w in words_up_to(basic, basic) if w.bit_count() >= 2]
    if len(masks) < added:
        return

    def pattern(chosen: tuple[int, ...]) -> list[int]:
        pairs = [(w | 1 << basic + i, 1) for i, w in enumerate(chosen)]
        return word_lengths(defining_relation(pairs), factors)

    best = min(pattern(c) for c in itertools.combinations(masks, added))
    relation = defining_relation(g.relation for g in choose_generators(factors, added))
    assert word_lengths(relation, factors) == best


# ---------------------------------------------------------------- order, power, plan


@settings(max_examples=40)
@given(st.integers(2, 40), st.integers(1, 5), st.integers(0, 2**63 - 1))
def test_every_round_is_a_complete_pass(treatments: int, replicates: int, seed: int):
    order = run_order(treatments, replicates, seed, "interleaved")
    assert order == run_order(treatments, replicates, seed, "interleaved")
    assert order == run_order(treatments, replicates + 1, seed, "interleaved")[: len(order)]
    for r in range(replicates):
        part = order[r * treatments : (r + 1) * treatments]
        assert {x for x, _ in part} == {r + 1}
        assert sorted(t for _, t in part) == list(range(treatments))


def test_each_round_has_its_own_order():
    order = run_order(16, 3, 5, "interleaved")
    rounds = [[t for _, t in order[i * 16 : i * 16 + 16]] for i in range(3)]
    assert len({tuple(r) for r in rounds}) == 3
    assert rounds[0] != sorted(rounds[0])


def test_power():
    assert power(1, 8, 4) == pytest.approx(0.7745, abs=5e-5)
    assert power(1, 8, 5) == pytest.approx(0.8657, abs=5e-5)
    assert [round(detectable(0.8, n, 5), 3) for n in (8, 16, 64)] == [0.914, 0.636, 0.314]
    assert cautious_sigma(2.0, 5) == pytest.approx(3.115, abs=5e-4)


def test_power_by_simulation():
    random = np.random.default_rng(3)
    n, r, delta = 4, 3, 2.0
    x = np.tile(two_level(2, []).astype(float), (r, 1))
    y = delta / 2 * x[:, 0] + random.normal(size=(20_000, n * r))
    cells = y.reshape(-1, r, n)
    s2 = cells.var(axis=1, ddof=1).mean(axis=1)
    t = (y @ x[:, 0] / (n * r)) / np.sqrt(s2 / (n * r))
    from scipy import stats

    simulated = np.mean(np.abs(t) > stats.t.ppf(0.975, n * (r - 1)))
    assert simulated == pytest.approx(power(delta, n, r), abs=0.015)


def test_plan_of_a_full_design():
    plan = make_plan(study(list("ABCD"), extra="  replicates: 2\n  seed: 3"))
    assert [r.run_id for r in plan.rows[:2]] == ["r001", "r002"]
    assert len({r.treatment_id for r in plan.rows}) == 16
    assert [r.block for r in plan.rows] == [1] * 16 + [2] * 16
    assert plan.resolution is None
    assert plan.aliases == []
    first = next(r for r in plan.rows if r.standard_order == 2)
    assert first.coded == {"A": -1, "B": -1, "C": -1, "D": 1}
    assert first.levels == {"A": "1", "B": "1", "C": "1", "D": "2"}
    assert plan_from_json(json.loads(json.dumps(plan.to_json()))) == plan
    assert plan.estimated_s == pytest.approx(32 * 3)


def test_mixed_levels():
    plan = make_plan(study(["A", "B"], levels="[1, 2, 3]", extra="  replicates: 1"))
    assert len(plan.rows) == 9
    assert {(r.levels["A"], r.levels["B"]) for r in plan.rows} == set(
        itertools.product("123", "123")
    )


def test_quick_fraction_keeps_resolution_iv():
    assert [largest_fraction(k, 4) for k in range(1, 9)] == [0, 0, 0, 1, 1, 2, 3, 4]


def test_text_fits_the_terminal():
    names = [f"a-long-name-of-a-factor-{i}" for i in range(6)]
    loaded = study(names, "{fraction: 2}")
    text = plan_text(make_plan(loaded), loaded)
    assert max(map(len, text.splitlines())) <= 100
    assert "resolution IV" in text


def test_an_estimate_by_the_timeout_is_an_upper_bound():
    loaded = study(["a", "b"])
    text = plan_text(make_plan(loaded), loaded)
    assert re.search(r"estimated time: \d+ s \(", text)
    workload = loaded.workload.model_copy(update={"expected_s": None})
    loaded = loaded.model_copy(update={"workload": workload})
    assert "estimated time: at most " in plan_text(make_plan(loaded), loaded)


def test_aliases_are_in_one_notation_and_stated_once():
    loaded = study(list("ABCDEFG"), "{fraction: 3}")
    text = plan_text(make_plan(loaded), loaded)
    assert "\n  A × B + C × E + D × F + 5 of higher order\n" in text
    assert "defining relation: I = A × B × C × E = " in text
    assert text.count("C × E + D × F") == 1
    assert not re.search(r"\b[A-G]( x |:|\*)[A-G]\b", text)
