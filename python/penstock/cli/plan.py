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
    from penstock.analyse.timeouts import time_out_warnings
    from penstock.campaign.speed import as_planned, speeds_of, what_run_says
    from penstock.design.plan import make_plan, treatments_of
    from penstock.design.show import paragraph, plan_text
    from penstock.study.load import load_study
    from penstock.study.resolve import resolvable

    loaded, notes = as_planned(load_study(study, overrides, quick))
    plan = make_plan(loaded)
    treatments = resolvable(loaded, treatments_of(plan))
    speeds = speeds_of(loaded, treatments)
    warnings = [
        *time_out_warnings(treatments),
        *what_run_says(treatments),
        *speeds.unequal(),
    ]
    if as_json:
        scales = loaded.time_scales.model_dump() if loaded.time_scales is not None else None
        said = {"time_scales": scales, "notes": notes, "warnings": warnings}
        print(json.dumps({**plan.to_json(), **said}, indent=2))
        return
    print(plan_text(plan, loaded, speeds.label))
    for text in [*(f"Note: {note}" for note in notes), *(f"Warning: {w}" for w in warnings)]:
        print("\n" + paragraph(text))
