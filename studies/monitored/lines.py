"""The lines that a monitored study must show: a figure with its spread, a bar, and whether it is met."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from bench import record


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


def shown(title: str, rows: Sequence[record.Row], planted: Mapping[str, bool]) -> None:
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


def ended(
    title: str, rows: Sequence[record.Row], planted: Mapping[str, bool], *, as_json: bool
) -> int:
    """Prints the lines; exit status 1 where one is missed or what was planted was not found."""
    if as_json:
        print(json.dumps({"rows": list(rows), "planted": dict(planted)}))
    else:
        shown(title, rows, planted)
    missed = [row for row in rows if row.get("verdict") == record.MISSED]
    for row in missed:
        print(f"missed: {row['case']}: {row['metric']}: {_said(row)}", file=sys.stderr)
    return 1 if missed or not all(planted.values()) else 0
