"""Figures as PGF for `\\input` in LaTeX, without a LaTeX process: text is measured in the style's font.

matplotlib's backend asks a running LaTeX for the width of texts. Here the layout is computed before, so
that only the position of rotated text depends on it; equal input gives equal bytes with LaTeX and without.
"""

from __future__ import annotations

import io
from typing import Any

from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.backends import backend_agg, backend_mixed, backend_pgf
from matplotlib.figure import Figure
from PIL import Image

_HEAD = """%% Include this figure with \\input{{{name}.pgf}}; the preamble needs \\usepackage{{pgf}}.
"""
_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "_": r"\_",
    "&": r"\&",
    "#": r"\#",
    "$": r"\$",
    "~": r"\textasciitilde{}",
    "°": r"\ensuremath{^\circ}",
    "µ": r"\ensuremath{\mu}",
    "÷": r"\ensuremath{\div}",
    "×": r"\ensuremath{\times}",
    "≤": r"\ensuremath{\leq}",
    "…": r"\ldots{}",
    **{c: rf"\ensuremath{{^{n}}}" for n, c in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
}


#: classes without type annotations
_RendererAgg: Any = backend_agg.RendererAgg
_Mixed: Any = backend_mixed.MixedModeRenderer
_RendererPgf: Any = backend_pgf.RendererPgf


class _Renderer(_RendererPgf):  # type: ignore[misc]
    """PGF renderer that stores images in `images` by file name."""

    def __init__(self, figure: Figure, fh: io.StringIO, name: str) -> None:
        super().__init__(figure, fh)
        self.images: dict[str, bytes] = {}
        self._name = name
        box = figure.bbox
        self._measure = _RendererAgg(int(box.width) + 1, int(box.height) + 1, figure.dpi)

    def get_text_width_height_descent(self, s: str, prop: Any, ismath: Any) -> Any:
        return self._measure.get_text_width_height_descent(s, prop, ismath)

    def draw_text(
        self,
        gc: Any,
        x: float,
        y: float,
        s: str,
        prop: Any,
        angle: float,
        ismath: Any = False,
        mtext: Any = None,
    ) -> None:
        if ismath is not True:
            s = "".join(_SPECIAL.get(c, c) for c in s)
        super().draw_text(gc, x, y, s, prop, angle, ismath, mtext)

    def draw_image(self, gc: Any, x: float, y: float, im: Any, transform: Any = None) -> None:
        height, width = im.shape[:2]
        if not height or not width:
            return
        sink = io.BytesIO()
        Image.fromarray(im[::-1]).save(sink, "png")
        file = f"{self._name}-image{len(self.images)}.png"
        self.images[file] = sink.getvalue()
        inch = 1 / self.dpi
        lines = [r"\begin{pgfscope}"]
        self.fh.write(lines[0] + "\n")
        self._print_pgf_clip(gc)
        if transform is None:
            move = rf"\pgfsys@transformshift{{{x * inch:f}in}}{{{y * inch:f}in}}"
            wide, high = width * inch, height * inch
        else:
            a, b, c, d, e, f = transform.frozen().to_values()
            move = (
                rf"\pgfsys@transformcm{{{a * inch:f}}}{{{b * inch:f}}}{{{c * inch:f}}}{{{d * inch:f}}}"
                rf"{{{(e + x) * inch:f}in}}{{{(f + y) * inch:f}in}}"
            )
            wide = high = 1.0
        size = f"interpolate=false,width={wide:f}in,height={high:f}in"
        self.fh.write(
            f"{move}\n\\pgftext[left,bottom]{{\\pgfimage[{size}]{{{file}}}}}\n\\end{{pgfscope}}\n"
        )


def picture(fig: Figure, name: str, dpi: float) -> dict[str, bytes]:
    """`name.pgf` and its included images, by file name."""
    FigureCanvasBase(fig)
    before = fig.dpi
    fig.dpi = dpi
    try:
        text = io.StringIO()
        renderer = _Renderer(fig, text, name)
        width, height = fig.get_size_inches()
        text.write(_HEAD.format(name=name))
        text.write("\\begingroup\n\\makeatletter\n\\begin{pgfpicture}\n")
        text.write(
            f"\\pgfpathrectangle{{\\pgfpointorigin}}{{\\pgfqpoint{{{width:f}in}}{{{height:f}in}}}}\n"
        )
        text.write("\\pgfusepath{use as bounding box, clip}\n")
        fig.draw(_Mixed(fig, width, height, dpi, renderer))
        text.write("\\end{pgfpicture}\n\\makeatother\n\\endgroup\n")
    finally:
        fig.dpi = before
    return {f"{name}.pgf": text.getvalue().encode(), **renderer.images}
