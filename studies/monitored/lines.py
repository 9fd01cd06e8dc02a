"""Lines of a monitored study (a figure with its spread, a goal, the verdict), and the program of a study.

A figure that is not a number was not measured, which fails as a missed goal does.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from bench import record
from penstock.errors import PenstockError
from studies import claims as checks
from studies.claims import Claim

#: run the study in a folder, in its quick size or not: its lines, and the detection of planted failures
Study = Callable[[Path, bool], tuple[Sequence[record.Row], Mapping[str, bool]]]
FAILED = (PenstockError, OSError, httpx.HTTPError, subprocess.SubprocessError)


def line(case: str, metric: str, value: float, unit: str, holds: bool, bar: str) -> record.Row:
    """A figure that was measured once, and its goal."""
    row = record.row(case, "", metric, [value], unit)
    return {**row, "bar": bar, "verdict": _verdict(value, holds)}


def interval(
    case: str,
    metric: str,
    figures: tuple[float, float, float],
    unit: str,
    n: int,
    bar: str,
    holds: bool,
) -> record.Row:
    """A figure with its 95 % interval and a goal."""
    value, low, high = figures
    return {
        **record.row(case, "", metric, [value], unit),
        "low": low,
        "high": high,
        "n": n,
        "spread": record.INTERVAL,
        "bar": bar,
        "verdict": _verdict(value, holds),
    }


def _verdict(value: float, holds: bool) -> str:
    if math.isnan(value):
        return record.NOT_MEASURED
    return record.MET if holds else record.MISSED


def claims_of(rows: Sequence[record.Row]) -> list[Claim]:
    """Claims of the lines that have a goal."""
    return [
        checks.of_row(row, {row["case"]: int(row["verdict"] != record.NOT_MEASURED)})
        for row in rows
        if row.get("verdict")
    ]


def _show(title: str, rows: Sequence[record.Row], planted: Mapping[str, bool]) -> None:
    """Print all lines, and the planted failures."""
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    for heading in ("case", "figure", "found", "goal", "verdict"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        goal, verdict = row.get("bar", ""), row.get("verdict", "")
        table.add_row(row["case"], row["metric"], checks.figure(row), goal, verdict)
    Console(width=140, highlight=False).print(table)
    for failure, detected in planted.items():
        print(f"planted: {failure}: {'detected' if detected else 'NOT DETECTED'}")


def program(name: str, document: str | None, about: str, quick: str, study: Study) -> int:
    """Run a monitored study from the command line; return the exit status of its check."""
    title = (document or name).splitlines()[0]
    options = argparse.ArgumentParser(description=title)
    options.add_argument("-o", "--out", type=Path, default=record.ROOT / "out" / name)
    options.add_argument("--quick", action="store_true", help=quick)
    options.add_argument("--json", action="store_true", help="the lines as one object")
    record.option(options)
    arguments = options.parse_args()
    try:
        rows, planted = study(arguments.out.resolve(), arguments.quick)
    except FAILED as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    record.keep(arguments.record, rows, planted, about)
    if arguments.json:
        print(json.dumps({"rows": list(rows), "planted": dict(planted)}))
    else:
        _show(title, rows, planted)
    return checks.finish(name, claims_of(rows), planted)
