"""Definitive screening from matrix to report: linear terms, squares apart, omitted products."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from penstock.analyse.outcome import Outcome
from penstock.analyse.statistics.effects import effects
from penstock.analyse.statistics.fit import fitted
from penstock.analyse.surface.polynomials import trends
from penstock.analyse.treatments.costs import focal_factor
from penstock.campaign.analysis import analyse
from penstock.design.additions.more_levels import coded_of, level_step, numbers_of
from penstock.design.claims import check
from penstock.design.plan import make_plan
from penstock.design.planned import Plan, PlannedRun, coded_matrix
from penstock.design.show import plan_text
from penstock.plugins import DESIGNS
from penstock.study.load import read_study
from penstock.text import square_of, term_text
from tests.unit.recorded_study import record, study_text
from tests.unit.test_design_kinds import request_of

SIX = dict.fromkeys("abcdef", "{levels: [10, 20, 30]}")


def study(replicates: int, factors: dict[str, str]):  # type: ignore[no-untyped-def]
    text = study_text(factors, f"{{kind: definitive-screening, replicates: {replicates}}}")
    return read_study(text.encode(), Path("x.study.yaml"))


def runs_of(plan: Plan, value, noise: float, seed: int = 3) -> pd.DataFrame:  # type: ignore[no-untyped-def]
    random = np.random.default_rng(seed)
    names = [f.name for f in plan.factors]
    rows = []
    for r in plan.rows:
        x = {n: (r.coded[n] - 1 if len(f.levels) == 3 else r.coded[n])
             for n, f in zip(names, plan.factors, strict=True)}  # fmt: skip
        y = value(x) + noise * random.normal()
        rows.append({"run_id": r.run_id, "replicate": r.replicate} | r.levels | {"y": y})
    return pd.DataFrame(rows).assign(valid=True)


@pytest.mark.parametrize("three_level_count", range(2, 9))
@pytest.mark.parametrize("two_level_count", range(5))
def test_linear_terms_are_clear_of_second_order(
    three_level_count: int, two_level_count: int
) -> None:
    request = request_of([3] * three_level_count + [2] * two_level_count)
    kind = DESIGNS.load("definitive-screening")
    assert not kind.fault(request)
    claim = kind.claim(request)
    assert claim.clear
    assert claim.model == "squares"
    check(request, kind.treatments(request), claim)


def test_a_square_is_adjusted_for_its_line() -> None:
    """No term contains a square: its sums of squares of types II and III are equal, also with lost runs."""
    plan = make_plan(study(2, SIX))
    runs = runs_of(plan, lambda x: 5.0 * x["a"] + 3.0 * x["a"] ** 2, 1.0).drop([0, 3, 7])
    table = effects(runs, plan, "y").set_index("term")
    squares = [t for t in table.index if square_of(t)]
    assert len(squares) == 6
    second, third = (table.loc[squares, c] for c in ("sum_of_squares_2", "sum_of_squares"))
    assert second.tolist() == pytest.approx(third.tolist())
    # the square contains its line, which is not adjusted for it
    assert table.loc["a", "sum_of_squares_2"] != pytest.approx(table.loc["a", "sum_of_squares"])


def test_a_square_counts_once_for_the_strongest_factor() -> None:
    """With 8 % of the variation in its square twice, a factor of 30 % was stronger than one of 40 %."""
    table = pd.DataFrame(
        {"response": "y", "term": ["a", "b", "a:a"], "variation_share": [30.0, 40.0, 8.0]}
    )
    plan = {"factors": [{"name": n, "levels": ["1", "2", "3"]} for n in "ab"]}
    assert focal_factor(Outcome(Path("x"), plan, {}, None, table, None, None), "y") == "b"


def planted(x: dict[str, int]) -> float:
    """Linear terms of a and b, a square of c, and a product that must affect no linear term."""
    return 100 + 3 * x["a"] - 2 * x["b"] + 4 * x["c"] ** 2 + 2.5 * x["d"] * x["e"]


def test_linear_terms_contain_no_product_and_no_square() -> None:
    loaded = study(2, SIX)
    plan = make_plan(loaded)
    assert plan.model == "squares"
    exact = effects(runs_of(plan, planted, 1e-9), plan, "y").set_index("term")
    for name, effect in zip("abcdef", (6, -4, 0, 0, 0, 0), strict=True):
        assert exact.loc[name, "effect"] == pytest.approx(effect, abs=1e-6)
    table = effects(runs_of(plan, planted, 0.3), plan, "y").set_index("term")
    assert set(table.loc[list("abcdef"), "df"]) == {1}
    assert set(table.loc[[f"{n}:{n}" for n in "abcdef"], "method"]) == {"F test"}
    assert table.loc[[f"{n}:{n}" for n in "abcdef"], "coefficient"].isna().all()
    assert table.loc[["a", "b"], "p_holm"].max() < 0.05 < table.loc[["d", "e", "f"], "p_holm"].min()
    assert table.loc["residual", "df"] == 26 - 1 - 1 - 12


def test_trends_are_those_of_the_terms() -> None:
    plan = make_plan(study(2, SIX))
    runs = runs_of(plan, lambda x: 3 * x["a"] + 4 * x["c"] ** 2, 0.1)
    by_contrast = trends(fitted(runs, plan, "y"), plan, "y", "linear").set_index(
        ["factor", "contrast"]
    )
    table = effects(runs, plan, "y").set_index("term")
    assert by_contrast.loc[("a", "linear"), "coefficient"] == pytest.approx(
        0.3, rel=0.1
    )  # per unit
    for name in "abcdef":
        assert by_contrast.loc[(name, "linear"), "effect"] == pytest.approx(
            table.loc[name, "effect"]
        )
        for contrast, term in (("linear", name), ("quadratic", f"{name}:{name}")):
            p = by_contrast.loc[(name, contrast), "p_value"]
            assert p == pytest.approx(table.loc[term, "p_value"])


def test_trends_of_a_surface_are_in_the_units_of_its_factors() -> None:
    """The model has linear and quadratic parts in one term, which is not effect coded."""
    text = study_text(
        dict.fromkeys("ab", "{levels: [10, 20, 30]}"), "{kind: central-composite, replicates: 2}"
    )
    plan = make_plan(read_study(text.encode(), Path("x.study.yaml")))
    assert plan.model == "quadratic"
    runs = runs_of(plan, lambda x: 3 * x["a"] + 4 * x["b"] ** 2, 1e-6)
    by_contrast = trends(fitted(runs, plan, "y"), plan, "y", "linear").set_index(
        ["factor", "contrast"]
    )
    assert by_contrast.loc[("a", "linear"), "coefficient"] == pytest.approx(0.3, abs=1e-5)
    assert by_contrast.loc[("a", "quadratic"), "coefficient"] == pytest.approx(0, abs=1e-5)
    assert by_contrast.loc[("b", "linear"), "coefficient"] == pytest.approx(0, abs=1e-5)
    assert abs(by_contrast.loc[("b", "quadratic"), "effect"]) == pytest.approx(4, abs=1e-4)


def test_one_replicate_uses_lenth_for_linear_terms() -> None:
    plan = make_plan(study(1, SIX))
    assert len(plan.rows) == 13
    table = effects(runs_of(plan, lambda x: 10 * x["a"], 0.1), plan, "y").set_index("term")
    assert set(table.loc[list("abcdef"), "method"]) == {"lenth"}
    assert table.loc["a", "p_holm"] < 0.05 < table.loc[list("bcdef"), "p_holm"].min()
    assert table.loc[[f"{n}:{n}" for n in "abcdef"], "p_value"].isna().all()


def test_linear_effects_are_from_first_to_last_level() -> None:
    plan = make_plan(study(2, SIX | {"b": "{levels: [30, 20, 10]}", "g": "{levels: [x, z]}"}))
    table = effects(runs_of(plan, planted, 0.01), plan, "y").set_index("term")
    assert table.loc["b", "effect"] == pytest.approx(-4, abs=0.05)  # as coded: last less first
    assert table.loc["g", "effect"] == pytest.approx(0, abs=0.05)
    assert "g:g" not in table.index


def test_plan_and_report_name_omitted_products(tmp_path: Path) -> None:
    loaded = study(2, SIX)
    text = " ".join(plan_text(make_plan(loaded), loaded).split())
    assert "definitive-screening, main effects, and squares apart from them" in text
    assert "No product of two is looked for" in text
    random = np.random.default_rng(4)

    def value(run: PlannedRun) -> dict[str, float]:
        x = {n: (int(v) - 20) / 10 for n, v in run.levels.items()}
        return {"y": 100 + x["a"] + 9 * x["c"] ** 2 + 0.1 * random.normal()}

    text = study_text(SIX, "{kind: definitive-screening, replicates: 2}")
    result = analyse(record(tmp_path, text, value))
    statements = " ".join(f.statement for f in result.findings)
    assert "No product of two is looked for" in statements
    assert "the curvature in c: " in statements
    assert " × c:" not in statements
    assert result.report is not None
    assert (square_of("c:c"), square_of("c:d"), square_of("c")) == ("c", "", "")
    assert term_text("read_ahead:read_ahead") == "read ahead²"


def test_a_screening_can_be_augmented() -> None:
    plan = make_plan(study(2, SIX))
    coded = coded_matrix(plan)
    step = level_step(
        "optimal:4", plan.factors, plan.model, coded, [1] * len(coded), seed=plan.seed
    )
    assert step.rows.shape == (4, 6)
    numbers = numbers_of(plan.factors, coded)
    assert not {tuple(r) for r in step.rows} & {tuple(r) for r in coded_of(plan.factors, numbers)}
