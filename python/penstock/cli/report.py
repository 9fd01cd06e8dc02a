"""`penstock report`: write the report of a study or a trace."""

from __future__ import annotations

import sys
import webbrowser
from enum import StrEnum
from pathlib import Path

import typer

from penstock.cli.shared.output import print_json


class Open(StrEnum):
    """Show the page in a browser; `auto`: only from a terminal."""

    auto = "auto"
    yes = "yes"
    no = "no"


def command(
    out: Path = typer.Argument(
        ...,
        metavar="OUT",
        help="The directory of a study's results, a run or treatment of it (OUT:r001, OUT:t01), or a trace.",
    ),
    show: Open = typer.Option(Open.no, "--open", help="Show the page in a browser."),
    as_json: bool = typer.Option(False, "--json", help="Print the findings as JSON."),
) -> None:
    """Write OUT/report.html, its figures and the findings, from the tables in OUT."""
    from penstock.archive.completeness import reading
    from penstock.archive.selection import is_study

    if is_study(out):
        page = _study_report(out, as_json)
    else:
        with reading(out) as (trace,):
            page = _trace_report(trace, as_json)
    if show is Open.yes or (show is Open.auto and sys.stdout.isatty()):
        webbrowser.open(page.resolve().as_uri())


def _trace_report(bundle: Path, as_json: bool) -> Path:
    from penstock.analyse.traces.traced_run import TracedRun
    from penstock.errors import printable
    from penstock.report.trace.page import write_trace_report

    run = TracedRun(bundle)
    page, findings = write_trace_report(run), run.findings
    closing = run.from_disk(str(run.manifest.get("closing") or ""))
    if as_json:
        value = {"report": str(page), "closing": closing, "findings": [vars(f) for f in findings]}
        print_json(value, indent=1)
    else:
        print(page)
        for sentence in [closing, *(f.statement for f in findings)]:
            print(printable(sentence), file=sys.stderr)
    return page


def _study_report(out: Path, as_json: bool) -> Path:
    from penstock.analyse.findings.answer import answer
    from penstock.analyse.findings.findings import findings
    from penstock.analyse.outcome import Outcome
    from penstock.archive.runs import bundles
    from penstock.report.html import write_report

    if not (out / "runs.parquet").exists() and bundles(out):  # a campaign was killed
        from penstock.campaign.analysis import analyse

        analyse(out.resolve(), lambda line: print(line, file=sys.stderr), report=False)
    page = write_report(out)
    outcome = Outcome.read(out)
    all_findings = findings(outcome)
    conclusion = answer(outcome, all_findings)
    if as_json:
        sentences = [] if conclusion is None else conclusion.sentences
        document = {
            "report": str(page),
            "answer": sentences,
            "findings": [vars(f) for f in all_findings],
        }
        print_json(document, indent=1)
    else:
        print(page)
        for line in [] if conclusion is None else conclusion.lines(out=out):
            print(line, file=sys.stderr)
    return page
