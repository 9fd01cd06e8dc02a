"""A figure of series as files: picture, data, the document that reproduces it, and its Python code."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from markupsafe import Markup
from matplotlib.figure import Figure

from penstock.archive.series.series import Recorded
from penstock.errors import BadInput
from penstock.plugins import FIGURE_KINDS
from penstock.report import pgf, render, style
from penstock.report.figures.chart import Chart, data_of, draw
from penstock.report.page import template, text_of

FORMATS = ("pdf", "svg", "pgf", "png", "html")
#: resolution of PNG pictures, and of raster layers of other formats
DPI = 300

_CODE = '''"""Draws {picture} from {data}, byte for byte; `fig` is a matplotlib Figure to be changed."""

from pathlib import Path

from penstock.report.figures.chart import draw, read_figure
from penstock.report.figures.ship import picture

here = Path(__file__).resolve().parent
chart, recorded = read_figure(here / "{document}")
fig = draw(chart, recorded)
# fig.axes[0].set_ylabel("…")
for name, content in picture(fig, "{picture}", chart, recorded).items():
    (here / name).write_bytes(content)
'''


def shipped(chart: Chart, recorded: Recorded, name: str, code: bool = False) -> dict[str, bytes]:
    """The files of a figure called `name` (`fig.pdf`), by name, the picture first.

    Equal charts and series give equal bytes. BadInput for an unknown format, NotDrawn as `draw`.
    """
    stem = Path(name).stem
    content = data_of(recorded)
    document = f"{stem}.json"
    files = picture(draw(chart, recorded), name, chart, recorded)
    files[f"{stem}.data.csv"] = content
    files[document] = _json(chart, stem, content)
    if code:
        text = _CODE.format(picture=name, data=f"{stem}.data.csv", document=document)
        files[f"{stem}.py"] = text.encode()
    return files


def picture(fig: Figure, name: str, chart: Chart, recorded: Recorded) -> dict[str, bytes]:
    """The picture: one file; for PGF also its included rasters."""
    stem, form = Path(name).stem, Path(name).suffix.lstrip(".").lower()
    if form not in FORMATS:
        raise BadInput(
            f"{name}: found .{form}; expected one of {', '.join('.' + f for f in FORMATS)}"
        )
    if form == "pgf":
        with style.look():
            return pgf.picture(fig, stem, DPI)
    if form == "html":
        return {name: _page(fig, stem, chart, recorded)}
    return {name: render.published(fig, form, DPI)}


def _json(chart: Chart, stem: str, content: bytes) -> bytes:
    document = chart.document(f"{stem}.data.csv", content)
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()


def _page(fig: Figure, stem: str, chart: Chart, recorded: Recorded) -> bytes:
    title = chart.title or stem
    content = data_of(recorded)
    page = template("figure.html.j2").render(
        title=title,
        stem=stem,
        kind=FIGURE_KINDS.load(chart.kind).WHAT.rstrip("."),
        picture=Markup(render.inline(fig, "figure", title, DPI)),
        series=f"{len(recorded.series):,}",
        points=f"{recorded.points:,}",
        data=_inline("text/csv", content),
        document=_inline("application/json", _json(chart, stem, content)),
        css=Markup(text_of("page.css")),
    )
    return page.encode()


def _inline(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
