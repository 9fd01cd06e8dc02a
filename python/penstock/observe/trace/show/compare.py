"""Terminal output of a comparison of two traces."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from penstock.analyse.traces.trace_compare import SPOKEN, Comparison, Difference, Ratio, Side
from penstock.analyse.treatments.replicates import Measured, Replicated
from penstock.console import Console
from penstock.errors import printable
from penstock.observe.trace.show.table import tail
from penstock.text import duration, labelled, size, wrapped

_SHOWN = 10
#: share of the time on files below which a file is hidden on either side, unless it matters
_LITTLE = 0.01
_MARK = "* differs by at least a twentieth of the time on files"
_BY = {
    "identity": "matched by inode: it has another path in B",
    "name": "matched by name: it is in another directory in B",
    "role": "matched by its share of the bytes: it is another file in B",
}


_WIDTHS = {"": 7, "class": 17, "requests": 9, "bytes": 9, "time": 9, "mean": 19, "p99": 19}


def show(comparison: Comparison) -> None:
    """Print the conclusion, then A, B and the ratio of each file and direction, at most 100 columns wide."""
    console = Console(width=100)
    console.print(Text(printable(comparison.closing)))
    console.print()
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, width in _WIDTHS.items():
        justify: Any = "left" if name in ("", "class") else "right"
        table.add_column(name, width=width, no_wrap=True, justify=justify)
    table.add_row(*_WIDTHS, style="bold")
    console.print(table)
    for row in comparison.differences[:_SHOWN]:
        by = "" if row.matched_by == "path" else f" ({_BY.get(row.matched_by, row.matched_by)})"
        mark = "* " if row.matters else ""
        again = _recreations(row)
        console.print(Text(f"{mark}{SPOKEN[row.direction]} of {printable(row.path)}{again}{by}"))
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
    rest = len(comparison.differences) - _SHOWN
    if rest > 0:
        console.print(f"and {rest} with a smaller change (--json gives all)", style="dim")
    if any(row.matters for row in comparison.differences[:_SHOWN]):
        console.print(_MARK, style="dim")
    if comparison.distance is not None:
        console.print()
        d = comparison.distance
        console.print(
            f"distance {d.mean:.3f}: sizes {d.sizes:.3f}, steps {d.steps:.3f}, "
            f"share of reads {d.read_share:.3f}, classes {d.classes:.3f}"
        )


def show_replicates(comparison: Replicated) -> None:
    """Print the differences, then means of A and B and their ratio, at most 100 columns wide."""
    console = Console(width=100)
    points = [line for label, text in comparison.points for line in labelled(label, text, 100)]
    for line in [*wrapped(comparison.headline, 100), *([""] if points else []), *points, ""]:
        console.print(Text(printable(line)))
    for side, name, levels, disks, runs in zip(
        "AB",
        (comparison.a, comparison.b),
        comparison.levels,
        comparison.disks,
        comparison.runs,
        strict=True,
    ):
        of_levels = ", ".join(f"{factor} {level}" for factor, level in levels.items())
        if disks:
            of_levels += "; " + ", ".join(f"{disk}: {text}" for disk, text in disks.items())
        console.print(Text(printable(f"{side}: {name} ({of_levels}), {', '.join(runs)}")))
    console.print()
    table = Table(box=None, pad_edge=False)
    table.add_column("", overflow="fold")
    for name in ("A", "B", "B/A"):
        table.add_column(name, justify="right", no_wrap=True)
    for response in comparison.responses:
        unit = f", {response.unit}" if response.unit else ""
        table.add_row(
            Text(printable(response.name + unit)),
            *(f"{mean:.4g}" for mean in response.means),
            _of_replicates(response),
        )
    least = _LITTLE * max(comparison.on_files.means) if comparison.on_files is not None else 0.0
    large = [row for row in comparison.files if row.matters or max(row.time.means) >= least]
    for row in large[:_SHOWN]:
        mark = "* " if row.matters else ""
        table.add_row(
            Text(f"{mark}{SPOKEN[row.direction]} of {tail(printable(row.path), 40)}"),
            *(duration(mean) if mean else "-" for mean in row.time.means),
            _of_replicates(row.time),
        )
    console.print(table)
    rest = len(comparison.files) - len(large[:_SHOWN])
    if rest > 0:
        console.print(
            f"and {rest} with a smaller change or little time (--json gives all)", style="dim"
        )
    if any(row.matters for row in large[:_SHOWN]):
        console.print(f"{_MARK}, and by more than the runs do", style="dim")


def _of_replicates(measured: Measured) -> str:
    if measured.interval is not None:
        return _ratio(measured.interval)
    return f"{measured.ratio:.3g}" if measured.ratio is not None else ""


def _recreations(row: Difference) -> str:
    """Number of times that the path's file was recreated, as text."""
    counts = [side["files"] if side else 0 for side in (row.a, row.b)]
    if max(counts) <= 1:
        return ""
    return (
        f" × {counts[0]} files"
        if counts[0] == counts[1]
        else f" × {counts[0]} and {counts[1]} files"
    )


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
