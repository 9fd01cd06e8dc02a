"""A figure of series as a document: kind, width and data; the drawing is a function of these.

`fig.json` describes the figure of `fig.data.csv`. Both are written next to `fig.pdf` and reproduce its
bytes, without the bundle or the server of the series.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from penstock.archive.series.series import Array, Phase, Recorded, Series
from penstock.archive.series.series_tables import MOST_BYTES
from penstock.errors import BadInput, printable
from penstock.plugins import FIGURE_KINDS
from penstock.report import style
from penstock.report.figures.layers import Layout

SCHEMA = "penstock/figure/1"


@dataclass(frozen=True)
class Size:
    """Width of a figure [inches], height of one panel [inches], size of its text [points]."""

    width: float
    panel: float
    text: float
    lines: float = 1.0


#: one column and two columns of a conference paper (IEEE: 3.5 and 7.16 inches), a 16:9 slide
PRESETS = {
    "single": Size(3.5, 2.0, 7.5, 1.0),
    "double": Size(7.16, 2.6, 8.5, 1.2),
    "slide": Size(10.0, 4.4, 16.0, 2.4),
}


def size_of(width: str) -> Size:
    """A preset by name, or a size from a width in inches. BadInput for anything else."""
    if width in PRESETS:
        return PRESETS[width]
    try:
        inches = float(width)
    except ValueError:
        inches = math.nan
    if not 2 <= inches <= 40:
        raise BadInput(f"--width: found {width}; expected {', '.join(PRESETS)}, or 2 to 40 inches")
    nearest = PRESETS["single"] if inches < 5 else PRESETS["double"]
    return replace(nearest, width=inches)


@dataclass(frozen=True)
class Chart:
    """Description of a figure without its data: the contents of `fig.json`."""

    kind: str
    width: str = "double"
    title: str = ""
    axis: str = "time"
    axis_name: str = ""
    axis_unit: str = ""
    join: str = "nearest"
    x: str = ""
    #: the phase whose begin is time 0; empty for the begin of each run
    align: str = ""
    phases: tuple[Phase, ...] = ()
    #: thresholds by name [unit of the vertical axis]
    lines_at: Mapping[str, float] = field(default_factory=dict)

    def document(self, data: str, content: bytes) -> dict[str, Any]:
        """`fig.json` of a figure with data in the file `data`."""
        return {
            "schema": SCHEMA,
            **asdict(self),
            "phases": [
                {"name": p.name, "start_s": float(p.start_s), "end_s": float(p.end_s)}
                for p in self.phases
            ],
            "data": data,
            "data_sha256": hashlib.sha256(content).hexdigest(),
        }


class Kind(Protocol):
    """A kind of figure: a module, a row of `plugins.FIGURE_KINDS`.

    `WHAT` is its line of help; `AXES` are its supported axes. `draw` adds axes to an empty figure
    (`layout.panels`), with the units of the series on them; NotDrawn if the series do not suffice. It is a
    pure function: equal charts and series give equal bytes.
    """

    WHAT: str
    AXES: tuple[str, ...]

    def draw(self, layout: Layout, chart: Chart, recorded: Recorded) -> None: ...


def chart_of(kind: str, recorded: Recorded, **more: Any) -> Chart:
    """The chart of a kind for these series. BadInput for an unknown kind, or an unsupported axis."""
    figure_kind: Kind = FIGURE_KINDS.load(kind)
    if recorded.axis not in figure_kind.AXES:
        raise BadInput(
            f"{kind}: found series over {_AXIS_TEXTS[recorded.axis]}; expected them over "
            f"{' or '.join(_AXIS_TEXTS[a] for a in figure_kind.AXES)} (--x COLUMN selects the column)"
        )
    return Chart(
        kind,
        axis=recorded.axis,
        axis_name=recorded.axis_name,
        axis_unit=recorded.axis_unit,
        phases=tuple(recorded.phases),
        **more,
    )


_AXIS_TEXTS = {"time": "time", "index": "a sequence", "value": "values of a column"}


def draw(chart: Chart, recorded: Recorded) -> Figure:
    """Draw a chart of series; NotDrawn if there are no data."""
    size = size_of(chart.width)
    recorded = replace(
        recorded,
        series=[_shown(s) for s in recorded.series if np.isfinite(s.y).any()],
        phases=[replace(p, name=printable(p.name)) for p in recorded.phases],
        origin=printable(chart.align),
    )
    if not recorded.series:
        raise style.NotDrawn("the series hold no value")
    with style.look(**_looks(size)):
        fig = style.figure(size.width, size.panel)
        layout = Layout(fig, size.width, size.panel, size.text)
        FIGURE_KINDS.load(chart.kind).draw(layout, chart, recorded)
        if chart.title:
            _entitle(layout, style.wrapped(printable(chart.title), size.width, size.text + 1))
        return style.settled(fig)


def _entitle(layout: Layout, title: str) -> None:
    """Add a title above the figure, or above the entries of its legend if it has one."""
    if not layout.fig.legends:
        layout.fig.suptitle(title, x=0.01, ha="left")
        return
    (legend, *_) = layout.fig.legends
    legend.set_title(title)
    legend.get_title().set_fontsize(layout.text + 1)
    legend.set_alignment("left")
    layout.grow((title.count("\n") + 1) * (layout.text + 1) * 1.4 / 72)


def _shown(series: Series) -> Series:
    unit, node, quantity = (printable(t) for t in (series.unit, series.node, series.quantity))
    there = np.isfinite(series.x)
    y = np.where(np.isinf(series.y), np.nan, series.y)  # a gap, like a missing value
    of = (printable(series.run), printable(series.group))
    return Series(printable(series.name), series.x[there], y[there], unit, node, quantity, *of)


def gaps_of(recorded: Recorded) -> list[str]:
    """A sentence for each series with infinite values, which are drawn as gaps."""
    sentences = []
    for one in recorded.series:
        count = int((np.isinf(one.y) | np.isinf(one.x)).sum())
        if count:
            are = "is infinite and is a gap" if count == 1 else "are infinite and are gaps"
            sentences.append(
                f"{one.name or 'series'}: {count} of {len(one.y)} values {are} in the figure"
            )
    return sentences


def _looks(size: Size) -> dict[str, Any]:
    text = size.text
    return {
        "font_size": text,
        "axes_titlesize": text,
        "axes_labelsize": text,
        "xtick_labelsize": text - 0.5,
        "ytick_labelsize": text - 0.5,
        "legend_fontsize": text - 0.5,
        "figure_titlesize": text + 1,
        "lines_linewidth": size.lines,
        "lines_markersize": 3.0 * size.lines,
        "legend_handlelength": 2.4,
        "legend_columnspacing": 1.2,
        "legend_borderpad": 0.2,
        "agg_path.chunksize": 20_000,
    }


_COLUMNS = ["group", "run", "series", "node", "quantity", "unit"]


def data_of(recorded: Recorded) -> bytes:
    """The data of a figure as CSV: a row for each point, with its series; numbers in shortest exact form."""
    parts = []
    for s in recorded.series:
        names = (s.group, s.run, s.name, s.node, s.quantity, s.unit)
        parts.append(
            pd.DataFrame({"x": s.x, "y": s.y}).assign(**dict(zip(_COLUMNS, names, strict=True)))
        )
    frame = (
        pd.concat(parts, ignore_index=True)
        if parts
        else pd.DataFrame(columns=[*_COLUMNS, "x", "y"])
    )
    sink = io.StringIO()
    frame[[*_COLUMNS, "x", "y"]].to_csv(sink, index=False, lineterminator="\n")
    return sink.getvalue().encode()


def read_figure(path: Path) -> tuple[Chart, Recorded]:
    """The chart and the series of a `fig.json` and its data file.

    BadInput with the file's name if they are not output of `penstock plot`, or were changed.
    """
    document = _document(path)
    names = {f.name for f in fields(Chart)}
    try:
        phases = tuple(
            Phase(str(p["name"]), float(p["start_s"]), float(p["end_s"]))
            for p in document["phases"]
        )
        values = {k: v for k, v in document.items() if k in names and k != "phases"}
        chart = Chart(**values, phases=phases)
        data = path.parent / Path(str(document["data"])).name
        digest = str(document["data_sha256"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{path}: found {error!r}; expected a figure of `penstock plot`") from None
    try:
        if data.stat().st_size > MOST_BYTES:
            raise BadInput(f"{data}: found more than {MOST_BYTES} bytes; expected at most that")
        content = data.read_bytes()
    except OSError as error:
        raise BadInput(f"{data}: {error.strerror}; expected the data of {path}") from None
    if hashlib.sha256(content).hexdigest() != digest:
        raise BadInput(
            f"{data}: found other bytes than {path.name} was written with; expected those"
        )
    return chart, _recorded(chart, content, data)


def _document(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > 16 << 20:
            raise BadInput(f"{path}: found more than 16 MiB; expected a figure of `penstock plot`")
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}; expected a figure of `penstock plot`") from None
    except (ValueError, RecursionError):
        raise BadInput(f"{path}: found no JSON; expected a figure of `penstock plot`") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        actual = document.get("schema") if isinstance(document, dict) else type(document).__name__
        raise BadInput(f"{path}: found schema {actual!r}; expected {SCHEMA}")
    return document


def _series(key: Any, x: Array, y: Array) -> Series:
    group, run, name, node, quantity, unit = key
    return Series(name, x, y, unit, node, quantity, run, group)


def _recorded(chart: Chart, content: bytes, path: Path) -> Recorded:
    try:
        frame = pd.read_csv(
            io.BytesIO(content),
            dtype=dict.fromkeys(_COLUMNS, str),
            keep_default_na=False,
            na_values={"x": [""], "y": [""]},
            float_precision="round_trip",
        )
        series = [
            _series(key, rows["x"].to_numpy(float), rows["y"].to_numpy(float))
            for key, rows in frame.groupby(_COLUMNS, sort=False)
        ]
    except (KeyError, ValueError) as error:
        raise BadInput(f"{path}: found {error}; expected the data of a figure") from None
    return Recorded(
        series,
        axis=chart.axis,  # type: ignore[arg-type]
        axis_name=chart.axis_name,
        axis_unit=chart.axis_unit,
        phases=list(chart.phases),
    )
