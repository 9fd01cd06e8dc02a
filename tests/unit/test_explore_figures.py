"""Units and captions of an exploration's figures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.parts.prediction.report.exploration_figures import fitting
from penstock.report import page


@pytest.mark.parametrize(
    ("currency", "largest", "unit"),
    [
        ("EUR", 12.0, ("EUR", 1.0)),
        ("EUR", 0.3, ("ct", 1e-2)),
        ("USD", 0.0005, ("ct", 1e-2)),
        ("USD", 0.00002, ("USD/10⁶", 1e-6)),
        ("CHF", 0.3, ("CHF/1000", 1e-3)),
    ],
)
def test_costs_have_a_readable_unit(currency: str, largest: float, unit: tuple[str, float]) -> None:
    exploration: Any = SimpleNamespace(
        record=SimpleNamespace(evaluator=SimpleNamespace(currency=currency))
    )
    fitted_unit = fitting(exploration, "cost", [largest / 3, largest])
    assert (fitted_unit.name, fitted_unit.size) == unit


def test_a_caption_names_the_diamond_only_if_there_is_one() -> None:
    front = next(
        t
        for t in page.text_of("exploration.html.j2", "penstock.parts.prediction.report").split(
            "{% call"
        )
        if "plot(figures.front)" in t
    )
    before = front.partition("orange diamond")[0]
    assert before.rstrip("; ").endswith("{% if chosen %}")
