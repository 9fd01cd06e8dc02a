"""`penstock analyse --fraction`: cost and conclusions of a fraction of a full factorial."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from penstock.analyse.outcome import Outcome
from penstock.analyse.sequential.fraction import _fault, half_against_full
from penstock.analyse.sequential.fraction_cost import fraction_costs, fraction_lines
from penstock.analyse.statistics.effects import effects
from penstock.analyse.statistics.significance import is_sure
from penstock.campaign.analysis import analyse
from penstock.cli import _build
from penstock.design.planned import plan_from_json
from penstock.errors import BadInput
from penstock.report import sections
from tests.unit.recorded_study import record, study_text

TWO = "{levels: [low, high]}"
#: with D = A*B the alias A*D cancels B: the fraction does not show B
TRUTH = {"A": 10.0, "B": 6.0, "C": 3.0, "D": 1.0, "AD": -6.0}


def recorded(folder: Path, noise: float = 0.2) -> Path:
    draws = np.random.default_rng(5)

    def value(row):
        size = sum(q * np.prod([row.coded[n] for n in word]) for word, q in TRUTH.items())
        return {"y": 100 + size + draws.normal(0, noise)}

    text = study_text(dict.fromkeys("ABCD", TWO), "{kind: full, replicates: 2}")
    out = record(folder, text, value)
    analyse(out, report=False)
    return out


def test_half_fraction_has_other_largest_effects(tmp_path: Path) -> None:
    outcome = Outcome.read(recorded(tmp_path))
    (cost,) = fraction_costs(outcome, ["D = A*B"], 2)
    document = cost.document()
    assert document["runs"] == [16, 32]
    assert document["cost_ratio"] == 0.5
    assert document["relation"] == ["A*B*D"]
    assert document["largest"]["full"] == ["A", "B"]
    assert document["same_top"] is False
    sizes = {"full": [10, 6, 3, 1], "fraction": [10, 0, 3, 1]}
    by_hand = (
        sum(
            np.sign(sizes["full"][i] - sizes["full"][j])
            * np.sign(sizes["fraction"][i] - sizes["fraction"][j])
            for i in range(4)
            for j in range(i)
        )
        / 6
    )
    assert document["tau_main_effects"] == pytest.approx(by_hand)
    lines = "\n".join(fraction_lines([cost]))
    assert "16 of 32 runs (50 %" in lines
    assert "B would have been missed (A × D" in lines
    # a coefficient of the fraction is the signed sum of aliased coefficients of the full design
    full = effects(outcome.measured, plan_from_json(outcome.plan), "y").set_index("term")
    terms = cost.terms.set_index("term")
    total = full.loc["B", "coefficient"] + full.loc["A:D", "coefficient"]
    assert terms.loc["B", "fraction"] == pytest.approx(total, abs=1e-9)


def test_a_fraction_of_high_resolution_agrees(tmp_path: Path) -> None:
    outcome = Outcome.read(recorded(tmp_path))
    (cost,) = fraction_costs(outcome, ["1"], 3)
    document = cost.document()
    assert document["relation"] == ["A*B*C*D"]
    assert document["same_top"] is True
    assert document["tau_main_effects"] == pytest.approx(1)
    assert document["intervals_overlap"] <= len(document["terms"]) == 7


def test_a_fraction_is_compared_on_the_scale_of_the_effects(tmp_path: Path) -> None:
    """Factors that multiply the response have interactions in differences only; the effects are ratios."""
    draws = np.random.default_rng(5)

    def value(row):
        return {
            "y": float(np.exp(3 + row.coded["A"] + 0.8 * row.coded["B"] + draws.normal(0, 0.02)))
        }

    text = study_text(dict.fromkeys("ABC", TWO), "{kind: full, replicates: 4}")
    out = record(tmp_path, text, value)
    codes = {f.code: f for f in analyse(out, report=False).findings}
    outcome = Outcome.read(out)
    table = outcome.effects
    assert table is not None
    assert set(table["scale"]) == {"log"}
    assert set(table.loc[is_sure(table), "term"]) == {"A", "B"}
    assert "fraction-agrees" in codes
    assert "fraction-misleads" not in codes
    compared = half_against_full(outcome, "y")
    assert compared is not None
    ratios = {r["term"]: np.exp(r["full"]) for r in compared["rows"]}
    assert ratios["A"] == pytest.approx(np.exp(2), rel=0.05)
    (cost,) = fraction_costs(outcome, ["1"], 2)
    assert "Both designs find A." in list(cost.terms["statement"])
    assert not any(cost.terms["fault"])
    (page,) = sections.fractions(outcome)
    assert page["columns"][1]["name"] == "full (ratio)"
    assert next(r for r in page["rows"] if r["cells"][0] == "A")["cells"][1].startswith("7.")


def test_equal_effects_have_no_rank_correlation(tmp_path: Path) -> None:
    """A response of one value has effects of 0: tau was NaN, also in the JSON document."""
    text = study_text(dict.fromkeys("ABC", TWO), "{kind: full, replicates: 2}")
    out = record(tmp_path, text, lambda _: {"y": 5.0})
    analyse(out, report=False)
    (cost,) = fraction_costs(Outcome.read(out), ["1"], 2)
    assert cost.document()["tau_main_effects"] is None
    assert not any("nan" in line for line in fraction_lines([cost]))
    json.dumps(cost.document(), allow_nan=False)


def test_too_large_ratios_are_compared_as_ratios() -> None:
    assert _fault(np.log(5) / 2, np.log(4) / 2, 0.0, True, True, "log") == (
        "would have come out 25 % too large"
    )
    assert _fault(5, 4, 0.0, True, True, "linear") == "would have come out 25 % too large"


@pytest.mark.parametrize("generators", [["D = A*Z"], ["9"], ["D = A*B", "D = -A*B"], ["D"]])
def test_bad_fractions(tmp_path: Path, generators: list[str]) -> None:
    with pytest.raises(BadInput, match=r"found|expected"):
        fraction_costs(Outcome.read(recorded(tmp_path)), generators)


def test_command_line(tmp_path: Path) -> None:
    out = recorded(tmp_path)
    result = CliRunner().invoke(_build(), ["analyse", str(out), "--fraction", "D=A*B", "--json"])
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)
    assert row["cost_ratio"] == 0.5
    assert {t["term"] for t in row["terms"]} >= {"A", "B", "C"}
