"""Figures of series: equal input gives equal bytes in every format; no point is omitted."""

from __future__ import annotations

import http.server
import io
import json
import re
import runpy
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from fontTools.ttLib import TTFont
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.font_manager import findfont
from PIL import Image
from typer.testing import CliRunner

from penstock import testing
from penstock.archive.bundle import Bundle
from penstock.archive.selection import select
from penstock.archive.series.read_series import of_selection
from penstock.archive.series.series import Phase, Recorded, Series, joined
from penstock.archive.series.series_tables import of_csv
from penstock.cli import _build
from penstock.errors import BadInput
from penstock.plugins import FIGURE_KINDS
from penstock.report import style
from penstock.report.figures import layers
from penstock.report.figures.chart import chart_of, data_of, draw, read_figure
from penstock.report.figures.kinds import bands, cdf, stacked
from penstock.report.figures.ship import FORMATS, picture, shipped


def series(n: int = 3, points: int = 60, unit: str = "%", **more: Any) -> list[Series]:
    rng = np.random.default_rng(7)
    return [
        Series(
            f"disk{i}",
            np.arange(float(points)),
            rng.uniform(0, 90, points),
            unit,
            f"n{i}",
            "disk",
            **more,
        )
        for i in range(n)
    ]


def for_kind(kind: str) -> Recorded:
    """Return series that the kind can plot."""
    disks = series()
    if kind == "multi-y":
        disks[1] = Series("power", disks[1].x, disks[1].y, "W", "n1", "power")
    if kind == "bands":
        disks = [Series("disk", s.x, s.y, "%", "", "disk", f"r{i}") for i, s in enumerate(disks)]
    if kind == "sequence":
        return Recorded(series(1, unit="B"), "index", "request")
    return Recorded(
        disks, phases=[Phase("load", 5, 20), Phase("measure", 20, 55), Phase("a", 25, 40)]
    )


@pytest.mark.parametrize("kind", FIGURE_KINDS.own)
def test_equal_input_gives_equal_bytes(kind: str) -> None:
    def pictures(recorded: Recorded) -> dict[str, bytes]:
        chart = chart_of(kind, recorded, width="single")
        fig = draw(chart, recorded)
        files = {"data": data_of(recorded)}
        for form in FORMATS:
            files |= picture(fig, f"fig-{form}.{form}", chart, recorded)
        return files

    first, second = (pictures(for_kind(kind)) for _ in "ab")
    assert first == second
    altered = for_kind(kind)
    altered.series[0].y[3] += 5.0
    altered_files = pictures(altered)
    for form in FORMATS:
        assert any(altered_files[n] != first[n] for n in first if n.startswith(f"fig-{form}"))


@pytest.mark.parametrize("kind", FIGURE_KINDS.own)
def test_figure_is_reproduced_from_its_files(kind: str, tmp_path: Path) -> None:
    files = shipped(chart_of(kind, for_kind(kind)), for_kind(kind), "fig.svg", code=True)
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for name in ("fig.json", "fig.data.csv", "fig.py"):
        (moved / name).write_bytes(files[name])
    assert shipped(*read_figure(moved / "fig.json"), "fig.svg", code=True) == files
    if kind == "lines":
        subprocess.run([sys.executable, str(moved / "fig.py")], check=True, timeout=120)
    else:
        runpy.run_path(str(moved / "fig.py"))
    assert (moved / "fig.svg").read_bytes() == files["fig.svg"]


@pytest.mark.parametrize("kind", FIGURE_KINDS.own)
def test_built_in_kinds_follow_their_protocol(kind: str) -> None:
    testing.check_figure(FIGURE_KINDS.load(kind), for_kind(kind))


@pytest.mark.parametrize("width", ["single", "double", "slide"])
@pytest.mark.parametrize("kind", FIGURE_KINDS.own)
def test_no_text_is_clipped(kind: str, width: str) -> None:
    fig = draw(chart_of(kind, for_kind(kind), width=width, title="A title"), for_kind(kind))
    inside, box = fig.get_tightbbox(), fig.get_size_inches()
    assert min(inside.x0, inside.y0) > -0.03
    assert inside.x1 < box[0] + 0.03
    assert inside.y1 < box[1] + 0.03


SHADE = re.compile(
    rf'<path d="M (\S+) \S+ \nL (\S+) [^"]*"[^>]*style="fill: {style.GRID}; opacity: ([0-9.]+)"/>'
)


@pytest.mark.parametrize("kind", ["lines", "multi-y", "stacked", "bands"])
def test_phases_are_shaded_and_named(kind: str) -> None:
    """Fails if a phase is not shaded, has no name, or is shaded at another time."""
    recorded = for_kind(kind)

    def svg_of(phases: Sequence[Phase]) -> str:
        shown = replace(recorded, phases=phases)
        return shipped(chart_of(kind, shown), shown, "fig.svg")["fig.svg"].decode()

    picture, without_phases = svg_of(recorded.phases), svg_of(())
    # consecutive phases have two shades; the third phase lies within one
    load, measure, inner = sorted({tuple(map(float, f[:2])) for f in SHADE.findall(picture)})
    per_s = (load[1] - load[0]) / (20 - 5)
    assert inner == pytest.approx((load[0] + 20 * per_s, load[0] + 35 * per_s), abs=0.01)
    assert measure == pytest.approx((load[0] + 15 * per_s, load[0] + 50 * per_s), abs=0.01)
    shade = {tuple(map(float, match[:2])): match[2] for match in SHADE.findall(picture)}
    assert len({shade[load], shade[measure]}) == 2
    assert not SHADE.findall(without_phases)
    for phase in recorded.phases:  # letters are outlines; the text is in a comment
        assert f"<!-- {phase.name} -->" in picture
        assert f"<!-- {phase.name} -->" not in without_phases


def peers(n: int = 100) -> bytes:
    at = np.arange(0, 600, 5)
    columns = {
        f'completion_percent{{peer="p{i:02d}"}}': np.clip((at - i) / 5, 0, 100) for i in range(n)
    }
    return pd.DataFrame({"timestamp": 1.7e9 + at, **columns}).to_csv(index=False).encode()


def test_a_phase_inside_of_several_needs_its_complete_name() -> None:
    """Fails if the first one is taken for the other."""
    names = ("load/warm-up", "load", "measure/warm-up", "measure")
    phases = [Phase(name, float(n), n + 1.0) for n, name in enumerate(names)]
    recorded = Recorded([Series("m", np.arange(5.0), np.arange(5.0))], phases=phases)
    assert recorded.within("measure/warm-up").series[0].y.tolist() == [2.0, 3.0]
    with pytest.raises(BadInput, match="found warm-up; expected one of load/warm-up, measure/warm"):
        recorded.within("warm-up")
    again = Recorded([], phases=[Phase("a/load", 0.0, 1.0), Phase("load", 2.0, 3.0)])
    assert again.phase("load", "--phase").start_s == 2.0


def test_hundred_series_are_hundred_curves(tmp_path: Path) -> None:
    recorded = of_csv(peers(), "peers")
    picture = shipped(chart_of("lines", recorded, width="single"), recorded, "fig.svg")[
        "fig.svg"
    ].decode()
    curves = re.findall(r'<g id="(series-[^"]+)">\s*<path d="([^"]+)"', picture)
    assert len(curves) == 100
    assert len({name for name, _ in curves}) == 100
    assert len({path for _, path in curves}) == 100
    looks = layers.looks(100)
    assert len({(k.colour, str(k.line)) for k in looks}) == 100


def test_file_pipe_and_server_give_the_same_figure(tmp_path: Path) -> None:
    (tmp_path / "peers.csv").write_bytes(peers())

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(tmp_path))

        def log_message(self, *_: Any) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        figures = []
        for name, source in (
            ("a", str(tmp_path / "peers.csv")),
            ("b", f"{url}/peers.csv"),
            ("c", "-"),
        ):
            target = tmp_path / name / "fig.pdf"
            result = CliRunner().invoke(
                _build(), ["plot", source, "lines", "-o", str(target)], input=peers()
            )
            assert result.exit_code == 0, result.output
            figures.append(target.read_bytes())
        assert figures[0] == figures[1] == figures[2]
        missing = CliRunner().invoke(_build(), ["plot", f"{url}/no.csv", "lines"])
        assert isinstance(missing.exception, BadInput)
        assert "404" in str(missing.exception)
    finally:
        server.shutdown()
        server.server_close()


def test_million_points_become_a_small_raster_under_vector_axes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(3)
    n = 1_000_000
    x, y = rng.normal(0, 1, n), rng.normal(0, 1, n)
    x[0], y[0] = 9.0, 9.0  # a single distant point
    recorded = Recorded([Series("v (ms)", x, y, "ms")], "value", "size", "B")
    histograms = []
    histogram = np.histogram2d
    monkeypatch.setattr(
        np, "histogram2d", lambda *a, **k: histograms.append(histogram(*a, **k)) or histograms[-1]
    )
    chart = chart_of("scatter", recorded)
    fig = draw(chart, recorded)
    assert histograms[0][0].sum() == n
    image = fig.axes[0].images[0].get_array()
    assert image[-20:, -60:, 3].any(), "the distant point is not visible"
    svg, pdf = (picture(fig, f"fig.{f}", chart, recorded)[f"fig.{f}"] for f in ("svg", "pdf"))
    assert svg.count(b"<image ") == 1
    assert len(svg) < 3_000_000
    assert len(pdf) < 3_000_000
    assert b'<g id="matplotlib.axis_1">' in svg


def test_fonts_are_embedded_and_width_is_one_column() -> None:
    files = {
        form: shipped(
            chart_of("lines", for_kind("lines"), width="single"), for_kind("lines"), f"f.{form}"
        )
        for form in ("pdf", "svg", "png")
    }
    assert b"/FontFile2" in files["pdf"]["f.pdf"]
    assert b"<text" not in files["svg"]["f.svg"]  # letters are outlines
    assert Image.open(io.BytesIO(files["png"]["f.png"])).width == round(3.5 * 300)


def test_pdf_embeds_a_subset_of_its_font() -> None:
    recorded = for_kind("lines")
    pdf = shipped(chart_of("lines", recorded, title="A title"), recorded, "f.pdf")["f.pdf"]
    streams = re.findall(rb"/Length1 .*?stream\r?\n(.*?)\r?\nendstream", pdf, re.DOTALL)
    (font,) = (TTFont(io.BytesIO(zlib.decompress(stream))) for stream in streams)
    tables = {"cvt ", "fpgm", "glyf", "head", "hhea", "hmtx", "loca", "maxp", "prep"}
    assert set(font.keys()) == tables | {"GlyphOrder"}

    def letters(face: TTFont, names: Iterable[str]) -> set[Any]:
        outlines = ((n, face["glyf"][n].getCoordinates(face["glyf"])[0]) for n in names)
        return {(face["hmtx"][n], tuple(outline)) for n, outline in outlines}

    source = TTFont(findfont("DejaVu Sans"))
    embedded = letters(font, font.getGlyphOrder())
    assert letters(source, "Atile") < embedded
    assert len(embedded) < 100


@pytest.mark.long
def test_latex_compiles_the_pgf(tmp_path: Path) -> None:
    hostile = Recorded([Series(r"a_b#c %&{}~^ \input{x} $5", np.arange(4.0), np.arange(4.0), "%")])
    for name, recorded in (("fig", for_kind("scatter")), ("names", hostile)):
        kind = "scatter" if name == "fig" else "lines"
        for file, content in shipped(chart_of(kind, recorded), recorded, f"{name}.pgf").items():
            (tmp_path / file).write_bytes(content)
    heat = for_kind("heatmap")
    for file, content in shipped(chart_of("heatmap", heat), heat, "heat.pgf").items():
        (tmp_path / file).write_bytes(content)
    text = r"\documentclass{article}\usepackage{pgf}\begin{document}"
    text += r"\input{fig.pgf} \input{names.pgf} \input{heat.pgf}\end{document}"
    (tmp_path / "paper.tex").write_text(text)
    argv = [
        "pdflatex",
        "-interaction=nonstopmode",
        "-halt-on-error",
        "-no-shell-escape",
        "paper.tex",
    ]
    result = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout[-1500:]
    assert (tmp_path / "paper.pdf").stat().st_size > 10_000


def monitored(path: Path, run: str = "r001", shift: float = 0.0) -> Path:
    with Bundle.create(
        path, {"run_id": run, "treatment_id": "t01", "levels": {"disk": "hdd"}}
    ) as bundle:
        at = (1_000 + np.arange(40)) * 1_000_000_000
        rows = [
            {
                "t_ns": int(t),
                "kind": "disk",
                "entity": e,
                "metric": m,
                "unit": u,
                "value": v,
                "reset": False,
            }
            for t in at
            for e, m, u, v in (
                ("vda", "busy", "%", 40 + shift),
                ("vda", "read_rate", "B/s", 5e6),
                ("vdb", "busy", "%", 20.0),
            )
        ]
        bundle.write_table("utilisation", pa.Table.from_pylist(rows))
        phases = [("workload", 1_000, 1_040), ("load", 1_005, 1_015), ("measure", 1_015, 1_035)]
        bundle.write_table(
            "phases",
            pa.Table.from_pylist(
                [{"phase_id": p, "start_ns": a * 10**9, "end_ns": b * 10**9} for p, a, b in phases]
            ),
        )
    return path


def test_monitored_run_starts_at_zero_and_has_phases(tmp_path: Path) -> None:
    recorded = of_selection(select(monitored(tmp_path / "B")))
    assert [(s.name, s.unit) for s in recorded.series] == [
        ("disk_busy vda", "%"),
        ("disk_read_rate vda", "B/s"),
        ("disk_busy vdb", "%"),
    ]
    for selected in ("disk_busy vda", "disk vda busy", 'disk_busy{entity="vda"}', "disk_busy{vda}"):
        assert [s.name for s in recorded.chosen([selected]).series] == ["disk_busy vda"]
    with pytest.raises(BadInput, match=r"expected one like disk_busy vda or disk_busy vdb"):
        recorded.chosen(["disk_bussy vda"])
    assert recorded.series[0].x[0] == 0.0
    inner = recorded.within("measure")
    assert inner.series[0].x[0] == 0.0
    assert len(inner.series[0].x) == 21
    with pytest.raises(BadInput, match=r"--phase: found rest; expected .*workload, load, measure"):
        recorded.within("rest")
    with pytest.raises(BadInput, match=r"found none called cpu.*expected one of disk_busy vda"):
        recorded.chosen(["cpu*"])


@pytest.mark.parametrize("kind", ["time", "sequence"])
def test_points_of_an_experiment_become_series_by_label(tmp_path: Path, kind: str) -> None:
    with Bundle.create(tmp_path / "E", {"run_id": "r001"}) as bundle:
        table = [
            {
                "series_id": i,
                "metric": "m",
                "labels": json.dumps({"node": f"n{i}"}),
                "kind": kind,
                "unit": "W",
            }
            for i in range(2)
        ]
        bundle.write_table("series", pa.Table.from_pylist(table))
        values = [(0, 10, 1.5, None), (0, 12, 2.5, None), (1, 11, None, 7)]
        rows = pd.DataFrame(values, columns=["series_id", "at", "float", "integer"])
        rows = rows.assign(
            utc_ns=rows["at"] * 10**9 if kind == "time" else None,
            index=None if kind == "time" else rows["at"],
            boolean=None,
            text=None,
        )
        bundle.write_table("points", pa.Table.from_pandas(rows, preserve_index=False))
    recorded = of_selection(select(tmp_path / "E"))
    assert recorded.axis == ("time" if kind == "time" else "index")
    assert [(s.name, s.unit, s.y.tolist()) for s in recorded.series] == [
        ("m n0", "W", [1.5, 2.5]),
        ("m n1", "W", [7.0]),
    ]
    first = 10 if kind == "time" else 0
    assert [s.x.tolist() for s in recorded.series] == [[10 - first, 12 - first], [11 - first]]


@pytest.mark.parametrize(
    "facts",
    [
        {
            "experiment": {"verdict": "partial"},
            "state": "ended",
            "reason": "its series are partial: m",
        },
        {"receipts": {"monitor": {"complete": "partial", "samples": 60, "expected": 100}}},
        {"receipts": {"monitor": {"complete": "unusable", "samples": 0, "expected": 100}}},
    ],
)
def test_incomplete_data_needs_partial(tmp_path: Path, facts: dict) -> None:
    """Fails if a figure or a comparison uses incomplete samples without a warning."""
    from penstock.archive.completeness import check_complete

    bundle = monitored(tmp_path / "B")
    manifest = json.loads((bundle / "manifest.json").read_text())
    (bundle / "manifest.json").write_text(json.dumps(manifest | facts))
    with pytest.raises(BadInput, match=r"found (partial|unusable) data: .*--partial"):
        of_selection(select(bundle))
    assert of_selection(select(bundle), partial=True).series
    target = tmp_path / "f.svg"
    argv = ["plot", str(bundle), "lines", "-o", str(target)]
    refused = CliRunner().invoke(_build(), argv)
    assert isinstance(refused.exception, BadInput)
    assert not target.exists()
    result = CliRunner().invoke(_build(), [*argv, "--partial"])
    assert result.exit_code == 0, result.output
    check_complete(bundle, True)
    # one missing sample at the end of a run is tolerated
    one_missing = {"receipts": {"monitor": {"complete": "partial", "samples": 9, "expected": 10}}}
    (bundle / "manifest.json").write_text(json.dumps(manifest | one_missing))
    check_complete(bundle, False)


def test_replicates_of_a_study_form_a_band(tmp_path: Path) -> None:
    for number, shift in enumerate((0, 1, 2, 3, 50)):
        monitored(tmp_path / "OUT" / "runs" / f"r00{number + 1}", f"r00{number + 1}", shift)
    (tmp_path / "OUT" / "plan.json").write_text("{}")
    target = tmp_path / "fig.svg"
    argv = [
        "plot",
        f"{tmp_path}/OUT:t01",
        "bands",
        "-s",
        "disk_busy vda",
        "-o",
        str(target),
        "--json",
    ]
    result = CliRunner().invoke(_build(), argv)
    assert result.exit_code == 0, result.output
    names = [Path(f).name for f in json.loads(result.stdout)["files"]]
    assert names == ["fig.svg", "fig.data.csv", "fig.json"]
    assert "r005" in (tmp_path / "fig.data.csv").read_text()
    recorded = of_selection(select(f"{tmp_path}/OUT:t01")).chosen(["disk vda busy"])
    _at, low, middle, high = bands.band(recorded.series)
    assert np.allclose(middle, 42)
    # with five runs the band covers all of them
    assert np.allclose(low, 40)
    assert np.allclose(high, 90)
    assert [s.run for s in bands.outliers(recorded.series)] == ["r005"]


def replicates(lengths: Sequence[int]) -> list[Series]:
    """Runs 1, 2, 3, … of the given lengths. The values are the number of the run."""
    return [
        Series("m", np.arange(float(n)), np.full(n, k + 1.0), "s", "", "m", f"r{k}")
        for k, n in enumerate(lengths)
    ]


def test_band_of_twenty_runs_is_the_central_95_percent() -> None:
    for number, expected_low, expected_high in ((19, 1, 19), (20, 1.475, 19.525)):
        _, low, _, high = bands.band(replicates([5] * number))
        # type 7: 0.025 × 19 of the way from the first of twenty
        assert np.allclose((low, high), [[expected_low] * 5, [expected_high] * 5])


def test_band_ends_with_its_runs() -> None:
    """Fails if the band follows the longest run alone, or ends at a gap in the middle."""
    at, *_ = bands.band(replicates([10, 10, 30]))
    assert at.tolist() == [float(k) for k in range(10)]
    with_gap = replicates([10, 10, 10])
    with_gap[0].y[3:6] = np.nan
    assert bands.band(with_gap)[0].tolist() == [float(k) for k in range(10)]
    # one early end of ten runs does not end the band
    assert len(bands.band(replicates([4, *[12] * 9]))[0]) == 12
    recorded = Recorded([replace(s, unit="%") for s in replicates([10, 10, 300])])
    (axes,) = draw(chart_of("bands", recorded), recorded).axes
    assert axes.get_xlim()[1] < 12


def test_legend_names_the_largest_series() -> None:
    several = [
        Series(f"m c{k}", np.arange(5.0), np.full(5, float(k % 7 + k)), "%", f"c{k}", "m")
        for k in range(16)
    ]
    recorded = Recorded(several)
    stacked_names = legend(draw(chart_of("stacked", recorded), recorded))
    assert stacked_names == [
        f"c{k}" for k in sorted(sorted(range(16), key=lambda k: -(k % 7 + k))[:10])
    ] + ["6 others"]
    (axes,) = draw(chart_of("stacked", recorded), recorded).axes
    areas = axes.collections[:11]
    assert len({(tuple(a.get_facecolor()[0]), a.get_hatch()) for a in areas}) == 11
    # the stack's height is the sum of all series
    tops = max(float(p.vertices[:, 1].max()) for a in axes.collections for p in a.get_paths())
    assert tops == pytest.approx(sum(k % 7 + k for k in range(16)))
    for kind in ("lines", "cdf"):
        assert legend(draw(chart_of(kind, recorded), recorded)) == stacked_names[:-1]


def test_legend_has_the_units_of_its_axes() -> None:
    recorded = Recorded(
        [
            Series("r vda", np.arange(5.0), np.full(5, 3e6), "B/s", "vda", "r"),
            Series("b vda", np.arange(5.0), np.full(5, 30.0), "%", "vda", "b"),
        ]
    )
    fig = draw(chart_of("multi-y", recorded), recorded)
    assert legend(fig) == ["r vda (MB/s)", "b vda (%)"]
    assert "MB/s" in fig.axes[0].get_ylabel()


def legend(fig: Any) -> list[str]:
    return [t.get_text() for box in fig.legends for t in box.get_texts()]


def test_points_are_joined_by_time() -> None:
    x = Series("x", np.array([0.0, 1, 2, 3]), np.array([10.0, 11, np.nan, 13]))
    y = Series("y", np.array([1.0, 2.0, 3.4, 9.0]), np.array([1.0, 2, 3, 4]))
    assert [a.tolist() for a in joined(x, y, "exact")] == [[11], [1]]
    assert [a.tolist() for a in joined(x, y, "nearest")] == [[11, 13], [1, 3]]
    assert [a.tolist() for a in joined(x, y, "last")] == [[11, 13, 13], [1, 3, 4]]
    with pytest.raises(BadInput, match="--join"):
        joined(x, y, "position")


def test_cdf_counts_values_at_or_below() -> None:
    value, share = cdf.steps(np.array([3.0, 1, np.nan, 2, 2]))
    assert value.tolist() == [1, 1, 2, 2, 3]
    assert share.tolist() == [0, 0.25, 0.5, 0.75, 1.0]


def test_stack_uses_last_values_within_each_series() -> None:
    early = Series("a", np.array([0.0, 2.0]), np.array([5.0, 7.0]))
    late = Series("b", np.array([1.0, 3.0]), np.array([1.0, 2.0]))
    at, parts = stacked.stack(Recorded([early, late]))
    assert at.tolist() == [0, 1, 2, 3]
    assert parts[0].tolist() == [5, 5, 7, 0]
    assert parts[1].tolist() == [0, 1, 1, 2]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("timestamp,a\n1700000000,1\n1700000001,2\n", 1.0),
        ("timestamp,a\r\n1700000000000,1\r\n1700000000500,2\r\n", 0.5),
        ("t_ns,a\n1700000000000000001,1\n1700000000000000003,2\n", 2e-9),
        ("time,a\n2026-01-01T00:00:00Z,1\n2026-01-01T01:00:00+00:00,2\n", 3600.0),
        ("duration,a\n0,1\n2.5,2\n", 2.5),
    ],
)
def test_time_columns_are_recognised_by_name_and_magnitude(text: str, seconds: float) -> None:
    recorded = of_csv(text.encode(), "x")
    assert recorded.axis == "time"
    assert recorded.series[0].x[1] == pytest.approx(seconds, rel=1e-9)


def test_empty_cell_is_a_missing_value() -> None:
    recorded = of_csv(b'timestamp,"disk (B/s)",b\n0,1,\n1,,4\n2,3,5\n', "x")
    assert [(s.name, s.unit, s.y.tolist()) for s in recorded.series] == [
        ("disk", "B/s", [1, 3]),
        ("b", "", [4, 5]),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "found nothing"),
        (b"\xff\xfe\x00", "expected CSV"),
        (b"time,a\nyesterday,1\n", r"x:2: found 'yesterday' in column time"),
        (b"time,a\n0,b\n", "no column of numbers"),
        (b'time,a\n0,"1\n', "expected CSV"),
        (b",".join(b"c%d" % i for i in range(20_002)) + b"\n", "found 20002 series"),
    ],
)
def test_bad_tables_are_refused(content: bytes, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        of_csv(content, "x")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d | {"schema": "other"}, "found schema 'other'"),
        (lambda d: {k: v for k, v in d.items() if k != "phases"}, "expected a figure"),
        (lambda d: d | {"data_sha256": "0" * 64}, "found other bytes"),
        (lambda d: d | {"data": "../../etc/passwd"}, "expected the data of"),
        (lambda d: [d], "found schema 'list'"),
    ],
)
def test_altered_figure_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    files = shipped(chart_of("lines", for_kind("lines")), for_kind("lines"), "fig.svg")
    (tmp_path / "fig.data.csv").write_bytes(files["fig.data.csv"])
    (tmp_path / "fig.json").write_text(json.dumps(change(json.loads(files["fig.json"]))))
    with pytest.raises(BadInput, match=message):
        read_figure(tmp_path / "fig.json")


def test_series_that_a_kind_cannot_plot_are_refused() -> None:
    for kind, message in (
        ("stacked", "several units"),
        ("heatmap", "several units"),
        ("cdf", "several units"),
    ):
        with pytest.raises(style.NotDrawn, match=message):
            draw(chart_of(kind, for_kind("multi-y")), for_kind("multi-y"))
    with pytest.raises(style.NotDrawn, match="no series has replicates"):
        draw(chart_of("bands", for_kind("lines")), for_kind("lines"))
    with pytest.raises(style.NotDrawn, match="1 units"):
        draw(chart_of("multi-y", for_kind("lines")), for_kind("lines"))
    with pytest.raises(BadInput, match="sequence: found series over time"):
        chart_of("sequence", for_kind("lines"))
    with pytest.raises(BadInput, match=r"\.gif; expected one of \.pdf"):
        shipped(chart_of("lines", for_kind("lines")), for_kind("lines"), "f.gif")
    with pytest.raises(BadInput, match="--width: found huge"):
        draw(chart_of("lines", for_kind("lines"), width="huge"), for_kind("lines"))


def test_names_are_escaped_in_every_format() -> None:
    recorded = Recorded([Series("<script>$\\frac{1$ \x07", np.arange(3.0), np.arange(3.0), "B")])
    for form in FORMATS:
        files = shipped(chart_of("lines", recorded), recorded, f"fig.{form}")
        assert b"<script>" not in files[f"fig.{form}"] or form == "pgf"
        assert b"\x07" not in files[f"fig.{form}"] or form in ("png", "pdf")
    assert data_of(recorded).count(b"\n") == 4


def test_node_has_one_colour_and_unit_one_line_style() -> None:
    x = np.arange(5.0)
    pairs = [(q, u, n) for q, u in (("disk", "%"), ("power", "W")) for n in ("n1", "n2", "n3")]
    recorded = Recorded([Series(f"{q} {n}", x, x, u, n, q) for q, u, n in pairs])
    figure = draw(chart_of("multi-y", recorded, title="A title\nof two lines"), recorded)
    lines = [line for axes in figure.axes for line in axes.get_lines()]
    colours = [line.get_color() for line in lines]
    assert colours[:3] == colours[3:]
    assert len(set(colours)) == 3
    assert len({line.get_linestyle() for line in lines}) == 2
    # the title is above the entries of the legend and does not overlap them
    (legend,) = figure.legends
    assert "A title" in legend.get_title().get_text()
    FigureCanvasAgg(figure).draw()
    boxes = [t.get_window_extent() for t in (legend.get_title(), *legend.get_texts())]
    assert min(boxes[0].y0 - b.y1 for b in boxes[1:]) >= 0
    assert boxes[0].y1 <= figure.bbox.y1


def test_runs_of_one_value_are_not_outlying() -> None:
    """Most means were exactly 0.1; that of 7 points differed by rounding, and the run was called outlying."""
    runs = [
        Series("rate", np.arange(n, dtype=float), np.full(n, 0.1), "1/s", run=f"r{n:03d}")
        for n in (5, 10, 33, 66, 7)
    ]
    assert not bands.outliers(runs)
    far = replace(runs[-1], y=np.full(7, 0.2))
    assert bands.outliers([*runs[:-1], far]) == [far]
