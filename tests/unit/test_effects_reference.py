"""Effects against recorded results of R (lme4, lmerTest, car), trends of numeric levels, residual
checks.

`tests/golden/strata/reference.R` computed the recorded results; R is not needed here.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from penstock.analyse.statistics.effect_table import REML
from penstock.analyse.statistics.effects import effects
from penstock.analyse.statistics.fit import fitted, usable
from penstock.analyse.statistics.multiple_tests import benjamini_hochberg, holm
from penstock.analyse.statistics.residuals import (
    FAR_IN_MADS,
    checks,
    far_from_median,
    residual_table,
    studentised,
)
from penstock.analyse.statistics.scale import BOX_COX, LINEAR, LOG, RANK, scaled, usual_scale
from penstock.analyse.surface.polynomials import contrasts, trends
from penstock.design.planned import Plan, PlannedRun
from penstock.errors import PenstockError
from tests.unit.recorded_study import plan_of_text, record, study_text

REFERENCE = json.loads((Path(__file__).parents[1] / "golden/strata/reference.json").read_text())
W, S, T = "{levels: [low, high]}", "{levels: [a, b]}", "{levels: [c, d]}"


def table_of(name: str) -> pd.DataFrame:
    return pd.DataFrame(REFERENCE[name])


def split_plan(tmp_path: Path, data: pd.DataFrame) -> tuple[Plan, pd.DataFrame]:
    """A plan with the whole plots of the recorded data, and its runs table."""
    text = study_text(
        {"W": "{levels: [low, high], change: redeploy}", "S": S, "T": T},
        "{kind: full, replicates: 6, order: split-plot-random}",
    )
    plan = plan_of_text(text, tmp_path)
    by_levels = {tuple(r.levels.values()): r for r in plan.rows}
    rows = []
    for i, r in enumerate(data.itertuples(), start=1):
        planned = by_levels[(r.W, r.S, r.T)]
        rows.append(dataclasses.replace(planned, run_id=f"r{i:03d}", whole_plot=int(r.plot)))
    runs = data.assign(run_id=[r.run_id for r in rows], valid=True)
    return plan.with_runs(rows), runs


def test_split_plot_with_lost_runs_equals_lmer(tmp_path):
    plan, runs = split_plan(tmp_path, table_of("split_data"))
    table = effects(runs, plan, "y").set_index("term")
    anova = table_of("split_anova").set_index("term")
    terms = list(anova.index)
    assert set(table.loc[terms, "method"]) == {REML}
    np.testing.assert_allclose(table.loc[terms, "f_value"], anova["f"], rtol=1e-4)
    # Satterthwaite's degrees of freedom, limited to those of settings and runs (10 and 25)
    most = [10 if t == "W" else 25 for t in terms]
    np.testing.assert_allclose(
        table.loc[terms, "df_error"], np.minimum(anova["df_error"], most), rtol=1e-3
    )
    np.testing.assert_allclose(table.loc[terms, "p_value"], anova["p"], rtol=5e-2)
    assert (table.loc[terms, "p_value"] >= anova["p"] * 0.999).all()
    # closer to Kenward and Roger's
    kr = table_of("split_kenward_roger").set_index("term")
    assert table.loc["W", "p_value"] == pytest.approx(kr.loc["W", "p"], rel=1e-2)
    variances = table_of("split_variances").iloc[0]
    assert table.loc["whole_plot", "variance"] == pytest.approx(variances["setting"], rel=1e-4)
    assert table.loc["residual", "variance"] == pytest.approx(variances["run"], rel=1e-4)
    expected = table_of("split_coefficients").set_index("term")["error"].to_numpy()[1:]
    np.testing.assert_allclose(table.loc[terms, "standard_error"], expected, rtol=1e-4)


def test_types_of_sums_of_squares_equal_car(tmp_path):
    data = table_of("split_data")
    text = study_text({"W": W, "S": S, "T": T}, "{kind: full, replicates: 6, order: standard}")
    plan = plan_of_text(text, tmp_path)
    table = effects(data.assign(valid=True), plan, "y").set_index("term")
    expected = table_of("types").set_index("term")
    for column, computed in (
        ("one", "sum_of_squares_1"),
        ("two", "sum_of_squares_2"),
        ("three", "sum_of_squares"),
    ):
        np.testing.assert_allclose(table.loc[expected.index, computed], expected[column], rtol=1e-9)
    assert table.loc["W", "correlations"] != ""


def test_three_levels_in_blocks_equal_car(tmp_path):
    data = table_of("blocks_data").rename(columns={"block": "replicate"})
    text = study_text(
        {"A": "{levels: [p, q, r]}", "B": "{levels: [x, y, z]}"},
        "{kind: full, replicates: 4, order: interleaved}",
    )
    table = effects(data.assign(valid=True), plan_of_text(text, tmp_path), "y").set_index("term")
    expected = table_of("blocks_types").set_index("term")
    for column, computed in (
        ("one", "sum_of_squares_1"),
        ("two", "sum_of_squares_2"),
        ("three", "sum_of_squares"),
        ("p", "p_value"),
    ):
        np.testing.assert_allclose(table.loc[expected.index, computed], expected[column], rtol=1e-8)


def test_adjusted_p_values_equal_those_of_r():
    reference = table_of("adjusted")[::-1]
    raw = reference["p"].tolist()
    np.testing.assert_allclose(holm(raw), reference["holm"])
    np.testing.assert_allclose(benjamini_hochberg(raw), reference["bh"])


# ---------------------------------------------------------------- trends


def test_contrasts_of_unequal_levels():
    """One-way latencies of 0.027, 6.87 and 13.9 ms."""
    computed = contrasts([0.027, 6.87, 13.9])
    assert computed[:, 0] == pytest.approx([-6.90533, -0.06233, 6.96767], abs=5e-6)
    assert computed[:, 1] / -computed[1, 1] == pytest.approx([0.50674, -1, 0.49326], abs=5e-6)


def test_a_straight_line_is_linear_and_nothing_else(tmp_path):
    """96 rows of mixed levels, y = 10 + 2 × latency."""
    text = study_text(
        {
            "latency": "{levels: [0.027, 6.87, 13.9], unit: ms}",
            **dict.fromkeys(("A", "B", "C", "D", "E"), "{levels: [low, high]}"),
        },
        "{kind: full, replicates: 1}",
    )
    plan = plan_of_text(text, tmp_path)
    assert len(plan.rows) == 96
    rows = [{"run_id": r.run_id, **r.levels, "valid": True} for r in plan.rows]
    runs = pd.DataFrame(rows)
    runs["y"] = 10 + 2 * runs["latency"].astype(float)
    fit = fitted(runs, plan, "y")
    by_contrast = trends(fit, plan, "y", LINEAR).set_index("contrast")
    assert by_contrast.loc["linear", "coefficient"] == pytest.approx(2, abs=1e-9)
    assert by_contrast.loc["quadratic", "coefficient"] == pytest.approx(0, abs=1e-9)
    table = effects(runs, plan, "y").set_index("term")
    others = [t for t in table.index if t not in ("latency", "residual")]
    assert table.loc[others, "sum_of_squares"].abs().max() < 1e-9


def test_curvature_is_detected_and_bounded(tmp_path):
    text = study_text({"n": "{levels: [1, 2, 4, 8]}"}, "{kind: full, replicates: 6}")
    plan = plan_of_text(text, tmp_path)
    random = np.random.default_rng(2)
    runs = pd.DataFrame(
        [
            {
                "run_id": r.run_id,
                "replicate": r.replicate,
                **r.levels,
                "valid": True,
                "y": (x := float(r.levels["n"])) - 0.2 * x * x + float(random.normal(0, 0.2)),
            }
            for r in plan.rows
        ]
    )
    by_contrast = trends(fitted(runs, plan, "y"), plan, "y", LINEAR).set_index("contrast")
    assert by_contrast.loc["quadratic", "p_value"] < 1e-6
    assert by_contrast.loc["cubic", "p_value"] > 0.01
    low, high = by_contrast.loc["quadratic", ["effect_ci_low", "effect_ci_high"]]
    # the quadratic part of the curve without noise
    exact = contrasts([1.0, 2.0, 4.0, 8.0])[:, 1]
    truth = np.array([0.8, 1.2, 0.8, -4.8])
    assert low < (exact @ truth) / (exact @ exact) * np.ptp(exact) < high


# ---------------------------------------------------------------- scales and residuals


def one_factor(tmp_path: Path, levels: str, replicates: int) -> Plan:
    return plan_of_text(
        study_text({"f": levels}, f"{{kind: full, replicates: {replicates}}}"), tmp_path
    )


def runs_with(plan: Plan, value) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "run_id": r.run_id,
                "run_order": r.run_order,
                "treatment_id": r.treatment_id,
                "replicate": r.replicate,
                **r.levels,
                "valid": True,
                "y": value(r),
            }
            for r in plan.rows
        ]
    )


def test_levels_that_differ_a_hundredfold_have_ratios(tmp_path):
    plan = one_factor(tmp_path, "{levels: [hdd, ssd]}", 4)
    random = np.random.default_rng(1)

    def far(r: PlannedRun) -> float:
        return (7.0 if r.levels["f"] == "hdd" else 980.0) * float(np.exp(random.normal(0, 0.05)))

    runs = runs_with(plan, far)
    assert usual_scale(runs, "y") == LOG
    row = effects(runs, plan, "y", scale=LOG).set_index("term").loc["f"]
    assert row["ratio_ci_low"] < 140 < row["ratio_ci_high"]
    assert row["ratio"] == pytest.approx(np.exp(row["effect"]))
    assert usual_scale(runs.assign(y=runs["y"] + 10), "y") == LOG
    assert usual_scale(runs.assign(y=runs["y"] - 8), "y") == LINEAR  # ratios need values above 0


def test_values_of_scales():
    y = np.array([1.0, 2.0, 4.0, 4.0, 100.0])
    assert scaled(y, LOG) == pytest.approx(np.log(y))
    assert scaled(y, RANK).tolist() == [1, 2, 3.5, 3.5, 5]
    relative = y / stats.gmean(y)
    assert scaled(y, BOX_COX, power=0.5) == pytest.approx((np.sqrt(relative) - 1) * 2)
    # in B/s a power of −2 of the values themselves is 0.5 of each
    apart = scaled(np.array([1e8, 2e8]), BOX_COX, power=-2)
    assert apart == pytest.approx([(1 - 2) / 2, (1 - 0.5) / 2])
    with pytest.raises(PenstockError, match="above 0"):
        scaled(y - 1, LOG)
    with pytest.raises(PenstockError, match="found scale cubic"):
        scaled(y, "cubic")


def test_effects_on_a_box_cox_scale_do_not_depend_on_the_unit(tmp_path):
    factors = {"a": "{levels: [x, y]}", "b": "{levels: [x, y]}"}
    plan = plan_of_text(study_text(factors, "{kind: full, replicates: 4}"), tmp_path)
    random = np.random.default_rng(3)
    runs = runs_with(plan, lambda r: (3 + (r.levels["a"] == "y") + random.normal(0, 0.2)) ** -0.4)
    tables = {
        unit: effects(runs.assign(y=runs["y"] * unit), plan, "y", scale=BOX_COX).set_index("term")
        for unit in (1e-9, 1.0, 1e9, 1e12)
    }
    base = tables[1.0]
    assert base.loc["a", "p_holm"] < 0.001
    for table in tables.values():
        for column in ("effect", "p_value", "effect_ci_low"):
            close = pytest.approx(base[column].to_numpy(), rel=1e-3, abs=1e-5, nan_ok=True)
            assert table[column].to_numpy() == close


def test_studentised_residuals_equal_statsmodels(tmp_path):
    import statsmodels.api as sm

    text = study_text({"W": W, "S": S}, "{kind: full, replicates: 5, order: interleaved}")
    plan = plan_of_text(text, tmp_path)
    random = np.random.default_rng(3)
    runs = runs_with(plan, lambda r: 5 + r.replicate + float(random.normal()))
    runs.loc[[2, 11], "valid"] = False
    fit = fitted(runs, plan, "y")
    good = runs[runs["valid"]]
    w, s = ((2.0 * good[n].isin(["high", "b"]) - 1).to_numpy() for n in "WS")
    x = np.column_stack(
        [np.ones(len(good)), w, s, w * s, pd.get_dummies(good["replicate"]).to_numpy(float)[:, 1:]]
    )
    expected = sm.OLS(good["y"].to_numpy(), x).fit().get_influence().resid_studentized_external
    np.testing.assert_allclose(studentised(fit), expected, rtol=1e-8)


def test_an_outlier_is_flagged_kept_and_reported_both_ways(tmp_path):
    """Two of 40 runs are not valid, and one lies 20 median deviations off."""
    text = study_text({"f": "{levels: [low, high]}"}, "{kind: full, replicates: 20}")
    plan = plan_of_text(text, tmp_path)
    random = np.random.default_rng(4)
    value = {
        r.run_id: 10 + (r.levels["f"] == "high") + float(random.normal(0, 1)) for r in plan.rows
    }
    far = next(r for r in plan.rows[10:] if r.levels["f"] == "high")
    same_level = np.array([value[r.run_id] for r in plan.rows if r.levels["f"] == "high"])
    mad = float(np.median(np.abs(same_level - np.median(same_level))))
    value[far.run_id] = float(np.median(same_level)) + 22 * mad
    lost = [plan.rows[0].run_id, plan.rows[1].run_id]
    from penstock.campaign.analysis import analyse

    analysis = analyse(
        record(tmp_path, text, lambda r: {"y": value[r.run_id]}, lost=lost), report=False
    )
    assert analysis.valid_runs == 38
    table = pd.read_parquet(analysis.out / "residuals.parquet").set_index("run_id")
    assert "far from the median" in table.loc[far.run_id, "flag"]
    assert (table["flag"] != "").sum() == 1
    (outlier,) = [f for f in analysis.findings if f.code == "outlier"]
    assert far.run_id in outlier.statement
    assert "stays in the data; without it" in outlier.statement
    assert analysis.effects is not None
    assert analysis.effects["n"].iloc[0] == 38


def test_nothing_is_flagged_below_the_limit(tmp_path):
    plan = one_factor(tmp_path, "{levels: [low, high]}", 5)
    steps = {1: -1.0, 2: 0.5, 3: 0.0, 4: -0.5, 5: 1.0}
    runs = runs_with(plan, lambda r: steps[r.replicate])
    position = runs.index[runs["f"].eq("high") & runs["replicate"].eq(5)][0]
    for off, flagged in ((0.99, False), (1.01, True)):
        moved = runs.copy()
        moved.loc[position, "y"] = off * FAR_IN_MADS * 0.5
        data = usable(moved, plan, "y")
        table = residual_table(fitted(moved, plan, "y"), data, "y", LINEAR)
        flags = table["flag"].str.contains("far from the median")
        assert flags.any() == flagged


def test_a_run_far_from_equal_runs_is_flagged(tmp_path):
    """Most runs of `high` have one value, so their median deviation is 0."""
    plan = one_factor(tmp_path, "{levels: [low, high]}", 5)
    steps = {1: -1.0, 2: 0.5, 3: 0.0, 4: -0.5, 5: 1.0}
    runs = runs_with(plan, lambda r: steps[r.replicate] if r.levels["f"] == "low" else 7.0)
    position = runs.index[runs["f"].eq("high") & runs["replicate"].eq(5)][0]
    for off, flagged in ((0.99, False), (1.01, True)):
        moved = runs.copy()
        moved.loc[position, "y"] = 7 + off * FAR_IN_MADS * 0.5
        assert far_from_median(moved, "y").tolist() == [
            flagged and i == position for i in runs.index
        ]


def test_checks_detect_planted_faults_with_few_false_alarms(tmp_path):
    text = study_text({"W": W, "S": S}, "{kind: full, replicates: 12, order: standard}")
    plan = plan_of_text(text, tmp_path)

    def failing(value) -> set[str]:
        runs = runs_with(plan, value)
        results = checks(fitted(runs, plan, "y"), runs, ["W", "S"])
        return {c.name for c in results if not c.holds}

    false_alarms = 0
    for seed in range(60):
        random = np.random.default_rng(seed)
        false_alarms += len(failing(lambda r, random=random: float(random.normal(10))))
    assert (
        false_alarms <= 12
    )  # 7 checks of 60 studies at 1 %: 4 expected, 12 is one in two thousand
    random = np.random.default_rng(99)
    assert "drift" in failing(lambda r: r.run_order / 8 + float(random.normal()))
    spread = failing(lambda r: 10 * float(np.exp(r.coded["W"] + 0.5 * random.normal())))
    assert {"spread-fitted", "spread-W"} <= spread
    assert "normal" in failing(lambda r: float(random.standard_t(1.5)))


def test_no_variance_no_number_one_level(tmp_path):
    plan = one_factor(tmp_path, "{levels: [low, high]}", 3)
    constant = effects(runs_with(plan, lambda r: 5.0), plan, "y").set_index("term")
    assert constant.loc["f", "effect"] == pytest.approx(0, abs=1e-12)
    assert not constant.loc["f", "p_value"] < 0.5
    with_nan = runs_with(plan, lambda r: float("nan") if r.run_order == 1 else float(r.run_order))
    assert effects(with_nan, plan, "y")["n"].iloc[0] == 5
    with_inf = runs_with(plan, lambda r: float("inf") if r.run_order == 1 else float(r.run_order))
    assert effects(with_inf, plan, "y")["n"].iloc[0] == 5
    runs = runs_with(plan, lambda r: float(r.run_order))
    single_level = effects(runs.assign(valid=runs["f"] == "low"), plan, "y").set_index("term")
    assert single_level.loc["f", "method"] == "not estimable"
    with pytest.raises(PenstockError, match="0 valid runs"):
        effects(runs.assign(y=np.nan), plan, "y")
