"""penstock check: whether what was measured is what was expected; where it is not, whose fault that is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from penstock.errors import BadInput

if TYPE_CHECKING:
    from penstock.parts.conformity.comparison import Judged
    from penstock.parts.conformity.expected import Expectation

_WIDTH = 100


def command(
    expected: Path = typer.Argument(
        metavar="EXPECTED",
        help="A file of expected values (YAML or JSON), what `penstock predict --json` wrote, or what was "
        "measured elsewhere (as RUN): the local file system, the release before.",
    ),
    run: Path = typer.Argument(
        metavar="RUN",
        help="Measured rows (.parquet or .csv: module, operation, trial, value), or a study's results: "
        "OUT, OUT:t01.",
    ),
    tolerance: str | None = typer.Option(
        None, "--tolerance", help="How far off a mean may be from a prediction (default: 10%)."
    ),
    trials: int | None = typer.Option(
        None, "--trials", min=2, help="Trials that a prediction is held against (default: 15)."
    ),
    changed: Path | None = typer.Option(
        None,
        "--what-if",
        metavar="EXPECTED",
        help="A prediction with a change that is not made yet: what the run would take with it.",
    ),
    blame: bool = typer.Option(
        False, "--blame", help="Every place that was looked at, in order, also where nothing is."
    ),
    junit: Path | None = typer.Option(None, "--junit", help="Write JUnit XML to this file."),
    as_json: bool = typer.Option(False, "--json", help="The result as one object."),
) -> None:
    """Judge each measured operation: SLOW, TOO_FAST, NOISY, UNSTABLE or OK; name what made it slow.

    Exit status 3 unless every row is OK.
    """
    from penstock.parts.conformity.comparison import OK, judge_all
    from penstock.parts.conformity.diagnosis import blamed, causes
    from penstock.parts.conformity.expectation import RUN
    from penstock.parts.conformity.junit import junit_xml
    from penstock.parts.conformity.measured_rows import read_measured
    from penstock.parts.conformity.report import document, gain_lines, lines
    from penstock.parts.conformity.what_if import what_if
    from penstock.writing import check_target, write_whole

    if junit is not None:
        check_target(junit)
    asked = _expectation(expected, _share(tolerance), trials)
    measured = read_measured(run, files=any(row.operation != RUN for row in asked.rows))
    rows = judge_all(asked, measured.trials(asked), measured.keys)
    steps = blamed(asked, measured, rows)
    gains = [] if changed is None else what_if(_expectation(changed, None, None), rows)
    if junit is not None:
        write_whole(junit, junit_xml(asked.name, rows, causes(steps)))
    if as_json:
        print(json.dumps(document(asked, measured.origin, rows, steps, gains), allow_nan=False))
    else:
        _show(rows)
        print("\n".join(lines(rows, steps, all_steps=blame)))
        if gains:
            print("\n".join(gain_lines(gains)))
    raise typer.Exit(0 if all(row.verdict == OK for row in rows) else 3)


def _expectation(path: Path, tolerance: float | None, trials: int | None) -> Expectation:
    """Of a table or a study's results what was measured there, else what the file says."""
    from penstock.archive.selection import is_study
    from penstock.parts.conformity.expectation import load_expectation
    from penstock.parts.conformity.expected import TOLERANCE, TRIALS
    from penstock.parts.conformity.measured_rows import expected_of, read_measured

    table = path.suffix in (".csv", ".parquet")
    study, colon, _ = str(path).rpartition(":")
    if table or is_study(path) or (colon and is_study(Path(study))):
        measured = read_measured(path)
        return expected_of(measured, tolerance or TOLERANCE, trials or TRIALS, every_row=table)
    return load_expectation(path, tolerance, trials)


def _share(text: str | None) -> float | None:
    from penstock.spec.units import parse_share

    if text is None:
        return None
    try:
        share = parse_share(text)
    except ValueError as error:
        raise BadInput(f"--tolerance: found '{text}'; expected {error}") from None
    if share <= 0:
        raise BadInput(f"--tolerance: found '{text}'; expected a share above 0 %, such as 10 %")
    return share


def _show(rows: list[Judged]) -> None:
    from rich.table import Table

    from penstock.console import Console
    from penstock.parts.conformity.report import COLUMNS, cells

    table = Table(box=None, pad_edge=False)
    for name, number in COLUMNS:
        justify = "right" if number else "left"
        table.add_column(name, justify=justify, no_wrap=number, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*cells(row))
    Console(width=_WIDTH).print(table)
