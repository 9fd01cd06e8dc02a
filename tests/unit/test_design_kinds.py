"""Every kind of design against its own claims, and against published tables."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock.design import model as models
from penstock.design.aberration import MINIMUM_ABERRATION
from penstock.design.claims import check, correlation, mixed
from penstock.design.contrasts import curve, effect_coding, polynomial
from penstock.design.generators import choose_generators, defining_relation, word_lengths
from penstock.design.kinds import optimal, plackett_burman
from penstock.design.kinds.base import Asked, Claim
from penstock.design.matrix import constant_words, two_level, verify
from penstock.errors import BadInput, PenstockError
from penstock.plugins import DESIGNS
from penstock.spec.study import Factor, Level
from penstock.study.load import read_study

PUBLISHED = json.loads(
    (Path(__file__).parents[1] / "golden" / "designs" / "word-lengths.json").read_text()
)["patterns"]


def factor(name: str, *values: str | float) -> Factor:
    return Factor(name=name, levels=tuple(Level(name=str(v), value=v) for v in values))


def request_of(levels: list[int], options: dict | None = None, **others) -> Asked:
    factors = tuple(factor(f"f{j}", *range(1, n + 1)) for j, n in enumerate(levels))
    return Asked(factors, options or {}, **others)


# ---------------------------------------------------------------- two-level fractions


@pytest.mark.parametrize("case", sorted(MINIMUM_ABERRATION), ids=str)
def test_fractions_have_minimum_aberration(case: tuple[int, int]):
    factors, added = case
    chosen = choose_generators(factors, added)
    matrix = two_level(factors, chosen)
    relation = constant_words(matrix)  # brute force over all words
    assert relation == defining_relation(g.relation for g in chosen)
    pattern = word_lengths(relation, factors)
    if added == 1:
        assert pattern == [0] * (factors - 3) + [1]
    elif case == (15, 2):  # three words with 30 letters together: 10 each
        assert pattern == [0] * 7 + [3] + [0] * 5
    else:
        assert pattern == PUBLISHED[f"{factors},{added}"]
    grade = next(n for n, count in enumerate(pattern, 3) if count)
    assert verify(matrix, 1 << (factors - added), grade).resolution == grade


def test_the_table_has_every_fraction_of_at_most_15_factors():
    expected = {(k, p) for k in range(3, 16) for p in range(1, k - 1) if (1 << (k - p)) - 1 >= k}
    assert set(MINIMUM_ABERRATION) == expected
    worse = defining_relation([(0b010011, 1), (0b101100, 1)])  # I = ABE = CDF
    assert word_lengths(worse, 6) != PUBLISHED["6,2"]


# ---------------------------------------------------------------- kinds and their claims


@settings(max_examples=40)
@given(
    st.sampled_from(
        ["full", "plackett-burman", "orthogonal-array", "definitive-screening", "central-composite"]
    ),
    # most kinds need two levels, or three
    st.sampled_from([(2, 2), (3, 3), (2, 4)]).flatmap(
        lambda ends: st.lists(st.integers(*ends), min_size=1, max_size=6)
    ),
    st.integers(0, 2**63 - 1),
)
def test_kinds_without_options_meet_their_claims(kind: str, levels: list[int], seed: int):
    request = request_of(levels, seed=seed)
    kind_of_design = DESIGNS.load(kind)
    assume(not kind_of_design.fault(request))
    rows = check(request, kind_of_design.treatments(request), kind_of_design.claim(request))
    assert np.array_equal(rows, kind_of_design.treatments(request))


@settings(max_examples=25)
@given(
    st.sampled_from(["d-optimal", "i-optimal", "latin-hypercube", "sobol"]),
    st.lists(st.integers(2, 5), min_size=2, max_size=4),
    st.integers(0, 12),
    st.integers(0, 2**63 - 1),
)
def test_kinds_of_any_size_meet_their_claims(kind: str, levels: list[int], more: int, seed: int):
    least = 1 + sum(n - 1 for n in levels)
    request = request_of(levels, {"runs": least + more}, seed=seed)
    kind_of_design = DESIGNS.load(kind)
    assume(not kind_of_design.fault(request))
    rows = check(request, kind_of_design.treatments(request), kind_of_design.claim(request))
    assert len(rows) == least + more


@pytest.mark.parametrize("runs", plackett_burman.SIZES)
def test_hadamard_matrices(runs: int):
    matrix = plackett_burman.hadamard(runs)
    assert np.array_equal(matrix.T @ matrix, runs * np.eye(runs))
    assert (matrix[:, 0] == 1).all()


@pytest.mark.parametrize(("count", "runs"), [(2, 9), (3, 15), (4, 25), (5, 27), (6, 45), (8, 81)])
def test_central_composite_has_the_runs_of_the_books(count: int, runs: int):
    """2^(K-P) corners of resolution V, 2K faces and the centre (Myers, Montgomery & Anderson-Cook
    2016).

    Fails with a fraction that aliases interactions of two factors: the claim is verified from the
    rows.
    """
    request = request_of([3] * count)
    kind = DESIGNS.load("central-composite")
    assert not kind.fault(request)
    rows = check(request, kind.treatments(request), kind.claim(request))
    assert len(rows) == runs
    assert (rows == 1).all(axis=1).sum() == 1


def test_plackett_burman_aliases_by_one_third():
    request = request_of([2] * 11)
    rows = plackett_burman.treatments(request)
    assert rows.shape == (12, 11)
    aliases = mixed(request, rows)
    assert len(aliases) == 11
    assert all(len(alias.pairs) == 45 for alias in aliases)  # all pairs of the ten others
    assert all(alias.share == pytest.approx(1 / 3) for alias in aliases)


@pytest.mark.parametrize(
    ("levels", "runs"),
    [([3] * 4, 9), ([2, 3, 3, 3], 18), ([2] + [3] * 7, 18), ([6, 3, 3], 18), ([3] * 9, 27)],
)
def test_the_smallest_array_is_chosen(levels: list[int], runs: int):
    request = request_of(levels)
    kind = DESIGNS.load("orthogonal-array")
    assert not kind.fault(request)
    assert len(check(request, kind.treatments(request), Claim(strength=2))) == runs


def test_definitive_screening_is_clear_of_second_order():
    request = request_of([3] * 6)
    row = DESIGNS.load("definitive-screening")
    rows = check(request, row.treatments(request), row.claim(request))
    assert row.claim(request).clear
    assert len(rows) == 13
    broken = rows.copy()
    row = next(i for i in range(13) if broken[i, 0] != 1)
    broken[row, 0] = 2 - broken[row, 0]
    with pytest.raises(PenstockError, match="clear of second order"):
        check(request, broken, Claim(clear=True))


def swapped(rows: np.ndarray) -> np.ndarray:
    """Rows with two entries of the last column exchanged: still balanced."""
    changed = rows.copy()
    other = next(i for i in range(1, len(rows)) if rows[i, 3] != rows[0, 3])
    changed[[0, other], 3] = rows[[other, 0], 3]
    return changed


@pytest.mark.parametrize(
    ("claim", "change", "message"),
    [
        (Claim(strength=2), lambda r: r[:-1], "not balanced"),
        (Claim(runs=9), lambda r: r[:-1], "8 treatments, 9"),
        (Claim(), lambda r: np.vstack([r, r[:1]]), "twice"),
        (Claim(), lambda r: r + 1, "do not have"),
        (Claim(), lambda r: r[r[:, 0] < 2], "never runs a level of f0"),
        (Claim(model="pairs"), lambda r: r, "21 coefficients"),
        (Claim(strength=2), swapped, "are not orthogonal"),
    ],
)
def test_violated_claims_are_detected(claim: Claim, change, message: str):
    request = request_of([3] * 4)
    rows = DESIGNS.load("orthogonal-array").treatments(request)
    if message.startswith("21"):
        request, rows = request_of([3, 3, 3]), rows[:, :3]
        message = "19 coefficients"
    with pytest.raises(PenstockError, match=message):
        check(request, change(rows), claim)


# ---------------------------------------------------------------- optimal designs


def determinant(request: Asked, rows: np.ndarray) -> float:
    x = models.matrix(request.factors, "main", rows)
    return float(np.linalg.det(x.T @ x))


def test_d_optimal_is_the_best_of_all_small_ones():
    request = request_of([3, 2, 2], {"runs": 6})
    everything = np.array(list(itertools.product(range(3), range(2), range(2))))
    best = max(
        determinant(request, everything[list(c)]) for c in itertools.combinations(range(12), 6)
    )
    assert determinant(request, optimal.D.treatments(request)) == pytest.approx(best)


def test_d_optimal_of_two_levels_is_orthogonal():
    request = request_of([2] * 7, {"runs": 8})
    assert determinant(request, optimal.D.treatments(request)) == pytest.approx(8.0**8)


def test_i_optimal_predicts_better_than_d_optimal():
    request = request_of([3, 3, 3], {"runs": 12, "model": "quadratic"})
    grid = np.array(list(itertools.product(range(3), repeat=3)))
    region = models.matrix(request.factors, "quadratic", grid)

    def variance(rows: np.ndarray) -> float:
        x = models.matrix(request.factors, "quadratic", rows)
        return float(np.einsum("ij,jk,ik->i", region, np.linalg.inv(x.T @ x), region).mean())

    assert variance(optimal.I.treatments(request)) <= variance(optimal.D.treatments(request)) + 1e-9


def test_completed_runs_stay_and_forbidden_ones_are_left_out():
    keep = [{"f0": "1", "f1": "2", "f2": "1"}, {"f0": "3", "f1": "1", "f2": "2"}]
    barred = ({"f0": ("3",), "f1": ("2", "3")},)
    request = request_of([3, 3, 2], {"runs": 9, "keep": keep}, forbidden=barred)
    rows = check(request, optimal.D.treatments(request), optimal.D.claim(request))
    assert rows[:2].tolist() == [[0, 1, 0], [2, 0, 1]]
    assert not any(r[0] == 2 and r[1] > 0 for r in rows.tolist())
    with pytest.raises(PenstockError, match="forbidden"):
        check(request, np.array([*rows.tolist(), [2, 2, 0]]), Claim())


def test_models_without_enough_allowed_combinations_are_refused():
    barred = ({"f0": ("3",), "f1": ("2", "3")},)
    request = request_of([3, 3, 2], {"model": "pairs"}, forbidden=barred)
    with pytest.raises(BadInput, match="coefficients of the model pairs apart"):
        optimal.D.treatments(request)


# ---------------------------------------------------------------- contrasts


def test_contrasts_of_unequal_latencies():
    contrasts = polynomial([0.027, 6.87, 13.9])
    assert contrasts[:, 0] == pytest.approx([-6.90533, -0.06233, 6.96767], abs=5e-6)
    assert contrasts[:, 1] / -contrasts[1, 1] == pytest.approx([0.50674, -1, 0.49326], abs=5e-6)
    assert curve([0.027, 6.87, 13.9]).max() == 1


@settings(max_examples=100)
@given(
    st.lists(st.integers(-(10**6), 10**6), min_size=2, max_size=8, unique=True), st.integers(1, 7)
)
def test_contrasts_are_orthogonal(values: list[int], degree: int):
    contrasts = polynomial(values, degree)
    assert contrasts.shape == (len(values), min(degree, len(values) - 1))
    unit = contrasts / np.linalg.norm(contrasts, axis=0)
    assert np.abs(unit.sum(axis=0)).max() < 1e-8
    assert np.abs(unit.T @ unit - np.eye(unit.shape[1])).max() < 1e-6


def test_contrasts_of_two_and_of_equal_levels():
    assert polynomial([1, 2]).tolist() == [[-0.5], [0.5]]
    with pytest.raises(ValueError, match="differ"):
        polynomial([1, 1, 2])
    with pytest.raises(ValueError, match="finite"):
        polynomial([1, float("nan")])
    assert effect_coding(3).sum(axis=0).tolist() == [0, 0]


def test_correlation_is_of_real_values():
    request = Asked((factor("a", 1, 2, 4), factor("b", 1, 2)))
    full = DESIGNS.load("full").treatments(request)
    assert correlation(request, full) == pytest.approx(0, abs=1e-12)
    assert correlation(request, full[[0, 3, 5]]) > 0.5


# ---------------------------------------------------------------- in a study


def read(tmp_path: Path, design: str, factors: str = "a: {levels: [x, y]}, b: {levels: [1, 2, 3]}"):
    text = f"""penstock: 1
name: x
question: Which?
factors: {{{factors}}}
design: {design}
platform: {{nodes: [{{name: n}}]}}
workload: {{command: 'echo {{a}} {{b}}', expected: 1s}}
responses: {{wall: {{from: wall_s, unit: s, better: lower}}}}
"""
    return read_study(text.encode(), tmp_path / "x.study.yaml")


def test_own_treatments_of_a_file_are_frozen_with_the_study(tmp_path: Path):
    from penstock.design.plan import make_plan

    (tmp_path / "own.csv").write_text("a,b\nx,1\ny,2\nx,3\ny,1\n")
    study = read(tmp_path, "{kind: {table: {file: own.csv}}}")
    plan = make_plan(study)
    assert plan.treatments == 4
    (tmp_path / "own.csv").unlink()
    frozen = read_study(study.source_text.encode(), tmp_path / "frozen.yaml")
    assert make_plan(frozen).rows == plan.rows


@pytest.mark.parametrize("separator", ";\t")
def test_own_treatments_with_another_separator(tmp_path: Path, separator: str) -> None:
    (tmp_path / "own.csv").write_text("a,b\nx,1\ny,2\nx,3\ny,1\n".replace(",", separator))
    from penstock.design.plan import make_plan

    assert make_plan(read(tmp_path, "{kind: {table: {file: own.csv}}}")).treatments == 4


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\nx,9\n", "row 1: a level of b"),
        ("a,b,b\nx,1,2\n", "own.csv:1: the column 'b' several times"),
        ("a,c\nx,1\n", "row 1: a level for each of a, b"),
        ("a,b\nx\n", "own.csv:2: 1 values"),
        ("a,b\nx,1\ny,2\n", "separate the main effects"),
        ("", "lines"),
    ],
)
def test_bad_tables_are_refused(tmp_path: Path, content: str, message: str):
    (tmp_path / "own.csv").write_text(content)
    with pytest.raises(BadInput, match=message):
        read(tmp_path, "{kind: {table: {file: own.csv}}}")


@pytest.mark.parametrize(
    ("design", "message"),
    [
        ("{kind: plackett-burman}", "two levels for every factor"),
        ("{kind: {plackett-burman: {rums: 12}}}", "unknown option 'rums'.*did you mean 'runs'"),
        ("{kind: {sobol: {}}}", "runs: how many"),
        ("{kind: {d-optimal: {runs: 2}}}", "an integer from 4 to 6"),
        ("{kind: {d-optimal: {model: cubic}}}", "main, pairs, quadratic"),
        ("{kind: full, forbidden: [{c: x}]}", "a factor: a or b"),
        ("{kind: full, forbidden: [{a: z}]}", "a level of a"),
        ("{kind: {fraction: 1}, forbidden: [{a: x}]}", "regular fraction"),
        ("{kind: orthogonal-array, forbidden: [{a: x, b: 1}]}", "expected"),
        ("{kind: full, forbidden: [{a: x}]}", "two factors or more"),
    ],
)
def test_bad_designs_are_refused(tmp_path: Path, design: str, message: str):
    from penstock.design.plan import make_plan

    with pytest.raises((BadInput, PenstockError), match=f"(?s){message}"):
        make_plan(read(tmp_path, design))


def test_three_million_treatments_are_refused_with_an_alternative(tmp_path: Path):
    many = ", ".join(f"f{i}: {{levels: {list(range(12))}}}" for i in range(6))
    with pytest.raises(BadInput, match=r"2985984 treatments.*d-optimal needs 72"):
        read(tmp_path, "{kind: full}", many.replace("f0", "a", 1).replace("f1", "b", 1))
