"""penstock dedup plot: decisions of the online controller as a figure."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from penstock.cli.shared.options import JSON


def command(
    log: Path = typer.Argument(metavar="LOG", help="Decisions of a controller: .jsonl, .parquet."),
    output: Path = typer.Option(
        Path("decisions.svg"), "-o", "--output", help="Output file: .svg, .pdf or .png."
    ),
    family: str | None = typer.Option(
        None, "--family", help="Family of files (default: the one with the most decisions)."
    ),
    as_json: bool = JSON,
) -> None:
    """Plot the similarity, its break-even and the configuration over the writes of a family."""
    from penstock.parts.dedup.controller.decision import read_decisions
    from penstock.parts.dedup.controller.decision_figure import write_figure

    write_figure(read_decisions(log), output, family)
    print(json.dumps({"file": str(output)}) if as_json else f"wrote {output}")
