"""Effects against worked examples and an independent least-squares fit."""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.analyse.sequential.fraction import fraction_of
from penstock.analyse.statistics.effect_table import lenth
from penstock.analyse.statistics.effects import effects
from penstock.analyse.statistics.fit import ASSUMED, NOT_ESTIMABLE, Fit
from penstock.analyse.statistics.terms import design_of
from penstock.campaign.analysis import headline
from penstock.design.plan import make_plan
from penstock.design.planned import Plan
from penstock.errors import PenstockError
from penstock.spec.study import Factor, Level
from penstock.study.load import read_study


def plan_of(
    names: list[str],
    replicates: int,
    kind: str = "full",
    generators: str = "[]",
    order: str = "standard",
    levels: str = "[low, high]",
) -> Plan:
    factors = "\n".join(f'  "{n}": {{levels: {levels}}}' for n in names)
    placeholders = " ".join(f"{{{n}}}" for n in names)
    text = f"""penstock: 1
name: plain
question: Which?
factors:
{factors}
design: {{kind: {kind}, generators: {generators}, replicates: {replicates}, order: {order}, seed: 9}}
platform: {{nodes: [{{name: n}}]}}
workload: {{command: 'echo {placeholders}'}}
responses: {{y: {{from: wall_s, unit: s, better: lower}}}}
"""
    return make_plan(read_study(text.encode(), Path("plain.study.yaml")))


def runs_of(
    plan: Plan, y: dict[tuple[str, ...], list[float]] | None = None, model=None
) -> pd.DataFrame:
    """The runs of a plan with y by treatment (levels in the order of the factors) or by a model."""
    remaining = {k: list(v) for k, v in (y or {}).items()}
    rows = []
    for run in plan.rows:
        key = tuple(run.levels[f.name] for f in plan.factors)
        value = model(run.coded) if model is not None else remaining[key].pop(0)
        rows.append(
            {
                "run_id": run.run_id,
                "run_order": run.run_order,
                "replicate": run.replicate,
                **run.levels,
                "y": value,
                "valid": True,
            }
        )
    return pd.DataFrame(rows)


def by_term(table: pd.DataFrame) -> pd.DataFrame:
    return table.set_index("term")


def reversed_order(values: list[float], factors: int) -> dict[tuple[str, ...], list[float]]:
    """y of a 2^k design listed with the first factor fastest."""
    keys = [k[::-1] for k in itertools.product(["low", "high"], repeat=factors)]
    return {k: [v] for k, v in zip(keys, values, strict=True)}


CELLS = {
    ("low", "low"): [15, 18, 12],
    ("high", "low"): [45, 48, 51],
    ("low", "high"): [25, 28, 19],
    ("high", "high"): [75, 75, 81],
}


@pytest.mark.parametrize("names", [["A", "B"], ["C", "I"], ["Q", "np.log(x)"]])
def test_two_factors_three_replicates(names: list[str]):
    plan = plan_of(names, 3)
    runs = runs_of(plan, CELLS).sample(frac=1, random_state=4)
    a, b = names
    table = by_term(effects(runs, plan, "y"))
    assert table.loc[[a, b, f"{a}:{b}"], "coefficient"].tolist() == pytest.approx([21.5, 9.5, 5])
    assert table.loc[[a, b, f"{a}:{b}"], "effect"].tolist() == pytest.approx([43, 19, 10])
    squares = table.loc[[a, b, f"{a}:{b}", "residual"], "sum_of_squares"]
    assert squares.tolist() == pytest.approx([5547, 1083, 300, 102])
    shares = table.loc[[a, b, f"{a}:{b}", "residual"], "variation_share"]
    assert shares.round(2).tolist() == [78.88, 15.40, 4.27, 1.45]
    assert table.loc[a, "standard_error"] == pytest.approx(1.0308, abs=5e-5)
    for term, low, high in ((a, 19.123, 23.877), (b, 7.123, 11.877), (f"{a}:{b}", 2.623, 7.377)):
        assert table.loc[term, "ci_low"] == pytest.approx(low, abs=5e-4)
        assert table.loc[term, "ci_high"] == pytest.approx(high, abs=5e-4)
        assert table.loc[term, "effect_ci_low"] == pytest.approx(2 * low, abs=1e-3)
    assert table.loc["residual", "df"] == 8
    at_90 = by_term(effects(runs, plan, "y", confidence=0.90))
    assert at_90.loc[a, "ci_low"] == pytest.approx(19.583, abs=5e-4)
    assert at_90.loc[a, "ci_high"] == pytest.approx(23.417, abs=5e-4)


def test_swapped_levels_change_signs_only():
    plan = plan_of(["A", "B"], 3)
    runs = runs_of(plan, CELLS)
    swapped = runs.assign(A=runs["A"].map({"low": "high", "high": "low"}))
    original, relabelled = (by_term(effects(r, plan, "y")) for r in (runs, swapped))
    assert relabelled.loc["A", "coefficient"] == pytest.approx(-21.5)
    assert relabelled.loc["B", "coefficient"] == pytest.approx(9.5)
    assert relabelled.loc["A:B", "coefficient"] == pytest.approx(-5)
    np.testing.assert_allclose(original["variation_share"], relabelled["variation_share"])
    np.testing.assert_allclose(original["p_value"], relabelled["p_value"])


def test_three_factors():
    plan = plan_of(list("ABC"), 1)
    runs = runs_of(plan, reversed_order([14, 22, 10, 34, 46, 58, 50, 86], 3))
    table = by_term(effects(runs, plan, "y"))
    terms = ["A", "B", "C", "A:B", "A:C", "B:C", "A:B:C"]
    assert table.loc[terms, "coefficient"].tolist() == pytest.approx([10, 5, 20, 5, 2, 3, 1])
    shares = table.loc[terms, "variation_share"].round(2).tolist()
    assert shares == [17.73, 4.43, 70.92, 4.43, 0.71, 1.60, 0.18]
    assert table.loc[terms, "sum_of_squares"].sum() == pytest.approx(4512)


@pytest.mark.parametrize("value", [100.0, 99.9, 3.3, 0.1, 1234.567])
@pytest.mark.parametrize("order", ["standard", "interleaved"])
def test_runs_that_do_not_vary_show_no_effect(value: float, order: str):
    """Rounding errors were tested against each other: with 100.0 an effect of 1e-15 was significant."""
    for replicates in (2, 5):
        plan = plan_of(list("ABC"), replicates, order=order)
        table = by_term(effects(runs_of(plan, model=lambda _: value), plan, "y"))
        assert table["p_holm"].dropna().tolist() == [1.0] * 7
        assert table["coefficient"].dropna().tolist() == [0.0] * 7
        assert table.loc["residual", "sum_of_squares"] == 0


def test_runs_without_noise_show_their_effect_alone():
    plan = plan_of(list("ABC"), 5)
    runs = runs_of(plan, model=lambda coded: 1234.567 if coded["A"] > 0 else 200.1)
    table = by_term(effects(runs, plan, "y"))
    assert table.index[table["p_holm"] < 0.05].tolist() == ["A"]
    assert table.loc["A", "effect"] == pytest.approx(1034.467)
    assert table.loc["B", "p_value"] == 1.0


def test_the_difference_between_passes_is_no_headline():
    """Passes that drift explain most of the variation: "block" was the largest effect in the JSON."""
    plan = plan_of(["A", "B"], 4, order="interleaved")
    passes = {r.run_id: 100.0 * r.replicate for r in plan.rows}
    draws = np.random.default_rng(1)
    runs = runs_of(plan, model=lambda coded: 3 * coded["A"] + draws.normal())
    runs["y"] += runs["run_id"].map(passes)
    table = effects(runs, plan, "y")
    assert by_term(table)["variation_share"].idxmax() == "block"
    names = [row["term"] for row in headline(table)]
    assert names[0] == "A"
    assert set(names) == {"A", "B", "A:B"}


def test_more_combinations_than_numbers_of_64_bits():
    """Twenty factors of ten numbers each have 10^20 combinations; their fit ended in a ValueError."""
    levels = tuple(Level(name=str(n), value=n) for n in range(10))
    factors = [Factor(name=f"f{i}", levels=levels) for i in range(20)]
    plan = dataclasses.replace(plan_of(["A", "B"], 2), factors=factors, model="main")
    drawn = np.random.default_rng(3).integers(0, 10, (30, 20))
    chosen = np.vstack([drawn, drawn[:5]])
    data = pd.DataFrame(chosen.astype(str), columns=[f.name for f in factors])
    design = design_of(data, plan)
    assert len(design.levels) == 30
    assert (design.levels[design.of_run] == chosen).all()
    # in the order of the numbers, the first factor slowest
    assert design.levels.tolist() == sorted(design.levels.tolist())


def test_one_replicate_is_judged_by_lenth():
    y = [45, 71, 48, 65, 68, 60, 80, 65, 43, 100, 45, 104, 75, 86, 70, 96]
    plan = plan_of(list("ABCD"), 1)
    table = by_term(effects(runs_of(plan, reversed_order(y, 4)), plan, "y"))
    large = {"A": 21.625, "A:C": -18.125, "A:D": 16.625, "D": 14.625, "C": 9.875}
    for term, value in large.items():
        assert table.loc[term, "effect"] == pytest.approx(value)
    measure = lenth(table.drop("residual")["effect"].tolist())
    assert measure.s0 == pytest.approx(3.9375)
    assert measure.pse == pytest.approx(2.625)
    assert measure.me == pytest.approx(6.748, abs=5e-4)
    assert measure.sme == pytest.approx(13.699, abs=5e-4)
    significant = table[(table["effect_ci_low"] > 0) | (table["effect_ci_high"] < 0)]
    assert set(significant.index) == set(large)
    assert (table["effect"].abs() > measure.sme).sum() == 4
    assert set(table.drop("residual")["method"]) == {"lenth"}


TRUTH = {
    "E": 40.0,
    "B": 30.0,
    "C": -25.0,
    "F": 20.0,
    "CF": -12.0,
    "BF": -8.0,
    "BCF": 6.0,
    "D": -2.0,
    "A": 1.5,
}
SIX = list("ABCDEF")
OWN = '["D = A*B", "E = A*C", "F = B*C"]'


def truth(coded: dict[str, int]) -> float:
    return 150 + sum(q * math.prod(coded[c] for c in word) for word, q in TRUTH.items())


def test_known_truth_in_the_full_design():
    plan = plan_of(SIX, 1)
    table = by_term(effects(runs_of(plan, model=truth), plan, "y"))
    for term, row in table.drop("residual").iterrows():
        assert row["coefficient"] == pytest.approx(
            TRUTH.get(str(term).replace(":", ""), 0), abs=1e-9
        )
    shares = [table.loc[":".join(w), "variation_share"] for w in TRUTH]
    assert [round(s, 2) for s in shares] == [
        42.38,
        23.84,
        16.56,
        10.60,
        3.81,
        1.70,
        0.95,
        0.11,
        0.06,
    ]


def test_known_truth_in_the_fraction():
    plan = plan_of(SIX, 1, "{fraction: 3}", OWN)
    runs = runs_of(plan, model=truth).sort_values(["A", "B", "C"], ascending=False)
    assert runs["y"].tolist() == [227.5, 41.5, 227.5, 121.5, 154.5, 128.5, 146.5, 200.5]
    assert runs["y"].mean() == 156
    table = by_term(effects(runs, plan, "y"))
    coefficients = table.loc[list("ECFBDA"), "coefficient"].tolist()
    assert coefficients == pytest.approx([40, -33, 20, 18, -2, 1.5])
    (free,) = [t for t in table.index if ":" in t]
    assert table.loc[free, "coefficient"] == pytest.approx(0, abs=1e-9)
    assert "C:F" in table.loc["B", "aliases"]


@pytest.mark.parametrize("added", [1, 2, 3])
def test_fraction_of_the_full_design_is_the_signed_coset_sum(added: int):
    random = np.random.default_rng(added)
    plan = plan_of(SIX, 2, order="interleaved")
    runs = runs_of(plan, model=truth)
    runs["y"] += random.normal(0, 7, len(runs))
    table = fraction_of(runs, plan, "y", added)
    assert len(table) == 2 ** (6 - added) - 1
    full = by_term(effects(runs, plan, "y"))["coefficient"]
    for row in table.to_dict("records"):
        parts = [p for p in row["aliased_with"].split(", ") if p]
        total = full[row["term"]] + sum((1 if p[0] == "+" else -1) * full[p[1:]] for p in parts)
        if added < 3:  # otherwise the coset of a term contains no word of the mean
            assert row["fraction"] == pytest.approx(total, abs=1e-9)
        assert row["fraction"] == pytest.approx(row["coset_sum"], abs=1e-9)


def test_fraction_reports_where_it_differs():
    plan = plan_of(SIX, 2)
    runs = runs_of(plan, model=truth)
    runs["y"] += np.random.default_rng(1).normal(0, 2, len(runs))
    table = by_term(fraction_of(runs, plan, "y", 3, ["D = A*B", "E = A*C", "F = B*C"]))
    assert table.loc["B", "fraction"] != pytest.approx(table.loc["B", "full"], abs=5)
    assert "C × F" in table.loc["B", "statement"]
    assert not table.loc["B", "agrees"]
    disagreeing = table[~table["agrees"]]
    assert (disagreeing["fault"] != "").all()
    assert (table[table["agrees"]]["fault"] == "").all()


# ---------------------------------------------------------------- an independent fit


def by_statsmodels(runs: pd.DataFrame, plan: Plan) -> tuple[pd.Series, object]:
    """Full factorial columns, and blocks as deviations from the last one, fitted by statsmodels."""
    good = runs[runs["valid"]]
    names = [f.name for f in plan.factors]
    columns = {"one": np.ones(len(good))}
    coded = {f.name: np.where(good[f.name] == f.levels[1].name, 1.0, -1.0) for f in plan.factors}
    for size in range(1, len(names) + 1):
        for chosen in itertools.combinations(names, size):
            columns[":".join(chosen)] = np.prod([coded[c] for c in chosen], axis=0)
    if plan.order == "interleaved":
        for block in sorted(good["replicate"].unique())[:-1]:
            last = good["replicate"].max()
            columns[f"block{block}"] = (good["replicate"] == block).to_numpy(float) - (
                good["replicate"] == last
            ).to_numpy(float)
    fit = sm.OLS(good["y"].to_numpy(float), pd.DataFrame(columns)).fit()
    return fit.params, fit


@settings(max_examples=30)
@given(
    st.integers(2, 4),
    st.integers(2, 4),
    st.sampled_from(["interleaved", "standard"]),
    st.integers(0, 2**32 - 1),
    st.integers(0, 3),
    st.floats(1e-3, 1e9),
)
def test_equal_to_an_independent_fit(
    factors: int, replicates: int, order: str, seed: int, lost: int, size: float
):
    random = np.random.default_rng(seed)
    plan = plan_of(list("CIQS")[:factors], replicates, order=order)
    runs = runs_of(plan, model=lambda _: size * (5 + float(random.normal())))
    runs.loc[runs["replicate"].eq(1).to_numpy().nonzero()[0][:lost], "valid"] = False
    params, fit = by_statsmodels(runs, plan)
    shuffled = runs.sample(frac=1, random_state=seed % 1000)
    with mock.patch.object(Fit, "unequal", None):  # statsmodels assumes equal spread
        table = by_term(effects(shuffled, plan, "y"))
    terms = [t for t in table.index if t not in ("block", "residual")]
    np.testing.assert_allclose(
        table.loc[terms, "coefficient"], params[terms], rtol=1e-9, atol=1e-9 * size
    )
    if fit.df_resid < 1:  # no pure error: by Lenth, which statsmodels lacks
        assert set(table.loc[terms, "method"]) == {"lenth"}
        return
    interval = fit.conf_int()
    np.testing.assert_allclose(table.loc[terms, "ci_low"], interval.loc[terms, 0], atol=1e-7 * size)
    np.testing.assert_allclose(
        table.loc[terms, "ci_high"], interval.loc[terms, 1], atol=1e-7 * size
    )
    np.testing.assert_allclose(table.loc[terms, "p_value"], fit.pvalues[terms], atol=1e-7)
    assert table.loc["residual", "df"] == fit.df_resid
    # unequal spread only widens intervals, and never those of balanced runs
    error = by_term(effects(shuffled, plan, "y")).loc[terms, "standard_error"]
    assert (error >= table.loc[terms, "standard_error"] * (1 - 1e-9)).all()
    if lost == 0:
        np.testing.assert_allclose(error, table.loc[terms, "standard_error"])
        assert table["variation_share"].sum() == pytest.approx(100)


def test_blocks_take_their_degrees_of_freedom():
    plan = plan_of(["A", "B"], 3, order="interleaved")
    runs = runs_of(plan, CELLS)
    runs["y"] += 100.0 * runs["replicate"]
    table = by_term(effects(runs, plan, "y"))
    assert table.loc["block", "df"] == 2
    assert table.loc["residual", "df"] == 6
    assert table.loc["A", "coefficient"] == pytest.approx(21.5)
    assert table.loc["residual", "sum_of_squares"] < 102 + 1e-9
    assert table.loc["A", "p_value"] < 1e-4  # the drift is in the blocks, not in the error


def without(runs: pd.DataFrame, *treatments: str) -> pd.DataFrame:
    """The runs with those of some treatments (levels in the factors' order, `+-`) not valid."""
    names = [n for n in runs.columns if set(runs[n]) == {"low", "high"}]
    signs = runs[names].apply(lambda r: "".join("+" if v == "high" else "-" for v in r), axis=1)
    assert set(treatments) <= set(signs)
    return runs.assign(valid=~signs.isin(treatments))


def estimated(table: pd.DataFrame) -> list[str]:
    """Terms with an estimate."""
    of_terms = table[~table["term"].isin(["block", "residual"])]
    return list(of_terms[of_terms["effect"].notna()]["term"])


def test_a_lost_treatment_is_reported_and_not_imputed():
    plan = plan_of(["A", "B"], 2)
    runs = without(runs_of(plan, {k: v[:2] for k, v in CELLS.items()}), "++")
    table = by_term(effects(runs, plan, "y"))
    for term in (
        "A",
        "B",
        "A:B",
    ):  # half of A would be A alone, half A with its interaction
        assert table.loc[term, ["effect", "ci_low", "p_value", "variation_share"]].isna().all()
        assert NOT_ESTIMABLE in table.loc[term, "aliases"]
    assert table.loc["residual", "df"] == 3


@pytest.mark.parametrize("lost", [["++++"], ["+--+", "++--"]])
@pytest.mark.parametrize("order", ["standard", "interleaved"])
def test_a_fraction_with_lost_cells_estimates_no_effect(lost: list[str], order: str):
    plan = plan_of(list("ABCD"), 2, "{fraction: 1}", order=order)
    runs = runs_of(plan, model=lambda c: 100 + 60 * c["A"] + 40 * c["D"] + 40 * c["A"] * c["D"])
    runs["y"] += np.random.default_rng(3).normal(0, 1, len(runs))
    assert len(estimated(effects(runs, plan, "y"))) == 7
    table = effects(without(runs, *lost), plan, "y")
    assert estimated(table) == []
    assert table[table["term"] != "residual"]["variation_share"].isna().all()
    assert table["ci_low"].isna().all()


def test_a_full_design_with_a_lost_cell_assumes_the_highest_interaction_0():
    plan = plan_of(list("ABC"), 2)
    runs = without(runs_of(plan, model=lambda c: 10 + 3 * c["A"] - 2 * c["A"] * c["B"]), "+++")
    table = by_term(effects(runs, plan, "y"))
    assert table.loc["A", "coefficient"] == pytest.approx(3)
    assert table.loc["A:B", "coefficient"] == pytest.approx(-2)
    assert table.loc["A:B:C", "method"] == ASSUMED
    assert table["variation_share"].isna().all()


def test_a_full_design_with_many_lost_cells_estimates_nothing():
    plan = plan_of(list("ABC"), 2)
    runs = without(runs_of(plan, model=lambda c: 10 + 3 * c["A"]), "+++", "++-")
    assert estimated(effects(runs, plan, "y")) == []


def test_a_full_design_without_a_level_is_that_of_the_others():
    plan = plan_of(list("ABC"), 2)
    runs = runs_of(plan, model=lambda c: 10 + 3 * c["A"] + c["B"] - 2 * c["A"] * c["C"])
    table = by_term(effects(runs.assign(valid=runs["A"] == "low"), plan, "y"))
    assert table.loc[["B", "C", "B:C"], "coefficient"].tolist() == pytest.approx([1, 2, 0])
    assert math.isnan(table.loc["A", "coefficient"])
    assert math.isnan(table.loc["A:B", "coefficient"])


def test_three_levels_of_which_one_is_lost():
    plan = plan_of(["A", "B"], 2, levels="[x, y, z]")
    runs = runs_of(plan, model=lambda c: 10 + 3 * c["A"] + c["B"] * c["A"])
    table = by_term(effects(runs.assign(valid=runs["A"] != "z"), plan, "y"))
    assert table.loc[["A", "B", "A:B"], "df"].tolist() == [1, 2, 2]
    cell = (runs["A"] == "z") & (runs["B"] == "z")
    table = by_term(effects(runs.assign(valid=~cell), plan, "y"))
    assert set(table.loc[["A", "B", "A:B"], "method"]) == {"not estimable"}


def test_shares_add_up_to_at_most_all():
    plan = plan_of(list("ABC"), 3)
    for seed in range(20):
        random = np.random.default_rng(seed)
        runs = runs_of(plan, model=lambda c: 9.0 * (c["A"] > 0 or c["B"] > 0) + c["C"])
        runs["y"] += random.normal(0, 0.1, len(runs))
        keep = random.random(len(runs)) < 0.6
        keep[runs["replicate"].to_numpy() == 1] = True
        table = effects(runs.assign(valid=keep), plan, "y")
        assert table["variation_share"].sum() <= 100 + 1e-9


def test_mixed_levels_equal_statsmodels_anova():
    plan = plan_of(["A", "B"], 2, levels="[x, y, z]")
    random = np.random.default_rng(5)
    runs = runs_of(plan, model=lambda c: 10 + 3 * c["A"] + float(random.normal()))
    from statsmodels.formula.api import ols
    from statsmodels.stats.anova import anova_lm

    expected = anova_lm(ols("y ~ C(A, Sum) * C(B, Sum)", runs).fit(), typ=3)
    table = by_term(effects(runs, plan, "y"))
    for term, name in (("A", "C(A, Sum)"), ("B", "C(B, Sum)"), ("A:B", "C(A, Sum):C(B, Sum)")):
        assert table.loc[term, "sum_of_squares"] == pytest.approx(expected.loc[name, "sum_sq"])
        assert table.loc[term, "p_value"] == pytest.approx(expected.loc[name, "PR(>F)"])
        assert table.loc[term, "df"] == expected.loc[name, "df"]


def test_holm_is_never_below_the_raw_value():
    plan = plan_of(list("ABC"), 2)
    random = np.random.default_rng(8)
    table = effects(runs_of(plan, model=lambda _: float(random.normal())), plan, "y")
    tested = table.dropna(subset=["p_value"]).sort_values("p_value")
    assert (tested["p_holm"] >= tested["p_value"]).all()
    assert tested["p_holm"].is_monotonic_increasing
    assert tested["p_holm"].iloc[0] == pytest.approx(min(1, 7 * tested["p_value"].iloc[0]))


def test_invalid_runs_are_left_out():
    plan = plan_of(["A", "B"], 3)
    runs = runs_of(plan, CELLS)
    bad = runs.iloc[[0]].assign(y=1e9, valid=False, run_id="r099")
    with_bad = pd.concat([runs, bad])
    pd.testing.assert_frame_equal(effects(with_bad, plan, "y"), effects(runs, plan, "y"))


@pytest.mark.parametrize("column", ["A", "y"])
def test_a_missing_column_is_reported(column: str):
    plan = plan_of(["A", "B"], 3)
    with pytest.raises(PenstockError, match=column):
        effects(runs_of(plan, CELLS).drop(columns=column), plan, "y")


@pytest.mark.long
def test_intervals_cover_the_truth():
    """The full 2^6 design with noise of 10, r = 5: 95 % intervals of 40 studies."""
    plan = plan_of(SIX, 5)
    runs = runs_of(plan, model=truth)
    random = np.random.default_rng(20261121)
    planted = {":".join(w): q for w, q in TRUTH.items()}
    hits = total = 0
    for _ in range(40):
        noisy = runs.assign(y=runs["y"] + random.normal(0, 10, len(runs)))
        table = effects(noisy, plan, "y")
        table = table[table["term"] != "residual"]
        q = table["term"].map(planted).fillna(0.0)
        hits += int(((table["ci_low"] <= q) & (q <= table["ci_high"])).sum())
        total += len(table)
    assert 0.935 <= hits / total <= 0.965
