"""Strata of designs with restricted randomisation: textbook cases, REML, executed order, refusal."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from penstock.analyse.outcome import Outcome
from penstock.analyse.statistics.effect_table import NO_ERROR, REML
from penstock.analyse.statistics.effects import effects
from penstock.analyse.statistics.fit import fitted
from penstock.analyse.treatments.means import Ranking
from penstock.campaign.analysis import analyse
from penstock.design.planned import Plan, PlannedRun, plan_from_json
from tests.support import commands
from tests.unit.recorded_study import plan_of_text, record, refitted, study_text


def analysed(out: Path) -> pd.DataFrame:
    """Effects of a recorded study, analysed by the command line."""
    argv = [sys.executable, "-m", "penstock", "analyse", str(out), "--json"]
    result = commands.run(argv, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return pd.read_parquet(out / "effects.parquet").set_index("term")


def in_whole_plots(
    rows: list[PlannedRun], hard: str, data: dict[str, list[dict[str, float]]], easy: str
) -> dict[str, float]:
    """Values by run: the whole plots of each level of `hard`, in the order of `data`."""
    values, plots_of_level = {}, {}
    for row in sorted(rows, key=lambda r: r.whole_plot):
        level = row.levels[hard]
        plots = plots_of_level.setdefault(level, [])
        if row.whole_plot not in plots:
            plots.append(row.whole_plot)
        values[row.run_id] = data[level][plots.index(row.whole_plot)][row.levels[easy]]
    return values


def pairs(*values: tuple[float, float]) -> list[dict[str, float]]:
    return [{"a": low, "b": high} for low, high in values]


SPLIT = {
    "low": pairs((40, 47), (52, 58), (46, 54)),
    "high": pairs((55, 66), (47, 57), (60, 69)),
}
WHOLE_AND_SUB = {
    "W": "{levels: [low, high], change: redeploy}",
    "S": "{levels: [a, b]}",
}


def test_whole_plot_factors_use_the_whole_plot_error(tmp_path):
    """Six whole plots of two runs, completely randomised: F of W on (1, 4), others by the sub-plot error."""
    text = study_text(WHOLE_AND_SUB, "{kind: full, replicates: 3, order: split-plot-random}")
    plan = plan_of_text(text, tmp_path)
    values = in_whole_plots(plan.rows, "W", SPLIT, "S")
    table = analysed(record(tmp_path, text, lambda row: {"y": values[row.run_id]}))
    assert table.loc["W", "f_value"] == pytest.approx(3.659, abs=5e-4)
    assert table.loc["W", "p_value"] == pytest.approx(0.128, abs=5e-4)
    assert table.loc["S", "f_value"] == pytest.approx(433.5)
    assert table.loc["W:S", "f_value"] == pytest.approx(13.5)
    assert table.loc[["W", "S", "W:S"], "df_error"].tolist() == [4, 4, 4]
    assert table.loc[["W", "S"], "stratum"].tolist() == ["whole_plot", "run"]
    assert table["variation_share"].sum() == pytest.approx(100)
    # the p-value without strata appears nowhere
    p_values = json.loads(json.dumps(table["p_value"].dropna().tolist()))
    assert not any(p == pytest.approx(0.027, abs=1e-3) for p in p_values)


def test_without_whole_plots_the_same_effect_is_significant(tmp_path):
    """Planted failure of the test above: the same runs in a plan without whole plots."""
    text = study_text(WHOLE_AND_SUB, "{kind: full, replicates: 3, order: split-plot-random}")
    plan = plan_of_text(text, tmp_path)
    values = in_whole_plots(plan.rows, "W", SPLIT, "S")
    runs = frame(plan, values)
    blind = plan.with_runs([PlannedRun(**{**vars(r), "whole_plot": 0}) for r in plan.rows])
    assert effects(runs, blind, "y").set_index("term").loc["W", "p_value"] == pytest.approx(
        0.027, abs=5e-4
    )


def frame(plan: Plan, values: dict[str, float]) -> pd.DataFrame:
    """A runs table."""
    return pd.DataFrame(
        [
            {
                "run_id": r.run_id,
                "run_order": r.run_order,
                "treatment_id": r.treatment_id,
                "replicate": r.replicate,
                **r.levels,
                "y": values[r.run_id],
                "valid": True,
            }
            for r in plan.rows
        ]
    )


def corrosion(plan: Plan) -> dict[str, float]:
    """Corrosion resistance of coated bars by furnace temperature (whole plots) and coating, in two
    replicates: Box, Hunter & Hunter, Statistics for Experimenters, 2nd edition, section 9.1. The R package
    BHH2 has the data as `corrosion.data`; the first ten values of its manual page are equal to these."""
    heats = {
        "360": [
            {"C1": 67, "C2": 73, "C3": 83, "C4": 89},
            {"C1": 33, "C2": 8, "C3": 46, "C4": 54},
        ],
        "370": [
            {"C1": 65, "C2": 91, "C3": 87, "C4": 86},
            {"C1": 140, "C2": 142, "C3": 121, "C4": 150},
        ],
        "380": [
            {"C1": 155, "C2": 127, "C3": 147, "C4": 212},
            {"C1": 108, "C2": 100, "C3": 90, "C4": 153},
        ],
    }
    return in_whole_plots(plan.rows, "heat", heats, "coating")


def test_corrosion_of_coated_bars(tmp_path):
    text = study_text(
        {
            "heat": "{levels: [360, 370, 380], change: reformat}",
            "coating": "{levels: [C1, C2, C3, C4]}",
        },
        "{kind: full, replicates: 2, order: split-plot-random}",
    )
    values = corrosion(plan_of_text(text, tmp_path))
    table = analysed(record(tmp_path, text, lambda row: {"y": values[row.run_id]}))
    squares = table.loc[
        ["heat", "whole_plot", "coating", "heat:coating", "residual"], "sum_of_squares"
    ]
    assert squares.round().tolist() == [26519, 14440, 4289, 3270, 1121]
    assert table.loc[squares.index, "df"].tolist() == [2, 3, 3, 6, 9]
    assert table.loc["heat", "f_value"] == pytest.approx(2.75, abs=0.01)
    assert table.loc["coating", "f_value"] == pytest.approx(11.48, abs=0.01)
    assert table.loc["heat:coating", "f_value"] == pytest.approx(4.376, abs=0.005)


PAPER = {
    "200": [(30, 34, 29), (28, 31, 31), (31, 35, 32)],
    "225": [(35, 41, 26), (32, 36, 30), (37, 40, 34)],
    "250": [(37, 38, 33), (40, 42, 32), (41, 39, 39)],
    "275": [(36, 42, 36), (41, 40, 40), (40, 44, 45)],
}


def test_strength_of_paper_in_blocks(tmp_path):
    """Tensile strength of paper, pulp preparation in whole plots, three days as blocks: Montgomery, Design
    and Analysis of Experiments, the split-plot design. All 36 values are equal to those of the tutorial on
    split plots of Design-Expert (`pulp.dxpx`)."""
    text = study_text(
        {
            "method": "{levels: [m1, m2, m3], change: redeploy}",
            "temperature": "{levels: [200, 225, 250, 275]}",
        },
        "{kind: full, replicates: 3, order: split-plot}",
    )
    table = analysed(
        record(
            tmp_path,
            text,
            lambda r: {
                "y": PAPER[r.levels["temperature"]][r.replicate - 1][int(r.levels["method"][1]) - 1]
            },
        )
    )
    rows = ["block", "method", "whole_plot", "temperature", "method:temperature"]
    assert table.loc[rows, "sum_of_squares"].round(2).tolist() == [
        77.56,
        128.39,
        36.28,
        434.08,
        75.17,
    ]
    assert table.loc[[*rows, "residual"], "df"].tolist() == [2, 2, 4, 3, 6, 18]
    assert table.loc[["method", "temperature", "method:temperature"], "f_value"].round(
        2
    ).tolist() == pytest.approx([7.08, 36.43, 3.15], abs=0.02)


def test_one_whole_plot_for_each_level_is_refused_for_inference(tmp_path):
    text = study_text(
        {**WHOLE_AND_SUB, "T": "{levels: [c, d]}"}, "{kind: full, replicates: 1, order: split-plot}"
    )
    plan = plan_of_text(text, tmp_path)
    assert any("Nothing can be concluded about W" in c for c in plan.cautions)
    rng = np.random.default_rng(1)
    table = effects(frame(plan, {r.run_id: float(rng.normal()) for r in plan.rows}), plan, "y")
    table = table.set_index("term")
    assert table.loc["W", "method"] == NO_ERROR
    assert table.loc["W", ["p_value", "ci_low", "effect_ci_high"]].isna().all()
    assert np.isfinite(table.loc["W", "effect"])
    # the other effects are compared with each other, without W
    assert table.loc["S", "method"] == "lenth"


def test_a_run_repeated_later_has_its_own_whole_plot(tmp_path):
    text = study_text(WHOLE_AND_SUB, "{kind: full, replicates: 4, order: split-plot-random}")
    plan = plan_of_text(text, tmp_path)
    rng = np.random.default_rng(3)
    runs = frame(plan, {r.run_id: float(rng.normal(10)) for r in plan.rows})
    runs["start_realtime_ns"] = runs["run_order"] * 100
    planned = effects(runs, plan, "y").set_index("term")
    assert planned.loc["W", "method"] == "student"
    runs.loc[0, "start_realtime_ns"] = 10_000  # repeated after all others
    moved = effects(runs, plan, "y").set_index("term")
    assert moved.loc["W", "method"] == REML
    assert moved.loc["whole_plot", "df"] == planned.loc["whole_plot", "df"] + 1


@pytest.mark.parametrize("seed", range(4))
def test_lost_runs_equal_mixed_models_of_statsmodels(tmp_path, seed: int):
    """Coefficients, their errors and both variances by REML, compared with an independent implementation."""
    from statsmodels.regression.mixed_linear_model import MixedLM

    text = study_text(
        {**WHOLE_AND_SUB, "T": "{levels: [c, d]}"},
        "{kind: full, replicates: 6, order: split-plot-random}",
    )
    plan = plan_of_text(text, tmp_path)
    rng = np.random.default_rng(seed)
    setting = rng.normal(0, 2, 1 + max(r.whole_plot for r in plan.rows))
    values = {r.run_id: 20 + setting[r.whole_plot] + float(rng.normal()) for r in plan.rows}
    runs = frame(plan, values)
    runs.loc[rng.choice(len(runs), 5, replace=False), "valid"] = False
    table = effects(runs, plan, "y").set_index("term")
    good = runs[runs["valid"]]
    w, s, t = ((2.0 * good[n].isin(["high", "b", "d"]) - 1).to_numpy() for n in "WST")
    columns = {"one": np.ones(len(good)), "W": w, "S": s, "T": t}
    columns |= {"W:S": w * s, "W:T": w * t, "S:T": s * t, "W:S:T": w * s * t}
    plots = {r.run_id: r.whole_plot for r in plan.rows}
    expected = MixedLM(
        good["y"].to_numpy(), pd.DataFrame(columns), good["run_id"].map(plots).to_numpy()
    ).fit(reml=True, method="powell")
    terms = ["W", "S", "T", "W:S", "W:T", "S:T", "W:S:T"]
    np.testing.assert_allclose(
        table.loc[terms, "coefficient"], expected.fe_params[1:].to_numpy(), atol=2e-4
    )
    np.testing.assert_allclose(
        table.loc[terms, "standard_error"], expected.bse_fe[1:].to_numpy(), rtol=1e-2
    )  # statsmodels uses a numerical Hessian
    assert table.loc["whole_plot", "variance"] == pytest.approx(
        float(np.asarray(expected.cov_re)[0, 0]), rel=5e-3
    )
    assert set(table.loc[terms, "method"]) == {REML}
    assert (table.loc[terms, "df_error"] <= len(good) - 8).all()
    assert table.loc["W", "df_error"] <= 10


def strip(plan: Plan, value: Callable[[PlannedRun], float]) -> pd.DataFrame:
    return frame(plan, {r.run_id: value(r) for r in plan.rows})


def test_rows_columns_and_runs_of_a_strip_plot_have_separate_errors(tmp_path):
    """Row, column and run errors of a strip-plot add up, and each estimates its planted variance."""
    text = study_text(
        {
            "A": "{levels: [a, b], change: redeploy, change_cost: 100s}",
            "B": "{levels: [c, d], change: reformat, change_cost: 50s}",
        },
        "{kind: full, replicates: 5, order: strip-plot}",
    )
    plan = plan_of_text(text, tmp_path)
    rng = np.random.default_rng(6)
    rows, columns = rng.normal(0, 5, 99), rng.normal(0, 3, 99)
    runs = strip(plan, lambda r: rows[r.whole_plot] + columns[r.strip] + float(rng.normal()))
    table = effects(runs, plan, "y").set_index("term")
    assert table.loc[["A", "B", "A:B"], "stratum"].tolist() == ["whole_plot", "strip", "run"]
    assert table.loc[["whole_plot", "strip", "residual"], "df"].tolist() == [4, 4, 4]
    assert table.loc["block", "df"] == 4
    assert table["variation_share"].sum() == pytest.approx(100)
    # as in the textbook: interactions of block with rows, columns and both
    y = runs.assign(y=runs["y"])
    means = y.groupby(["replicate", "A"])["y"].mean().unstack()
    deviations = means.sub(means.mean(axis=1), axis=0) - (means.mean() - means.to_numpy().mean())
    assert table.loc["whole_plot", "sum_of_squares"] == pytest.approx(
        2 * float((deviations**2).to_numpy().sum())
    )
    lost = runs.assign(valid=runs.index != 3)
    assert set(effects(lost, plan, "y").set_index("term").loc[["A", "B"], "method"]) == {NO_ERROR}


def test_means_have_the_degrees_of_freedom_of_settings(tmp_path):
    """Means of a hard-to-change factor: the error of a setting does not average out over its runs."""
    text = study_text(WHOLE_AND_SUB, "{kind: full, replicates: 3, order: split-plot-random}")
    plan = plan_of_text(text, tmp_path)
    values = in_whole_plots(plan.rows, "W", SPLIT, "S")
    out = record(tmp_path, text, lambda row: {"y": values[row.run_id]})
    analyse(out, report=False)
    outcome = Outcome.read(out)
    ranked = Ranking(outcome, outcome.responses[0])
    low, high = ranked.level_means("W")
    assert low.high > high.low  # no significant difference, as in the test by whole plots
    # as in the textbook: three whole plots of each level, 4 degrees of freedom between them
    plots = {r.run_id: r.whole_plot for r in plan.rows}
    runs = outcome.measured
    logs = np.log(runs["y"].astype(float)).groupby([runs["W"], runs["run_id"].map(plots)])
    between = float(logs.mean().groupby("W").var(ddof=1).mean())
    half = float(stats.t.ppf(0.975, 4)) * math.sqrt(between / 3)
    assert math.log(low.high / low.low) == pytest.approx(2 * half, rel=1e-3)


def test_plans_survive_a_round_trip_through_json(tmp_path):
    text = study_text(WHOLE_AND_SUB, "{kind: full, replicates: 3, order: split-plot}")
    plan = plan_of_text(text, tmp_path)
    again = plan_from_json(json.loads(json.dumps(plan.to_json())))
    assert again == plan
    assert {r.whole_plot for r in again.rows} == set(range(1, 7))


@pytest.mark.parametrize("order", ["split-plot", "split-plot-random", "strip-plot", "interleaved"])
def test_the_detectable_difference_is_detected_with_the_planned_power(tmp_path, order: str):
    """The analysis detects planted differences of the size in the plan in 80 % of studies.

    Fails with the error or the degrees of freedom of another stratum in the plan or in the analysis.
    """
    text = study_text(
        {
            "W": "{levels: [a, b], change_cost: 100s, change: redeploy}",
            "S": "{levels: [a, b], change_cost: 10s, change: reformat}",
        },
        f"{{kind: full, replicates: 7, order: {order}}}",
    )
    plan = plan_of_text(text, tmp_path)
    key = (plan.order, plan.whole_plot_factors, plan.strip_factors)
    (option,) = (o for o in plan.orders if (o["order"], o["hard"], o["strips"]) == key)
    rng = np.random.default_rng(12)
    frame = pd.DataFrame(
        [
            {"run_id": r.run_id, "replicate": r.replicate, **r.levels, "valid": True}
            for r in plan.rows
        ]
    )
    # half of the variance of a run belongs to its setting: one part for each of whole plots and strips
    groups = [
        numbers
        for name in ("whole_plot", "strip")
        if (numbers := np.array([getattr(r, name) for r in plan.rows])).any()
    ]
    detected = dict.fromkeys("WS", 0)
    studies = 300
    base = sum(
        option["detectable"][n] / 2 * np.array([r.coded[n] for r in plan.rows]) for n in "WS"
    )
    base_fit = fitted(frame.assign(y=base), plan, "y")
    for _ in range(studies):
        y = base + np.sqrt(0.5 if groups else 1.0) * rng.normal(size=len(frame))
        for numbers in groups:
            y = y + np.sqrt(0.5) * rng.normal(size=numbers.max() + 1)[numbers]
        table = effects(frame, plan, "y", fit=refitted(base_fit, y, plan)).set_index("term")
        for name in detected:
            detected[name] += table.loc[name, "p_value"] < 0.05
    low, high = (0.8 + s * 3.3 * math.sqrt(0.8 * 0.2 / studies) for s in (-1, 1))
    for name, count in detected.items():
        assert low <= count / studies <= high, name
