"""`penstock plot`: one figure for a publication, or for the terminal."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import typer


def command(
    out: Path = typer.Argument(
        ...,
        metavar="OUT",
        help="The directory of a study's results, a run or treatment of it (OUT:r001, OUT:t01), or a trace.",
    ),
    kind: str = typer.Argument(
        ...,
        metavar="KIND",
        help="Of a study: effects, pareto, interactions, responses, costs, predictions, fraction, "
        "offsets, utilisation or fidelity. Of a trace: offsets, offsets-time, clock or before-after.",
    ),
    output: Path | None = typer.Option(
        None,
        "-o",
        "--output",
        help="Where to: .svg, .pdf or .png (default OUT/figures/KIND.svg; of a trace, the terminal).",
    ),
    response: str | None = typer.Option(None, help="The response (default: the study's first)."),
    run: list[str] = typer.Option([], help="Runs to show (offsets, utilisation); may be repeated."),
    file: str | None = typer.Option(
        None, "--file", help="Of a trace: which file, by its path or the end of it."
    ),
    beside: Path | None = typer.Option(
        None, "--beside", help="Of a trace: a second one, drawn beside it on the same axes."
    ),
    width: float = typer.Option(7.2, min=2.0, max=40.0, help="Width in inches."),
    as_json: bool = typer.Option(False, "--json", help="Print the file's name as JSON."),
) -> None:
    """Draw one figure from the tables in OUT."""
    from penstock.archive.completeness import reading
    from penstock.archive.selection import is_study
    from penstock.errors import BadInput
    from penstock.report import style

    if is_study(out):
        target = output or out / "figures" / f"{kind}.svg"
        try:
            content = _of_study(out, kind, width, response, run, target.suffix.lstrip("."))
        except style.NotDrawn as missing:
            raise BadInput(f"{kind} cannot be drawn: {missing}") from None
    else:
        with reading(out, *([beside] if beside else [])) as traces:
            if output is None and kind == "offsets" and beside is None and not as_json:
                _in_terminal(traces[0], file)
                return
            target = output or traces[0] / "figures" / f"{kind}.svg"
            try:
                content = _of_trace(traces, kind, width, file, target.suffix.lstrip("."))
            except style.NotDrawn as missing:
                raise BadInput(f"{kind} cannot be drawn: {missing}") from None
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    print(json.dumps({"figure": str(target)}) if as_json else target)


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
    from penstock.analyse.traced_run import TracedRun
    from penstock.report import render
    from penstock.report.trace.plots import plot

    one, *others = [TracedRun(path) for path in traces]
    beside = others[0] if others else None
    return render.published(plot(one, kind, width, file=file, beside=beside), extension)


def _in_terminal(out: Path, file: str | None) -> None:
    from rich.console import Console

    from penstock.analyse.traced_run import TracedRun
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
        chosen = chosen_file(run, totals_of(run), file)
    except NotDrawn as missing:
        raise BadInput(f"offsets cannot be drawn: {missing}") from None
    width = None if sys.stdout.isatty() else 100
    console = Console(width=width, highlight=False)
    print_offsets(run, chosen, name_of(run, chosen["file_id"]), console)
