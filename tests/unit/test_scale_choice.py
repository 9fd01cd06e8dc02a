"""The scale that `auto` chooses: ratios from a threefold range on, unless the runs contradict it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from penstock.analyse.statistics.effects import effects
from penstock.analyse.statistics.scale import LINEAR, LOG, usual_scale
from penstock.design.planned import Plan
from tests.unit.recorded_study import plan_of_text, study_text

TWO = "{levels: [x, z]}"


def plan_of(place: Path, replicates: int = 2, order: str = "random", factors: str = "ab") -> Plan:
    design = f"{{kind: full, replicates: {replicates}, order: {order}}}"
    return plan_of_text(study_text(dict.fromkeys(factors, TWO), design), place)


def runs_of(plan: Plan, mean: dict[str, float], noise: object) -> pd.DataFrame:
    """Runs whose mean is the product of the factors of their levels `z`, with values `noise(mean)`."""
    rows = [
        {
            "run_id": row.run_id,
            "treatment_id": row.treatment_id,
            "replicate": row.replicate,
            **row.levels,
        }
        for row in plan.rows
    ]
    frame = pd.DataFrame(rows).assign(valid=True)
    means = 100 * np.prod(
        [np.where(frame[name] == "z", factor, 1.0) for name, factor in mean.items()], axis=0
    )
    return frame.assign(y=noise(means))  # type: ignore[operator]


def proportional(share: float, seed: int):  # type: ignore[no-untyped-def]
    """Lognormal noise with this coefficient of variation."""
    draws, sigma = np.random.default_rng(seed), np.sqrt(np.log1p(share**2))
    return lambda means: means * np.exp(draws.normal(0, sigma, len(means)))


def additive(spread: float, seed: int):  # type: ignore[no-untyped-def]
    draws = np.random.default_rng(seed)
    return lambda means: means + draws.normal(0, spread, len(means))


def test_from_threefold_on_effects_are_ratios(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    far = runs_of(plan, {"a": 4.0}, proportional(0.05, 1))
    assert usual_scale(far, "y", surface=True) == LINEAR
    for factor, scale in ((1.0, LINEAR), (2.0, LINEAR), (4.0, LOG), (50.0, LOG), (200.0, LOG)):
        assert usual_scale(runs_of(plan, {"a": factor}, proportional(0.05, 1)), "y") == scale


def test_without_replicates_nothing_contradicts_ratios(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, replicates=1)
    assert usual_scale(runs_of(plan, {"a": 7.0}, proportional(0.1, 1)), "y") == LOG
    # equal values have no spread to judge by
    assert usual_scale(runs_of(plan_of(tmp_path), {"a": 7.0}, lambda m: m), "y") == LOG


def test_an_equal_spread_of_small_and_large_values_contradicts_ratios(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, replicates=5, factors="a")
    chosen = [
        usual_scale(runs_of(plan, {"a": 10.0}, additive(20, seed)), "y") for seed in range(50)
    ]
    assert chosen.count(LINEAR) >= 45
    # beyond a hundredfold range, differences show only that the largest is large
    assert usual_scale(runs_of(plan, {"a": 200.0}, additive(20, 1)), "y") == LOG


def test_values_of_zero_or_below_have_no_ratios(tmp_path: Path) -> None:
    runs = runs_of(plan_of(tmp_path), {"a": 7.0}, proportional(0.1, 1))
    runs.loc[0, "y"] = 0.0
    assert usual_scale(runs, "y") == LINEAR
    # runs that are not valid do not count
    assert usual_scale(runs.assign(valid=runs["y"] > 0), "y") == LOG


def is_significant(plan: Plan, mean: dict[str, float], noise: object, term: str) -> bool:
    runs = runs_of(plan, mean, noise)
    table = effects(runs, plan, "y", scale=usual_scale(runs, "y")).set_index("term")
    return bool(table.loc[term, "p_holm"] < 0.05)


@pytest.mark.parametrize(("order", "at_least"), [("random", 0.90), ("interleaved", 0.80)])
def test_a_sevenfold_effect_is_detected_under_forty_per_cent_noise(
    tmp_path: Path, order: str, at_least: float
) -> None:
    """Factors of 7 and 2.8, two replicates. On the linear scale, 11 of 20 studies detected it; passes as
    blocks leave three degrees of freedom instead of four."""
    plan = plan_of(tmp_path, order=order)
    studies = 200
    share = (
        sum(
            is_significant(plan, {"a": 7.0, "b": 2.8}, proportional(0.4, seed), "a")
            for seed in range(studies)
        )
        / studies
    )
    assert share >= at_least


@pytest.mark.parametrize("noise", [proportional, additive])
def test_a_factor_without_effect_is_seldom_significant(tmp_path: Path, noise: object) -> None:
    """With any chosen scale, next to a factor of 5."""
    plan = plan_of(tmp_path)
    spread = 0.4 if noise is proportional else 40.0
    studies = 200
    false_positives = sum(
        is_significant(plan, {"a": 5.0}, noise(spread, seed), "b")  # type: ignore[operator]
        for seed in range(studies)
    )
    assert stats.binomtest(false_positives, studies, 0.05, "greater").pvalue > 0.01


@pytest.mark.parametrize("value", [0.1, 1.1, 3.3, 7.7, 10.1])
@pytest.mark.parametrize("replicates", [2, 3, 5, 7])
def test_rounding_errors_do_not_choose_the_scale(value: float, replicates: int) -> None:
    """Equal replicates: the deviations from their means were rounding errors, whose ratio decided."""
    for ratio in (4, 5.5, 9.1):
        values = [value, ratio * value, 1.7 * value]
        runs = pd.DataFrame(
            {
                "treatment_id": np.repeat(["t1", "t2", "t3"], replicates),
                "y": np.repeat(values, replicates),
            }
        )
        assert usual_scale(runs, "y") == LOG
