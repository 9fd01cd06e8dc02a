"""Figures in the page: smaller than matplotlib's output, with unchanged text."""

from __future__ import annotations

import re

from penstock.report import style
from penstock.report.render import inline


def test_text_of_a_figure_keeps_its_digits() -> None:
    """Planted: coordinates were rounded to hundredths, and so were labels and hover texts."""
    fig = style.figure(4, 2)
    axes = fig.subplots()
    dots = axes.scatter([0.0051, 0.0149], [1, 2], label="limit 0.00663 s")
    axes.set_xticks([0.005, 0.0125], ["0.005", "0.0125"])
    style.tips(fig, dots, ["0.00512 s", "0.0149 s"])
    fig.legend()
    text = inline(fig, "one", "times above 0.00663 s")
    for written in (">0.005<", ">0.0125<", "limit 0.00663 s<"):
        assert written in text, written
    assert 'data-tip="0.00512 s"' in text
    assert 'aria-label="times above 0.00663 s"' in text
    # coordinates have two decimals of a pixel
    paths = " ".join(re.findall(r' d="([^"]*)"', text))
    assert re.search(r"\d\.\d", paths)
    assert not re.search(r"\d\.\d{3}", paths)
