"""Numbers are rounded by their interval; text plots name the scale of their axis."""

from __future__ import annotations

import math

import pytest

from penstock.analyse.dot_plot import Dot, dot_plot
from penstock.text import short, with_interval


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((0.0682, -0.0643, 0.404), ("0.07", "−0.06 to 0.40")),
        ((-9.41, -95.0, 76.2), ("−9", "−95 to 76")),
        ((24_384.0, 23_790.0, 24_990.0), ("24,400", "23,800–25,000")),
        ((6.0, 5.98, 6.02), ("6.00", "5.98–6.02")),
        ((-0.001, -0.4, 0.4), ("0.00", "−0.40 to 0.40")),
        ((12.5, math.nan, math.nan), ("12.5", "")),
        ((0.0, 0.0, 0.214), ("0", "0–0.21")),
        ((7.0, 7.0, 7.0), ("7.00", "7.00")),
    ],
)
def test_rounding_by_the_half_width(
    numbers: tuple[float, float, float], text: tuple[str, str]
) -> None:
    assert with_interval(*numbers) == text


def test_text_plot_names_a_logarithmic_axis() -> None:
    wide = dot_plot("load", [Dot("a", 10.0, text="10.0"), Dot("b", 2000.0)], short)
    assert wide[0] == "load, log scale"
    assert wide[2].endswith("  10.0")
    near = dot_plot("load", [Dot("a", 3520.0), Dot("b", 2900.0)], short)
    assert near[0] == "load"
    assert near[1].split() == ["0", "1,000", "2,000", "3,000"]
