"""`penstock plan STUDY`: the planned runs of a study."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from penstock.errors import BadInput

if TYPE_CHECKING:
    from penstock.design.planned import Plan
    from penstock.spec.study import Response, Study


def command(
    study: Path | None = typer.Argument(None, help="The study file."),
    as_json: bool = typer.Option(False, "--json", help="The plan as one JSON object."),
    overrides: list[str] = typer.Option(
        [], "--set", metavar="a.b=c", help="Set a value of the study; may be repeated."
    ),
    quick: bool = typer.Option(
        False, "--quick", help="The smallest version of the study that still gives a result."
    ),
    augment: Path | None = typer.Option(
        None,
        "--augment",
        metavar="OUT",
        help="Runs that could be added to a finished study to separate aliased effects.",
    ),
    response: str | None = typer.Option(
        None, "--response", help="With --augment: the response to consider (default: the first)."
    ),
    top: int | None = typer.Option(
        None,
        "--top",
        min=1,
        metavar="M",
        help="With --augment: the M largest effects are resolved.",
    ),
    show: bool = typer.Option(
        False,
        "--show",
        help="Show the steps before and in each run instead.",
    ),
    rank_by: Path | None = typer.Option(
        None,
        "--rank-by-prediction",
        metavar="TABLE",
        help="Rank the treatments by their predictions (OUT of a study, Parquet or CSV), best first.",
    ),
    suggest: bool = typer.Option(
        False,
        "--suggest",
        help="Suggest factors and levels that mattered in archived studies of similar hosts.",
    ),
    identical: int = typer.Option(
        0,
        "--identical",
        min=0,
        max=100_000,
        metavar="STUDIES",
        help="Simulate N studies of identical treatments with this plan and its analysis, and print the "
        "rate of false differences. Exit with status 3 if it exceeds 5 % by more than chance.",
    ),
) -> None:
    """Show the planned runs: order, aliases, power, time. Nothing is run."""
    if augment is not None:
        _augment(augment, response, top, as_json)
        return
    if suggest:
        _suggest(study, as_json)
        return
    if study is None:
        raise BadInput("found no STUDY; expected a study file, --augment OUT or --suggest")
    from penstock.campaign.speed import as_planned
    from penstock.design.plan import make_plan
    from penstock.study.load import load_study

    loaded, notes = as_planned(load_study(study, overrides, quick))
    plan = make_plan(loaded)
    if rank_by is not None:
        _rank(plan, loaded.responses[0], rank_by, as_json)
    elif identical:
        _identical(loaded, plan, identical, as_json)
    else:
        _show(loaded, plan, notes, show, as_json)


def _show(study: Study, plan: Plan, notes: list[str], steps_only: bool, as_json: bool) -> None:
    from penstock.analyse.fidelity.timeouts import time_out_warnings
    from penstock.campaign.speed import speeds_of, what_run_says
    from penstock.design.changes import sequence
    from penstock.design.planned import treatments_of
    from penstock.design.show import paragraph, plan_text, sequence_text
    from penstock.study.resolve import resolvable
    from penstock.study.unused import idle_hosts, unused_disks

    treatments = resolvable(study, treatments_of(plan))
    speeds = speeds_of(study, treatments)
    notes = [*notes, *filter(None, [speeds.stated])]
    warnings = [
        *unused_disks(study),
        *idle_hosts(study, len({row.block for row in plan.rows})),
        *time_out_warnings(treatments),
        *what_run_says(treatments),
        *speeds.unequal(),
    ]
    steps = list(sequence(study.factors, plan.rows))
    if as_json:
        scales = study.time_scales.model_dump() if study.time_scales is not None else None
        document: dict[str, Any] = {"time_scales": scales, "notes": notes, "warnings": warnings}
        document["sequence"] = [step.to_json() for step in steps] if steps_only else None
        print(json.dumps({**plan.to_json(), **document}, indent=2))
        return
    if steps_only:
        print(sequence_text(steps, study, {r.run_id: r.levels for r in plan.rows}))
        return
    print(plan_text(plan, study, speeds.label))
    for text in [*(f"Note: {note}" for note in notes), *(f"Warning: {w}" for w in warnings)]:
        print("\n" + paragraph(text))


def _identical(study: Study, plan: Plan, studies: int, as_json: bool) -> None:
    from penstock.analyse.sequential.identical import identical, identical_lines

    result = identical(study, plan, studies)
    print(json.dumps(result.to_json()) if as_json else "\n".join(identical_lines(result)))
    raise typer.Exit(0 if result.holds else 3)


def _rank(plan: Plan, response: Response, path: Path, as_json: bool) -> None:
    from penstock.analyse.sequential.predicted_rank import predictions_of, rank_lines, ranked

    ranking = ranked(plan, response, predictions_of(path))
    if as_json:
        print(json.dumps([vars(row) for row in ranking], indent=2))
        return
    for line in rank_lines(ranking, response):
        print(line)


def _augment(out: Path, response: str | None, most: int | None, as_json: bool) -> None:
    from penstock.analyse.sequential.augment_text import augment_json, augment_text
    from penstock.campaign.augment import opened

    study = opened(out, response, most)
    proposals = study.proposals()
    if as_json:
        print(json.dumps(augment_json(study, proposals), indent=2))
    else:
        print(augment_text(study, proposals))


def _suggest(study: Path | None, as_json: bool) -> None:
    from penstock.campaign.measurements.suggest import suggest_text, suggestions
    from penstock.study.load import load_study

    factors = [f.name for f in load_study(study).factors] if study is not None else []
    suggested = suggestions(factors)
    if as_json:
        print(json.dumps([s.to_json() for s in suggested], indent=2))
    else:
        print(suggest_text(suggested))
