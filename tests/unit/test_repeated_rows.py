"""Rows that a design repeats: centre points, replicated rows, foldovers that repeat a treatment."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from penstock.analyse.surface.surface import LACK, PURE, surface
from penstock.campaign.frozen import Campaign, altered, campaign, freeze, read_campaign
from penstock.design.plan import make_plan
from penstock.design.planned import Plan, plan_from_json
from penstock.design.show import plan_text
from penstock.spec.study import Study
from penstock.study.load import load_study, read_study
from tests.unit.test_augment import augmented
from tests.unit.test_augment import study_of as fraction_of

#: corners, five centre points, axial points: two factors, as in textbooks
ROWS = "-1,-1 -1,1 1,-1 1,1 0,0 0,0 0,0 0,0 0,0 1.414,0 -1.414,0 0,1.414 0,-1.414".split()


def composite(tmp_path: Path, design: str = "kind: {table: {file: ccd.csv}}, seed: 7") -> Study:
    (tmp_path / "ccd.csv").write_text("\n".join(["x1,x2", *ROWS]) + "\n")
    (tmp_path / "ccd.study.yaml").write_text(f"""penstock: 1
name: ccd
question: Which setting is best?
factors:
  x1: {{levels: [-1.414, -1, 0, 1, 1.414]}}
  x2: {{levels: [-1.414, -1, 0, 1, 1.414]}}
design: {{{design}}}
platform: {{nodes: [{{name: n}}]}}
workload: {{command: "echo {{x1}} {{x2}}"}}
responses: {{y: {{from: {{regex: 'y ([0-9.]+)'}}, unit: '1', better: higher, scale: linear}}}}
""")
    return load_study(tmp_path / "ccd.study.yaml")


def runs_of(plan: Plan, seed: int = 5) -> pd.DataFrame:
    draws = np.random.default_rng(seed)
    rows = []
    for r in plan.rows:
        a, b = float(r.levels["x1"]), float(r.levels["x2"])
        mean = 80 + a + 0.5 * b - 1.4 * a * a - b * b + 0.25 * a * b
        rows.append({
            "run_id": r.run_id, "treatment_id": r.treatment_id, "replicate": r.replicate,
            **r.levels, "y": mean + 0.27 * draws.normal(), "valid": True,
        })  # fmt: skip
    return pd.DataFrame(rows)


def test_a_central_composite_table_is_thirteen_runs_of_nine_treatments(tmp_path: Path) -> None:
    study = composite(tmp_path, "kind: {table: {file: ccd.csv}}, replicates: 1, seed: 7")
    plan = make_plan(study)
    assert (plan.treatments, len(plan.rows), len({r.run_id for r in plan.rows})) == (9, 13, 13)
    counts = Counter((r.levels["x1"], r.levels["x2"]) for r in plan.rows)
    assert counts == Counter(tuple(row.split(",")) for row in ROWS)
    centre = {r.treatment_id for r in plan.rows if r.levels == {"x1": "0", "x2": "0"}}
    assert len(centre) == 1
    assert plan.power["degrees_of_freedom"] == 7
    assert any("of which 4 are pure error" in caution for caution in plan.cautions)
    assert not any("No pure error" in caution for caution in plan.cautions)
    assert "9 treatments, with repeated ones 13, x 1 = 13 runs" in plan_text(plan, study)
    assert plan_from_json(plan.to_json()).rows == plan.rows


def test_lack_of_fit_is_tested_with_the_centre_points(tmp_path: Path) -> None:
    plan = make_plan(composite(tmp_path, "kind: {table: {file: ccd.csv}}, replicates: 1"))
    runs = runs_of(plan)
    tests = {t.name: t for t in surface(runs, plan, "y").tests}
    centre = runs[(runs["x1"] == "0") & (runs["x2"] == "0")]["y"]
    assert (tests[PURE].df, tests[LACK].df, tests[LACK].df_error) == (4, 3, 4)
    assert tests[PURE].sum_of_squares == pytest.approx(float(centre.var(ddof=1)) * 4)


def test_replicates_of_a_table_repeat_all_of_its_rows(tmp_path: Path) -> None:
    plan = make_plan(composite(tmp_path, "kind: {table: {file: ccd.csv}}, replicates: 3"))
    assert len(plan.rows) == 39
    for number in (1, 2, 3):
        rows = [r for r in plan.rows if r.replicate == number]
        assert len(rows) == 13
        assert {r.block for r in rows} == {number}
    # 39 runs, 6 coefficients, 2 differences of passes
    assert plan.power["degrees_of_freedom"] == 31


@pytest.mark.parametrize("order", ["interleaved", "random", "standard"])
def test_every_order_runs_each_row_once(tmp_path: Path, order: str) -> None:
    plan = make_plan(
        composite(tmp_path, f"kind: {{table: {{file: ccd.csv}}}}, replicates: 1, order: {order}")
    )
    counts = Counter((r.levels["x1"], r.levels["x2"]) for r in plan.rows)
    assert counts == Counter(tuple(row.split(",")) for row in ROWS)


def test_a_resumed_study_has_the_same_runs(tmp_path: Path) -> None:
    def facts(study: Study, plan: Plan) -> Campaign:
        return campaign(study, plan, {r.treatment_id: r.levels for r in plan.rows}, [])

    study = composite(tmp_path, "kind: {table: {file: ccd.csv}}, replicates: 1")
    plan = make_plan(study)
    out = tmp_path / "out"
    freeze(out, study, plan, facts(study, plan))
    before = read_campaign(out)
    assert before is not None
    longer = make_plan(composite(tmp_path, "kind: {table: {file: ccd.csv}}, replicates: 2"))
    runs = {r.run_id for r in plan.rows}
    assert altered(before, facts(study, longer), runs, runs, out) == set()
    assert [r for r in longer.rows if r.replicate == 1] == plan.rows


def test_central_composite_designs_have_the_requested_centre_points(tmp_path: Path) -> None:
    composite(tmp_path)
    place = tmp_path / "ccd.study.yaml"
    text = place.read_text().replace("[-1.414, -1, 0, 1, 1.414]", "[-1, 0, 1]")
    kind = "{kind: {central-composite: {centre: 5}}, replicates: 1}"
    text = text.replace("{kind: {table: {file: ccd.csv}}, seed: 7}", kind)
    plan = make_plan(read_study(text.encode(), place))
    assert (plan.treatments, len(plan.rows)) == (9, 13)
    assert any("of which 4 are pure error" in caution for caution in plan.cautions)


def test_a_foldover_that_repeats_treatments_has_pure_error() -> None:
    plan, _ = augmented(fraction_of(), "foldover")
    again, _ = augmented(fraction_of(), "foldover", again=True)
    for foldover in (plan, again):
        assert all(math.isfinite(v) for v in foldover.power.values() if isinstance(v, float))
        assert not any("nan" in caution for caution in foldover.cautions)
    assert len(again.rows) - again.treatments == 8
    assert again.power["degrees_of_freedom"] == 7  # eight repeated, less one for the block
    assert "No pure error" not in " ".join(again.cautions)
