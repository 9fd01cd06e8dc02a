"""Factors suggested from archived studies, with the effects on their scale."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from penstock.campaign.analysis import analyse
from penstock.campaign.measurements.suggest import Suggestion, _add, suggest_text
from tests.unit.recorded_study import record, study_text

TWO = "{levels: [low, high]}"


def test_an_effect_on_logarithms_is_a_ratio(tmp_path: Path) -> None:
    """A factor of 7.4 was "effect 2"."""
    draws = np.random.default_rng(2)
    text = study_text(dict.fromkeys("AB", TWO), "{kind: full, replicates: 4}")
    out = record(
        tmp_path, text, lambda r: {"y": float(np.exp(3 + r.coded["A"] + draws.normal(0, 0.02)))}
    )
    analyse(out, report=False)
    by_factor: dict[str, Suggestion] = {}
    _add(by_factor, out, "ratios", ())
    assert by_factor["A"].mattered == 1
    assert by_factor["A"].evidence[0]["scale"] == "log"
    assert "ratios: A on y, ratio 7." in suggest_text(list(by_factor.values()))


def test_a_study_without_shares_is_suggested() -> None:
    """A study that lost a treatment has effects without shares of the variation: the text was a traceback."""
    row = {"study_id": "s", "out": "OUT", "response": "y", "term": "A", "effect": 2.5}
    row |= {"variation_share": None, "p_holm": 0.001, "scale": "linear"}
    text = suggest_text([Suggestion("A", ["x", "y"], 0.0, 2, 1, [row])])
    assert "It mattered in 1 of 2 studies." in text
    assert "s: A on y, effect 2.5 (OUT)" in text
