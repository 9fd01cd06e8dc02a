"""Screening that ends where all is decided: runs saved, errors within alpha, the rule named; simulated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from penstock.analyse.sequential.adaptive import active_at
from penstock.analyse.sequential.ledger import ledger
from penstock.analyse.sequential.screen_rule import decide
from penstock.analyse.statistics.effects import effects
from penstock.design.additions.alpha_spending import level, looks
from penstock.design.additions.stages import Stage, stage_of, with_stages
from penstock.design.additions.two_levels import make_step
from penstock.design.plan import make_plan
from penstock.design.planned import Plan, coded_matrix
from penstock.errors import BadInput
from tests.unit.played_studies import NAMES, outcome_of, played, study_of, table_of

#: mean of the simulated response, and the difference of level means that matters
MEAN, BOUND = 100.0, 5.0


def screened(stop: str, model, noise: float, seed: int = 1) -> tuple[Plan, pd.DataFrame]:  # type: ignore[no-untyped-def]
    study = study_of(f"{{runs: 100, confirm: 2, stop: {stop}}}", design=", detect: 5%")
    return played(study, model, noise, seed)


def purposes(plan: Plan) -> list[str]:
    return [s["purpose"] for s in plan.stages]


def aliased(size: float):  # type: ignore[no-untyped-def]
    """Three factors with an effect, of which each may be the interaction of the two others."""
    return lambda c: MEAN + size * (c["A"] + c["B"] + c["D"])


def test_where_nothing_matters_screening_ends_at_the_first_look(tmp_path: Path) -> None:
    nothing = lambda c: MEAN  # noqa: E731
    plan, runs = screened("decided", nothing, noise=0.5)
    assert purposes(plan) == ["confirm"]
    ended = plan.stages[0]["ended"]
    assert ended.startswith("rule `decided`: at the level of this look")
    assert "0 effects clear of ± 5.0" in ended or "0 effects clear of ± 5 s" in ended
    assert plan.stages[0]["spent"] == pytest.approx(level(0.05, looks(5, 8), 0))
    without, _ = screened("rivals", nothing, noise=0.5)
    assert purposes(without)[0] == "augment"
    assert len(plan.rows) < len(without.rows)
    study = study_of("{runs: 100, confirm: 2, stop: decided}", design=", detect: 5%")
    found = ledger(outcome_of(tmp_path, study, plan, runs))
    assert found is not None
    told = found[found["screening_ended"] != ""]
    assert set(told["purpose"]) == {"confirm"}
    assert set(told["screening_ended"]) == {ended}


def test_rivals_of_what_does_not_matter_are_not_asked_about() -> None:
    assert purposes(screened("decided", aliased(1.0), noise=0.1)[0]) == ["confirm"]
    assert purposes(screened("rivals", aliased(1.0), noise=0.1)[0])[0] == "augment"
    # of what matters they are told apart, whatever else is decided
    assert purposes(screened("decided", aliased(10.0), noise=0.1)[0])[0] == "augment"


def test_what_is_not_decided_goes_on() -> None:
    plan, _ = screened("decided", lambda c: MEAN, noise=12.0)
    assert purposes(plan)[0] == "augment"
    assert "decided" not in "".join(s["ended"] for s in plan.stages)


def grown() -> list[Plan]:
    """The plans of the three looks of five factors: 8, 16 and 32 treatments."""
    study = study_of("{runs: 100, confirm: 2}")
    plans, stages = [make_plan(study)], list[Stage]()
    for kind in ("foldover", "coset"):
        matrix = np.unique(coded_matrix(plans[-1]), axis=0)
        step = make_step(kind, matrix, [1] * len(matrix), [], NAMES)
        stages.append(stage_of(step, plans[-1], ""))
        plans.append(with_stages(plans[0], study, stages))
    return plans


def errors(studies: int, noise: float) -> tuple[dict[str, int], int]:
    """Studies in which an effect of just `BOUND` is given up, or one is found that is none, before screening
    ends by the rule; the same with raw 95 % intervals at each look; studies that ended before the last."""
    plans = grown()
    at = [p.treatments for p in plans]
    drawn = np.random.default_rng(77)
    counts = dict.fromkeys(("given up", "invented", "raw given up", "raw invented"), 0)
    early = 0
    for _ in range(studies):
        took = {
            r.run_id: MEAN + BOUND / 2 * sum(r.coded.values()) + noise * drawn.normal()
            for r in plans[-1].rows
        }
        seen = set()
        going = raw_going = True
        for i, plan in enumerate(plans):
            table = effects(table_of(plan, took), plan, "took")
            alpha = level(0.05, at, i)
            found = decide(table, NAMES, alpha, BOUND)
            raw = decide(table, NAMES, 0.05 * int(table["p_value"].notna().sum()), BOUND)
            assert found is not None
            assert raw is not None
            if going and set(found.within) & set(NAMES):
                seen.add("given up")
            if going and set(active_at(table, NAMES, alpha)) - set(NAMES):
                seen.add("invented")
            if raw_going and set(raw.within) & set(NAMES):
                seen.add("raw given up")
            if raw_going and set(table["term"][table["p_value"] < 0.05]) - {*NAMES, "block"}:
                seen.add("raw invented")
            early += going and not found.undecided and i + 1 < len(plans)
            going, raw_going = going and bool(found.undecided), raw_going and bool(raw.undecided)
        for name in seen:
            counts[name] += 1
    return counts, early


def test_over_many_studies_both_errors_stay_within_alpha() -> None:
    studies = 150
    bound = stats.binom.ppf(0.999, studies, 0.05)
    counts, _ = errors(studies, noise=4.0)
    assert counts["given up"] <= bound
    assert counts["invented"] <= bound
    # what the shares of alpha are for: without them both are broken, so the test can fail
    assert counts["raw given up"] > bound
    assert counts["raw invented"] > bound


def test_the_rule_must_be_able_to_decide() -> None:
    with pytest.raises(BadInput, match=r"without design\.detect"):
        study_of("{runs: 60, stop: decided}")
    with pytest.raises(BadInput):
        study_of("{runs: 60, stop: peek}")


def test_without_pure_error_nothing_is_decided() -> None:
    plan = make_plan(study_of("{runs: 100, confirm: 2, stop: decided}", design=", detect: 5%"))
    runs = table_of(plan, {r.run_id: MEAN + 0.01 * r.run_order for r in plan.rows})
    once = effects(runs[runs["replicate"] == 1], plan, "took")
    assert decide(once, NAMES, 0.05, BOUND) is None
    found = decide(effects(runs, plan, "took"), NAMES, 0.05, BOUND)
    assert found is not None
    assert set(NAMES) <= set(found.within)


def test_an_interval_that_touches_the_bound_is_undecided() -> None:
    # half widths by hand: 2 · t(1 − 0.05/6; 10) · 1 = 5.7397
    half = 2 * stats.t.ppf(1 - 0.05 / 6, 10)
    effect = [BOUND + half + 0.01, -(BOUND + half + 0.01), BOUND]
    table = pd.DataFrame(
        {"term": ["A", "A:B", "B"], "effect": effect, "standard_error": 1.0, "df_error": 10}
    )
    found = decide(table, NAMES, 0.05, BOUND)
    assert found is not None
    assert (found.beyond, found.within, found.undecided) == (("A", "A:B"), (), ("B",))


def products(c: dict[str, int]) -> float:
    """Two factors that multiply: no interaction of ratios, one of differences, which D stands for."""
    return MEAN * 3.0 ** (c["A"] + c["B"])


@pytest.mark.parametrize(
    ("scale", "power", "doubted"),
    [("linear", 1, True), ("log", 1, False), ("auto", 1, True), ("auto", 2, False)],
)
def test_screening_is_on_the_scale_of_the_report(scale: str, power: int, doubted: bool) -> None:
    """With `auto` it is that of ratios unless the runs contradict it."""
    model = lambda c: products(c) ** power / MEAN ** (power - 1)  # noqa: E731
    plan, _ = played(study_of("{runs: 100, confirm: 2}", scale=scale), model, noise=0.5)
    first = plan.stages[0]
    assert first["purpose"] == "augment"
    assert ("D from " in first["why"]) is doubted


def aliased_ratios(c: dict[str, int]) -> float:
    return MEAN * 1.004 ** (c["A"] + c["B"] + c["D"])


def test_what_matters_is_a_ratio_on_the_scale_of_logarithms() -> None:
    said = "{runs: 100, confirm: 2, stop: decided}"
    quiet, _ = played(study_of(said, scale="log", design=", detect: 5%"), aliased_ratios, 0.05)
    assert purposes(quiet) == ["confirm"]
    assert (
        "clear of a ratio of 1.05 in either direction (design.detect)" in quiet.stages[0]["ended"]
    )
    for scale in ("rank", "box-cox"):
        with pytest.raises(BadInput, match=f"decided, with the scale {scale}"):
            study_of(said, scale=scale, design=", detect: 5%")
