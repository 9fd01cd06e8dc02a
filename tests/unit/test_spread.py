"""Coverage of the intervals of the ranked table, in simulated studies with a known truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import special, stats

from penstock.analyse.outcome import Outcome
from penstock.analyse.statistics.spread import Error, Spread, differs
from penstock.analyse.treatments.means import ranking
from penstock.design.plan import make_plan
from penstock.design.planned import Plan
from penstock.spec.study import Study
from penstock.study.load import read_study
from tests.unit.played_studies import outcome_of

STUDIES = 400
#: bounds of the share of 95 % intervals that contain the truth
LOW, HIGH = 0.93, 0.97


def study_of(factors: dict[str, str], design: str) -> Study:
    levels = "\n".join(f"  {name}: {levels}" for name, levels in factors.items())
    arguments = " ".join(f"{{{name}}}" for name in factors)
    text = f"""penstock: 1
name: plain
question: Which is best?
factors:
{levels}
design: {design}
platform: {{nodes: [{{name: n}}]}}
workload: {{command: 'echo {arguments}', expected: 1s}}
responses: {{took: {{from: wall_s, unit: s, better: lower}}}}
"""
    return read_study(text.encode(), Path("plain.study.yaml"))


FOUR = {"a": "{levels: [w, x, y, z]}"}
#: the same true mean of all treatments, far from 0
MEAN = 100.0
Draws = Callable[[Plan, np.random.Generator], np.ndarray]


def normal(plan: Plan, draws: np.random.Generator) -> np.ndarray:
    return draws.normal(size=len(plan.rows))


def unequal(plan: Plan, draws: np.random.Generator) -> np.ndarray:
    size = np.array([{"w": 0.2, "x": 1.0, "y": 3.0, "z": 6.0}[r.levels["a"]] for r in plan.rows])
    return size * normal(plan, draws)


def one_wide(plan: Plan, draws: np.random.Generator) -> np.ndarray:
    return np.array([3.0 if r.levels["a"] == "z" else 1.0 for r in plan.rows]) * normal(plan, draws)


def outlying(plan: Plan, draws: np.random.Generator) -> np.ndarray:
    return normal(plan, draws) + np.where(draws.random(len(plan.rows)) < 0.04, 30.0, 0.0)


def blocked(plan: Plan, draws: np.random.Generator) -> np.ndarray:
    passes = np.array([r.block for r in plan.rows])
    return normal(plan, draws) + 2 * draws.normal(size=passes.max() + 1)[passes]


def in_plots(plan: Plan, draws: np.random.Generator) -> np.ndarray:
    plots = np.array([r.whole_plot for r in plan.rows])
    return normal(plan, draws) + 1.5 * draws.normal(size=plots.max() + 1)[plots]


def outcome(study: Study, plan: Plan, noise: np.ndarray) -> Outcome:
    rows = [
        {"run_id": r.run_id, "treatment_id": r.treatment_id, "replicate": r.replicate, **r.levels}
        for r in plan.rows
    ]
    runs = pd.DataFrame(rows).assign(took=MEAN + noise, valid=True)
    return Outcome(Path("."), plan.to_json(), {"responses": {"took": {"unit": "s", "better": "lower"}}},
                   runs, None, None, None)  # fmt: skip


def coverage(study: Study, noise: Draws, studies: int = STUDIES) -> tuple[dict[int, float], float]:
    """The share of intervals that contain the truth, by treatment, and the mean half width."""
    plan = make_plan(study)
    without_noise = outcome(study, plan, np.zeros(len(plan.rows)))
    spread = ranking(without_noise, without_noise.responses[0]).spread
    hits: dict[int, list[bool]] = {}
    half_widths = []
    for number in range(studies):
        values = noise(plan, np.random.default_rng([7, number]))
        simulated = replace(spread, values=values)
        for t in range(len(simulated.counts)):
            error = simulated.of_treatment(t)
            half = special.stdtrit(error.df, 0.975) * error.size
            hits.setdefault(t, []).append(abs(values[spread.treatment == t].mean()) <= half)
            half_widths.append(half)
    return {name: float(np.mean(contained)) for name, contained in hits.items()}, float(
        np.mean(half_widths)
    )


@pytest.mark.parametrize("factors", [FOUR, {"a": FOUR["a"], "b": "{levels: [p, q]}"}])
@pytest.mark.parametrize(
    ("design", "noise"),
    [
        ("{kind: full, replicates: 2, order: random}", normal),
        ("{kind: full, replicates: 2, order: random}", one_wide),
        ("{kind: full, replicates: 2, order: random}", outlying),
        ("{kind: full, replicates: 2}", one_wide),
        ("{kind: full, replicates: 2}", normal),
        ("{kind: full, replicates: 5}", normal),
        ("{kind: full, replicates: 3}", unequal),
        ("{kind: full, replicates: 10, order: random}", unequal),
        ("{kind: full, replicates: 2}", blocked),
        ("{kind: full, replicates: 4}", blocked),
    ],
)
def test_intervals_of_means_have_their_coverage(
    factors: dict[str, str], design: str, noise: Draws
) -> None:
    share, _ = coverage(study_of(factors, design), noise)
    assert np.mean(list(share.values())) >= LOW - 0.01
    # outlying runs widen the intervals of treatments without any
    assert np.mean(list(share.values())) <= HIGH or noise is outlying
    # of one treatment, 4 standard errors below 95 %; two runs do not show a larger spread reliably
    assert min(share.values()) > (0.75 if noise is one_wide else 0.90)


def test_one_spread_for_a_noisy_level_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    factors = {"a": FOUR["a"], "b": "{levels: [p, q]}"}
    design = "{kind: full, replicates: 2, order: random}"
    widened, _ = coverage(study_of(factors, design), one_wide)
    monkeypatch.setattr(Spread, "_by_level", None)
    pooled, _ = coverage(study_of(factors, design), one_wide)
    assert np.mean(list(pooled.values())) < LOW
    assert np.mean(list(widened.values())) > LOW


def test_pooling_unequal_variances_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def pooled(self: Spread, treatment: int) -> Error:
        return self.of(self._weights({treatment: 1.0}))

    monkeypatch.setattr(Spread, "of_treatment", pooled)
    share, _ = coverage(study_of(FOUR, "{kind: full, replicates: 10, order: random}"), unequal)
    assert min(share.values()) < 0.80
    assert max(share.values()) > HIGH


def test_blocks_taken_for_noise_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    of = Spread.of_treatment
    monkeypatch.setattr(
        Spread, "of_treatment", lambda self, t: of(Spread(self.treatment, self.values), t)
    )
    share, _ = coverage(study_of(FOUR, "{kind: full, replicates: 2}"), blocked)
    assert np.mean(list(share.values())) < LOW - 0.03


def test_intervals_of_hard_to_change_factors_are_not_too_wide() -> None:
    """16 treatments, each setting of one factor set up twice: the degrees of freedom are neither those of
    settings only nor those of runs only."""
    factors = {"big": "{levels: [lo, hi], change_cost: 100s}"} | dict.fromkeys(
        "bcd", "{levels: [lo, hi]}"
    )
    design = "{kind: full, replicates: 2, order: split-plot-random}"
    share, half_width = coverage(study_of(factors, design), in_plots, 120)
    assert LOW - 0.02 <= np.mean(list(share.values())) <= HIGH + 0.01
    truth = np.sqrt((1 + 1.5**2) / 2)
    assert half_width < 3.5 * truth  # 1.96 with known variances; it was 5.7 times that before
    share, half_width = coverage(study_of(factors, design), normal, 60)
    assert half_width < 1.9 * stats.t.ppf(0.975, 16) / np.sqrt(2)


def test_repeated_rows_lend_their_spread_to_single_ones() -> None:
    rng, hits = np.random.default_rng(3), []
    treatment = np.repeat(np.arange(9), [1] * 8 + [5])
    for _ in range(300):
        values = rng.normal(size=len(treatment))
        spread = Spread(treatment, values)
        for t in range(9):
            error = spread.of_treatment(t)
            assert error.df == 4
            mean = values[treatment == t].mean()
            hits.append(abs(mean) <= stats.t.ppf(0.975, error.df) * error.size)
    assert LOW <= np.mean(hits) <= HIGH


def test_a_difference_within_passes_excludes_the_variance_of_passes() -> None:
    treatment, block = np.tile(np.arange(4), 5), np.repeat(np.arange(5), 4)
    rng = np.random.default_rng(1)
    values = rng.normal(size=20) + 50 * rng.normal(size=5)[block]
    spread = Spread(treatment, values, [block])
    table = values.reshape(5, 4)
    residuals = table - table.mean(0) - table.mean(1)[:, None] + table.mean()
    expected = np.sqrt((residuals**2).sum() / 12 * 2 / 5)
    assert spread.difference(0, 1).size == pytest.approx(expected)
    assert spread.difference(0, 1).df == pytest.approx(12, rel=0.01)
    assert spread.of_mean({0: 0.5, 1: 0.5}).df == 4


def test_single_runs_have_no_interval() -> None:
    error = Spread(np.arange(4), np.arange(4.0)).of_treatment(0)
    assert error.df == 0
    assert np.isnan(error.size)


def test_equal_values_have_zero_variance() -> None:
    spread = Spread(np.repeat([0, 1], 3), np.array([5.0, 5, 5, 7, 8, 9]))
    assert (
        spread.of_treatment(0).size > 0
    )  # equal rounded values of three runs do not make the mean certain
    assert Spread(np.repeat([0, 1], 3), np.repeat([5.0, 7], 3)).of_treatment(0) == Error(0.0, 4)


def test_unequal_variances_are_detected_by_bartletts_test() -> None:
    rng = np.random.default_rng(2)
    values = [rng.normal(size=6), 3 * rng.normal(size=6), rng.normal(size=4)]
    variances = np.array([v.var(ddof=1) for v in values])
    expected = stats.bartlett(*values).pvalue
    assert differs(variances, np.array([5, 5, 3])) == pytest.approx(expected)


def test_a_saved_outcome_has_the_same_ranking(tmp_path: Path) -> None:
    study = study_of(FOUR, "{kind: full, replicates: 3}")
    plan = make_plan(study)
    original = outcome(study, plan, unequal(plan, np.random.default_rng(4)))
    assert original.runs is not None
    restored = outcome_of(tmp_path, study, plan, original.runs)
    expected, actual = (ranking(o, o.responses[0]).treatments for o in (original, restored))
    assert [replace(m, levels={}) for m in expected] == [replace(m, levels={}) for m in actual]
