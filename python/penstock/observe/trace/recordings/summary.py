"""Terminal and JSON output of an evaluated recording of another source."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from penstock.console import Console
from penstock.errors import printable
from penstock.observe.trace.recordings.bundle import ImportedTrace
from penstock.observe.trace.show.closing_sentence import of_paths
from penstock.observe.trace.show.table import (
    SHOWN,
    WIDEST,
    by_time,
    file_table,
    print_table,
    width,
)


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
    """Print the verdicts. Tables are truncated only on a terminal."""
    fit = width()
    console = Console(width=fit or WIDEST)
    paths = {row["file_id"]: row["path"] for row in judged.files}
    rows = by_time(of_paths([*judged.verdicts, *judged.flushes], paths))
    print_table(file_table(rows[:SHOWN], paths, calls="requests", size="median", fit=fit))
    if len(rows) > SHOWN:
        console.print(f"and {len(rows) - SHOWN} with less (--json gives all)", style="dim")
    console.print()
    console.print(Text(printable(judged.closing)))
    counts = judged.counts
    console.print(
        f"seen {counts['seen']}, kept {counts['kept']}, no reads or writes {counts['filtered']}, "
        f"lost {counts['lost']}",
        style="dim",
    )
    for what in judged.source.get("about", []):
        console.print(Text(f"source: {printable(what)}"), style="dim")
    for what in judged.source.get("not_known", []):
        console.print(Text(f"not known from this source: {what}"), style="dim")
    if judged.bundle:
        console.print(Text(f"bundle: {judged.bundle}"), style="dim")
