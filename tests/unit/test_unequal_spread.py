"""Intervals of effects if the runs of one level have a larger spread, in simulated studies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import special

from penstock.analyse.statistics.fit import Fit, estimate, fitted
from penstock.analyse.statistics.spread import unequal_spread
from penstock.design.plan import make_plan
from penstock.design.planned import Plan
from penstock.study.load import read_study

STUDIES = 500
NUMBERS = "{levels: [1, 2, 3]}"


def plan_of(design: str, levels: str) -> Plan:
    text = f"""penstock: 1
name: plain
question: Which factor matters?
factors: {{A: {levels}, B: {levels}}}
design: {design}
platform: {{nodes: [{{name: n}}]}}
workload: {{command: 'echo {{A}} {{B}}', expected: 1s}}
responses: {{y: {{from: wall_s, unit: s, better: lower}}}}
"""
    return make_plan(read_study(text.encode(), Path("plain.study.yaml")))


@pytest.fixture(scope="module")
def surface() -> Plan:
    return plan_of("{kind: central-composite, replicates: 3}", NUMBERS)


def fits(plan: Plan, noisy: float) -> Iterator[Fit]:
    """Fits of studies without effects; the spread at the last level of A is `noisy` times larger."""
    rows = [
        {"run_id": r.run_id, "replicate": r.replicate, "treatment_id": r.treatment_id, **r.levels}
        for r in plan.rows
    ]
    runs = pd.DataFrame(rows).assign(valid=True)
    last = plan.factors[0].levels[-1].name
    size = np.array([noisy if r.levels["A"] == last else 1.0 for r in plan.rows])
    for study in range(STUDIES):
        draws = np.random.default_rng([5, study])
        yield fitted(runs.assign(y=draws.normal(size=len(runs)) * size), plan, "y")


def covered(plan: Plan, noisy: float, term: str) -> float:
    """Share of the 95 % intervals of a term that contain the truth."""
    hits = []
    for fit in fits(plan, noisy):
        i = [t.name for t in fit.design.terms].index(term)
        q, covariance, df = estimate(fit, i)
        hits.append(abs(q[0]) <= special.stdtrit(df, 0.975) * np.sqrt(covariance[0, 0]))
    return float(np.mean(hits))


def test_intervals_of_an_effect_of_noisy_runs_have_their_coverage(
    surface: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    widened = covered(surface, 3, "A:B")
    assert widened > 0.91  # 93 % within two standard errors
    assert 0.93 <= covered(surface, 1, "A:B") <= 0.97
    # planted: one variance for all runs
    monkeypatch.setattr(Fit, "unequal", None)
    assert covered(surface, 3, "A:B") < min(0.9, widened - 0.02)


def test_a_regular_design_has_the_usual_variance() -> None:
    plan = plan_of("{kind: full, replicates: 4}", "{levels: [p, q]}")
    fit = next(fits(plan, 10))
    assert fit.unequal is not None
    _, covariance, df = estimate(fit, 0)
    error = fit.errors[fit.of_term[0]]
    assert fit.unequal.of(fit.weights[1])[0] == pytest.approx(covariance[0, 0])
    assert covariance[0, 0] == pytest.approx(fit.covariance[1, 1] * error.mean_square)
    assert df == error.df


def test_the_variance_is_that_of_the_levels_of_its_runs() -> None:
    residuals = np.array([1.0, -1, 1, -1, 9, -9, 9, -9])
    group = np.repeat([0, 1], 4)
    columns = np.column_stack([np.ones(8), group])
    assert unequal_spread(columns, residuals / np.repeat([1, 9], 4), [group]) is None
    unequal = unequal_spread(columns, residuals, [group])
    assert unequal is not None
    variance, df = unequal.of(np.repeat([0.25, 0.0], 4))
    assert (variance, df) == pytest.approx((4 / 3 / 4, 3.0))
    # both levels: Welch's degrees of freedom
    variance, df = unequal.of(np.repeat([0.25, -0.25], 4))
    parts = np.array([4 / 3 / 4, 324 / 3 / 4])
    assert (variance, df) == pytest.approx((parts.sum(), parts.sum() ** 2 / (parts**2 / 3).sum()))
