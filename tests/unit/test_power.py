"""Power of plans: degrees of freedom equal the analysis, and simulated studies reach the power."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from penstock.analyse.statistics.effects import effects
from penstock.analyse.statistics.fit import fitted
from penstock.design.planned import Plan
from penstock.design.power import detectable, error_df, power, pure_df, replicates_for
from penstock.design.show import plan_text
from penstock.study.load import load_study
from tests.unit.recorded_study import plan_of_text, refitted, study_text

TWO = "{levels: [x, z]}"
THREE = "{levels: [1, 2, 4]}"


def planned(folder: Path, design: str, *factors: str) -> Plan:
    return plan_of_text(study_text(dict(zip("abcdefgh", factors, strict=False)), design), folder)


def runs_of(plan: Plan, y: np.ndarray) -> pd.DataFrame:
    rows = [{"run_id": r.run_id, "replicate": r.replicate, **r.levels} for r in plan.rows]
    return pd.DataFrame(rows).assign(valid=True, y=y)


def detection_rate(
    plan: Plan, factor: str, delta: float, studies: int, seed: int, by: str = "p_holm"
) -> float:
    """Share of simulated studies whose analysis detects a difference `delta` of the factor's levels.

    The default is the report's criterion: p-values adjusted for all terms.
    """
    names = [level.name for level in next(f for f in plan.factors if f.name == factor).levels]
    shift = delta * np.array([r.levels[factor] == names[-1] for r in plan.rows], dtype=float)
    runs, block = runs_of(plan, shift), [r.block for r in plan.rows]
    draws = np.random.default_rng(seed)
    first = fitted(runs, plan, "y")
    hits = 0
    for _ in range(studies):
        drift = 3 * draws.normal(size=len(plan.rows) + 1)  # drift of passes, which are blocks
        y = shift + drift[block] + draws.normal(size=len(shift))
        table = effects(runs, plan, "y", fit=refitted(first, y, plan))
        hits += table[by].tolist()[table["term"].tolist().index(factor)] < 0.05
    return hits / studies


@pytest.mark.parametrize(
    ("design", "factors"),
    [
        ("{kind: full, replicates: 3}", [TWO]),
        ("{kind: full, replicates: 3, order: random}", [TWO]),
        ("{kind: full, replicates: 2}", [TWO] * 3),
        ("{kind: full, replicates: 2}", [THREE, TWO]),
        ("{kind: {fraction: 3}, replicates: 2}", [TWO] * 6),
        ("{kind: {plackett-burman: {}}, replicates: 2}", [TWO] * 7),
        ("{kind: {d-optimal: {model: main, runs: 9}}, replicates: 1}", [THREE, TWO, TWO]),
        ("{kind: {d-optimal: {model: main, runs: 9}}, replicates: 2}", [THREE, TWO, TWO]),
        ("{kind: {d-optimal: {model: pairs, runs: 11}}, replicates: 3}", [THREE, TWO, TWO]),
        ("{kind: {i-optimal: {model: quadratic, runs: 10}}, replicates: 2}", [THREE, THREE, TWO]),
    ],
)
def test_degrees_of_freedom_equal_those_of_the_analysis(
    tmp_path: Path, design: str, factors: list[str]
) -> None:
    plan = planned(tmp_path, design, *factors)
    y = np.random.default_rng(1).normal(size=len(plan.rows))
    runs = runs_of(plan, y)
    table = effects(runs, plan, "y")
    # the simulations below use the same table
    other = fitted(runs_of(plan, y[::-1]), plan, "y")
    pd.testing.assert_frame_equal(table, effects(runs, plan, "y", fit=refitted(other, y, plan)))
    table = table.set_index("term")
    assert plan.power["degrees_of_freedom"] == table.loc["residual", "df"] > 0


@pytest.mark.parametrize(
    ("order", "design"),
    [
        ("split-plot", "full"),
        ("split-plot-random", "full"),
        ("strip-plot", "full"),
        ("split-plot", "{d-optimal: {model: main, runs: 12}}"),
        ("split-plot-random", "{d-optimal: {model: main, runs: 12}}"),
    ],
)
def test_degrees_of_freedom_of_strata(tmp_path: Path, order: str, design: str) -> None:
    dear = "{levels: [x, y, z], change: redeploy}"
    less = "{levels: [1, 2, 3], change: reformat, change_cost: 1s}"
    plan = planned(
        tmp_path, f"{{kind: {design}, replicates: 3, order: {order}}}", dear, less, TWO, TWO
    )
    option = next(
        o
        for o in plan.orders
        if (o["order"], o["hard"], o["strips"])
        == (order, plan.whole_plot_factors, plan.strip_factors)
    )
    y = np.random.default_rng(2).normal(size=len(plan.rows))
    table = effects(runs_of(plan, y), plan, "y").set_index("term")
    factors = {"whole_plot": "a", "strip": "b", "residual": "d"}
    strata = [stratum for stratum in factors if stratum in table.index]
    assert strata == ["whole_plot", *(["strip"] if order == "strip-plot" else []), "residual"]
    for stratum in strata:
        assert option["df"][factors[stratum]] == table.loc[stratum, "df"] > 0
    worst = max(option["detectable"], key=lambda n: option["detectable"][n])
    assert plan.power["factor"] == worst
    assert plan.power["degrees_of_freedom"] == option["df"][worst]
    assert plan.power["detectable_sigma_80"] == pytest.approx(option["detectable"][worst])


@pytest.mark.parametrize(
    ("design", "factors", "seed"),
    [
        ("{kind: full, replicates: 3}", [TWO], 1),
        ("{kind: full, replicates: 5}", [TWO], 2),
        ("{kind: full, replicates: 2}", [TWO, TWO], 3),
        ("{kind: full, replicates: 3, order: random}", [TWO], 4),
        ("{kind: {plackett-burman: {}}, replicates: 1}", [TWO] * 7, 5),
    ],
)
def test_analysis_reaches_the_power_of_80_percent(
    tmp_path: Path, design: str, factors: list[str], seed: int
) -> None:
    plan = planned(tmp_path, design, *factors)
    alone = detection_rate(plan, "a", plan.power["detectable_sigma_80"], 900, seed, "p_value")
    assert 0.75 < alone < 0.85  # 3.7 standard errors


@pytest.mark.parametrize(
    ("design", "factors", "seed"),
    [
        ("{kind: full, replicates: 3}", [TWO], 1),
        ("{kind: full, replicates: 2}", [TWO] * 3, 2),
        ("{kind: {fraction: 2}, replicates: 2, order: random}", [TWO] * 6, 3),
        ("{kind: {plackett-burman: {}}, replicates: 1}", [TWO] * 7, 5),
    ],
)
def test_report_reaches_the_power_adjusted_for_all_terms(
    tmp_path: Path, design: str, factors: list[str], seed: int
) -> None:
    plan = planned(tmp_path, design, *factors)
    together = plan.power_together
    y = np.random.default_rng(1).normal(size=len(plan.rows))
    assert effects(runs_of(plan, y), plan, "y")["p_holm"].notna().sum() == together["terms"]
    studies = 200
    share = detection_rate(plan, "a", together["detectable_sigma_80"], studies, seed)
    low, high = (0.8 + s * 3.3 * (0.8 * 0.2 / studies) ** 0.5 for s in (-1, 1))
    assert low < share < high
    if together["terms"] > 7:  # the unadjusted power is not reached with adjusted p-values
        assert detection_rate(plan, "a", plan.power["detectable_sigma_80"], studies, seed) < low
    shown = plan_text(plan, load_study(tmp_path / "recorded.study.yaml", [], False))
    text = f"{together['detectable_sigma_80']:.2f} standard deviations for 80 %"
    assert (text in " ".join(shown.split())) == (together["terms"] > 1)
    assert plan.to_json()["power_together"] == together


def test_terms_aliased_with_blocks_are_not_counted(tmp_path: Path) -> None:
    plan = planned(tmp_path, "{kind: full, replicates: 2, block_size: 4}", TWO, TWO, TWO)
    y = np.random.default_rng(1).normal(size=len(plan.rows))
    tested = effects(runs_of(plan, y), plan, "y")["p_holm"].notna().sum()
    assert tested == plan.tested_terms
    mixed = planned(tmp_path, "{kind: full, replicates: 2}", THREE, TWO)
    y = np.random.default_rng(1).normal(size=len(mixed.rows))
    assert effects(runs_of(mixed, y), mixed, "y")["p_holm"].notna().sum() == mixed.tested_terms


def test_replicates_of_detect_reach_the_power(tmp_path: Path) -> None:
    """Two systems at 4 standard deviations: three replicates have a power of 70 %."""
    plan = planned(tmp_path, "{purpose: compare, detect: 20%, noise: 5%}", TWO)
    assert plan.replicates == 4
    assert power(4, 2, 4, df=3) > 0.8 > power(4, 2, 3, df=2) > 0.7
    assert detection_rate(plan, "a", 4.0, 400, 6) > 0.8
    unblocked = planned(tmp_path, "{purpose: compare, detect: 20%, noise: 5%, order: random}", TWO)
    assert unblocked.replicates == 3


def test_power_is_consistent_within_a_plan(tmp_path: Path) -> None:
    """The plan's power, the alternatives of its purpose and the table of orders agree."""
    dear = "{levels: [x, z], change: restart}"
    for design in (
        "{purpose: compare, detect: 15%, order: interleaved}",
        "{purpose: screen, replicates: 2, order: interleaved}",
    ):
        plan = planned(tmp_path, design, dear, TWO, THREE)
        assert plan.choice is not None
        chosen = next(o for o in plan.choice["alternatives"] if o["chosen"])
        order = next(o for o in plan.orders if o["order"] == plan.order)
        small = plan.power["detectable_sigma_80"]
        assert chosen["detectable_share_80"] == pytest.approx(small * 0.05)
        assert max(order["detectable"].values()) == pytest.approx(small)
        assert min(order["df"].values()) == plan.power["degrees_of_freedom"]


def test_power_of_two_systems(tmp_path: Path) -> None:
    four = planned(tmp_path, "{kind: full, replicates: 4}", TWO)
    assert four.power["degrees_of_freedom"] == 3
    assert four.power["detectable_share_80"] == pytest.approx(0.1505, abs=5e-4)
    two = planned(tmp_path, "{kind: full, replicates: 2}", TWO)
    assert two.power["degrees_of_freedom"] == 1
    assert two.power["detectable_sigma_80"] == pytest.approx(detectable(0.8, 2, 2, df=1))
    assert two.power["detectable_sigma_80"] > 12


def test_replicates_are_minimal() -> None:
    for runs, delta in itertools.product((2, 4, 8), (4, 3, 2, 1.5, 1)):

        def freedom(r: int, runs: int = runs) -> int:
            return error_df(runs, r, passes=True)

        r = replicates_for(delta, runs, freedom=freedom)
        assert r is not None
        assert power(delta, runs, r, df=freedom(r)) >= 0.8
        assert r == 2 or power(delta, runs, r - 1, df=freedom(r - 1)) < 0.8


def test_pure_error_degrees_of_freedom_follow_from_the_rank() -> None:
    draws = np.random.default_rng(7)
    for _ in range(60):
        n = int(draws.integers(2, 40))
        treatment, block = draws.integers(0, 9, n), draws.integers(0, 6, n)
        columns = np.hstack([np.eye(9)[treatment], np.eye(6)[block]])
        assert pure_df(treatment, block) == n - np.linalg.matrix_rank(columns)


def test_missed_detect_is_a_caution(tmp_path: Path) -> None:
    missed = planned(tmp_path, "{kind: full, replicates: 2, detect: 1%}", TWO, TWO)
    assert any("design.detect requests 1.0 %" in c for c in missed.cautions)
    met = planned(tmp_path, "{kind: full, detect: 5%}", TWO, TWO)
    assert not any("design.detect" in c for c in met.cautions)


# ---------------------------------------------------------------- choice of the order


def test_randomised_split_plot_can_be_chosen(tmp_path: Path) -> None:
    text = study_text(
        {
            "os": "{levels: [a, b], change: redeploy, change_cost: 10min}",
            "fs": "{levels: [x, y, z], change: reformat, change_cost: 5min}",
            "q": "{levels: [1, 2]}",
        },
        "{kind: full, replicates: 3}",
    )
    plan = plan_of_text(text, tmp_path)
    assert plan.order == "split-plot-random"
    price = {
        (o["order"], *o["hard"]): o["seconds"] * max(o["detectable"].values()) ** 2
        for o in plan.orders
    }
    own_price = price[plan.order, "os", "fs"]
    assert own_price < 0.8 * price["interleaved",]
    saved = 1 - own_price / price["interleaved",]
    assert f"take {100 * saved:.0f} % less" in plan.order_why
    shown = plan_text(plan, load_study(tmp_path / "recorded.study.yaml", [], False))
    assert "> split-plot-random" in shown


@pytest.mark.parametrize("cost_s", [1, 3, 10, 30, 100, 300])
def test_reason_for_an_order_agrees_with_its_table(tmp_path: Path, cost_s: int) -> None:
    change = f"change: redeploy, change_cost: {cost_s}s"
    plan = planned(
        tmp_path, "{kind: full, replicates: 4}", f"{{levels: [a, b, c, d], {change}}}", TWO
    )
    price = {
        o["order"]: o["seconds"] * max(o["detectable"].values()) ** 2
        for o in plan.orders
        if None not in o["detectable"].values()
    }
    plain = price["interleaved"]
    discount = {"split-plot": 1.0, "split-plot-random": 0.9}  # drift is not in blocks
    adjusted = {o: price[o] / part for o, part in discount.items()}
    if plan.order == "interleaved":
        assert min(adjusted.values()) > 0.9 * plain
        best = min(adjusted, key=lambda o: adjusted[o])
        assert f"{price[best] / plain:.0%}".replace("%", " %") in plan.order_why
    else:
        assert plan.order == min(adjusted, key=lambda o: adjusted[o])
        assert adjusted[plan.order] <= 0.9 * plain
        assert f"{1 - price[plan.order] / plain:.0%} less".replace("%", " %") in plan.order_why
