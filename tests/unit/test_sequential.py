"""Sequential studies: alpha spending over looks, the choice of the next runs with reasons, the ledger."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from penstock.analyse.findings.answer import NEXT_STEP, answer
from penstock.analyse.findings.effect_findings import effects as effect_findings
from penstock.analyse.sequential.adaptive import _coded, _means, _state, active_at, next_stage
from penstock.analyse.sequential.aliased import Open, aliased
from penstock.analyse.sequential.ledger import confirmed, ledger
from penstock.analyse.statistics.effects import effects
from penstock.analyse.statistics.significance import is_sure, limits
from penstock.analyse.surface.process import Process, expected_improvement, worth_of_a_run
from penstock.campaign.limits import Used
from penstock.design.additions.alpha_spending import analysis_level, level, looks, spent
from penstock.design.additions.stages import Stage, stage_of, with_stages
from penstock.design.additions.two_levels import make_step
from penstock.design.plan import make_plan
from penstock.design.planned import Plan, coded_matrix
from penstock.errors import BadInput, PenstockError
from penstock.spec.study import Limits, Study
from penstock.study.load import load_study, read_study
from tests.unit.played_studies import NAMES, outcome_of, played, study_of, table_of


@pytest.mark.parametrize("rule", ["pocock", "obrien-fleming"])
def test_looks_spend_exactly_alpha(rule: str) -> None:
    at = looks(6, 8)
    assert at == [8, 16, 32, 64]
    each = [level(0.05, at, i, rule) for i in range(len(at))]
    assert all(e >= 0 for e in each)
    assert sum(each) == pytest.approx(0.05)
    assert spent(0.05, 0.0, rule) == 0


def test_spending_as_published() -> None:
    """α ln(1 + (e−1)t) and 2 − 2Φ(z/√t) at t = ½ (Lan & DeMets 1983)."""
    assert spent(0.05, 0.5) == pytest.approx(0.05 * np.log(1 + (np.e - 1) / 2))
    z = stats.norm.ppf(0.975)
    assert spent(0.05, 0.5, "obrien-fleming") == pytest.approx(2 * stats.norm.sf(z / np.sqrt(0.5)))
    with pytest.raises(ValueError, match="no spending rule"):
        spent(0.05, 0.5, "none")


def _false_positives(studies: int) -> tuple[int, int]:
    """Studies without effects in which a look finds one: with the rule, and with 5 % at each look."""
    study = study_of("{runs: 100, confirm: 2}")
    plans = [make_plan(study)]
    stages: list[Stage] = []
    for kind in ("foldover", "coset"):
        matrix = np.unique(coded_matrix(plans[-1]), axis=0)
        step = make_step(kind, matrix, [1] * len(matrix), [], NAMES)
        stages.append(stage_of(step, plans[-1], ""))
        plans.append(with_stages(plans[0], study, stages))
    at = [p.treatments for p in plans]
    assert at == looks(5, 8)
    rng = np.random.default_rng(20)
    ruled = raw = 0
    for _ in range(studies):
        took = {r.run_id: rng.normal() for r in plans[-1].rows}
        tables = [effects(table_of(p, took), p, "took") for p in plans]
        ruled += any(active_at(t, NAMES, level(0.05, at, i)) for i, t in enumerate(tables))
        raw += any((t["p_value"] < 0.05).any() for t in tables)
    return ruled, raw


def test_false_effects_over_all_looks_are_at_most_five_per_cent() -> None:
    studies = 120
    ruled, raw = _false_positives(studies)
    bound = stats.binom.ppf(0.999, studies, 0.05)
    assert ruled <= bound
    assert raw > bound  # without the rule the rate is higher: the test can fail


def test_screening_doubles_until_nothing_plausible_is_left() -> None:
    study = study_of("{runs: 100, confirm: 2}")
    model = lambda c: 100 + 20 * c["A"] + 10 * c["B"] + 8 * c["A"] * c["C"]  # noqa: E731
    plan, runs = played(study, model)
    augments = [s for s in plan.stages if s["purpose"] == "augment"]
    assert augments
    assert all("to tell" in s["why"] for s in augments)
    assert sum(s["spent"] for s in plan.stages) <= 0.05
    table = effects(runs, plan, "took").set_index("term")
    assert table["coefficient"]["A:C"] == pytest.approx(8, abs=1)
    assert [s["purpose"] for s in plan.stages][-1] == "confirm"


def test_without_effects_screening_reports_none_and_still_confirms() -> None:
    plan, _ = played(study_of("{runs: 100, confirm: 2}"), lambda c: 100.0, noise=1.0)
    assert "no effect shows yet" in plan.stages[0]["why"]
    assert plan.stages[-1]["purpose"] == "confirm"


@pytest.mark.parametrize("search", ["gaussian-process", "trees", "optuna"])
def test_search_finds_the_best_and_gives_reasons(search: str) -> None:
    names = list("ABCDEFGH")
    sequential = f"{{runs: 64, search: {search}, search_runs: 8, confirm: 3, default: {{A: high}}}}"
    study = study_of(sequential, names, fraction=4)

    def model(c: dict[str, int]) -> float:
        return (
            50 + 10 * c["A"] - 6 * c["C"] + 5 * c["A"] * c["C"] + 3 * c["D"] - 4 * c["D"] * c["E"]
        )

    plan, runs = played(study, model)
    assert len(plan.rows) <= 64
    searched = [s for s in plan.stages if s["purpose"] == "optimise"]
    assert searched
    assert all(len(s["reasons"]) == len(s["treatments"]) for s in searched)
    chosen, default = plan.stages[-1]["treatments"]
    assert default == {n: "high" if n == "A" else "low" for n in names}
    best = min(
        model(dict(zip(names, c, strict=True))) for c in itertools.product((-1, 1), repeat=8)
    )
    assert model({n: 1 if v == "high" else -1 for n, v in chosen.items()}) <= best + 0.5
    designed = [r for r in plan.rows if r.stage == 1]
    table = effects(runs, plan, "took")
    assert table["n"].iloc[0] == len(designed)  # runs of the search are not part of the design


def test_expected_improvement_as_by_simulation() -> None:
    samples = np.random.default_rng(3).normal(1.0, 2.0, 400_000)
    improvement = expected_improvement(np.array([1.0]), np.array([2.0]), 1.5)[0]
    assert improvement == pytest.approx(np.maximum(samples - 1.5, 0).mean(), abs=0.01)
    assert expected_improvement(np.array([2.0]), np.array([0.0]), 1.5)[0] == 0.5


def test_the_worth_of_a_run_as_by_simulation() -> None:
    """Fails with another rival, another spread of the mean after one more run, or another sign."""
    mean, sd, noise = np.array([2.0, 1.7, 0.0]), np.array([0.1, 0.5, 0.1]), 0.4
    rng = np.random.default_rng(4)
    for i in range(3):
        moved = mean[i] + sd[i] ** 2 / np.hypot(sd[i], noise) * rng.normal(size=400_000)
        rival = np.delete(mean, i).max()
        gain = np.maximum(moved, rival).mean() - mean.max()
        assert worth_of_a_run(mean, sd, noise)[i] == pytest.approx(gain, abs=2e-3)


def test_the_process_has_the_largest_posterior_and_fits_its_runs() -> None:
    """Fails with a wrong derivative: another start or a coarse search would find a better one."""
    rng = np.random.default_rng(5)
    x = 2.0 * rng.integers(0, 2, (24, 4)) - 1
    x = np.unique(x, axis=0)
    y = 2 * x[:, 0] - x[:, 1] * x[:, 2] + 0.05 * rng.normal(size=len(x))
    n = np.full(len(x), 2)
    process = Process(x, y, n)
    mean, sd = process(x)
    assert np.abs(mean - y).max() < 0.2
    assert sd.max() < 0.2
    assert 0.01 < process.noise < 0.5
    several = Process(x, y, np.full(len(x), 8))  # means of more runs have more weight
    assert several(x)[1].mean() < sd.mean() * 1.01
    # an inert factor hardly changes the prediction, an active one does
    far = np.array([[1.0, 1, 1, 1], [1.0, 1, 1, -1], [-1.0, 1, 1, 1]])
    at = process(far)[0]
    assert abs(at[0] - at[1]) < 0.3 < abs(at[0] - at[2])


def test_a_near_tie_is_repeated_with_that_reason() -> None:
    study = study_of("{runs: 60, search_runs: 16, confirm: 2}")
    model = lambda c: 20 - 3.0 * c["A"] + 0.2 * c["B"]  # noqa: E731
    plan, _ = played(study, model, noise=0.5)
    reasons = [r for s in plan.stages if s["purpose"] == "optimise" for r in s["reasons"]]
    assert any("repeated: " in r for r in reasons)


def test_the_same_results_choose_the_same_next_runs() -> None:
    study = study_of("{runs: 60, search_runs: 4, confirm: 2}")
    model = lambda c: 100 + 20 * c["A"] - 5 * c["B"]  # noqa: E731
    first, second = (played(study, model)[0] for _ in range(2))
    assert first.to_json() == second.to_json()


def test_no_choice_without_valid_runs() -> None:
    study = study_of("{runs: 60}")
    plan = make_plan(study)
    runs = table_of(plan, {r.run_id: 1.0 for r in plan.rows}).assign(valid=False)
    with pytest.raises(PenstockError, match="nothing to choose"):
        next_stage(plan, study, runs)


def test_the_ledger_has_the_purpose_and_gain_of_each_run(tmp_path: Path) -> None:
    study = study_of("{runs: 60, search_runs: 4, confirm: 3}")
    plan, runs = played(study, lambda c: 100 + 20 * c["A"] - 5 * c["B"] + 4 * c["D"] * c["E"])
    outcome = outcome_of(tmp_path, study, plan, runs)
    table = ledger(outcome)
    assert table is not None
    assert list(table["run_id"]) == [r.run_id for r in plan.rows]
    assert (table["best_so_far"] == table["value"].cummin()).all()
    assert (table["why"] != "").all()
    assert set(table["purpose"]) >= {"screen", "confirm"}


def test_the_confirmation_is_of_fresh_pairs(tmp_path: Path) -> None:
    study = study_of("{runs: 60, confirm: 4, default: {A: high}}")
    plan, runs = played(study, lambda c: 100 + 20 * c["A"] - 5 * c["B"])
    (finding,) = confirmed(outcome_of(tmp_path, study, plan, runs))
    assert finding.code == "confirmation"
    assert finding.severity == "info"
    assert "4 fresh interleaved pairs" in finding.statement
    assert "is confirmed" in finding.statement
    worse = runs.assign(took=200 - runs["took"])  # the choice is the worst now
    (refuted,) = confirmed(outcome_of(tmp_path, study, plan, worse))
    assert "refuted" in refuted.statement
    assert refuted.severity == "warning"


@pytest.mark.parametrize(
    ("sequential", "design", "message"),
    [
        ("{runs: 60, default: {Z: low}}", "", "Z"),
        ("{runs: 60, default: {A: middle}}", "", "middle"),
        ("{runs: 60}", ", replicates: 1", "at least 2"),
        ("{runs: 1}", "", "at least 4"),
        ("{runs: 60, spending: all}", "", "pocock or obrien"),
    ],
)
def test_broken_sequential_studies(sequential: str, design: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        study_of(sequential, design=design)


def test_limits_continue_earlier_counts(tmp_path: Path) -> None:
    used = Used.of(tmp_path, Limits(runs=3))
    used.ran()
    assert used.reached() == ""
    again = Used.of(tmp_path, Limits(runs=3))
    again.ran()
    again.ran()
    assert again.reached() == "3 of 3 runs"
    assert json.loads((tmp_path / "used.json").read_text())["reached"] == "3 of 3 runs"
    assert Used.of(tmp_path, Limits(runs=5)).reached() == ""
    assert Used.of(tmp_path, Limits(time_s=0.0)).reached().endswith("s at work")
    (tmp_path / "used.json").write_text("[]")
    with pytest.raises(BadInput, match="not what a study has used"):
        Used.of(tmp_path, Limits(runs=3))


def _forbidden(sequential: str, combinations: str, factors: str = "ABCDE", runs: int = 8) -> Study:
    """A study of the d-optimal kind, which leaves combinations out."""
    text = study_of(sequential, list(factors)).source_text
    kind = f"kind: {{d-optimal: {{model: main, runs: {runs}}}}}, forbidden: {combinations}"
    return read_study(text.replace("kind: {fraction: 2}", kind).encode(), Path("plain.study.yaml"))


@pytest.mark.parametrize("search", ["gaussian-process", "trees", "optuna"])
def test_nothing_forbidden_is_searched_or_confirmed(search: str) -> None:
    sequential = (
        f"{{runs: 60, search: {search}, search_runs: 12, confirm: 2, default: {{A: high}}}}"
    )
    study = _forbidden(sequential, "[{A: low, B: low}]", "ABCDEFG", 12)
    plan, _ = played(study, lambda c: 100 + 10 * c["A"] + 10 * c["B"] + c["C"] * c["D"])
    assert any(s["purpose"] == "optimise" for s in plan.stages)
    run = {(r.levels["A"], r.levels["B"]) for r in plan.rows}
    assert run == {("low", "high"), ("high", "low"), ("high", "high")}


def test_a_foldover_with_forbidden_combinations_is_skipped_with_a_reason() -> None:
    combinations = "[{A: low, B: low}, {A: high, B: high, C: high}]"
    study = _forbidden("{runs: 60, confirm: 2, default: {A: high}}", combinations)
    plan, _ = played(study, lambda c: 100.0)
    assert [s["purpose"] for s in plan.stages] == ["confirm"]
    assert "combinations that design.forbidden excludes" in plan.stages[0]["ended"]


def test_a_forbidden_default_is_refused() -> None:
    with pytest.raises(BadInput, match=r"A low, B low.*design\.forbidden excludes"):
        _forbidden("{runs: 60}", "[{A: low, B: low}]")
    _forbidden("{runs: 60, default: {B: high}}", "[{A: low, B: low}]")


def test_a_stage_with_something_forbidden_is_refused() -> None:
    study = _forbidden("{runs: 60, default: {B: high}}", "[{A: low, B: low}]")
    plan = make_plan(study)
    levels = dict.fromkeys(NAMES, "low")
    with pytest.raises(BadInput, match=r"A low, B low in a stage"):
        with_stages(plan, study, [Stage("optimise", "trees", (levels,), 1, "")])


def test_added_stages_are_randomised_where_the_order_is() -> None:
    study = study_of("{runs: 60, confirm: 2}", design=", order: random")
    plan = make_plan(study)
    matrix = coded_matrix(plan)
    step = make_step("foldover", matrix, [1] * len(matrix), [], NAMES)
    runs = [r for r in with_stages(plan, study, [stage_of(step, plan, "")]).rows if r.stage == 2]
    order = [(r.replicate, r.treatment_id) for r in runs]
    assert order != sorted(order)
    assert sorted(order) == sorted({(k, r.treatment_id) for r in runs for k in (1, 2)})
    assert [r.replicate for r in runs] != sorted(r.replicate for r in runs)  # not pass by pass
    assert len({r.block for r in runs}) == 1


@pytest.mark.parametrize(
    "order", ["interleaved", "random", "standard", "split-plot", "split-plot-random"]
)
def test_each_pair_of_a_confirmation_is_a_block(order: str, tmp_path: Path) -> None:
    study = study_of("{runs: 60, confirm: 6}", design=f", order: {order}")
    if order.startswith("split"):
        text = study.source_text.replace('"A": {', '"A": {change: redeploy, ')
        study = read_study(text.encode(), Path("plain.study.yaml"))
    plan, runs = played(study, lambda c: 100 + 20 * c["A"] - 5 * c["B"])
    confirmations = [
        r for r in plan.rows if plan.stages[r.stage - 2]["purpose"] == "confirm" and r.stage > 1
    ]
    pairs = {}
    for r in confirmations:
        pairs.setdefault(r.block, []).append(r.treatment_id)
    assert len(pairs) == 6
    assert all(len(set(pair)) == 2 for pair in pairs.values())
    assert len({pair[0] for pair in pairs.values()}) == 2  # the first of a pair is random
    (finding,) = confirmed(outcome_of(tmp_path, study, plan, runs))
    assert "6 fresh interleaved pairs" in finding.statement


def test_a_confirmation_with_too_few_pairs_is_undecided(tmp_path: Path) -> None:
    study = study_of("{runs: 60, confirm: 2}")
    plan, runs = played(study, lambda c: 100 + 20 * c["A"] - 5 * c["B"])
    lost = runs["run_id"].eq(plan.rows[-1].run_id)
    few = runs.assign(took=runs["took"].mask(lost))
    (finding,) = confirmed(outcome_of(tmp_path, study, plan, few))
    assert finding.code == "confirmation"
    assert finding.severity == "warning"
    assert "It is not known if the choice is better: 1 of 2" in finding.statement
    # earlier versions planned studies of `order: random` without pairs
    block = max(r.block for r in plan.rows)
    rows = [replace(r, block=block) if r.stage == len(plan.stages) + 1 else r for r in plan.rows]
    (finding,) = confirmed(outcome_of(tmp_path, study, plan.with_runs(rows), runs))
    assert "It is not known if the choice is better: 1 of 2" in finding.statement
    assert "in one block" in finding.statement


def test_a_default_that_is_true_or_false_is_the_level_of_that_name() -> None:
    text = study_of("{runs: 60, confirm: 2, default: {A: high}}").source_text
    text = text.replace("A: high", "A: true").replace(
        '"A": {levels: [low, high]}', '"A": {levels: [false, true]}'
    )
    study = read_study(text.encode(), Path("plain.study.yaml"))
    plan, _ = played(study, lambda c: 100 + 20 * c["A"] - 5 * c["B"])
    assert plan.stages[-1]["purpose"] == "confirm"
    assert plan.stages[-1]["treatments"][1]["A"] == "true"


def test_search_sees_numbers_in_their_order() -> None:
    """Levels that are listed as 8, 1, 4, 2 are searched as 1, 2, 4, 8."""
    text = study_of("{runs: 40, search_runs: 4, confirm: 2}", ["A", "B"], fraction=0).source_text
    text = text.replace('"A": {levels: [low, high]}', '"A": {levels: [8, 1, 4, 2]}')
    text = text.replace('"B": {levels: [low, high]}', '"B": {levels: {x: "8", y: "1", z: "4"}}')
    study = read_study(text.encode(), Path("plain.study.yaml"))
    plan = make_plan(study)
    runs = table_of(plan, {r.run_id: 1.0 for r in plan.rows})
    state = _state(plan, study, study.design.sequential, runs)
    coded = _coded(state, np.array([[0, 0], [1, 1], [2, 2], [3, 0]]))
    assert coded[:, 0] == pytest.approx([1, -1, 1 / 3, -1 / 3])
    assert coded.shape == (4, 4)  # each text level has its own column


def test_factors_of_three_levels_are_not_screened_and_a_caution_says_so(tmp_path: Path) -> None:
    text = study_of("{runs: 60, search_runs: 4, confirm: 2}", ["A", "B"], fraction=0).source_text
    text = text.replace('"A": {levels: [low, high]}', '"A": {levels: [low, high, 7]}')
    study = read_study(text.encode(), Path("plain.study.yaml"))
    assert any("has no screening" in caution for caution in make_plan(study).cautions)
    plan, runs = played(study, lambda c: 100 - 5 * c["A"] - c["B"])
    assert "augment" not in {s["purpose"] for s in plan.stages}
    assert any("has no screening" in caution for caution in plan.cautions)  # the report prints them
    table = ledger(outcome_of(tmp_path, study, plan, runs))
    assert table is not None
    assert "no screening: it takes two levels of every factor" in set(table["screening_ended"])
    two_levels = make_plan(study_of("{runs: 60, confirm: 2}"))
    assert not any("has no screening" in caution for caution in two_levels.cautions)


def test_the_final_analysis_uses_the_rest_of_alpha(tmp_path: Path) -> None:
    """All looks and the final analysis share alpha: their levels add up to it, and p-values of the table
    are adjusted for all looks."""

    study = study_of("{runs: 200, search_runs: 0, confirm: 2}")
    plan = make_plan(study)
    took = {r.run_id: 10.0 + i % 3 for i, r in enumerate(plan.rows)}
    at = looks(5, len({r.treatment_id for r in plan.rows}))
    assert analysis_level(plan) == pytest.approx(level(0.05, at, 0))
    assert analysis_level(plan) < 0.05
    runs = table_of(plan, took)
    runs["took"] += 0.9 * runs["A"].eq("high") + np.random.default_rng(3).normal(0, 0.4, len(runs))
    shared = effects(runs, plan, "took")
    unshared = effects(runs, replace(plan, sequential=None), "took")
    assert (unshared["level"] == 0.05).all()
    tested = unshared["p_holm"].notna()
    expected = (unshared["p_holm"] * 0.05 / analysis_level(plan)).clip(upper=1)
    assert shared.loc[tested, "p_holm"].to_numpy() == pytest.approx(expected[tested].to_numpy())
    # the plotted limit is the limit of significance
    limited = limits(shared).notna()
    beyond = shared["effect"].abs() > limits(shared)
    assert (beyond[limited] == is_sure(shared)[limited]).all()


@pytest.mark.parametrize(
    ("main_effect", "code"), [(True, "effect-unambiguous"), (False, "effect-aliased")]
)
def test_an_alias_is_named_only_if_later_runs_allow_it(
    tmp_path: Path, main_effect: bool, code: str
) -> None:
    """In the fraction, D and A × B share one column; search and confirmation vary them separately."""
    study = study_of("{runs: 32, search_runs: 4, confirm: 4}", fraction=2)
    plan = make_plan(study)
    assert any(a.term == "D" and "+A:B" in a.with_terms for a in plan.aliases)
    plan, runs = played(study, lambda c: 100 + 20 * (c["D"] if main_effect else c["A"] * c["B"]))
    outcome = outcome_of(tmp_path, study, plan, runs)
    outcome = replace(outcome, effects=effects(runs, plan, "took"))
    (finding,) = aliased(outcome)
    assert finding.code == code
    (dominant,) = (f for f in effect_findings(outcome) if f.code == "effect-dominant")
    assert ("D or A × B (not separable)" in dominant.statement) is not main_effect
    assert ("exclude A × B as an alias of D" in finding.statement) is main_effect


def test_the_answer_has_the_confirmation(tmp_path: Path) -> None:
    """The value belongs to the repeated setting, not to the lowest single run."""
    sequential = "{runs: 48, search_runs: 8, confirm: 4, default: {A: high}}"
    study = study_of(sequential, design=", detect: 2%", scale="linear")
    plan, runs = played(study, lambda c: 100 + 20 * c["A"])
    outcome = replace(outcome_of(tmp_path, study, plan, runs), effects=effects(runs, plan, "took"))
    screening = answer(outcome)
    assert screening is not None
    assert "is confirmed" in dict(screening.points)["Confirmation"]
    result = answer(replace(outcome, study=outcome.study | {"question": "Which is fastest?"}))
    assert result is not None
    assert "is confirmed" in dict(result.points)["Confirmation"]
    chosen = plan.stages[-1]["treatments"][0]
    (treatment,) = {r.treatment_id for r in plan.rows if r.levels == chosen}
    assert result.first.evidence["treatment_id"] == treatment


def test_replicates_of_a_search_are_counted(tmp_path: Path) -> None:
    """Replicates repeat the treatments of the search as well, which were not in the number of runs."""
    study = study_of("{runs: 60, search_runs: 4, confirm: 2}")
    plan, runs = played(study, lambda c: 100 + 20 * c["A"] - 5 * c["B"])
    assert any(s["purpose"] == "optimise" for s in plan.stages)
    study_so_far = Open.of(outcome_of(tmp_path, study, plan, runs))
    proposal = study_so_far.proposal("replicates:1")
    stage = stage_of(proposal.step, plan, "more")
    assert proposal.runs == len(stage.treatments) * stage.replicates


def test_a_lost_run_does_not_move_the_means_of_others() -> None:
    """Passes were made equal on average: one that lost its best run raised all others."""
    study = study_of(
        "{runs: 60, confirm: 4}", fraction=0, names=list("AB"), design=", replicates: 2"
    )
    plan = make_plan(study)
    of_treatment = {"t01": 10.0, "t02": 10.0, "t03": 96.0, "t04": 100.0}
    took = {r.run_id: of_treatment[r.treatment_id] * 1.1 ** (r.replicate == 2) for r in plan.rows}
    runs = table_of(plan, took)
    lost = next(r.run_id for r in plan.rows if r.treatment_id == "t04" and r.replicate == 2)
    runs.loc[runs["run_id"] == lost, "valid"] = False
    assert study.design.sequential is not None
    state = _state(plan, study, study.design.sequential, runs)
    assert state.logarithmic
    _, means, n = _means(state)
    assert n.tolist() == [2, 2, 2, 1]
    # less is better, and the second pass takes a tenth more
    assert means == pytest.approx([-np.log(v * 1.1**0.5) for v in of_treatment.values()])


def confirmation_runs(plan: Plan) -> set[str]:
    """The runs of the confirmation."""
    number = next(n for n, s in enumerate(plan.stages, 2) if s["purpose"] == "confirm")
    return {r.run_id for r in plan.rows if r.stage == number}


def test_a_confirmation_against_a_mean_of_zero_has_no_share(tmp_path: Path) -> None:
    """A default without any retry: the possible difference was divided by its mean of 0."""
    study = study_of("{runs: 60, confirm: 4, default: {A: high}}")
    plan, runs = played(study, lambda c: 100 + 20 * c["A"] - 5 * c["B"])
    default = runs["A"].eq("high") & runs["run_id"].isin(confirmation_runs(plan))
    others = runs["run_id"].isin(confirmation_runs(plan)) & ~default
    runs.loc[default, "took"] = 0.0
    runs.loc[others, "took"] = [0.0, 0.0, 3.0, 0.0]
    (finding,) = confirmed(outcome_of(tmp_path, study, plan, runs))
    assert "may be chance; up to 3.14 s is possible" in finding.statement


def test_a_confirmation_holds_for_any_correction_of_degraded_runs(tmp_path: Path) -> None:
    study = study_of("{runs: 60, confirm: 4, default: {A: high}}")
    plan, runs = played(study, lambda c: 100 + 20 * c["A"] - 5 * c["B"])
    low = runs["took"].where(~runs["run_id"].isin(confirmation_runs(plan)), runs["took"] - 60)
    bounded = runs.assign(**{"took:low": low, "took:high": runs["took"]})
    (finding,) = confirmed(outcome_of(tmp_path, study, plan, bounded))
    assert "may be chance" in finding.statement
    # without a bound a degraded run is not used
    last = sorted(confirmation_runs(plan))[-1]
    unbounded = runs.assign(
        **{"took:low": runs["took"].mask(runs["run_id"].eq(last)), "took:high": runs["took"]}
    )
    (finding,) = confirmed(outcome_of(tmp_path, study, plan, unbounded))
    assert "3 fresh interleaved pairs" in finding.statement


@pytest.mark.parametrize(("noise", "small"), [(0.2, True), (6.0, False)])
def test_pairs_without_a_difference_are_equal_or_need_more_runs(
    tmp_path: Path, noise: float, small: bool
) -> None:
    study = study_of("{runs: 60, confirm: 4}", design=", detect: 2%")
    plan, runs = played(study, lambda c: 100.0, noise=noise)
    outcome = outcome_of(tmp_path, study, plan, runs)
    (finding,) = confirmed(outcome)
    assert ("they differ by less than" in finding.statement) is small
    assert ("may be chance" in finding.statement) is not small
    if small:
        assert not finding.what_to_do
        return
    _, command, _ = finding.what_to_do.split("`")
    change = command.split(" --set ")[1]
    assert load_study(tmp_path / "study.yaml", [change]).design.sequential.confirm == 16
    result = answer(replace(outcome, effects=effects(runs, plan, "took")))
    assert result is not None
    assert NEXT_STEP in dict(result.points)
