"""`penstock run`: plan, run, observe, analyse, report."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from penstock.analyse.findings.finding import SEVERITIES
from penstock.cli.shared.options import QUIET
from penstock.errors import BadInput
from penstock.terminal import say
from penstock.text import counted

if TYPE_CHECKING:
    from penstock.campaign.analysis import Analysis
    from penstock.campaign.campaign import CampaignResult


def command(
    study: Path = typer.Argument(..., help="The study file."),
    out: Path | None = typer.Option(None, "-o", "--out", help="Directory of the results (./NAME)."),
    quick: bool = typer.Option(
        False, "--quick", help="The smallest version of the study that still gives a result."
    ),
    resume: bool = typer.Option(
        False,
        "--resume",
        help="Continue: run what is missing, and repeat runs that the host invalidated.",
    ),
    repeat: str = typer.Option(
        "", "--repeat", metavar="WHICH", help="With --resume: also repeat degraded runs."
    ),
    keep_going: bool = typer.Option(
        False,
        "--keep-going",
        help="Continue if a treatment fails, or if the host invalidates many runs.",
    ),
    augment: str = typer.Option(
        "",
        "--augment",
        metavar="STEP",
        help="Continue with more treatments or replicates: best, foldover, foldover:FACTOR, semifold:FACTOR, "
        "coset, optimal:ROWS or replicates:NUMBER (`penstock plan --augment OUT` compares them).",
    ),
    interleaved: bool = typer.Option(
        False,
        "--interleaved",
        help="With --augment: repeat the earlier treatments among the new ones.",
    ),
    report: bool = typer.Option(
        True,
        "--report/--no-report",
        help="Write the page and its figures; `penstock report OUT` writes them later.",
    ),
    transport: str | None = typer.Option(
        None,
        "--transport",
        help="Transport of emulated disks: device or io_uring; by default the faster one, as doctor "
        "measured.",
    ),
    overrides: list[str] = typer.Option([], "--set", metavar="A.B=C", help="Change the study."),
    fail_on: str | None = typer.Option(
        None,
        ("--fail-on"),
        metavar="SEVERITY",
        help="Exit with status 3 on a finding of this severity or above: info, warning or error.",
    ),
    as_json: bool = typer.Option(False, "--json", help="One JSON object on stdout at the end."),
    quiet: bool = QUIET,
) -> None:
    """Run a study, analyse it and write its report."""
    from penstock.campaign.run import run_study
    from penstock.emulate.disks.transport import require

    if transport is not None:
        require(transport)
    check_fail_on(fail_on)
    if interleaved and not augment:
        raise BadInput("--interleaved: found no --augment; expected --augment STEP")
    if repeat and (repeat != "degraded" or not resume or augment):
        raise BadInput(f"--repeat: found {repeat}; expected --resume --repeat degraded")
    result = run_study(
        study,
        out,
        quick=quick,
        resume=resume,
        overrides=overrides,
        quiet=quiet,
        keep_going=keep_going,
        report=report and as_json,
        augment=augment,
        interleaved=interleaved,
        repeat=repeat,
    )
    _print_results(result, study, report, quiet, as_json)
    raise typer.Exit(_exit_status(result, fail_on))


def _exit_status(result: CampaignResult, fail_on: str | None) -> int:
    """Exit status of a campaign; prints the reason why it has no complete answer."""
    if result.interrupted:
        return 130
    if result.failed:
        say(f"stopped: {result.failed}")
        return 1
    if result.limited:
        print(
            f"penstock: ended at a limit of the study: {result.limited}; with a larger limit, --resume makes "
            "the missing runs",
            file=sys.stderr,
        )
    if not result.valid_runs:
        say("no valid run")
        return 1
    if result.analysis is not None and not result.analysis.answer:
        say("no response could be analysed")
        return 1
    findings = result.analysis.findings if result.analysis is not None else []
    return 3 if reaches(findings, fail_on) else 0


def check_fail_on(fail_on: str | None) -> None:
    """Raise BadInput for an invalid severity."""
    if fail_on is not None and fail_on not in SEVERITIES:
        raise BadInput(f"--fail-on: found {fail_on}; expected {', '.join(SEVERITIES)}")


def reaches(findings: list[Any], fail_on: str | None) -> bool:
    """True if a finding is at or above the severity."""
    if fail_on is None:
        return False
    return any(SEVERITIES.index(f.severity) >= SEVERITIES.index(fail_on) for f in findings)


def _print_advice(result: CampaignResult, study: Path) -> None:
    """Print how to repeat runs that are not valid."""
    excluded = result.runs - result.valid_runs
    if not excluded or result.interrupted or result.failed:
        return
    print(
        f"penstock: {counted(excluded, 'run is', 'runs are')} not valid, and left out; "
        f"`penstock run {shlex.quote(str(study))} -o {shlex.quote(str(result.out))} --resume` repeats "
        "those that the host invalidated",
        file=sys.stderr,
    )


def print_page(analysis: Analysis, progress: Callable[[str], None]) -> None:
    """Write the page after the answer was printed, and print its path, or why there is none."""
    from penstock.campaign.analysis import write_page

    sys.stdout.flush()
    before = len(analysis.notes)
    write_page(analysis, progress)
    for note in analysis.notes[before:]:
        say(note)
    if analysis.report is not None:
        print(analysis.report)


def _print_results(
    result: CampaignResult, study: Path, report: bool, quiet: bool, as_json: bool
) -> None:
    if as_json:
        print(json.dumps(result.to_json()))
        return
    analysis = result.analysis
    if analysis is None:
        return
    for note in analysis.notes:
        say(note)
    for line in analysis.lines(result.out, study):
        print(line)
    excluded = result.runs - result.valid_runs
    excluded_text = f", {excluded} left out" if excluded else ""
    print(f"{result.runs} of {result.planned_runs} runs{excluded_text}: {result.out}")
    if report:
        print_page(analysis, lambda line: None if quiet else print(line, file=sys.stderr))
    _print_advice(result, study)
