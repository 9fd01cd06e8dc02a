"""Figures as bytes: SVG, PDF and PNG for publication, and inline SVG for the page."""

from __future__ import annotations

import contextlib
import html
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fontTools import subset
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from penstock.errors import BadInput
from penstock.report import style

_METADATA: dict[str, dict[str, Any]] = {
    "svg": {"Date": None, "Creator": "penstock"},
    "pdf": {"CreationDate": None, "ModDate": None, "Creator": "penstock", "Producer": "penstock"},
    "png": {"Software": "penstock"},
}
#: tables of a font that a PDF reader needs, which places glyphs by number (ISO 32000-1, 9.9)
_READ_BY_PDF = {"cvt ", "fpgm", "glyf", "head", "hhea", "hmtx", "loca", "maxp", "prep"}
_CANVAS: dict[str, Any] = {"svg": FigureCanvasSVG, "pdf": FigureCanvasPdf, "png": FigureCanvasAgg}


def published(fig: Figure, extension: str, dpi: int = 150) -> bytes:
    """The figure as `svg`, `pdf` or `png`: text embedded, no date, equal input gives equal bytes.

    `dpi`: resolution of PNG, and of raster layers in the others.
    """
    if extension not in _METADATA:
        raise BadInput(f"found .{extension}; expected .svg, .pdf or .png")
    with style.look(svg_fonttype="path"), _small_fonts():
        return _printed(fig, extension, dpi, fig.get_facecolor(), _METADATA[extension])


_load_font = subset.load_font


def _load_for_pdf(*args: Any, **options: Any) -> Any:
    """Load a font without the tables that a PDF does not need: they take longer to subset than the glyphs."""
    font = _load_font(*args, **options)
    for table in set(font.keys()) - _READ_BY_PDF - {"GlyphOrder"}:
        del font[table]
    font.setGlyphOrder([f"glyph{number}" for number in range(font["maxp"].numGlyphs)])
    return font


@contextlib.contextmanager
def _small_fonts() -> Iterator[None]:
    """Let matplotlib embed only the tables of a font that a PDF needs."""
    subset.load_font = _load_for_pdf
    try:
        yield
    finally:
        subset.load_font = _load_font


def _printed(
    fig: Figure, extension: str, dpi: int, background: Any, metadata: dict[str, Any]
) -> bytes:
    """The figure in a format, drawn once; `print_figure` draws twice after a layout engine was set."""
    sink = io.BytesIO()
    before = {"dpi": fig.get_dpi(), "facecolor": fig.get_facecolor()}
    fig.set(dpi=dpi, facecolor=background)
    try:
        getattr(_CANVAS[extension](fig), f"print_{extension}")(sink, metadata=metadata)
    finally:
        fig.set(**before)
    return sink.getvalue()


def write(fig: Figure, folder: Path, name: str) -> list[Path]:
    """Write the figure as SVG and PDF to `folder`; return the files."""
    paths = []
    for extension in ("svg", "pdf"):
        path = folder / f"{name}.{extension}"
        path.write_bytes(published(fig, extension))
        paths.append(path)
    return paths


_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_TAG = re.compile(r"<[^<>]*>")
_COLOUR = re.compile("|".join(style.CSS_COLOURS), re.IGNORECASE)
_POINT = re.compile(r"M ([\d.]+) ([\d.]+) L ([\d.]+) \2 (?=M|\"|$)")
_ID = re.compile(r'(\bid="|xlink:href="#|url\(#)([^")]+)')


def inline(fig: Figure, name: str, title: str, dpi: int = 72) -> str:
    """The figure as an SVG element for the page: themed by CSS variables, selectable text, hover texts.

    `name` makes its identifiers unique among figures; `title` is for screen readers; `dpi` is the
    resolution of raster layers.
    """
    with style.look(svg_fonttype="none"):
        text = _printed(fig, "svg", dpi, "none", {"Date": None}).decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    # coordinates only: labels and hover texts keep their digits
    text = _TAG.sub(lambda tag: _NUMBER.sub(_shorter, tag.group(0)), text)
    view = re.search(r'viewBox="([^"]+)"', text)
    box = view.group(1) if view else "0 0 100 100"
    opening = (
        f'<svg class="plot" viewBox="{box}" role="img" aria-label="{html.escape(title)}" '
        f'style="max-width:{float(box.split()[2]) * 1.45:.0f}px">'
    )
    text = opening + text[text.index(">") + 1 :]
    text = _with_tips(text, getattr(fig, "penstock_tips", {}))
    text = _ID.sub(lambda m: f"{m.group(1)}{name}-{m.group(2)}", text)
    text = text.replace("xlink:href=", "href=")
    text = _COLOUR.sub(lambda m: f"var(--{style.CSS_COLOURS[m.group(0).lower()]})", text)
    text = re.sub(r"font: (bold )?([\d.]+)px [^;\"]*", r"font: \1\2px var(--font)", text)
    text = re.sub(r">\s+<", "><", text)
    text = re.sub(r"\s*\n\s*", " ", text)
    return _POINT.sub(_point, text)


def _shorter(number: re.Match[str]) -> str:
    """A coordinate rounded to a hundredth of a pixel."""
    return f"{float(number.group(0)):.2f}".rstrip("0").rstrip(".")


def _point(match: re.Match[str]) -> str:
    """A dot of a cloud of points as its shortest path; longer lines unchanged."""
    x, y, end = match.groups()
    return f"M{x} {y}h.1" if abs(float(end) - float(x)) < 0.3 else match.group(0)


def _with_tips(text: str, tips: dict[str, list[str]]) -> str:
    """Attach each hover text to its mark: the n-th `use`, or the only path."""
    for gid, texts in tips.items():
        start = text.find(f'<g id="{gid}">')
        if start < 0:
            continue
        mark = "<use " if "<use " in _group(text, start) else "<path "
        position = start
        if mark == "<path " and "</defs>" in _group(text, start):
            position = text.find("</defs>", start)
        for tip in texts:
            position = text.find(mark, position)
            if position < 0:
                break
            attribute = f'{mark}data-tip="{html.escape(tip)}" '
            text = text[:position] + attribute + text[position + len(mark) :]
            position += len(attribute)
    return text


def _group(text: str, start: int) -> str:
    """The text of the group that starts at `start`, including nested groups."""
    depth = 0
    for match in re.finditer(r"<g[ >]|</g>", text[start:]):
        depth += 1 if match.group(0) != "</g>" else -1
        if depth == 0:
            return text[start : start + match.end()]
    return text[start:]
