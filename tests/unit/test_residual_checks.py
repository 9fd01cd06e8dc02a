"""Checks of residuals: they detect planted faults, in passes and of two runs, and have few false alarms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from penstock.analyse.statistics.fit import fitted, usable
from penstock.analyse.statistics.residuals import CHECK_LEVEL, checks, holm
from penstock.analyse.statistics.scale import scaled
from penstock.design.planned import Plan
from tests.unit.recorded_study import plan_of_text, refitted, study_text

LEVELS = "{levels: [x, z]}"
DEAR = "{levels: [x, z], change: redeploy}"
DESIGNS = {
    "two x20": (["a"], "{kind: full, replicates: 20}"),
    "2^4 r=2": (list("abcd"), "{kind: full, replicates: 2}"),
    "2^(6-2) r=2": (list("abcdef"), "{kind: {fraction: 2}, replicates: 2}"),
    "2^3 r=3": (list("abc"), "{kind: full, replicates: 3}"),
    "split-plot": (list("wab"), "{kind: full, replicates: 6, order: split-plot}"),
}
Noise = Callable[[np.random.Generator, pd.DataFrame], Any]


def plan(name: str, place: Path) -> Plan:
    names, design = DESIGNS[name]
    factors = {n: DEAR if n == "w" else LEVELS for n in names}
    return plan_of_text(study_text(factors, design), place)


def runs_of(design_plan: Plan) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "run_id": r.run_id,
                "run_order": r.run_order,
                "replicate": r.replicate,
                "treatment_id": r.treatment_id,
                "whole_plot": r.whole_plot,
                **r.levels,
                "valid": True,
            }
            for r in design_plan.rows
        ]
    )


def failed(design_plan: Plan, noise: Noise, studies: int) -> Iterator[set[str]]:
    """Names of failed checks, for each of several studies."""
    runs = runs_of(design_plan).assign(y=0.0)
    base_fit = fitted(runs, design_plan, "y")
    for seed in range(studies):
        runs = runs.assign(y=100 + noise(np.random.default_rng([17, seed]), runs))
        fit = refitted(base_fit, runs["y"].to_numpy(), design_plan)
        results = checks(fit, usable(runs, design_plan, "y"), [f.name for f in design_plan.factors])
        yield {c.name for c in results if not c.holds}


def even(draws: np.random.Generator, runs: pd.DataFrame) -> Any:
    noise = draws.normal(0, 5, len(runs)) + 20 * (runs["replicate"] % 2)
    return noise + draws.normal(0, 8, int(runs["whole_plot"].max()) + 1)[runs["whole_plot"]]


@pytest.mark.parametrize("name", DESIGNS)
def test_normal_noise_seldom_causes_a_warning(name: str, tmp_path: Path) -> None:
    design_plan, studies = plan(name, tmp_path), 150
    false_alarms = sum(map(bool, failed(design_plan, even, studies)))
    low = stats.beta.ppf(0.005, false_alarms, studies - false_alarms + 1) if false_alarms else 0.0
    assert low <= CHECK_LEVEL


def tails(draws: np.random.Generator, runs: pd.DataFrame) -> Any:
    return draws.standard_t(1.2, len(runs))


def wide(draws: np.random.Generator, runs: pd.DataFrame) -> Any:
    return draws.normal(0, 1, len(runs)) * np.where(runs["b"] == "z", 12, 1)


def late(draws: np.random.Generator, runs: pd.DataFrame) -> Any:
    """Each pass has its own drift; common changes of all passes do not count."""
    position = runs["run_order"] - runs.groupby("replicate")["run_order"].transform("mean")
    return draws.normal(0, 1, len(runs)) + 0.6 * position


def wave(draws: np.random.Generator, runs: pd.DataFrame) -> Any:
    """One of two systems follows a wave of the host over ten passes."""
    host_effect = np.where(runs["a"] == "z", 2.5 * np.sin(2 * np.pi * runs["replicate"] / 10), 0)
    return draws.normal(0, 1, len(runs)) + host_effect


@pytest.mark.parametrize(
    ("name", "noise", "expected"),
    [
        ("two x20", tails, "normal"),
        ("2^4 r=2", wide, "spread-b"),
        ("2^(6-2) r=2", wide, "spread-b"),
        ("2^3 r=3", wide, "spread-b"),
        ("2^4 r=2", late, "drift"),
        ("two x20", wave, "successive"),
    ],
)
def test_planted_faults_are_detected_in_passes(
    name: str, noise: Noise, expected: str, tmp_path: Path
) -> None:
    design_plan = plan(name, tmp_path)
    detected = sum(expected in names for names in failed(design_plan, noise, 20))
    # 1 of 20 by chance; in studies of this size the checks detect these faults in about half
    assert detected >= 8, f"{expected}: {detected} of 20"


def test_spread_is_not_tested_in_passes_of_two_runs(tmp_path: Path) -> None:
    """Both runs of a pass have the same residual with opposite signs: their spreads cannot differ."""
    design_plan = plan("two x20", tmp_path)
    runs = runs_of(design_plan).assign(y=np.random.default_rng(2).normal(100, 5, 40))
    names = {
        c.name
        for c in checks(fitted(runs, design_plan, "y"), usable(runs, design_plan, "y"), ["a"])
    }
    assert "spread-a" not in names
    assert {"normal", "neighbours", "drift"} <= names


def test_holms_step() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []


def test_a_box_cox_power_is_estimated_with_the_model(tmp_path: Path) -> None:
    """Levels of 10 and 100 with equal spread do not need logarithms."""
    design_plan = plan("two x20", tmp_path)
    draws = np.random.default_rng(0)
    runs = runs_of(design_plan)
    values = np.where(runs["a"] == "z", 100, 10) + draws.normal(0, 2, len(runs))
    fit = fitted(runs.assign(y=values), design_plan, "y", "box-cox")
    without_model = scaled(values, "box-cox")
    powers = np.linspace(-1, 2, 301)

    def nearest(transformed: Any) -> float:
        return float(
            min(powers, key=lambda p: np.abs(scaled(values, "box-cox", p) - transformed).max())
        )

    assert nearest(fit.y) == pytest.approx(1, abs=0.25)
    assert abs(nearest(without_model)) < 0.3


def test_the_power_of_single_runs_is_estimated_with_main_effects(tmp_path: Path) -> None:
    names = dict.fromkeys("abc", LEVELS)
    design_plan = plan_of_text(study_text(names, "{kind: full, replicates: 1}"), tmp_path)
    runs = runs_of(design_plan)
    draws = np.random.default_rng(3)
    log = 1 + 2.0 * (runs["a"] == "z") + (runs["b"] == "z") + draws.normal(0, 0.05, len(runs))
    fit = fitted(runs.assign(y=np.exp(log)), design_plan, "y", "box-cox")
    assert np.corrcoef(fit.y, log)[0, 1] > 0.99
