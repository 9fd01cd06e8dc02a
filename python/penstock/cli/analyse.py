"""`penstock analyse`: repeat the analysis and report, from the bundles of a study or of one trace."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from penstock.cli.run import check_fail_on, print_page, reaches
from penstock.cli.shared.output import print_json
from penstock.errors import BadInput
from penstock.terminal import say

if TYPE_CHECKING:
    from penstock.analyse.findings.finding import Finding


def command(
    runs: Path = typer.Argument(
        ...,
        help="The study's directory (the -o of penstock run), a run of it (OUT:r001), or a trace bundle.",
    ),
    at: list[str] = typer.Option(
        [],
        "--at",
        metavar="A=1,B=x",
        help="Only predict the responses at this setting, which may be new; repeatable.",
    ),
    fraction: list[str] = typer.Option(
        [],
        "--fraction",
        metavar="D=A*B",
        help="Only report cost and results of the fraction of a full design with this generator (repeatable; "
        "or a number P, of 2^(K-P)).",
    ),
    top: int = typer.Option(
        3,
        "--top",
        min=1,
        metavar="M",
        help="With --fraction: the number of largest effects to compare.",
    ),
    leave_out: list[str] = typer.Option(
        [],
        "--leave-out",
        metavar="RUN=REASON",
        help="Exclude a run for a technical reason, which is recorded; repeatable.",
    ),
    take_back: list[str] = typer.Option(
        [], "--take-back", metavar="RUN", help="Include an excluded run again; repeatable."
    ),
    fail_on: str | None = typer.Option(
        None,
        ("--fail-on"),
        metavar="SEVERITY",
        help="Exit with status 3 on a finding of this severity or above: info, warning or error.",
    ),
    as_json: bool = typer.Option(False, "--json", help="One JSON object on stdout."),
) -> None:
    """Recompute effects, fidelity, predictions, findings and report from the recorded runs.

    For a trace bundle: verdicts, recomputed from its events (without events as recorded), and findings.
    """
    from penstock.archive.selection import is_study

    check_fail_on(fail_on)
    of_study = "--at" if at else "--fraction" if fraction else None
    if of_study is not None and not is_study(runs):
        raise BadInput(f"{runs}: found no study; expected the directory of one for {of_study}")
    if at:
        _predict(runs.resolve(), at, as_json)
        return
    if fraction:
        _fraction(runs.resolve(), fraction, top, as_json)
        return
    if not is_study(runs):
        findings = _trace(runs, as_json)
    else:
        if leave_out or take_back:
            from penstock.campaign.left_out import put_on_record

            run_ids = {p.name for p in (runs / "runs").glob("r*") if "." not in p.name}
            put_on_record(runs.resolve(), leave_out, take_back, run_ids)
        findings = _study(runs, as_json)
    if reaches(findings, fail_on):
        raise typer.Exit(3)


def _study(runs: Path, as_json: bool) -> list[Finding]:
    """Analyse a study and print the result. Raises typer.Exit if it has no answer."""
    from penstock.campaign.analysis import analyse, headline

    progress = functools.partial(print, file=sys.stderr)
    result = analyse(runs.resolve(), progress, report=as_json)
    for note in result.notes:
        say(note)
    if as_json:
        document = {
            "out": str(result.out),
            "runs": len(result.runs),
            "valid_runs": result.valid_runs,
            "answer": result.answer,
            "effects": headline(result.effects),
            "findings": [vars(f) for f in result.findings],
            "notes": result.notes,
            "report": str(result.report) if result.report else None,
        }
        print_json(document)
    else:
        for line in result.lines(runs):
            print(line)
        print_page(result, progress)
    if not result.valid_runs:
        say("no valid run")
        raise typer.Exit(1)
    if not result.answer:
        say("no response could be analysed")
        raise typer.Exit(1)
    return result.findings


def _predict(out: Path, settings: list[str], as_json: bool) -> None:
    from penstock.analyse.outcome import Outcome
    from penstock.analyse.surface.optimum import parse_at, prediction_lines, predictions_at

    points = [parse_at(text) for text in settings]
    outcome = Outcome.read(out)
    predictions = [predictions_at(outcome, at) for at in points]
    if as_json:
        print_json([row for rows in predictions for row in rows])
        return
    for text, rows in zip(settings, predictions, strict=True):
        if len(predictions) > 1:
            print(text)
        for line in prediction_lines(rows):
            print(line)


def _fraction(out: Path, generators: list[str], top: int, as_json: bool) -> None:
    from penstock.analyse.outcome import Outcome
    from penstock.analyse.sequential.fraction_cost import fraction_costs, fraction_lines

    costs = fraction_costs(Outcome.read(out), generators, top)
    if as_json:
        print_json([cost.document() for cost in costs])
        return
    for line in fraction_lines(costs):
        print(line)


def _trace(runs: Path, as_json: bool) -> list[Finding]:
    """Print the verdicts and findings of a trace. Raises BadInput for another bundle."""
    import duckdb
    import pyarrow as pa

    from penstock.archive.completeness import reading

    with reading(runs) as (trace,):
        try:
            return _analyse_trace(trace, as_json)
        except (OSError, pa.ArrowException, duckdb.Error, KeyError) as error:
            reason = str(error).splitlines()[0]
            raise BadInput(f"{trace}: {reason}; expected the bundle of a trace") from error


def _analyse_trace(bundle: Path, as_json: bool) -> list[Finding]:
    from penstock.analyse.traces.traced_run import TracedRun
    from penstock.archive.traces.verdicts import verdicts_of
    from penstock.errors import printable
    from penstock.observe.trace.verdicts.rejudge import rejudged_patterns
    from penstock.text import basis_text

    run = TracedRun(bundle)
    if run.has("io_events"):
        table, _ = rejudged_patterns(run)
    else:
        table = run.table("patterns")
        print(
            "penstock: the bundle has no calls (--mode trace records them); verdicts as recorded",
            file=sys.stderr,
        )
    rows = [row for row in verdicts_of(table) if row.tid is None]
    run_findings = run.findings
    if as_json:
        verdicts = [row.document() | {"path": run.paths.get(row.file_id)} for row in rows]
        findings = [vars(finding) for finding in run_findings]
        print_json({"verdicts": verdicts, "findings": findings})
        return run_findings
    closing = run.from_disk(str(run.manifest.get("closing") or ""))
    if closing:
        print(printable(closing))
    for finding in run_findings:
        print(f"{finding.code}: {printable(finding.statement)}")
    sufficient = [row for row in rows if row.kind != "insufficient"]
    for row in sufficient:
        phase = f", {row.phase_id}" if row.phase_id else ""
        basis = f"({basis_text(row.basis)}{phase})"
        print(f"{printable(run.from_disk(row.path))} {row.direction} {basis}: {row.sentence}")
    insufficient = len(rows) - len(sufficient)
    if insufficient:
        print(f"and {insufficient} with too few requests to evaluate (--json has all)")
    return run_findings
