"""Simulated studies of identical treatments: false-positive rates of the analysis."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from penstock.analyse.findings.finding import Finding
from penstock.analyse.sequential import identical as module
from penstock.analyse.sequential.identical import (
    ANSWER,
    HOLM,
    SINGLE,
    WORSE,
    Identical,
    Rate,
    identical,
    identical_lines,
    names_difference,
)
from penstock.cli import _build
from penstock.design.plan import make_plan
from penstock.errors import BadInput
from penstock.study.load import load_study
from tests.unit.recorded_study import study_text

TWO = "{levels: [x, z]}"


def simulated(folder: Path, design: str, studies: int, **factors: str) -> Identical:
    source = folder / "recorded.study.yaml"
    source.write_text(study_text(factors, design))
    study = load_study(source, [], False)
    return identical(study, make_plan(study), studies)


def test_false_positive_rate_of_identical_systems(tmp_path: Path) -> None:
    result = simulated(tmp_path, "{kind: full, replicates: 20}", 150, system=TWO)
    rates = {r.name: r for r in result.rates}
    assert rates[HOLM].asked == rates[ANSWER].asked == rates[WORSE].asked == 150
    # with a single term both corrections are equal
    assert (rates[SINGLE].said, rates[SINGLE].asked) == (rates[HOLM].said, 150)
    assert rates[HOLM].said <= 15  # 99.7 % of binomial(150, 5 %)
    lines = list(identical_lines(result))
    assert max(map(len, lines)) <= 100
    assert "150 studies of identical treatments" in lines[0]


def test_a_plan_without_an_error_has_no_rate_of_single_terms(tmp_path: Path) -> None:
    """One run of each of two treatments: no term is tested, and the rate was "nan %"."""
    result = simulated(tmp_path, "{kind: full, replicates: 1}", 2, system=TWO)
    assert not any("nan" in line for line in identical_lines(result))
    json.dumps(result.to_json(), allow_nan=False)


def test_too_many_false_positives_are_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An analysis with p-values divided by 8 exceeds the level."""
    original = module.effects

    def with_small_p(*args: object, **more: object) -> object:
        table = original(*args, **more)  # type: ignore[arg-type]
        return table.assign(p_holm=table["p_holm"] / 8)

    monkeypatch.setattr(module, "effects", with_small_p)
    result = simulated(tmp_path, "{kind: full, replicates: 4}", 60, a=TWO)
    assert not result.holds
    assert "More than 5 % of the studies" in list(identical_lines(result))[-1]


def test_runs_of_a_whole_plot_are_correlated(tmp_path: Path) -> None:
    source = tmp_path / "recorded.study.yaml"
    dear = "{levels: [x, z], change: redeploy}"
    source.write_text(
        study_text({"a": dear, "b": TWO}, "{kind: full, replicates: 400, order: split-plot}")
    )
    plan = make_plan(load_study(source, [], False))
    z = module._standard(plan, np.random.default_rng(1))
    pairs = z.reshape(-1, 2)  # two consecutive runs of each whole plot
    assert z.var() == pytest.approx(1, abs=0.15)
    assert np.corrcoef(pairs.T)[0, 1] == pytest.approx(0.5, abs=0.1)


def test_interval_of_a_rate() -> None:
    assert Rate("x", 0, 100).interval == pytest.approx((0.0, 0.0362), abs=1e-4)
    assert Rate("x", 5, 100).interval == pytest.approx((0.0164, 0.1128), abs=1e-4)
    assert Rate("x", 9, 9).interval[1] == 1.0


def test_findings_that_state_a_difference() -> None:
    def cell(low: float, high: float) -> dict[str, object]:
        middle = (low * high) ** 0.5
        bounds = {"ratio": middle, "low": low, "high": high}
        return {"where": {}, **bounds, "n": 4, "at_level": 1.0, "at_other": 1.0}

    for cells, differs in (
        ([cell(0.9, 1.2)], False),
        ([cell(0.9, 1.2), cell(1.05, 1.3)], True),
        ([cell(1.01, 1.04)], False),  # reported as equal within 4 %
    ):
        finding = Finding("cost", "info", "", {"cells": cells})
        assert names_difference(None, finding) is differs  # type: ignore[arg-type]
    for code, differs in (("effect-dominant", True), ("not-known", False), ("why", False)):
        assert names_difference(None, Finding(code, "info", "", {})) is differs  # type: ignore[arg-type]


def test_command_and_errors(tmp_path: Path) -> None:
    source = tmp_path / "recorded.study.yaml"
    source.write_text(study_text({"a": TWO}, "{kind: full, replicates: 3}"))
    result = CliRunner().invoke(_build(), ["plan", str(source), "--identical", "5", "--json"])
    assert result.exit_code == 0
    assert '"studies": 5' in result.stdout
    study = load_study(source, [], False)
    with pytest.raises(BadInput, match="expected at most"):
        identical(study, make_plan(study), 10_000_000)
