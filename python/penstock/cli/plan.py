"""`penstock plan STUDY`: what would run; nothing happens."""

from __future__ import annotations

import json
from pathlib import Path

import typer


def command(
    study: Path = typer.Argument(..., help="The study file."),
    as_json: bool = typer.Option(False, "--json", help="The plan as one JSON object."),
    overrides: list[str] = typer.Option(
        [], "--set", metavar="a.b=c", help="Set a value of the study; may be repeated."
    ),
    quick: bool = typer.Option(False, "--quick", help="The study's smallest honest version."),
) -> None:
    """Show what would run: runs, order, aliases, power, time. Nothing happens."""
    from penstock.campaign.speed import what_run_says
    from penstock.design.plan import make_plan, treatments_of
    from penstock.design.show import plan_text
    from penstock.study.load import load_study
    from penstock.study.timeouts import time_out_warnings

    loaded = load_study(study, overrides, quick)
    plan = make_plan(loaded)
    treatments = treatments_of(plan)
    warnings = [*time_out_warnings(loaded, treatments), *what_run_says(loaded, treatments)]
    if as_json:
        print(json.dumps({**plan.to_json(), "warnings": warnings}, indent=2))
        return
    print(plan_text(plan, loaded))
    for warning in warnings:
        print(f"\nWarning: {warning}")
