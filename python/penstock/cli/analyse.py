"""`penstock analyse`: analysis and report again, from the bundles of a study."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import typer

from penstock.campaign.analysis import analyse, headline
from penstock.cli.run import check_fail_on, reaches


def command(
    runs: Path = typer.Argument(..., help="The study's directory (the -o of penstock run)."),
    fail_on: str | None = typer.Option(
        None, "--fail-on", metavar="SEVERITY", help="Status 3 on a finding: info, warning or error."
    ),
    as_json: bool = typer.Option(False, "--json", help="One JSON object on stdout."),
) -> None:
    """Effects, fidelity, predictions, findings and report from the runs that are there."""
    check_fail_on(fail_on)
    result = analyse(runs.resolve(), lambda line: print(line, file=sys.stderr))
    for note in result.notes:
        print(f"penstock: {note}", file=sys.stderr)
    if as_json:
        print(
            json.dumps(
                {
                    "out": str(result.out),
                    "runs": len(result.runs),
                    "valid_runs": result.valid_runs,
                    "answer": result.answer,
                    "effects": headline(result.effects),
                    "findings": [vars(f) for f in result.findings],
                    "notes": result.notes,
                    "report": str(result.report) if result.report else None,
                },
                default=str,
            )
        )
    else:
        for sentence in result.answer:
            print(sentence)
        if result.report is not None:
            print(result.report)
    if not result.valid_runs:
        print("penstock: no valid run", file=sys.stderr)
        raise typer.Exit(1)
    if reaches(result.findings, fail_on):
        raise typer.Exit(3)
