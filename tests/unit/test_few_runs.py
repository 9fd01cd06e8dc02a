"""A few slow runs, or a drifting host, are not reported as effects."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from penstock.analyse.findings.answer import answering
from penstock.analyse.findings.findings import CODES
from penstock.analyse.findings.order_effects import or_drift
from penstock.analyse.outcome import Outcome
from penstock.analyse.statistics.effects import effects
from penstock.analyse.statistics.few_runs import few_runs, in_few_runs
from penstock.analyse.statistics.fit import fitted
from penstock.analyse.statistics.significance import is_sure
from penstock.design.plan import make_plan
from penstock.design.planned import Plan, PlannedRun
from tests.unit.test_partial_aliases import ELEVEN, study_of


def plan_of(names: str, design: str) -> Plan:
    return make_plan(study_of({n: ELEVEN[n] for n in names}, design))


def outcome_of(plan: Plan, y, noise: float = 0.02) -> Outcome:
    draws = np.random.default_rng(4)
    runs = pd.DataFrame(
        [
            {
                "run_id": r.run_id,
                "treatment_id": r.treatment_id,
                "replicate": r.replicate,
                **r.levels,
                "valid": True,
                "y": y(r) * (1 + noise * draws.normal()),
            }
            for r in sorted(plan.rows, key=lambda r: r.standard_order)
        ]
    )
    document = {
        "question": "Which factor matters?",
        "responses": {"y": {"unit": "ms", "better": "lower"}},
    }
    return Outcome(
        Path("few"), plan.to_json(), document, runs, effects(runs, plan, "y"), None, None
    )


def sure(outcome: Outcome) -> set[str]:
    table = outcome.effects
    assert table is not None
    return {str(t) for t in table.loc[is_sure(table), "term"]}


def test_two_slow_runs_are_not_seven_effects() -> None:
    plan = plan_of("ABCD", "{kind: full, replicates: 1}")
    outcome = outcome_of(plan, lambda r: 250 if r.standard_order in (3, 13) else 100)
    assert not sure(outcome)
    (finding,) = in_few_runs(outcome)
    slow = [r.run_id for r in plan.rows if r.standard_order in (3, 13)]
    assert set(finding.evidence["run_id"]) == set(slow)
    assert "seven equal contrasts" in finding.statement
    assert "repeat them before anything is concluded" in finding.statement
    assert finding.code in CODES
    assert answering(outcome, [finding]) == [finding]
    json.dumps(finding.evidence)


def test_effects_of_different_sizes_are_not_called_equal() -> None:
    """Two of eight runs with A and B high explain A, B and D = AB, whose effects are 20, 16 and 12."""
    plan = plan_of("ABCDEFG", "{kind: {fraction: 4}, replicates: 1}")

    def y(row: PlannedRun) -> float:
        a, b = row.coded["A"], row.coded["B"]
        return 100 + 10 * a + 8 * b + 6 * a * b

    (finding,) = in_few_runs(outcome_of(plan, y, noise=0.005))
    assert "explain three contrasts of y (A, B and D)" in finding.statement


def test_two_slow_runs_of_rounded_times_are_not_seven_effects() -> None:
    """14 runs of 3 s, two of 5 s: eight contrasts are exactly 0, and with them Lenth's error."""
    plan = plan_of("ABCD", "{kind: full, replicates: 1}")
    outcome = outcome_of(plan, lambda r: 5 if r.standard_order in (3, 13) else 3, noise=0)
    assert not sure(outcome)
    (finding,) = in_few_runs(outcome)
    slow = {r.run_id for r in plan.rows if r.standard_order in (3, 13)}
    assert set(finding.evidence["run_id"]) == slow
    assert "seven equal contrasts" in finding.statement


def test_effects_of_rounded_times_remain() -> None:
    plan = plan_of("ABCD", "{kind: full, replicates: 1}")
    outcome = outcome_of(
        plan, lambda r: 100 + 20 * r.coded["A"] + 15 * r.coded["B"] + 12 * r.coded["C"], noise=0
    )
    assert sure(outcome) == {"A", "B", "C"}
    assert not list(in_few_runs(outcome))
    assert not list(or_drift(outcome))


def test_effect_remains_with_two_slow_runs() -> None:
    plan = plan_of("ABCD", "{kind: full, replicates: 1}")
    outcome = outcome_of(
        plan, lambda r: 100 + 40 * r.coded["D"] + (120 if r.standard_order in (3, 13) else 0)
    )
    assert sure(outcome) == {"D"}
    (finding,) = in_few_runs(outcome)
    assert "D" not in finding.evidence["terms"]


def test_effects_without_slow_runs_remain() -> None:
    plan = plan_of("ABCD", "{kind: full, replicates: 1}")
    outcome = outcome_of(
        plan, lambda r: 100 + 20 * r.coded["A"] + 15 * r.coded["B"] + 12 * r.coded["C"]
    )
    assert sure(outcome) == {"A", "B", "C"}
    assert not list(in_few_runs(outcome))


def test_design_with_replicates_is_not_checked() -> None:
    plan = plan_of("ABC", "{kind: full, replicates: 2}")
    outcome = outcome_of(plan, lambda r: 250 if r.standard_order in (3, 6) else 100)
    assert outcome.effects is not None
    rows = outcome.effects.to_dict("records")
    assert few_runs(fitted(outcome.runs, plan, "y"), rows) is None  # type: ignore[arg-type]
    assert sure(outcome)


def test_drift_in_standard_order_is_reported() -> None:
    plan = plan_of("ABCD", "{kind: full, replicates: 1, order: standard}")
    outcome = outcome_of(plan, lambda r: 100 + 4.0 * r.run_order)
    assert "A" in sure(outcome)
    (finding,) = or_drift(outcome)
    assert finding.code == "effect-or-drift"
    assert "A" in finding.evidence["terms"]
    assert "drift" in finding.statement


def test_drift_of_rounded_times_is_reported() -> None:
    plan = plan_of("ABCD", "{kind: full, replicates: 1, order: standard}")
    outcome = outcome_of(plan, lambda r: 100 + r.run_order, noise=0)
    assert {"A", "B", "C", "D"} <= sure(outcome)
    (finding,) = or_drift(outcome)
    assert set(finding.evidence["terms"]) == {"A", "B", "C", "D"}


def test_drift_over_repeated_runs_is_in_the_order_of_time() -> None:
    """The first half was repeated last: by the planned order its drift was no line, and A was an effect."""
    plan = plan_of("ABCD", "{kind: full, replicates: 1, order: standard}")
    place = {r.run_id: r.run_order + 8 if r.run_order <= 8 else r.run_order - 8 for r in plan.rows}
    outcome = outcome_of(plan, lambda r: 100 + 4.0 * place[r.run_id])
    assert "A" in sure(outcome)
    assert not list(or_drift(outcome))
    assert outcome.runs is not None
    start = outcome.runs["run_id"].map(place) * 60_000_000_000
    timed = replace(outcome, runs=outcome.runs.assign(start_realtime_ns=start))
    (finding,) = or_drift(timed)
    assert "A" in finding.evidence["terms"]


def test_effects_are_not_called_drift() -> None:
    plan = plan_of("ABCD", "{kind: full, replicates: 2}")
    outcome = outcome_of(plan, lambda r: 100 + 20 * r.coded["A"] + 12 * r.coded["A"] * r.coded["B"])
    assert {"A", "A:B"} <= sure(outcome)
    assert not list(or_drift(outcome))
