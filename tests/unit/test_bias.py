"""Degraded runs in means, rankings and effects: conclusions hold for any bias within the bounds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from penstock.analyse.outcome import Outcome
from penstock.analyse.statistics.bias import ends, used
from penstock.analyse.statistics.effects import effects
from penstock.analyse.statistics.fit import fitted
from penstock.analyse.statistics.scale import scaled_ends, usual_scale
from penstock.analyse.statistics.significance import is_sure
from penstock.analyse.treatments.costs import factor_cost
from penstock.analyse.treatments.means import ranking
from penstock.design.planned import Plan
from tests.unit.recorded_study import plan_of_text, study_text

TWO = "{levels: [x, z]}"
STUDY = {"question": "Is x slower than z?", "responses": {"y": {"unit": "s", "better": "lower"}}}


def plan_of(place: Path, replicates: int, factors: str = "a") -> Plan:
    design = f"{{kind: full, replicates: {replicates}, order: random}}"
    return plan_of_text(study_text(dict.fromkeys(factors, TWO), design), place)


def frame(plan: Plan) -> pd.DataFrame:
    rows = [
        {"run_id": r.run_id, "treatment_id": r.treatment_id, "replicate": r.replicate, **r.levels}
        for r in plan.rows
    ]
    return pd.DataFrame(rows).assign(valid=True, validity="valid", state="finished")


def planted(plan: Plan, ratio: float, rng: np.random.Generator, share: float) -> pd.DataFrame:
    """Times of true mean 10 s, `ratio` times that at a = z, noise of 4 %.

    Half of the runs of one level are delayed by up to `share` of their time. Their bounds are up to
    half again as large.
    """
    runs = frame(plan)
    at_z = runs["a"].eq("z").to_numpy()
    true = 10 * np.where(at_z, ratio, 1.0) * np.exp(rng.normal(0, 0.04, len(runs)))
    degraded = (at_z == (rng.random() < 0.5)) & (rng.random(len(runs)) < 0.5)
    delay_s = true * rng.uniform(0, share, len(runs)) * degraded
    runs = runs.assign(y=true + delay_s)
    runs["y:low"] = runs["y"] - delay_s * rng.uniform(1, 1.5, len(runs))
    runs["y:high"] = runs["y"]
    return runs.assign(validity=np.where(degraded, "degraded", "valid"))


def outcome_of(plan: Plan, runs: pd.DataFrame, scale: str | None = None) -> Outcome:
    table = effects(runs, plan, "y", scale=scale or usual_scale(runs, "y"))
    return Outcome(Path("/nowhere"), plan.to_json(), STUDY, runs, table, None, None)


def compared(outcome: Outcome) -> tuple[float, float, bool]:
    """The interval of the time at z over that at x, and true if the difference is significant."""
    ranked = ranking(outcome, outcome.responses[0])
    by_level = {t.levels["a"]: t for t in ranked.treatments}
    _, low, high = ranked.better(by_level["x"], by_level["z"])
    return low, high, ranked.apart(by_level["x"], by_level["z"])


@pytest.mark.parametrize("ratio", [1.0, 1.3, 4.0])
def test_the_true_ratio_lies_within_the_interval_and_no_conclusion_is_wrong(
    tmp_path: Path, ratio: float
) -> None:
    plan = plan_of(tmp_path, 5)
    rng = np.random.default_rng(int(10 * ratio))
    studies, covered, by_effect, wrong, blind_covered, apart = 60, 0, 0, 0, 0, 0
    for number in range(studies):
        runs = planted(plan, ratio, rng, 0.4)
        outcome = outcome_of(plan, runs, "log")
        low, high, significant = compared(outcome)
        covered += low <= ratio <= high
        apart += significant
        assert outcome.effects is not None
        row = outcome.effects.set_index("term").loc["a"]
        by_effect += row["ratio_ci_low"] <= ratio <= row["ratio_ci_high"]
        slower = row["effect"] > 0
        wrong += significant and (ratio == 1 or not slower)
        if number < studies // 2:  # the same runs without bounds
            without_bounds = outcome_of(plan, runs.drop(columns=["y:low", "y:high"]), "log")
            low, high, _ = compared(without_bounds)
            blind_covered += low <= ratio <= high
    assert covered >= 0.95 * studies
    assert by_effect >= 0.95 * studies
    assert wrong <= 0.05 * studies * (ratio == 1)
    assert blind_covered < 0.9 * (studies // 2)  # without bounds, the bias is visible
    if ratio == 4:
        assert apart == studies  # a large effect is significant despite degraded runs


def test_intervals_reach_from_all_measured_to_all_corrected(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, 2)
    runs = frame(plan).assign(y=[10.0, 20.0, 10.5, 21.0][: len(plan.rows)])
    runs["y"] = np.where(runs["a"].eq("x"), 10.0, 20.0) + 0.2 * runs["replicate"]
    measured = ranking(outcome_of(plan, runs), outcome_of(plan, runs).responses[0]).treatments
    runs["y:low"], runs["y:high"] = runs["y"], runs["y"]
    degraded = runs.index[runs["a"].eq("z")][0]
    runs.loc[degraded, "y:low"] -= 4.0
    bounded = ranking(outcome_of(plan, runs), outcome_of(plan, runs).responses[0]).treatments
    assert (bounded[0].low, bounded[0].high) == (measured[0].low, measured[0].high)
    assert bounded[1].high == measured[1].high
    assert bounded[1].low == pytest.approx(
        measured[1].low * (measured[1].mean - 2.0) / measured[1].mean
    )


def test_a_bound_that_could_reverse_a_conclusion_withholds_it(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, 3)
    runs = frame(plan)
    runs["y"] = np.where(runs["a"].eq("x"), 10.0, 13.0) + 0.1 * runs["replicate"]
    assert compared(outcome_of(plan, runs))[2]
    for low, significant in ((0.9, True), (0.7, False)):
        bounded = runs.assign(**{"y:high": runs["y"], "y:low": runs["y"]})
        bounded.loc[bounded["a"].eq("z"), "y:low"] *= low
        outcome = outcome_of(plan, bounded)
        assert compared(outcome)[2] is significant
        assert outcome.effects is not None
        terms = outcome.effects[outcome.effects["term"] == "a"]
        assert bool(is_sure(terms).iloc[0]) is significant
        cost = factor_cost(outcome, outcome.responses[0], "a")
        assert cost is not None
        assert cost.average.sure is significant


def test_the_bias_of_an_effect_is_the_worst_of_all_corrections(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, 2, "ab")
    rng = np.random.default_rng(4)
    runs = frame(plan).assign(y=lambda t: rng.uniform(5, 9, len(t)))
    runs["y:low"] = runs["y"] - rng.uniform(0, 2, len(runs)) * (rng.random(len(runs)) < 0.5)
    runs["y:high"] = runs["y"] + rng.uniform(0, 1, len(runs)) * (rng.random(len(runs)) < 0.3)
    fit = fitted(runs, plan, "y")
    below, above = fit.bias(0) or (np.zeros(1), np.zeros(1))
    lowest, highest = np.inf, -np.inf
    sides = np.vstack([runs["y:low"], runs["y:high"]])
    for number in range(2 ** len(runs)):  # every corner of the bounds
        corner = [sides[number >> i & 1, i] for i in range(len(runs))]
        q = fitted(runs.assign(y=corner)[list(runs.columns[:-2])], plan, "y").coefficients[1]
        lowest, highest = min(lowest, q), max(highest, q)
    assert fit.coefficients[1] - below[0] == pytest.approx(lowest)
    assert fit.coefficients[1] + above[0] == pytest.approx(highest)


def test_a_run_without_a_bound_is_not_used_for_that_response(tmp_path: Path) -> None:
    runs = frame(plan_of(tmp_path, 2)).assign(y=5.0)
    runs["y:low"], runs["y:high"] = 5.0, 5.0
    assert used(runs, "y").all()
    assert ends(runs, "y") is None
    runs.loc[1, ["y:low", "y:high"]] = np.nan
    runs.loc[2, "valid"] = False
    assert used(runs, "y").tolist() == [True, False, False, True]


@pytest.mark.parametrize("scale", ["linear", "log", "box-cox", "rank"])
def test_ends_on_a_scale_hold_the_corrected_value(scale: str) -> None:
    rng = np.random.default_rng(3)
    values = rng.uniform(1, 9, 12)
    low, high = values * 0.8, values * 1.1
    below, above = scaled_ends(values, low, high, scale, 0.5)
    assert (below >= 0).all()
    assert (above >= 0).all()
    assert (below > 0).any()
    zero_bounds = scaled_ends(values, values, values, scale, 0.5)
    assert np.allclose(zero_bounds, 0)
