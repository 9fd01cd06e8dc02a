"""penstock compare: two traced runs, or two treatments of a study, side by side."""

from __future__ import annotations

import json
from pathlib import Path

import typer


def command(
    a: Path = typer.Argument(
        metavar="A",
        help="A trace bundle, or a run or treatment of a study (OUT:r001, OUT:t01): the reference.",
    ),
    b: Path = typer.Argument(metavar="B", help="Another one; it may be of a different length."),
    partial: bool = typer.Option(
        False, "--partial", help="Take what is not complete, too (samples that were lost)."
    ),
    as_json: bool = typer.Option(False, "--json", help="The result as JSON."),
) -> None:
    """Compare two traces: classes, requests, bytes, time and latency of each file, and what matters of it.

    Treatments are compared over their valid runs: responses, and the time of each file. Ratios are B over
    A, with 95 % intervals: of two traces by the bootstrap, of treatments by the spread of their runs.
    """
    from penstock.analyse.replicates import compare_replicates
    from penstock.analyse.trace_compare import Run, compare_runs
    from penstock.archive.completeness import check_complete, reading
    from penstock.archive.selection import select
    from penstock.observe.trace.replay import distance_of
    from penstock.observe.trace.show.compare import show, show_replicates

    named = select(a), select(b)
    if all(side.is_trace for side in named):
        with reading(a, b) as (one, other):
            runs = Run(one), Run(other)
            near = (
                distance_of(runs[0].tables, runs[1].tables) if all(r.events for r in runs) else None
            )
            found = compare_runs(*runs, near)
        if as_json:
            print(json.dumps(found.document()))
        else:
            show(found)
        return
    for run in [run for side in named for run in side.replicates]:
        check_complete(run, partial)
    over_runs = compare_replicates(*named)
    if as_json:
        print(json.dumps(over_runs.document()))
    else:
        show_replicates(over_runs)
