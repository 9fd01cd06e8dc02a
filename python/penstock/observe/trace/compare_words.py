"""A comparison of two traces for the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.analyse.trace_compare import SPOKEN, Comparison, Difference, Ratio, Side
from penstock.analyse.words import duration, size
from penstock.observe.trace.summary import printable

_SHOWN = 10
_BY = {
    "identity": "matched by inode: it has another path in B",
    "name": "matched by name: it lies elsewhere in B",
    "role": "matched by its share of the bytes: it is another file in B",
}


_WIDTHS = {"": 7, "class": 17, "requests": 9, "bytes": 9, "time": 9, "mean": 19, "p99": 19}


def show(found: Comparison) -> None:
    """Prints A, B and the ratio of each file and direction, at most 100 columns wide."""
    console = Console(width=100, highlight=False)
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, width in _WIDTHS.items():
        justify: Any = "left" if name in ("", "class") else "right"
        table.add_column(name, width=width, no_wrap=True, justify=justify)
    table.add_row(*_WIDTHS, style="bold")
    console.print(table)
    for row in found.differences[:_SHOWN]:
        by = "" if row.matched_by == "path" else f" ({_BY.get(row.matched_by, row.matched_by)})"
        mark = "* " if row.matters else ""
        console.print(Text(f"{mark}{SPOKEN[row.direction]} of {printable(row.path)}{by}"))
        rows = Table(box=None, pad_edge=False, show_header=False)
        for name, width in _WIDTHS.items():
            rows.add_column(
                width=width, no_wrap=True, justify="left" if name in ("", "class") else "right"
            )
        rows.add_row("  A", *_cells(row.a))
        rows.add_row("  B", *_cells(row.b))
        if row.ratios:
            rows.add_row("  B/A", "", *_ratios(row))
        console.print(rows)
    rest = len(found.differences) - _SHOWN
    if rest > 0:
        console.print(f"and {rest} with a smaller change (--json gives all)", style="dim")
    console.print()
    if found.distance is not None:
        d = found.distance
        console.print(
            f"distance {d.mean:.3f}: sizes {d.sizes:.3f}, steps {d.steps:.3f}, "
            f"share of reads {d.read_share:.3f}, classes {d.classes:.3f}"
        )
    console.print(Text(printable(found.closing)))


def _cells(side: Side | None) -> list[str]:
    if side is None:
        return ["-"] * 6
    kind = str(side["class"] or "?") + (f" ({side['k']})" if side.get("k") else "")
    p99 = side.get("p99_ns")
    return [
        kind,
        str(side["requests"]),
        size(side["bytes"]),
        duration(side["time_ns"]),
        duration(side["mean_ns"]),
        duration(p99) if p99 is not None else "?",
    ]


def _ratios(row: Difference) -> list[str]:
    return [_ratio(row.ratios.get(n)) for n in ("requests", "bytes", "time_ns", "mean", "p99")]


def _ratio(ratio: Ratio | None) -> str:
    if ratio is None:
        return ""
    if ratio.low == ratio.high:
        return f"{ratio.value:.3g}"
    return f"{ratio.value:.2g} [{ratio.low:.2g}, {ratio.high:.2g}]"
