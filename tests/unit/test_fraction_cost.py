"""`penstock analyse --fraction`: what a fraction of a full table would have cost and shown."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from penstock.analyse.outcome import Outcome
from penstock.analyse.sequential.fraction_cost import fraction_costs, fraction_lines
from penstock.analyse.statistics.effects import effects
from penstock.campaign.analysis import analyse
from penstock.cli import _build
from penstock.design.planned import plan_from_json
from penstock.errors import BadInput
from tests.unit.recorded_study import record, study_text

TWO = "{levels: [low, high]}"
#: B is as large as the product that is mixed into it in D = A*B: the fraction sees nothing of B
TRUTH = {"A": 10.0, "B": 6.0, "C": 3.0, "D": 1.0, "AD": -6.0}


def recorded(place: Path, noise: float = 0.2) -> Path:
    draws = np.random.default_rng(5)

    def value(row):
        size = sum(q * np.prod([row.coded[n] for n in word]) for word, q in TRUTH.items())
        return {"y": 100 + size + draws.normal(0, noise)}

    text = study_text(dict.fromkeys("ABCD", TWO), "{kind: full, replicates: 2}")
    out = record(place, text, value)
    analyse(out, report=False)
    return out


def test_the_fraction_costs_half_and_its_largest_effects_are_others(tmp_path: Path) -> None:
    outcome = Outcome.read(recorded(tmp_path))
    (found,) = fraction_costs(outcome, ["D = A*B"], 2)
    told = found.document()
    assert told["runs"] == [16, 32]
    assert told["cost_ratio"] == 0.5
    assert told["relation"] == ["A*B*D"]
    assert told["largest"]["full"] == ["A", "B"]
    assert told["same_top"] is False
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
    assert told["tau_main_effects"] == pytest.approx(by_hand)
    said = "\n".join(fraction_lines([found]))
    assert "16 of 32 runs (50 %" in said
    assert "B would have been missed (A × D" in said
    # the identity: what the rows of the fraction give is the signed sum of the full design's coefficients
    full = effects(outcome.measured, plan_from_json(outcome.plan), "y").set_index("term")
    terms = found.terms.set_index("term")
    total = full.loc["B", "coefficient"] + full.loc["A:D", "coefficient"]
    assert terms.loc["B", "fraction"] == pytest.approx(total, abs=1e-9)


def test_a_fraction_of_high_resolution_agrees(tmp_path: Path) -> None:
    outcome = Outcome.read(recorded(tmp_path))
    (found,) = fraction_costs(outcome, ["1"], 3)
    told = found.document()
    assert told["relation"] == ["A*B*C*D"]
    assert told["same_top"] is True
    assert told["tau_main_effects"] == pytest.approx(1)
    assert told["intervals_overlap"] <= len(told["terms"]) == 7


@pytest.mark.parametrize("said", [["D = A*Z"], ["9"], ["D = A*B", "D = -A*B"], ["D"]])
def test_what_is_no_fraction_is_bad_input(tmp_path: Path, said: list[str]) -> None:
    with pytest.raises(BadInput, match=r"found|expected"):
        fraction_costs(Outcome.read(recorded(tmp_path)), said)


def test_command_line(tmp_path: Path) -> None:
    out = recorded(tmp_path)
    made = CliRunner().invoke(_build(), ["analyse", str(out), "--fraction", "D=A*B", "--json"])
    assert made.exit_code == 0, made.output
    (row,) = json.loads(made.stdout)
    assert row["cost_ratio"] == 0.5
    assert {t["term"] for t in row["terms"]} >= {"A", "B", "C"}
