"""`penstock plot`: draw a figure for a publication, or on the terminal."""

from __future__ import annotations

import functools
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from penstock.plugins import FIGURE_KINDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.archive.series.series import Recorded


@dataclass(frozen=True)
class SeriesOptions:
    """Options of a figure of series."""

    series: list[str]
    phase: str | None
    table: str | None
    node: str
    unit: list[str]
    step: float | None
    value: str | None
    derive: list[str]
    align: str | None
    join: str
    partial: bool


def command(
    out: str = typer.Argument(
        ...,
        metavar="INPUT",
        help="Source of the data: an experiment (NAME, NAME#1..5), a monitored run, a study's results, a run "
        "or treatment of it (OUT:r001, OUT:t01), a trace, a CSV, JSON Lines or Parquet file, `-` for CSV on "
        "stdin, the address of an export (http://…), or a figure's .json, which draws the figure again.",
    ),
    kind: str = typer.Argument(
        None,
        metavar="KIND",
        help=f"Of series: {', '.join(FIGURE_KINDS.own)}. Of a study: effects, pareto, interactions, "
        "responses, costs, predictions, fraction, offsets, utilisation or fidelity. Of a trace: offsets, "
        "offsets-time, clock or before-after.",
    ),
    output: Path | None = typer.Option(
        None,
        "-o",
        "--output",
        help="Output file: .svg, .pdf or .png, for series also .pgf or .html (default: KIND.svg in "
        "INPUT/figures or the current directory; for a trace, the terminal).",
    ),
    series: list[str] = typer.Option(
        [], "--series", "-s", help="Series to plot, by name or quantity (* and ?); repeatable."
    ),
    x: str | None = typer.Option(
        None, help="Column of the horizontal axis; for `scatter`, the series on it."
    ),
    phase: str | None = typer.Option(None, help="Only points in this phase of the run."),
    table: str | None = typer.Option(
        None,
        help="Table of a run: utilisation (default), points, samples, io_events or spark_tasks.",
    ),
    node: str = typer.Option(
        "", help="Regular expression with one group that matches the node in a series' name."
    ),
    unit: list[str] = typer.Option([], help="NAME=UNIT of a series or quantity; repeatable."),
    join: str = typer.Option(
        "nearest", help="Matching of points of two series: exact, nearest or last."
    ),
    step: float = typer.Option(
        None,
        "--step",
        help="Width of the steps of reduced points, in seconds (for a sequence, places); see --value.",
    ),
    value: str = typer.Option(
        None,
        "--value",
        help="Value at each step: nearest (within half a step, the default), last, or mean, "
        "median, min, max, sum or count of the points within half a step.",
    ),
    derive: list[str] = typer.Option(
        [],
        "--derive",
        help="NAME=EXPR, a series of others (`penstock monitor derive`); repeatable.",
    ),
    align: str = typer.Option(
        None, "--align", help="Set time 0 of each run to the start of this phase."
    ),
    title: str = typer.Option("", help="Title of the figure."),
    code: bool = typer.Option(
        False, "--code", help="Also write the Python code that draws the figure."
    ),
    response: str | None = typer.Option(None, help="The response (default: the study's first)."),
    run: list[str] = typer.Option([], help="Runs to show (offsets, utilisation); repeatable."),
    file: str | None = typer.Option(
        None, "--file", help="File of a trace, by its path or the end of its path."
    ),
    compared: list[str] = typer.Option(
        [],
        "--beside",
        help="A second trace on the same axes; for series, further inputs as replicates.",
    ),
    width: str = typer.Option(
        "double", help="single (3.5 inches), double (7.16), slide (10), or a number of inches."
    ),
    partial: bool = typer.Option(
        False, "--partial", help="Include incomplete series of runs (with lost samples)."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the files' names as JSON."),
) -> None:
    """Draw one figure: of recorded series, of a study's tables, or of a trace.

    A figure of series comes with its data (.data.csv), and a .json that reproduces it byte for byte.
    """
    from penstock.errors import BadInput
    from penstock.report.style import NotDrawn

    try:
        if kind is None or kind in FIGURE_KINDS:
            sources = [out, *compared]
            options = SeriesOptions(
                series, phase, table, node, unit, step, value, derive, align, join, partial
            )
            target, files = _of_series(
                sources, kind, output, options, code, width=width, title=title, x=x or ""
            )
        else:
            figure = _of_tables(
                Path(out),
                kind,
                output,
                response,
                run,
                file,
                [Path(name) for name in compared],
                width,
                as_json,
            )
            if figure is None:
                return
            target, files = figure
    except NotDrawn as error:
        raise BadInput(f"{kind or out} cannot be drawn: {error}") from None
    _write(target, files, as_json)


def _write(target: Path, files: dict[str, bytes], as_json: bool) -> None:
    from penstock.writing import atomic_folder

    with atomic_folder(target.parent) as folder:
        for name, content in files.items():
            (folder / name).write_bytes(content)
    paths = [str(target.parent / name) for name in files]
    print(json.dumps({"figure": paths[0], "files": paths}) if as_json else "\n".join(paths[:1]))


def _of_series(
    sources: list[str],
    kind: str | None,
    output: Path | None,
    options: SeriesOptions,
    code: bool,
    *,
    width: str,
    title: str,
    x: str,
) -> tuple[Path, dict[str, bytes]]:
    from dataclasses import replace

    from penstock.errors import BadInput
    from penstock.report.figures.chart import chart_of, gaps_of, read_figure, size_of
    from penstock.report.figures.ship import shipped
    from penstock.terminal import say

    first = Path(sources[0])
    if kind is None:
        if first.suffix != ".json":
            raise BadInput(f"found no KIND for {first}; expected one of {', '.join(FIGURE_KINDS)}")
        chart, recorded = read_figure(first)
        target = output or first.with_suffix(".svg")
        return target, shipped(chart, recorded, target.name, code)
    size_of(width)
    globs, table = options.series, options.table
    column = None if kind == "scatter" and _is_recorded(sources[0]) else x or None
    horizontal = [x] if globs and x and kind == "scatter" else []
    plotted = [] if options.derive or options.node else [*globs, *horizontal]
    recorded = _read(sources, kind, table, column, options.align, options.partial, plotted)
    if options.unit or options.node:
        pairs = [u.partition("=") for u in options.unit]
        for name, equals, unit in pairs:
            if not (name and equals and unit):
                raise BadInput(f"--unit: found {name}{equals}{unit}; expected NAME=UNIT")
        recorded = recorded.named(options.node, {name: unit for name, _, unit in pairs})
    if options.phase is not None:
        recorded = recorded.within(options.phase)
    if options.derive:
        recorded = _derived(recorded, options.derive)
        globs = globs or [expression.partition("=")[0].strip() for expression in options.derive]
    # the series on the horizontal axis need not be selected
    recorded = recorded.chosen([*globs, *horizontal])
    if options.step is not None or options.value is not None:
        from penstock.archive.series.grid import on_grid

        recorded = on_grid(recorded, options.step, options.value or "nearest")
    if (
        not globs
        and table is None
        and _is_recorded(sources[0])
        and kind not in ("sequence", "multi-y")
    ):
        shares = [s for s in recorded.series if s.unit == "%"]
        recorded = replace(recorded, series=shares or recorded.series)
    x_series = _series_on_x(x, recorded) if kind == "scatter" and x else ""
    chart = chart_of(
        kind,
        recorded,
        width=width,
        title=title,
        join=options.join,
        x=x_series,
        align=options.align or "",
    )
    for gap in gaps_of(recorded):
        say(gap)
    target = output or _default_path(sources[0], kind)
    return target, shipped(chart, recorded, target.name, code)


def _derived(recorded: Recorded, expressions: list[str]) -> Recorded:
    """Add series computed from the recorded ones; each expression may use the earlier ones."""
    from dataclasses import replace

    from penstock.archive.series.expression import derived, split

    for text in expressions:
        name, expression = split(text)
        computed = derived(recorded, name, expression)
        recorded = replace(recorded, series=[*recorded.series, *computed.series])
    return recorded


def _series_on_x(x: str, recorded: Recorded) -> str:
    """Name of the series on the horizontal axis, as in the figure's data; empty if `x` matches none."""
    from penstock.archive.series.series import takes

    matches = [s for s in recorded.series if takes(x, s)]
    names = {s.name for s in matches}
    quantities = {s.quantity for s in matches}
    same_quantity = [s for s in recorded.series if s.quantity in quantities]
    if len(names) == 1:
        return names.pop()
    if len(quantities) == 1 and len(same_quantity) == len(matches):
        return quantities.pop()
    return x if matches else ""


@functools.cache
def _is_recorded(source: str) -> bool:
    from penstock.archive.run_names import names_recorded

    return source != "-" and "://" not in source and names_recorded(source)


def _has_points(run: Path) -> bool:
    return (run / "points.parquet").is_file()


def _default_path(source: str, kind: str) -> Path:
    """Path of a figure without -o: in the run or the study, else in the current directory."""
    path = Path(source)
    if path.is_dir():
        return path / "figures" / f"{kind}.svg"
    name = "" if source == "-" or "://" in source else re.sub(r"[^\w.-]+", "-", path.stem) + "-"
    return Path(f"{name}{kind}.svg")


def _read(
    sources: list[str],
    kind: str,
    table: str | None,
    x: str | None,
    align: str | None,
    partial: bool,
    plotted: Sequence[str],
) -> Recorded:
    from dataclasses import replace

    from penstock.archive.run_names import select_named
    from penstock.archive.series import read_series, series_tables
    from penstock.errors import BadInput

    inputs = []
    for number, source in enumerate(sources):
        if source == "-":
            content = sys.stdin.buffer.read(series_tables.MOST_BYTES + 1)
            series = series_tables.of_csv(content, "stdin", x)
        elif source.startswith(("http://", "https://")):
            from penstock.archive.series.incomplete import of_headers
            from penstock.client import download

            content, headers = download(source, series_tables.MOST_BYTES)
            verdict = of_headers(headers)
            if verdict.lines and not (partial or verdict.running):
                message = f"{source}: found {'; '.join(verdict.lines)}"
                if verdict.refuses:
                    raise BadInput(f"{message}; expected complete ones, or --partial")
                print(f"penstock: {message}", file=sys.stderr)
            series = series_tables.of_csv(content, source, x)
        elif _is_recorded(source):
            selection = select_named(source)
            # experiments have sequences among their points
            plain = kind != "sequence" or (selection.runs[:1] and _has_points(selection.runs[0]))
            table_name = table or (None if plain else "io_events")
            series = read_series.of_selection(
                selection, table_name, align, partial=partial, drawn=plotted
            )
            for text in [] if partial else _unknown_notes(selection.runs):
                print(f"penstock: {text}", file=sys.stderr)
        else:
            series = series_tables.of_file(Path(source), x, partial=partial)
        for text in series.notes:
            print(f"penstock: {text}", file=sys.stderr)
        if align is not None and not _is_recorded(source):
            raise BadInput(f"--align: found {source}, no run; expected one that has phases")
        if len(sources) > 1:
            name = Path(source).stem if source != "-" else "stdin"
            label = (
                f"{name}"
                if len({Path(s).stem for s in sources}) == len(sources)
                else f"#{number + 1}"
            )
            series = replace(series, series=[replace(s, run=s.run or label) for s in series.series])
        inputs.append(series)
    phases = inputs[0].phases if len(inputs) == 1 else []
    return replace(inputs[0], series=[s for series in inputs for s in series.series], phases=phases)


def _unknown_notes(runs: Sequence[Path]) -> list[str]:
    """Notes on runs whose completeness is unknown."""
    from penstock.archive.completeness import check_manifest, unknown_note

    notes = [unknown_note(check_manifest(run / "manifest.json")) for run in runs]
    return [text for text in notes if text]


def _of_tables(
    out: Path,
    kind: str,
    output: Path | None,
    response: str | None,
    run: list[str],
    file: str | None,
    compared: list[Path],
    width: str,
    as_json: bool,
) -> tuple[Path, dict[str, bytes]] | None:
    """Path and files of a figure of a study or a trace; None if it was drawn on the terminal."""
    from penstock.archive.completeness import reading
    from penstock.archive.selection import is_study
    from penstock.errors import BadInput
    from penstock.report.figures.chart import size_of

    inches = size_of(width).width
    if is_study(out):
        target = output or out / "figures" / f"{kind}.svg"
        content = _of_study(out, kind, inches, response, run, target.suffix.lstrip("."))
        return target, {target.name: content}
    if len(compared) > 1:
        raise BadInput(f"--beside: found {len(compared)} traces; expected one")
    with reading(out, *compared) as traces:
        if output is None and kind == "offsets" and not compared and not as_json:
            _in_terminal(traces[0], file)
            return None
        target = output or traces[0] / "figures" / f"{kind}.svg"
        content = _of_trace(traces, kind, inches, file, target.suffix.lstrip("."))
    return target, {target.name: content}


def _of_study(
    out: Path, kind: str, width: float, response: str | None, runs: list[str], extension: str
) -> bytes:
    from penstock.analyse.outcome import Outcome
    from penstock.report import figures, render

    return render.published(
        figures.draw(Outcome.read(out), kind, width, response, runs or None), extension
    )


def _of_trace(
    traces: list[Path], kind: str, width: float, file: str | None, extension: str
) -> bytes:
    from penstock.analyse.traces.traced_run import TracedRun
    from penstock.report import render
    from penstock.report.trace.plots import plot

    first, *others = [TracedRun(path) for path in traces]
    compared = others[0] if others else None
    return render.published(plot(first, kind, width, file=file, beside=compared), extension)


def _in_terminal(out: Path, file: str | None) -> None:
    from penstock.analyse.traces.traced_run import TracedRun
    from penstock.console import Console
    from penstock.errors import BadInput
    from penstock.report.style import NotDrawn
    from penstock.report.trace.gather import totals_of
    from penstock.report.trace.plots import chosen_file
    from penstock.report.trace.sections import name_of
    from penstock.report.trace.terminal import print_offsets

    run = TracedRun(out)
    if not run.has("io_events"):
        raise BadInput("offsets cannot be drawn: --mode trace records every call")
    try:
        totals = chosen_file(run, totals_of(run), file)
    except NotDrawn as error:
        raise BadInput(f"offsets cannot be drawn: {error}") from None
    width = None if sys.stdout.isatty() else 100
    console = Console(width=width)
    print_offsets(run, totals, name_of(run, totals["file_id"]), console)
