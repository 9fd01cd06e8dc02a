"""The lines that a monitored study must show: a figure with its spread, a bar, and whether it is met.

And its program: options, lines, what is kept, exit status.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from bench import record
from penstock.errors import PenstockError

#: makes the study in a folder, in its quick size or not: its lines, and whether what was planted was found
Study = Callable[[Path, bool], tuple[Sequence[record.Row], Mapping[str, bool]]]
FAILED = (PenstockError, OSError, httpx.HTTPError, subprocess.SubprocessError)


def line(case: str, metric: str, value: float, unit: str, holds: bool, bar: str) -> record.Row:
    """One figure that was taken once, and a bar."""
    made = record.row(case, "", metric, [value], unit)
    return {**made, "bar": bar, "verdict": record.MET if holds else record.MISSED}


def interval(
    case: str,
    metric: str,
    found: tuple[float, float, float],
    unit: str,
    n: int,
    bar: str,
    holds: bool,
) -> record.Row:
    """A figure with its 95 % interval and a bar."""
    value, low, high = found
    return {
        **record.row(case, "", metric, [value], unit),
        "low": low,
        "high": high,
        "n": n,
        "spread": record.INTERVAL,
        "bar": bar,
        "verdict": record.MET if holds else record.MISSED,
    }


def _said(row: record.Row) -> str:
    value = row["value"]
    text = value if isinstance(value, str) else f"{value:.5g}"
    if not isinstance(value, str) and row["n"] > 1:
        text += f" ({row['low']:.4g} to {row['high']:.4g}, n = {row['n']})"
    return f"{text} {row['unit']}".rstrip()


def _shown(title: str, rows: Sequence[record.Row], planted: Mapping[str, bool]) -> None:
    """All lines, and what was planted."""
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    for heading in ("case", "what", "found", "bar", "verdict"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(
            row["case"], row["metric"], _said(row), row.get("bar", ""), row.get("verdict", "")
        )
    Console(width=140, highlight=False).print(table)
    for what, found in planted.items():
        print(f"planted: {what}: {'reported' if found else 'NOT FOUND'}")


def program(name: str, document: str | None, about: str, quick: str, study: Study) -> int:
    """A monitored study from the command line: exit status 0 where no line is missed, 1 otherwise."""
    title = (document or name).splitlines()[0]
    options = argparse.ArgumentParser(description=title)
    options.add_argument("-o", "--out", type=Path, default=record.ROOT / "out" / name)
    options.add_argument("--quick", action="store_true", help=quick)
    options.add_argument("--json", action="store_true", help="the lines as one object")
    record.option(options)
    given = options.parse_args()
    try:
        rows, planted = study(given.out.resolve(), given.quick)
    except FAILED as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    record.keep(given.record, rows, planted, about)
    return _ended(title, rows, planted, as_json=given.json)


def _ended(
    title: str, rows: Sequence[record.Row], planted: Mapping[str, bool], *, as_json: bool
) -> int:
    """Prints the lines; exit status 1 where one is missed or what was planted was not found."""
    if as_json:
        print(json.dumps({"rows": list(rows), "planted": dict(planted)}))
    else:
        _shown(title, rows, planted)
    missed = [row for row in rows if row.get("verdict") == record.MISSED]
    for row in missed:
        print(f"missed: {row['case']}: {row['metric']}: {_said(row)}", file=sys.stderr)
    return 1 if missed or not all(planted.values()) else 0
