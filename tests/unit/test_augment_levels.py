"""Augmentation of designs of more than two levels: added runs, separated terms, blocks."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from penstock.analyse.outcome import Outcome
from penstock.analyse.sequential.aliased import Open
from penstock.analyse.sequential.augment_text import augment_json, augment_text
from penstock.analyse.statistics.effects import effects
from penstock.analyse.statistics.fit import fitted, usable
from penstock.campaign.analysis import analyse
from penstock.design.additions.more_levels import coded_of, level_step, numbers_of, tells
from penstock.design.additions.stages import designed, stage_of, with_stages
from penstock.design.plan import make_plan
from penstock.design.planned import Plan
from penstock.errors import BadInput
from penstock.study.load import load_study
from tests.unit.recorded_study import record, study_text

LEVELS = {"jobs": "{levels: [1, 8, 64]}", "disk": "{levels: [hdd, ssd]}"}
FOUR = {**LEVELS, "fs": "{levels: [ext4, xfs, btrfs]}", "sync": "{levels: [a, b]}"}
OPTIMAL = "{kind: {d-optimal: {model: main, runs: 12}}, replicates: 2"


def extended(
    place: Path, factors: dict[str, str], design: str, *kinds: str, again: bool = False
) -> Plan:
    source = place / "recorded.study.yaml"
    source.write_text(study_text(factors, design))
    study = load_study(source, [], False)
    first = plan = make_plan(study)
    stages = []
    for kind in kinds:
        coded, labels = designed(plan, stages)
        step = level_step(
            kind, plan.factors, plan.model, coded, labels,
            seed=plan.seed, forbidden=study.design.forbidden, again=again,
        )  # fmt: skip
        stages.append(stage_of(step, plan, "more", again=again))
        plan = with_stages(first, study, stages)
    return plan


def runs_of(plan: Plan, seed: int = 1) -> pd.DataFrame:
    draws = np.random.default_rng(seed)
    rows = [{"run_id": r.run_id, "replicate": r.replicate, **r.levels} for r in plan.rows]
    return pd.DataFrame(rows).assign(valid=True, y=10 + draws.normal(size=len(plan.rows)))


def test_added_replicates_of_a_full_design_are_blocks(tmp_path: Path) -> None:
    plan = extended(tmp_path, LEVELS, "{kind: full, replicates: 2}", "replicates:3")
    assert len(plan.rows) == 30
    assert {r.block for r in plan.rows} == {1, 2, 3, 4, 5}
    assert [r.replicate for r in plan.rows if r.treatment_id == "t01"] == [1, 2, 3, 4, 5]
    table = effects(runs_of(plan), plan, "y").set_index("term")
    assert table.loc["block", "df"] == 4
    assert table.loc["residual", "df"] == plan.power["degrees_of_freedom"] == 5 * 4


def test_a_factor_of_many_levels_gets_replicates(tmp_path: Path) -> None:
    """Level numbers were stored in 8 bits: an addition ended in an OverflowError."""
    sizes = ", ".join(str(4 * n) for n in range(1, 151))
    factors = {"cache": f"{{levels: [{sizes}]}}", "disk": "{levels: [hdd, ssd]}"}
    plan = extended(tmp_path, factors, "{kind: full, replicates: 1}", "replicates:1")
    added = [r for r in plan.rows if r.stage == 2]
    assert {(r.treatment_id, *r.levels.values()) for r in added} == {
        (r.treatment_id, *r.levels.values()) for r in plan.rows if r.stage == 1
    }
    numbers = np.array([[149, 1], [0, 0]])
    assert numbers_of(plan.factors, coded_of(plan.factors, numbers)).tolist() == numbers.tolist()


@pytest.mark.parametrize("kinds", [("optimal:4",), ("optimal:9", "replicates:1"), ("optimal:20",)])
@pytest.mark.parametrize("again", [False, True])
def test_optimal_treatments_keep_completed_runs_and_obey_forbidden(
    tmp_path: Path, kinds: tuple[str, ...], again: bool
) -> None:
    forbidden = ", forbidden: [{jobs: 64, disk: hdd, fs: xfs}]}"
    first = extended(tmp_path, FOUR, OPTIMAL + forbidden)
    plan = extended(tmp_path, FOUR, OPTIMAL + forbidden, *kinds, again=again)
    assert plan.rows[: len(first.rows)] == first.rows
    added = int(kinds[0].partition(":")[2])
    assert plan.treatments == 12 + added
    assert not any(
        r.levels["jobs"] == "64" and r.levels["disk"] == "hdd" and r.levels["fs"] == "xfs"
        for r in plan.rows
    )
    data = runs_of(plan)
    table = effects(data, plan, "y").set_index("term")
    assert table["p_value"].drop(["residual"]).notna().all()
    assert table.loc["residual", "df"] == plan.power["degrees_of_freedom"]
    assert ("jobs:disk" in table.index) == (plan.model == "pairs") == (added == 20)


def test_drift_between_stages_is_no_effect_in_a_study(tmp_path: Path) -> None:
    """The written tables and the residuals are those of the executed blocks."""
    text = study_text(FOUR, OPTIMAL + "}").replace(
        "better: lower}", "better: lower, scale: linear}"
    )
    draws = np.random.default_rng(3)
    out = record(tmp_path, text, lambda r: {"y": 100 + draws.normal()})
    analyse(out, report=False)
    plan = extended(tmp_path, FOUR, OPTIMAL + "}", "optimal:8")
    runs = runs_of(plan, 2)
    late = runs["run_id"].map({r.run_id: r.stage == 2 for r in plan.rows}).to_numpy()
    before = effects(runs, plan, "y")
    after = effects(runs.assign(y=runs["y"] + 1000.0 * late), plan, "y")
    columns = ["sum_of_squares", "p_value"]
    terms = ~before["term"].eq("block")
    pd.testing.assert_frame_equal(before.loc[terms, columns], after.loc[terms, columns], rtol=1e-5)
    fit = fitted(runs, plan, "y")
    assert fit.blocks.stop - fit.blocks.start == 3
    assert len(usable(runs, plan, "y")) == len(fit.y) == len(plan.rows)
    assert (
        float(fit.residuals @ fit.residuals)
        == before.set_index("term").loc["residual", "sum_of_squares"]
    )


@pytest.mark.parametrize("rivals", [(), ("disk:sync",), ("jobs:fs",)])
def test_power_counts_the_interactions_that_a_stage_separates(
    tmp_path: Path, rivals: tuple[str, ...]
) -> None:
    source = tmp_path / "recorded.study.yaml"
    source.write_text(study_text(FOUR, OPTIMAL + "}"))
    study = load_study(source, [], False)
    first = make_plan(study)
    coded, labels = designed(first, [])
    step = level_step("optimal:8", first.factors, first.model, coded, labels, seed=first.seed)
    stage = dataclasses.replace(stage_of(step, first, "more"), rivals=rivals)
    plan = with_stages(first, study, [stage])
    table = effects(runs_of(plan), plan, "y").set_index("term")
    assert set(rivals) <= set(table.index)
    assert table.loc["residual", "df"] == plan.power["degrees_of_freedom"]


def test_larger_models_are_fitted_with_enough_treatments() -> None:
    from tests.unit.test_design_purpose import levels

    factors = levels(3, 3, 2, 2)
    every = np.array(list(itertools.product(range(3), range(3), range(2), range(2))))
    assert np.array_equal(numbers_of(factors, coded_of(factors, every)), every)
    assert tells(factors, "pairs", every, [1] * 36)
    # 28 distinct treatments are fewer than 1.5 times 20 coefficients, however often they run
    few = np.vstack([every[:28], every[:28]])
    assert not tells(factors, "pairs", few, [1] * 28 + [2] * 28)
    assert tells(factors, "main", few, [1] * 28 + [2] * 28)
    # a stage that coincides with the level of a factor is confounded with it
    assert not tells(factors, "main", every, [1 + int(r[3]) for r in every])


def test_impossible_additions_are_refused(tmp_path: Path) -> None:
    for factors, design, kind, message in (
        (LEVELS, "{kind: full}", "optimal:1", "all of these treatments are in the plan already"),
        (LEVELS, "{kind: full}", "foldover", r"expected optimal:ROWS or replicates:NUMBER"),
        (LEVELS, "{kind: full}", "best", r"expected optimal:ROWS or replicates:NUMBER"),
        (LEVELS, "{kind: full}", "replicates:0", "a number from 1 to 1000"),
        (FOUR, OPTIMAL + "}", "optimal:25", "only 24 treatments have not been run"),
        (FOUR, OPTIMAL + "}", "optimal:x", "a number from 1 to"),
    ):
        with pytest.raises(BadInput, match=message):
            extended(tmp_path, factors, design, kind)


def test_possible_additions_are_listed(tmp_path: Path) -> None:
    draws = np.random.default_rng(4)
    out = record(tmp_path, study_text(FOUR, OPTIMAL + "}"), lambda _: {"y": 9 + draws.normal()})
    analyse(out, report=False)
    open_terms = Open.of(Outcome.read(out))
    proposals = open_terms.proposals()
    assert [p.step.kind for p in proposals] == [
        "optimal:4",
        "optimal:6",
        "optimal:12",
        "replicates:1",
    ]
    assert [p.runs for p in proposals] == [8, 12, 24, 12]
    text = augment_text(open_terms, proposals)
    assert "They tell main effects" in text
    assert max(map(len, text.splitlines())) <= 100
    document = augment_json(open_terms, proposals)
    assert (document["stop"], document["recommended"]) == (True, None)


def test_steps_of_a_strip_plot_keep_it_a_fraction(tmp_path: Path) -> None:
    factors = dict.fromkeys("ab", "{levels: [x, z], change: redeploy}")
    factors |= dict.fromkeys("cd", "{levels: [x, z]}")
    design = "{kind: {fraction: 1}, generators: [d = a*b*c], replicates: 3, order: strip-plot}"
    draws = np.random.default_rng(6)
    out = record(tmp_path, study_text(factors, design), lambda _: {"y": 9 + draws.normal()})
    analyse(out, report=False)
    open_terms = Open.of(Outcome.read(out), None, 3)
    kinds = {p.step.kind for p in open_terms.proposals()}
    assert "replicates:1" in kinds
    assert any(k.startswith("foldover") for k in kinds)
    assert not any(k.startswith(("semifold", "optimal")) for k in kinds)
    with pytest.raises(BadInput, match="settings retained in two directions"):
        open_terms.proposal("semifold:c")


def test_a_step_of_two_levels_obeys_forbidden(tmp_path: Path) -> None:
    factors = dict.fromkeys("abcd", "{levels: [x, z]}")
    design = "{kind: {d-optimal: {model: main, runs: 8}}, replicates: 2, forbidden: [{a: x, b: x}]}"
    draws = np.random.default_rng(5)
    out = record(tmp_path, study_text(factors, design), lambda _: {"y": 9 + draws.normal()})
    analyse(out, report=False)
    open_terms = Open.of(Outcome.read(out), None, 2)
    with pytest.raises(BadInput, match=r"design\.forbidden excludes"):
        open_terms.proposal("foldover")
    for proposal in open_terms.proposals():
        rows = numbers_of(open_terms.plan.factors, proposal.step.rows)
        assert not (rows[:, :2] == 0).all(axis=1).any()
    assert dataclasses.asdict(open_terms.proposal("replicates:1"))["runs"] == 8


@pytest.mark.parametrize("order", ["split-plot", "split-plot-random", "strip-plot"])
def test_added_stages_retain_settings(tmp_path: Path, order: str) -> None:
    factors = {
        "os": "{levels: [a, b, c], change: redeploy}",
        "fs": "{levels: [x, z], change: reformat}",
        "jobs": "{levels: [1, 8]}",
    }
    design = f"{{kind: full, replicates: 2, order: {order}}}"
    plan = extended(tmp_path, factors, design, "replicates:2")
    unstaged = extended(tmp_path, factors, design.replace("2", "4"))
    for attribute in ("whole_plot", "strip"):
        numbers = [getattr(r, attribute) for r in plan.rows]
        assert sorted(numbers) == sorted(getattr(r, attribute) for r in unstaged.rows)
        first = {w for w, r in zip(numbers, plan.rows, strict=True) if r.stage == 1 and w}
        assert first.isdisjoint(w for w, r in zip(numbers, plan.rows, strict=True) if r.stage == 2)
    for number in {r.whole_plot for r in plan.rows}:
        rows = [r for r in plan.rows if r.whole_plot == number]
        assert len({tuple(r.levels[n] for n in plan.whole_plot_factors) for r in rows}) == 1
        assert [r.run_order for r in rows] == list(
            range(rows[0].run_order, rows[0].run_order + len(rows))
        )
    staged_df, unstaged_df = (
        effects(runs_of(p), p, "y").set_index("term")["df"] for p in (plan, unstaged)
    )
    if order != "split-plot-random":
        pd.testing.assert_series_equal(staged_df, unstaged_df)
    else:  # the stage is a block
        assert staged_df["whole_plot"] == unstaged_df["whole_plot"] - 1
