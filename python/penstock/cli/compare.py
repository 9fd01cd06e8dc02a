"""penstock compare: two traced runs side by side."""

from __future__ import annotations

import json
from pathlib import Path

import typer


def command(
    a: Path = typer.Argument(metavar="A", help="A trace bundle: before, or the reference."),
    b: Path = typer.Argument(metavar="B", help="Another one; it may be of a different length."),
    as_json: bool = typer.Option(False, "--json", help="The result as JSON."),
) -> None:
    """Compare two traces: classes, requests, bytes, time and latency of each file, and what matters of it.

    Ratios are B over A; intervals are 95 % bootstrap intervals.
    """
    from penstock.analyse.trace_compare import Run, compare_runs
    from penstock.archive.whole import reading
    from penstock.observe.trace.compare_words import show
    from penstock.observe.trace.replay import distance_of

    with reading(a, b) as (one, other):
        runs = Run(one), Run(other)
        near = distance_of(runs[0].rows, runs[1].rows) if all(r.events for r in runs) else None
        found = compare_runs(*runs, near)
    if as_json:
        print(json.dumps(found.document()))
    else:
        show(found)
