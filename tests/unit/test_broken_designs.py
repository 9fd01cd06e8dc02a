"""Answers for fractions, and for designs with combinations without a valid run."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pandas as pd

from penstock.analyse.findings.findings import findings
from penstock.analyse.outcome import Outcome
from penstock.campaign.analysis import Analysis, analyse
from penstock.report.sections import prediction, tiles
from tests.unit.planted_study import Levels, Planted

ORDERS = {
    "disk": ["hdd-7200", "sata-ssd"],
    "journal": ["DELETE", "WAL"],
    "sync": ["FULL", "NORMAL"],
    "batch": ["1", "20"],
}


def _orders(levels: Levels) -> dict[str, float]:
    rate = 20.0 if levels["disk"] == "hdd-7200" else 200.0
    rate *= 3 if levels["sync"] == "NORMAL" else 1
    return {"orders": rate * (5 if levels["batch"] == "20" else 1)}


def orders(*lost: tuple[str, ...], **more: object) -> Planted:
    """Orders per second by four factors; the `lost` combinations have no valid run."""
    return Planted(
        "On which disk must the order book be put, and which settings do I choose?",
        ORDERS,
        _orders,
        {"orders": ("orders/s", "higher")},
        failed=lambda v: tuple(v.values()) in lost,
        **more,  # type: ignore[arg-type]
    )


def analysed(study: Planted, place: Path) -> Analysis:
    return analyse(study.write(place / "out"), report=False)


def statements(result: Analysis) -> str:
    return " ".join(f.statement for f in result.findings)


LOST = (("sata-ssd", "WAL", "FULL", "1"), ("sata-ssd", "DELETE", "FULL", "20"))


def test_a_broken_fraction_reports_no_effect(tmp_path: Path) -> None:
    result = analysed(orders(*LOST, fraction=1), tmp_path)
    (finding,) = (f for f in result.findings if f.code == "effect-undetermined")
    assert finding.statement.rstrip(".") in " ".join(result.answer)
    assert (
        "of the 8 combinations of the half fraction, 2 have no valid run (t05 and t07)"
        in statements(result)
    )
    assert "effect-dominant" not in {f.code for f in result.findings}
    assert "shows" not in statements(result)
    assert "may still be" not in statements(result)


def test_a_full_design_names_its_assumption(tmp_path: Path) -> None:
    result = analysed(orders(LOST[0]), tmp_path)
    assert (
        "Of the 16 combinations, 1 has no valid run (t13): statements about effects on orders hold only if "
        "the interaction of all 4 factors is 0, which these runs do not show"
    ) in " ".join(result.answer)
    assert "effect-dominant" not in {f.code for f in result.findings}
    assert "nan" not in statements(result)


def test_a_full_design_without_a_level_reports_the_other(tmp_path: Path) -> None:
    study = orders()
    lost = Planted(**{**vars(study), "failed": lambda v: v["disk"] == "hdd-7200"})
    result = analysed(lost, tmp_path)
    lost_effect = (
        "Effects of disk on orders cannot be determined, and all others hold for sata-ssd alone"
    )
    assert lost_effect in " ".join(result.answer)
    assert "effect-dominant" not in {f.code for f in result.findings}


def test_a_fraction_is_named(tmp_path: Path) -> None:
    result = analysed(orders(fraction=1), tmp_path)
    assert (
        "8 of 16 combinations were run (half fraction, resolution IV): each effect is aliased with others, "
        "e.g. batch with disk × journal × sync."
    ) in " ".join(result.lines())
    assert "the 8 combinations that the half fraction left out" in " ".join(result.answer)


def test_a_quick_run_is_named(tmp_path: Path) -> None:
    result = analysed(orders(quick=True), tmp_path)
    assert "8 of 16 combinations were run (the quick size: half fraction" in " ".join(
        result.lines()
    )


def predicted(place: Path, note: str, ratios: list[float]) -> Outcome:
    """An outcome with predictions of its one response: the basis, then others by their ratios."""
    outcome = Outcome.read(analysed(orders(), place).out)
    table = pd.DataFrame(
        {
            "treatment_id": [f"t{i:02d}" for i in range(1, len(ratios) + 2)],
            "response": "orders",
            "predicted": [10.0, *(10 * r for r in ratios)],
            "measured_mean": 10.0,
            "ratio": [1.0, *ratios],
            "note": f"replay; orders is {note}",
            "basis_treatment": "t01",
            "is_basis": [True, *([False] * len(ratios))],
        }
    )
    return dataclasses.replace(outcome, predictions=table)


def evaluated(outcome: Outcome) -> tuple[str, bool, bool]:
    """The sentence of the report, and true if there is a tile and a finding."""
    section = prediction(outcome)
    assert section is not None
    tile = any(t["label"] == "predicted within 15 %" for t in tiles(outcome))
    return section["sentence"], tile, any("prediction" in f.code for f in findings(outcome))


def test_predictions_without_evaluation_are_not_scored(tmp_path: Path) -> None:
    assert evaluated(predicted(tmp_path / "a", "writes", [math.nan] * 3)) == ("", False, False)
    sentence, tile, finding = evaluated(
        predicted(tmp_path / "b", "assumed: the whole run, nothing explains", [0.5] * 4)
    )
    assert (tile, finding) == (False, False)
    assert sentence.startswith(
        "orders: nothing in the trace comes near its number, so it is assumed"
    )
    assert "%" not in sentence
    sentence, tile, finding = evaluated(predicted(tmp_path / "c", "writes", [0.5]))
    assert "0 of 1 other treatments came within 15 %" in sentence
    assert (tile, finding) == (False, False)
    sentence, tile, finding = evaluated(predicted(tmp_path / "d", "writes", [0.5, 1.0, 1.0]))
    assert "2 of 3 other treatments (67 %) came within 15 %" in sentence
    assert (tile, finding) == (True, True)
