"""Designs chosen by purpose: the choice, its alternatives, and their costs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from penstock.design.kinds.base import Asked
from penstock.design.plan import make_plan
from penstock.design.planned import Plan, plan_from_json
from penstock.design.power import (
    cautious_sigma,
    detectable,
    effective_runs,
    power,
    power_by_simulation,
    replicates_for,
)
from penstock.design.show import plan_text
from penstock.errors import BadInput
from penstock.plugins import DESIGNS
from penstock.spec.study import Factor, Level, Study
from penstock.study.load import read_study

MIXED = {"disk": "[hdd, ssd, nvme]", "jobs": "[1, 4, 16]", "bs": "[4, 64, 1024]", "sync": "[a, b]"}


def two_level(count: int) -> dict[str, str]:
    return {f"f{i}": "[1, 2]" for i in range(count)}


def read(design: str, factors: dict[str, str], place: Path = Path(), quick: bool = False) -> Study:
    factor_lines = "\n".join(f"  {name}: {{levels: {levels}}}" for name, levels in factors.items())
    placeholders = " ".join(f"{{{name}}}" for name in factors)
    text = f"""penstock: 1
name: asks
question: Which?
factors:
{factor_lines}
{f"design: {design}" if design else ""}
platform: {{nodes: [{{name: n}}]}}
workload: {{command: 'echo {placeholders}', expected: 9s}}
responses: {{wall: {{from: wall_s, unit: s, better: lower}}}}
"""
    return read_study(text.encode(), place / "asks.study.yaml", quick=quick)


def plan(design: str, factors: dict[str, str], quick: bool = False) -> Plan:
    return make_plan(read(design, factors, quick=quick))


@pytest.mark.parametrize(
    ("design", "factors", "treatments", "grade"),
    [
        ("{purpose: screen}", two_level(7), 16, 4),
        ("{purpose: screen}", two_level(15), 32, 4),
        ("{purpose: estimate}", two_level(5), 16, 5),
        ("{purpose: estimate}", two_level(11), 128, 5),
        ("{purpose: compare}", two_level(3), 8, None),
        ("{purpose: screen}", two_level(2), 4, None),
        ("{}", two_level(8), 64, 5),
        ("", two_level(8), 64, 5),
        ("{purpose: compare}", MIXED, 54, None),
    ],
)
def test_the_smallest_sufficient_design_is_chosen(design, factors, treatments, grade):
    chosen_plan = plan(design, factors)
    assert (chosen_plan.treatments, chosen_plan.resolution) == (treatments, grade)
    assert chosen_plan.choice is not None
    (choice,) = (a for a in chosen_plan.choice["alternatives"] if a["chosen"])
    assert choice["runs"] == len(chosen_plan.rows)
    assert not choice["refused"]
    serving = [a["runs"] for a in chosen_plan.choice["alternatives"] if not a["refused"]]
    assert choice["runs"] == min(serving)
    assert plan_from_json(json.loads(json.dumps(chosen_plan.to_json()))) == chosen_plan


def test_mixed_levels_get_designs_of_their_own():
    screened = plan("{purpose: screen}", MIXED)
    assert (screened.kind, screened.model) == ("d-optimal", "main")
    optimised = plan("{purpose: optimise}", MIXED)
    assert (optimised.kind, optimised.model) == ("i-optimal", "quadratic")
    barred = plan("{purpose: estimate, forbidden: [{disk: hdd, jobs: 16}]}", MIXED)
    assert barred.model == "pairs" or barred.kind == "full"
    assert not any(r.levels["disk"] == "hdd" and r.levels["jobs"] == "16" for r in barred.rows)


def test_the_plan_describes_its_choice_and_alternatives():
    loaded = read("", two_level(8))
    text = " ".join(plan_text(make_plan(loaded), loaded).split())
    assert "Purpose: estimate (the default)" in text
    assert "The choice is 2^(8-2) resolution V, 64 treatments x 2 = 128 runs" in text
    assert (
        "Cheaper: 2^(8-4) resolution IV, 32 runs; but two-factor interactions are aliased" in text
    )
    assert "full 2^8" in text
    assert "Set design.purpose" in text
    assert max(map(len, plan_text(make_plan(loaded), loaded).splitlines())) <= 100


def test_a_declared_kind_is_used():
    for design in ("{kind: full}", "{kind: full, purpose: screen}", "{kind: full, replicates: 3}"):
        chosen_plan = plan(design, two_level(5))
        assert (chosen_plan.treatments, chosen_plan.choice) == (32, None)
    assert plan("{kind: full, replicates: 3}", two_level(5)).replicates == 3
    assert plan("{kind: full}", two_level(5)).replicates == 2


def test_treatments_may_contain_true_and_false():
    """`{a: true}` names the level of `levels: [false, true]`, in own rows and in rows to keep."""
    switches = {"a": "[false, true]", "b": "[1, 2]"}
    every = "[{a: true, b: 1}, {a: true, b: 2}, {a: false, b: 1}, {a: false, b: 2}]"
    own = plan(f"{{kind: {{table: {{rows: {every}}}}}}}", switches)
    assert [r.levels["a"] for r in own.rows].count("true") == 4
    with_kept_rows = plan("{kind: {d-optimal: {runs: 4, keep: [{a: true, b: 2}]}}}", switches)
    assert {"a": "true", "b": "2"} in [r.levels for r in with_kept_rows.rows]
    with pytest.raises(BadInput, match="a level of a"):
        plan("{kind: {table: {rows: [{a: True, b: 1}, {a: no, b: 1}]}}}", switches)


def test_detect_gives_the_replicates():
    chosen_plan = plan(
        "{purpose: screen, detect: 5%, noise: 5%}", two_level(4)
    )  # N = 8, a difference of 1 sigma
    assert chosen_plan.treatments == 8
    assert chosen_plan.replicates == 5  # 0.7745 at 4, 0.8657 at 5
    assert power(1, 8, chosen_plan.replicates) >= 0.8 > power(1, 8, chosen_plan.replicates - 1)
    assert plan("{kind: {fraction: 1}, detect: 5%}", two_level(4)).replicates == 5
    assert plan("{purpose: screen, detect: 5%, replicates: 3}", two_level(4)).replicates == 3


def test_a_budget_is_met_or_refused_with_the_minimum():
    chosen_plan = plan("{purpose: screen, budget: {runs: 40}}", two_level(7))
    assert len(chosen_plan.rows) == 32
    with pytest.raises(BadInput, match=r"a budget for at least .*32 runs.*over 31 runs"):
        plan("{purpose: screen, budget: {runs: 31}}", two_level(7))
    with pytest.raises(BadInput, match=r"over 0\.05 h"):
        plan(
            "{purpose: screen, budget: {hours: 0.05}}", two_level(7)
        )  # 32 runs of 10 s are 0.089 h
    assert len(plan("{purpose: screen, budget: {hours: 0.1}}", two_level(7)).rows) == 32


def test_a_budget_applies_to_a_declared_kind():
    assert len(plan("{kind: {fraction: 3}, budget: {runs: 32}}", two_level(7)).rows) == 32
    with pytest.raises(
        BadInput, match=r"plan of 32 runs, .*over 31 runs, which design\.budget has"
    ):
        plan("{kind: {fraction: 3}, budget: {runs: 31}}", two_level(7))
    with pytest.raises(BadInput, match=r"over 0\.05 h"):
        plan("{kind: {fraction: 3}, budget: {hours: 0.05}}", two_level(7))
    # the budget applies to the necessary replicates
    assert (
        len(plan("{kind: {fraction: 1}, detect: 5%, budget: {runs: 40}}", two_level(4)).rows) == 40
    )
    with pytest.raises(BadInput, match=r"plan of 40 runs, .*over 39 runs"):
        plan("{kind: {fraction: 1}, detect: 5%, budget: {runs: 39}}", two_level(4))
    with pytest.raises(BadInput, match=r"64 runs, over 40, which design\.budget has"):
        plan("{kind: {fraction: 1}, budget: {runs: 40}, sequential: {runs: 64}}", two_level(4))
    cautions = " ".join(
        plan(
            "{kind: {fraction: 1}, budget: {hours: 0.1}, sequential: {runs: 64}}", two_level(4)
        ).cautions
    )
    assert (
        "All 64 runs that the sequential study may make would take 0.18 h, over 0.1 h" in cautions
    )


def test_changes_cost_the_same_in_the_choice_and_in_the_plan():
    """A redeployment before half of the runs costs 60 s by default, or the declared 0 s."""
    costly = two_level(3) | {"os": "[a, b], change: redeploy"}
    free = two_level(3) | {"os": "[a, b], change: redeploy, change_cost: 0s"}
    full_plan = plan("{kind: full, order: interleaved}", free)
    assert full_plan.estimated_s == 32 * 10
    (choice,) = (a for a in plan("{purpose: compare}", free).choice["alternatives"] if a["chosen"])
    assert choice["estimated_s"] == 32 * 10
    (choice,) = (
        a for a in plan("{purpose: compare}", costly).choice["alternatives"] if a["chosen"]
    )
    assert choice["estimated_s"] == 32 * (10 + 30)
    costs = [
        plan(f"{{kind: full, order: random, seed: {seed}}}", costly).estimated_s
        for seed in range(20)
    ]
    assert np.mean(costs) == pytest.approx(32 * 10 + 31 * 30 * 32 / 31, rel=0.1)
    with pytest.raises(BadInput, match=r"over 0\.3 h"):
        plan("{purpose: compare, budget: {hours: 0.3}}", costly)  # 32 runs of 40 s are 0.36 h
    # a design chosen within the budget has a caution if its own order takes longer
    order = f"order: random, seed: {int(np.argmax(costs))}"
    most = (max(costs) + 32 * 40) / 2 / 3600
    cautions = " ".join(
        plan(f"{{purpose: compare, {order}, budget: {{hours: {most}}}}}", costly).cautions
    )
    assert "in its order, over 0.3" in cautions
    assert "budget" not in " ".join(plan(f"{{purpose: compare, {order}}}", costly).cautions)


def test_a_quick_run_of_a_purpose_is_small():
    assert len(plan("{purpose: estimate, detect: 1%}", two_level(6), quick=True).rows) == 32


def test_a_pilot_replaces_the_assumed_noise(tmp_path: Path):
    declared = read("{kind: full, pilot: {variation: 2%, runs: 5}}", two_level(3))
    assert declared.design.noise == pytest.approx(cautious_sigma(0.02, 5))
    out = tmp_path / "earlier"
    out.mkdir()
    draws = np.random.default_rng(5).normal(size=40)
    values = np.where(np.arange(40) % 2, 10, 20) * (1 + 0.03 * draws)
    runs = {"treatment_id": ["t1", "t2"] * 20, "valid": [True] * 40, "wall": values}
    pd.DataFrame(runs).to_parquet(out / "runs.parquet")
    (out / "study.yaml").write_text("responses: {wall: {}}\n")
    measured = read("{kind: full, pilot: earlier}", two_level(3), tmp_path)
    parts = [values[0::2], values[1::2]]
    pooled = np.sqrt(sum(((p / p.mean() - 1) ** 2).sum() for p in parts) / 38)
    assert measured.design.noise == pytest.approx(cautious_sigma(float(pooled), 39), rel=1e-5)
    assert "a pilot" in " ".join(make_plan(measured).cautions)
    frozen = read_study(measured.source_text.encode(), tmp_path / "moved" / "frozen.yaml")
    assert frozen.design.noise == measured.design.noise
    with pytest.raises(BadInput, match="two valid runs"):
        read("{kind: full, pilot: nowhere}", two_level(3), tmp_path)


@pytest.mark.parametrize(
    ("design", "message"),
    [
        ("{kind: plackett-burmann}", "plackett-burman, orthogonal-array"),
        ("{kind: {plackett-burmann: {}}}", "plackett-burman, orthogonal-array"),
        ("{noise: 0%, detect: 5%}", "more than 0 %"),
        ("{detect: 0%}", "more than 1000 replicates"),
        ('{purpose: screen, generators: ["f5 = f0*f1"]}', "generators without a fraction"),
        ("{purpose: screen, forbidden: [{f0: 1}]}", "two factors or more"),
        ("{kind: full, forbidden: [{f0: 1, f1: [1, 2]}]}", "never runs a level of f0.*fewer"),
        ("{kind: {d-optimal: {keep: [1, 2]}}}", "keep, row 1"),
        ("{kind: {d-optimal: {runs: true}}}", "an integer from 7 to 64"),
        ("{purpose: explore}", "screen, estimate, optimise or compare"),
        ("{budget: {runs: 0}}", "at least 2"),
    ],
)
def test_invalid_designs_are_refused(design: str, message: str):
    with pytest.raises(BadInput, match=message):
        plan(design, two_level(6))


def test_factors_may_have_any_name():
    names = ["C", "I", "Q", "Sum", "Treatment", "Poly"]
    chosen_plan = plan("{purpose: screen}", dict.fromkeys(names, "[1, 2]"))
    assert [f.name for f in chosen_plan.factors] == names
    assert chosen_plan.resolution == 4
    assert plan("{kind: plackett-burman}", dict.fromkeys(names, "[1, 2]")).treatments == 12


# ---------------------------------------------------------------- power


def levels(*counts: int) -> tuple[Factor, ...]:
    return tuple(
        Factor(name=f"f{j}", levels=tuple(Level(name=str(i), value=i) for i in range(n)))
        for j, n in enumerate(counts)
    )


def test_effective_runs_of_known_designs():
    for counts, expected in (((2, 2, 2), 8), ((3, 3), 6), ((2, 4), 4)):
        factors = levels(*counts)
        rows = DESIGNS.load("full").treatments(Asked(factors))
        # the difference of two level means of n runs each: 2/n = 4/N
        assert effective_runs(factors, "main", rows) == pytest.approx(expected)


def test_power_of_unequal_levels_by_simulation():
    factors = levels(3, 3)
    rows = DESIGNS.load("full").treatments(Asked(factors))
    delta, r = 1.5, 3
    random = np.random.default_rng(11)
    data = random.normal(size=(20_000, r, 9)) + delta * (rows[:, 0] == 2)
    s2 = data.var(axis=1, ddof=1).mean(axis=1)
    means = data.mean(axis=1)
    gap = means[:, rows[:, 0] == 2].mean(axis=1) - means[:, rows[:, 0] == 1].mean(axis=1)
    from scipy import stats

    t = gap / np.sqrt(s2 * 2 / (3 * r))
    simulated = np.mean(np.abs(t) > stats.t.ppf(0.975, 18))
    computed = power(delta, 9, r, effective=effective_runs(factors, "main", rows))
    assert simulated == pytest.approx(computed, abs=0.015)


def test_replicates_are_the_fewest():
    needed = replicates_for(0.5, 8)
    assert needed is not None
    assert power(0.5, 8, needed) >= 0.8 > power(0.5, 8, needed - 1)
    assert replicates_for(1e-3, 8) is None
    assert detectable(0.8, 8, needed) <= 0.5


def test_power_of_whole_plots():
    """Six whole plots of two runs: the noncentral t with 4 and 5 degrees of freedom is exact."""
    from scipy import stats

    rows = np.array([[p // 3, s] for p in range(6) for s in range(2)])
    plots = np.repeat(np.arange(6), 2)
    for factor, df, variance in ((0, 4, (1 / 2 + 0.64) / 6 * 4), (1, 5, 4 / 12)):
        shift = 2.0 / variance**0.5
        limit = stats.t.ppf(0.975, df)
        exact = 1 - stats.nct.cdf(limit, df, shift) + stats.nct.cdf(-limit, df, shift)
        _, low, high = power_by_simulation(2.0, factor, rows, plots, whole_plot_sigma=0.8)
        assert low - 0.01 < exact < high + 0.01
    with pytest.raises(ValueError, match="one whole plot per level"):
        power_by_simulation(1, 0, rows[[0, 1, 10, 11]], [0, 0, 1, 1], whole_plot_sigma=1)


def test_power_without_whole_plots_is_too_high():
    rows = np.array([[p // 3, s] for p in range(6) for s in range(2)])
    right = power_by_simulation(2.0, 0, rows, np.repeat(np.arange(6), 2), whole_plot_sigma=1.0)
    assert right[2] < power(2.0, 4, 3)


MANY = {f"f{j}": "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]" for j in range(6)}


@pytest.mark.parametrize("purpose", ["screen", "estimate", "optimise"])
def test_three_million_treatments_have_a_design_for_the_purpose(purpose: str):
    chosen_plan = plan(f"{{purpose: {purpose}}}", MANY)
    assert chosen_plan.treatments < 100
    assert all({r.levels[n] for r in chosen_plan.rows} == set(map(str, range(1, 13))) for n in MANY)
    if purpose != "screen":
        assert (chosen_plan.kind, chosen_plan.model) == ("latin-hypercube", "quadratic")


def test_an_unmet_purpose_names_a_sufficient_design():
    text = dict.fromkeys(MANY, "[a, b, c, d, e, f, g, h, i, j, k, l]")
    for factors, purpose, message in (
        (MANY, "compare", r"full 2\^6 serves it, 64 treatments x 2 = 128 runs"),
        (text, "estimate", r"2\^\(6-1\) resolution VI serves it, 32 treatments x 2 = 64 runs"),
        (text, "optimise", r"2\^\(6-1\) resolution VI serves it, 32 treatments"),
    ):
        with pytest.raises(BadInput, match=message):
            plan(f"{{purpose: {purpose}}}", factors)


@pytest.mark.parametrize("design", ["{purpose: screen}", "{purpose: optimise}"])
def test_the_analysis_of_an_optimal_design_finds_planted_effects(design: str):
    from penstock.analyse.statistics.effects import effects

    chosen_plan = plan(design, MIXED)
    draws = np.random.default_rng(1).normal(size=len(chosen_plan.rows))
    runs = pd.DataFrame(
        [
            {**r.levels, "replicate": r.replicate, "y": 20 * (r.levels["sync"] == "b") + e}
            | {"run_id": r.run_id}
            for r, e in zip(chosen_plan.rows, draws, strict=True)
        ]
    )
    table = effects(runs, chosen_plan, "y").set_index("term")
    assert table.loc["sync", "effect_ci_low"] < 20 < table.loc["sync", "effect_ci_high"]
    assert table.loc["sync", "p_holm"] < 1e-6
    assert (table.loc[["disk", "jobs", "bs"], "p_holm"] > 0.01).all()
    assert ("jobs:bs" in table.index) == (chosen_plan.model == "quadratic")
