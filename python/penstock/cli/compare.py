"""penstock compare: compare traces, treatments of a study, runs and experiments; gates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from penstock.cli.shared.options import JSON
from penstock.text import first_of, listed, signed_percent

if TYPE_CHECKING:
    from penstock.analyse.treatments.compared import Compared, Gate, Judged

_SHOWN = 60


def command(
    inputs: list[str] = typer.Argument(
        metavar="A B…",
        help="Two trace bundles, two runs or treatments of a study (OUT:r001, OUT:t01), or two studies "
        "(OUT OUT2: agreement of their rankings); or two or more "
        "of these and of experiments (NAME, NAME#2, NAME#1..5). The first is the reference.",
    ),
    metric: list[str] = typer.Option(
        [], "--metric", "-m", help="Quantities to compare (* and ?), also of one node; repeatable."
    ),
    align: str = typer.Option(
        None, "--align", help="Compare only this phase, from its start in each run."
    ),
    statistic: str = typer.Option(
        None,
        "--statistic",
        help="Statistic of a run's points: mean (default), median, min, max, p95, p99, sum, last.",
    ),
    table: str = typer.Option(
        None, "--table", help="Table of a run: utilisation (default) or samples."
    ),
    fail_on: list[str] = typer.Option(
        [],
        "--fail-on",
        help="'METRIC > 5%', 'METRIC < -5%', 'METRIC@PHASE > 5%': exit with status 3 if a metric "
        "differs this much from A. Of two "
        "traces METRIC is requests, reads, writes, flushes, bytes, read_bytes, written_bytes, time, "
        "read_time, write_time or flush_time, and 'flushes@*.db > 5%' selects files by path or name.",
    ),
    partial: bool = typer.Option(
        False, "--partial", help="Include incomplete series (with lost samples)."
    ),
    top: int = typer.Option(
        3,
        "--top",
        min=1,
        metavar="M",
        help="Of two studies: the number of best treatments to compare.",
    ),
    as_json: bool = JSON,
) -> None:
    """Compare two traces or treatments, or two or more experiments: differences and ties.

    Of traces: classes, requests, bytes, time and latency of each file. Of treatments, over their valid
    runs: responses, and the time of each file. Ratios are B over A with 95 % intervals. With --metric,
    --align, --statistic or --fail-on, with experiments, or more than two: quantities phase by phase. Pairs
    are compared by Welch's test with Holm's adjustment. A gate fails if a change exceeds it and, with
    several runs of each, is not a tie.
    """
    from penstock.archive.run_names import is_name_of_part

    if fail_on and len(inputs) == 2 and not any(is_name_of_part(n) for n in inputs):
        from penstock.analyse.traces.trace_gates import is_of_traces
        from penstock.analyse.treatments.compared import Gate

        gates = [Gate.of(text) for text in fail_on]
        if any(is_of_traces(gate) for gate in gates):
            _compare_with_gates(Path(inputs[0]), Path(inputs[1]), gates, partial, as_json)
            return
    if (
        len(inputs) != 2
        or metric
        or align
        or statistic
        or table
        or fail_on
        or any(is_name_of_part(n) for n in inputs)
    ):
        _compare_phases(
            inputs, metric, align, statistic or "mean", table, fail_on, partial, as_json
        )
        return
    _compare_two(Path(inputs[0]), Path(inputs[1]), top, partial, as_json)


def _rankings(a: Path, b: Path, top: int, as_json: bool) -> None:
    from penstock.analyse.outcome import Outcome
    from penstock.analyse.treatments.rankings import compare_rankings, ranking_lines
    from penstock.errors import printable

    rankings = compare_rankings(Outcome.read(a), Outcome.read(b), top)
    if as_json:
        print(json.dumps(rankings.document()))
        return
    for line in ranking_lines(rankings):
        print(printable(line))


def _compare_two(a: Path, b: Path, top: int, partial: bool, as_json: bool) -> None:
    from penstock.analyse.traces.trace_compare import Run, compare_runs
    from penstock.analyse.treatments.replicates import compare_replicates
    from penstock.archive.completeness import check_complete, reading
    from penstock.archive.selection import select
    from penstock.observe.trace.replay import distance_of
    from penstock.observe.trace.show.compare import show, show_replicates

    sides = select(a), select(b)
    if all(side.kind == "study" for side in sides):
        _rankings(a, b, top, as_json)
        return
    if all(side.is_trace for side in sides):
        with reading(a, b) as (first, second):
            runs = Run(first), Run(second)
            distance = (
                distance_of(runs[0].tables, runs[1].tables) if all(r.events for r in runs) else None
            )
            comparison = compare_runs(*runs, distance)
        if as_json:
            print(json.dumps(comparison.document()))
        else:
            show(comparison)
        return
    for run in [run for side in sides for run in side.replicates]:
        check_complete(run, partial)
    replicates = compare_replicates(*sides)
    if as_json:
        print(json.dumps(replicates.document()))
    else:
        show_replicates(replicates)


def _compare_with_gates(a: Path, b: Path, gates: list[Gate], partial: bool, as_json: bool) -> None:
    """Compare two traces with gates on their I/O; evaluate other gates as for runs."""
    from penstock.analyse.traces.trace_compare import Run, compare_runs
    from penstock.analyse.traces.trace_gates import is_of_traces, judge_traces
    from penstock.analyse.treatments.compared import compared, judge
    from penstock.archive.completeness import reading
    from penstock.archive.run_names import select_named
    from penstock.archive.selection import select
    from penstock.errors import BadInput
    from penstock.observe.trace.show.compare import show

    for path in (a, b):
        if not select(path).is_trace:
            raise BadInput(
                f"--fail-on: found no trace in {path}; expected one for requests, bytes or time"
            )
    with reading(a, b) as (first, second):
        runs = Run(first), Run(second)
        comparison = compare_runs(*runs, None)
        trace_results = judge_traces(*runs, [gate for gate in gates if is_of_traces(gate)])
    rest = [gate for gate in gates if not is_of_traces(gate)]
    run_results = (
        judge(compared([select_named(str(p)) for p in (a, b)], partial=partial), rest)
        if rest
        else []
    )
    failed = any(r.failed for r in trace_results) or any(r.failed for r in run_results)
    if as_json:
        documents = [*(r.document() for r in trace_results), *(r.document() for r in run_results)]
        print(json.dumps({**comparison.document(), "gates": documents}))
    else:
        for result in trace_results:
            print(result.text)
        _show_gates(run_results)
        if failed:
            print()
            show(comparison)
    raise typer.Exit(3 if failed else 0)


def _compare_phases(
    inputs: list[str],
    metrics: list[str],
    align: str | None,
    statistic: str,
    table: str | None,
    fail_on: list[str],
    partial: bool,
    as_json: bool,
) -> None:
    from dataclasses import replace

    from penstock.analyse.treatments.compared import Gate, compared, judge
    from penstock.archive.run_names import select_named

    gates = [Gate.of(text) for text in fail_on]
    comparison = compared(
        [select_named(n) for n in inputs],
        metrics=metrics,
        align=align,
        statistic=statistic,
        partial=partial,
        table=table,
    )
    results = judge(comparison, gates)
    if as_json:
        documents = [result.document() for result in results]
        print(json.dumps({**comparison.document(), "gates": documents}))
    else:
        _show_gates(results)
        if results:
            print()
        gated = {result.metric for result in results}
        rows = [r for r in comparison.rows if metrics or not gates or r.metric in gated]
        _show(replace(comparison, rows=rows))
    raise typer.Exit(3 if any(result.failed for result in results) else 0)


def _show(comparison: Compared) -> None:
    from rich.table import Table

    from penstock.console import Console
    from penstock.errors import printable

    console = Console(width=100)
    for number, name in enumerate(comparison.names):
        runs = listed(first_of(comparison.runs[name], 8))
        console.print(printable(f"{_letter(number)}: {name} ({runs})"))
    console.print()
    phase = None
    for row in comparison.rows[:_SHOWN]:
        if row.phase != phase:
            phase = row.phase
            console.print(printable(f"{phase}:" if phase != "run" else "the run:"))
        unit = f" [{row.unit}]" if row.unit else ""
        console.print(printable(f"  {row.metric.replace('_', ' ')}{unit}"))
        table = Table(box=None, pad_edge=False, show_header=False)
        for width in (6, 12, 14, 10, 12):
            table.add_column(width=width, justify="right", no_wrap=True)
        for n, (name, values) in enumerate(row.values.items()):
            table.add_row(
                *_cells(n, name, values, row.change(name), row.apart(name) if n else None)
            )
        console.print(table)
        if row.order is not None and len(comparison.names) > 2:
            letters = {name: _letter(n) for n, name in enumerate(comparison.names)}
            groups = ["=".join(letters[n] for n in group) for group in row.order.groups]
            console.print(f"      groups: {' < '.join(groups)}")
    if len(comparison.rows) > _SHOWN:
        console.print(
            f"and {len(comparison.rows) - _SHOWN} more (--metric chooses, --json gives all)"
        )
    for note in comparison.notes:
        console.print(printable(f"note: {note}"))


def _letter(number: int) -> str:
    return chr(ord("A") + number) if number < 26 else f"#{number + 1}"


def _cells(
    number: int, name: str, values: list[float], change: float, apart: bool | None
) -> tuple[str, ...]:
    import numpy as np

    spread = f"± {np.std(values, ddof=1):.4g}" if len(values) > 1 else ""
    change_text = signed_percent(change) if number else ""
    verdict = "" if apart is None else "differs" if apart else "tie"
    return f"{_letter(number)}", f"{np.mean(values):.6g}", spread, change_text, verdict


def _show_gates(results: list[Judged]) -> None:
    for r in results:
        verdict = "failed" if r.failed else "a tie: passed" if r.beyond else "passed"
        phase = "" if r.phase == "run" else f" in {r.phase}"
        print(f"{r.gate}: {r.name}, {r.metric}{phase}: {signed_percent(r.change, 2)}: {verdict}")
