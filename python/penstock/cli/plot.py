"""`penstock plot`: one figure for a publication."""

from __future__ import annotations

import json
from pathlib import Path

import typer


def command(
    out: Path = typer.Argument(..., metavar="OUT", help="The directory of a study's results."),
    kind: str = typer.Argument(
        ...,
        metavar="KIND",
        help="effects, pareto, interactions, responses, costs, predictions, fraction, offsets, "
        "utilisation or fidelity.",
    ),
    file: Path | None = typer.Option(
        None, "-o", "--output", help="Where to: .svg, .pdf or .png (default OUT/figures/KIND.svg)."
    ),
    response: str | None = typer.Option(None, help="The response (default: the study's first)."),
    run: list[str] = typer.Option([], help="Runs to show (offsets, utilisation); may be repeated."),
    width: float = typer.Option(7.2, min=2.0, max=40.0, help="Width in inches."),
    as_json: bool = typer.Option(False, "--json", help="Print the file's name as JSON."),
) -> None:
    """Draw one figure from the tables in OUT."""
    from penstock.analyse.outcome import Outcome
    from penstock.errors import PenstockError
    from penstock.report import figures, render, style

    target = file or out / "figures" / f"{kind}.svg"
    try:
        fig = figures.draw(Outcome.read(out), kind, width, response, run or None)
    except style.NotDrawn as missing:
        raise PenstockError(f"{kind} cannot be drawn: {missing}") from None
    content = render.published(fig, target.suffix.lstrip("."))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    print(json.dumps({"figure": str(target)}) if as_json else target)
