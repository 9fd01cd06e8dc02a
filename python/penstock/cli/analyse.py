"""`penstock analyse`: analysis and report again, from the bundles of a study or of one trace."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from penstock.cli.run import check_fail_on, reaches
from penstock.errors import BadInput

if TYPE_CHECKING:
    from penstock.analyse.finding import Finding


def command(
    runs: Path = typer.Argument(
        ...,
        help="The study's directory (the -o of penstock run), a run of it (OUT:r001), or a trace bundle.",
    ),
    fail_on: str | None = typer.Option(
        None, "--fail-on", metavar="SEVERITY", help="Status 3 on a finding: info, warning or error."
    ),
    as_json: bool = typer.Option(False, "--json", help="One JSON object on stdout."),
) -> None:
    """Effects, fidelity, predictions, findings and report from the runs that are there.

    Of a trace bundle: its verdicts again, from its events (without events as recorded), and its findings.
    """
    import duckdb
    import pyarrow as pa

    from penstock.archive.completeness import reading
    from penstock.archive.selection import is_study
    from penstock.campaign.analysis import analyse, headline

    check_fail_on(fail_on)
    if not is_study(runs):
        with reading(runs) as (trace,):
            try:
                found = _judge_trace(trace, as_json)
            except (OSError, pa.ArrowException, duckdb.Error, KeyError) as error:
                told = str(error).splitlines()[0]
                raise BadInput(f"{trace}: {told}; expected the bundle of a trace") from error
        if reaches(found, fail_on):
            raise typer.Exit(3)
        return
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
        for line in result.lines():
            print(line)
        if result.report is not None:
            print(result.report)
    if not result.valid_runs:
        print("penstock: no valid run", file=sys.stderr)
        raise typer.Exit(1)
    if not result.answer:
        print("penstock: no response could be analysed", file=sys.stderr)
        raise typer.Exit(1)
    if reaches(result.findings, fail_on):
        raise typer.Exit(3)


def _judge_trace(bundle: Path, as_json: bool) -> list[Finding]:
    import pyarrow.parquet as pq

    from penstock.analyse.trace_findings import findings_of
    from penstock.errors import printable
    from penstock.observe.trace.verdicts.rejudge import rejudged_patterns
    from penstock.text import basis_text

    if (bundle / "io_events.parquet").exists():
        table, _ = rejudged_patterns(bundle)
    else:
        table = pq.read_table(bundle / "patterns.parquet")
        print(
            "penstock: the bundle has no single calls (--mode trace keeps them): verdicts as they "
            "were recorded",
            file=sys.stderr,
        )
    rows = [row for row in table.to_pylist() if row["tid"] is None]
    found = findings_of(bundle)
    if as_json:
        verdicts = [row | {"evidence": json.loads(row["evidence"] or "{}")} for row in rows]
        findings = [vars(finding) for finding in found]
        print(json.dumps({"verdicts": verdicts, "findings": findings}, default=str))
        return found
    for row in rows:
        where = printable(row["path"] or f"file {row['file_id']}")
        phase = f", {row['phase_id']}" if row["phase_id"] else ""
        print(f"{where} {row['direction']} ({basis_text(row['basis'])}{phase}): {row['sentence']}")
    for finding in found:
        print(f"{finding.code}: {printable(finding.statement)}")
    return found
