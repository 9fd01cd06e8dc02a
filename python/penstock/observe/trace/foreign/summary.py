"""A judged recording of another source for the terminal and as JSON."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from penstock.console import Console
from penstock.errors import printable
from penstock.observe.trace.foreign.bundle import ImportedTrace
from penstock.observe.trace.show.closing_sentence import named, of_paths
from penstock.observe.trace.show.summary import tail
from penstock.text import duration
from penstock.text import size as size_in_words

_SHOWN = 12


def as_document(judged: ImportedTrace) -> dict[str, Any]:
    """One object: counts, source, a verdict per file and direction, flushes, the closing sentence."""
    paths = {row["file_id"]: row["path"] for row in judged.files}
    verdicts = [
        {
            "path": paths.get(row["file_id"]),
            "direction": row["direction"],
            "basis": row.get("basis"),
            "requests": row["calls"],
            "bytes": row["done_bytes"],
            "errors": row["errors"],
            "time_ns": row["time_ns"],
            "class": row["together"]["class"],
            "k": row["together"]["k"],
            "median_size_bytes": row["together"]["median_size_bytes"],
        }
        for row in judged.verdicts
    ]
    flushes = [
        {"path": paths.get(row["file_id"]), "flushes": row["calls"], "time_ns": row["time_ns"]}
        for row in judged.flushes
    ]
    return {
        "events": judged.events,
        **judged.counts,
        "source": judged.source,
        "verdicts": verdicts,
        "flushes": flushes,
        "closing": judged.closing,
        "bundle": str(judged.bundle) if judged.bundle else None,
    }


def show(judged: ImportedTrace) -> None:
    """Prints the verdicts, at most 100 columns wide."""
    console = Console(width=100)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("file", ""):
        table.add_column(name, no_wrap=True)
    for name in ("requests", "bytes", "median", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("pattern", no_wrap=True)
    paths = {row["file_id"]: row["path"] for row in judged.files}
    rows = of_paths([*judged.verdicts, *judged.flushes], paths)
    rows.sort(key=lambda row: (-row["time_ns"], -row.get("done_bytes", 0)))
    for row in rows[:_SHOWN]:
        label = Text(tail(printable(named(row, paths.get(row["file_id"]))), 40))
        time_ms = f"{row['time_ns'] / 1e6:.3g} ms" if row["time_ns"] else "?"
        if row["direction"] == "sync":
            each = f"{duration(row['time_ns'] / row['calls'])} each" if row["time_ns"] else ""
            table.add_row(label, "flush", str(row["calls"]), "", "", time_ms, each)
            continue
        verdict = row["together"]
        table.add_row(
            label,
            row["direction"],
            str(row["calls"]),
            size_in_words(row["done_bytes"]),
            size_in_words(verdict["median_size_bytes"]),
            time_ms,
            verdict["class"] + (f" ({verdict['k']})" if verdict["k"] else ""),
        )
    console.print(table)
    if len(rows) > _SHOWN:
        console.print(f"and {len(rows) - _SHOWN} with less (--json gives all)", style="dim")
    console.print()
    console.print(Text(printable(judged.closing)))
    counts = judged.counts
    console.print(
        f"seen {counts['seen']}, kept {counts['kept']}, no reads or writes {counts['filtered']}, "
        f"lost {counts['lost']}",
        style="dim",
    )
    for what in judged.source.get("not_known", []):
        console.print(Text(f"not known from this source: {what}"), style="dim")
    if judged.bundle:
        console.print(Text(f"bundle: {judged.bundle}"), style="dim")
