"""penstock check: compare measured with expected values and name the causes of deviations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from penstock.cli.shared.options import parsed
from penstock.errors import BadInput
from penstock.terminal import table_of

if TYPE_CHECKING:
    from penstock.parts.conformity.comparison import RowResult
    from penstock.parts.conformity.expected import Expectation

_WIDTH = 100


def command(
    expected: Path = typer.Argument(
        metavar="EXPECTED",
        help="A file of expected values (YAML or JSON), the output of `penstock predict --json`, or other "
        "measurements (in the form of RUN): of the local file system, of the previous release.",
    ),
    run: Path = typer.Argument(
        metavar="RUN",
        help="Measured rows (.parquet or .csv: module, operation, trial, value), or a study's results: "
        "OUT, OUT:t01.",
    ),
    tolerance: str | None = typer.Option(
        None, "--tolerance", help="Largest deviation of a mean from a prediction (default: 10%)."
    ),
    trials: int | None = typer.Option(
        None,
        "--trials",
        min=2,
        help="Least number of trials for OK, with a prediction (default: 15).",
    ),
    changed: Path | None = typer.Option(
        None,
        "--what-if",
        metavar="EXPECTED",
        help="A prediction with a planned change: estimate the measured means with it.",
    ),
    blame: bool = typer.Option(
        False, "--blame", help="Show every step of the diagnosis, also those without a finding."
    ),
    junit: Path | None = typer.Option(None, "--junit", help="Write JUnit XML to this file."),
    as_json: bool = typer.Option(False, "--json", help="Print the result as one JSON object."),
) -> None:
    """Rate each measured operation SLOW, TOO_FAST, NOISY, UNSTABLE or OK; name the cause of lost time.

    The exit status is 3 unless every row is OK.
    """
    from penstock.parts.conformity.comparison import OK, evaluate_all
    from penstock.parts.conformity.diagnosis import causes, diagnose
    from penstock.parts.conformity.expectation import RUN
    from penstock.parts.conformity.junit import junit_xml
    from penstock.parts.conformity.measured_rows import read_measured
    from penstock.parts.conformity.report import document, gain_lines, lines
    from penstock.parts.conformity.what_if import what_if
    from penstock.writing import check_target, write_atomic

    if junit is not None:
        check_target(junit)
    expectation = _expectation(expected, _share(tolerance), trials)
    measured = read_measured(run, files=any(row.operation != RUN for row in expectation.rows))
    results = evaluate_all(expectation, measured.trials(expectation), measured.keys)
    steps = diagnose(expectation, measured, results)
    gains = [] if changed is None else what_if(_expectation(changed, None, None), results)
    if junit is not None:
        write_atomic(junit, junit_xml(expectation.name, results, causes(steps)))
    if as_json:
        print(
            json.dumps(
                document(expectation, measured.origin, results, steps, gains), allow_nan=False
            )
        )
    else:
        _show(results)
        print("\n".join(lines(results, steps, all_steps=blame)))
        if gains:
            print("\n".join(gain_lines(gains)))
    raise typer.Exit(0 if all(row.verdict == OK for row in results) else 3)


def _expectation(path: Path, tolerance: float | None, trials: int | None) -> Expectation:
    """Read expected values from a table, the results of a study, a prediction, or a file of them."""
    from penstock.archive.selection import is_study
    from penstock.parts.conformity.expectation import load_expectation
    from penstock.parts.conformity.expected import TOLERANCE, TRIALS
    from penstock.parts.conformity.measured_rows import measured_expectation, read_measured

    table = path.suffix in (".csv", ".parquet")
    study, colon, _ = str(path).rpartition(":")
    if table or is_study(path) or (colon and is_study(Path(study))):
        measured = read_measured(path)
        return measured_expectation(
            measured, tolerance or TOLERANCE, trials or TRIALS, every_row=table
        )
    return load_expectation(path, tolerance, trials)


def _share(text: str | None) -> float | None:
    from penstock.spec.units import parse_share

    if text is None:
        return None
    share = parsed("--tolerance", text, parse_share)
    if share <= 0:
        raise BadInput(f"--tolerance: found '{text}'; expected a share above 0 %, such as 10 %")
    return share


def _show(results: list[RowResult]) -> None:
    from penstock.console import Console
    from penstock.parts.conformity.report import COLUMNS, cells

    Console(width=_WIDTH).print(table_of(COLUMNS, map(cells, results)))
