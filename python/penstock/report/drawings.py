"""Figures drawn for a given width: twice for a page (wide and narrow), and as files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from penstock.report import render, style

#: draws for a width in inches; raises `style.NotDrawn`
Drawing = Callable[[float], Figure]


@dataclass(frozen=True)
class Drawn:
    """One figure: its SVG for wide and narrow pages, or the reason why there is none."""

    wide: str = ""
    narrow: str = ""
    reason: str = ""


def in_page(drawing: Drawing, name: str, title: str) -> Drawn:
    """A figure for a page."""
    try:
        return Drawn(
            *(
                render.inline(drawing(width), f"{name}-{short}", title)
                for width, short in ((style.WIDE_INCHES, "w"), (style.NARROW_INCHES, "n"))
            )
        )
    except style.NotDrawn as missing:
        return Drawn(reason=str(missing))


def write(drawings: Mapping[str, Drawing], folder: Path) -> list[Path]:
    """Write every figure that can be drawn as SVG and PDF to `folder`, created if absent; return files."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, drawing in drawings.items():
        try:
            fig = drawing(style.WIDE_INCHES)
        except style.NotDrawn:
            continue
        paths += render.write(fig, folder, name)
    return paths
