"""Table of a trace's files for a terminal: a row per file and direction, most time first."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from penstock.console import Console
from penstock.errors import printable
from penstock.observe.trace.show.closing_sentence import named
from penstock.text import FAULTS, basis_text, duration
from penstock.text import size as size_text

#: widest output on a terminal [characters]
WIDEST = 100
#: maximum number of rows
SHOWN = 12
#: minimum number of calls for a verdict
_JUDGED = 32
#: share of all time above which a row is always shown
_MUCH = 0.01
#: minimum length of a path on a narrow terminal [characters]
_LEAST_NAME = 20
#: width of a console without truncation [characters]
_NO_END = 10_000
#: space between columns [characters]
_BETWEEN = 2


def width() -> int | None:
    """Width of the terminal [characters]; None if stdout is no terminal, where nothing is truncated."""
    return min(Console().width, WIDEST) if sys.stdout.isatty() else None


def by_time(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Rows with most time first, then those with most bytes."""
    return sorted(rows, key=lambda row: (-row["time_ns"], -row.get("done_bytes", 0)))


def shown(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Rows `by_time` that took time or have enough calls for a verdict."""
    total = sum(row["time_ns"] for row in rows)
    chosen = [r for r in rows if r["calls"] >= _JUDGED or r["time_ns"] > _MUCH * total]
    return chosen[:SHOWN] or list(rows[:3])


def file_table(
    rows: Sequence[Mapping[str, Any]],
    paths: Mapping[int, str | None],
    *,
    calls: str = "calls",
    size: str = "per call",
    fit: int | None = None,
) -> Table:
    """`fit`: width of the table, to which paths are shortened at the start; None: paths are complete."""
    lines: list[tuple[str, ...]] = []
    joint: set[tuple[int, str | None]] = set()
    for row in rows:
        name = printable(named(row, paths.get(row["file_id"])))
        if row["direction"] == "sync":
            each = f"{duration(row['time_ns'] / max(row['calls'], 1))} each"
            lines.append(
                (
                    name,
                    "flush",
                    str(row["calls"]),
                    "",
                    "",
                    _time(row),
                    each if row["time_ns"] else "",
                )
            )
            continue
        verdict = row["together"]
        lines.append(
            (
                name,
                row["direction"],
                str(row["calls"]),
                size_text(row["done_bytes"]),
                size_text(verdict["median_size_bytes"]),
                _time(row),
                _pattern(verdict) + _basis(row.get("basis")),
            )
        )
        both, key = row.get("both"), (row["file_id"], row.get("basis"))
        if both and both["class"] != "insufficient" and key not in joint:
            joint.add(key)
            lines.append((name, "both", str(both["requests"]), "", "", "", _pattern(both)))
    table = Table(box=None, pad_edge=False, header_style="bold")
    headings = ("file", "", calls, "bytes", size, "time", "pattern")
    for heading in headings:
        numeric = heading in headings[2:6]
        table.add_column(
            heading,
            justify="right" if numeric else "left",
            no_wrap=heading != "pattern",
            overflow="fold",
        )
    widths = [
        max(len(line[i]) for line in [headings, *lines]) + _BETWEEN for i in range(1, len(headings))
    ]
    room = None if fit is None else max(fit - sum(widths), _LEAST_NAME)
    for name, *cells in lines:
        table.add_row(Text(name if room is None else tail(name, room)), *map(Text, cells))
    return table


def print_table(table: Table) -> None:
    """Print a table whose paths fit the terminal; without a terminal lines are not limited."""
    Console(width=width() or _NO_END).print(table)


def tail(text: str, most: int) -> str:
    """End of a text that is longer than `most`, the part that distinguishes paths."""
    return text if len(text) <= most else "…" + text[1 - most :]


def _time(row: Mapping[str, Any]) -> str:
    """Time of a row's calls; a dash if none was timed."""
    return duration(row["time_ns"]) if row["time_ns"] or not row["calls"] else "–"


def _pattern(verdict: Mapping[str, Any]) -> str:
    return str(verdict["class"]) + (f" ({verdict['k']})" if verdict["k"] else "")


def _basis(basis: str | None) -> str:
    if basis == "counters":
        return ", counted"
    return f", {basis_text(FAULTS)}" if basis == FAULTS else ""
