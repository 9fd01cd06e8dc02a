"""penstock monitor get, derive, push: data out of an experiment, and into one."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from penstock.errors import BadInput
from penstock.parts.monitoring.cli.monitor.options import JSON, NAME, SERVER, app, params
from penstock.terminal import say

if TYPE_CHECKING:
    from penstock.parts.monitoring.outbox.pushing import Pushed

#: integers up to this size are exact as floats
_EXACT = 1 << 53


@app.command()
def get(
    name: str = NAME,
    metric: str = typer.Option(
        None,
        "--metric",
        "-m",
        help="Metric to print (default: list the metrics of the experiment).",
    ),
    kind: Literal["timestamp", "duration", "sample"] = typer.Option(
        None, "--type", help="First column: time, seconds since the start, or a number."
    ),
    label: list[str] = typer.Option([], "--label", help="Labels whose values name the columns."),
    phase: str = typer.Option(None, help="Only points of this phase."),
    form: Literal["csv", "jsonl", "parquet", "openmetrics"] = typer.Option(
        "csv", "--format", help="Output format."
    ),
    correct_clocks: bool = typer.Option(
        False,
        "--correct-clocks",
        help="Use the server's clock, where its offset from the sender's was measured.",
    ),
    output: Path = typer.Option(None, "-o", "--output", help="Output file (default: stdout)."),
    partial: bool = typer.Option(False, "--partial", help="Do not warn about incomplete series."),
    as_json: bool = JSON,
    server: str = SERVER,
) -> None:
    """Print the data of a metric: a row per time, an empty cell for a missing value.

    stderr names the series that are not complete and what they lack; penstock plot and compare refuse them.
    """
    from penstock.parts.monitoring.outbox.client import opened
    from penstock.writing import atomic_file

    if metric is None:
        others = (kind, label, phase, output, correct_clocks, form != "csv")
        if any(others):
            raise BadInput("found no --metric; expected which one, with the options of its data")
        _list_metrics(opened(server).series(name), as_json)
        return
    options: dict[str, Any] = {
        "metric": metric,
        "format": form,
        "type": kind,
        "phase": phase,
        "labels": label or None,
    }
    if correct_clocks:
        options["clocks"] = "corrected"
    if as_json and (form != "csv" or output is not None):
        raise BadInput("found --json with --format or -o; expected one of them")
    options = {k: v for k, v in options.items() if v is not None}
    client = opened(server)
    if as_json:
        answer = client.get(name, {**options, "format": "jsonl"})
        table = _as_rows(b"".join(answer.parts))
        if not table["rows"]:  # only CSV has the columns of an empty table
            header = b"".join(client.get(name, options).parts).decode()
            table["columns"] = next(csv.reader(io.StringIO(header)))
        lacking = [] if partial else list(answer.verdict.lines)
        print(json.dumps({"metric": metric, **table, "incomplete": lacking}))
        return
    answer = client.get(name, options)
    parts = answer.parts
    for line in [] if partial else answer.verdict.lines:
        say(line)
    if output is None:
        for part in parts:
            sys.stdout.buffer.write(part)
        sys.stdout.buffer.flush()
        return
    with atomic_file(output) as draft, draft.open("wb") as file:
        file.writelines(parts)


def _list_metrics(series: list[dict[str, Any]], as_json: bool) -> None:
    """A row for each metric: its unit, how many series and points it has, and the labels of these."""
    metrics: dict[str, dict[str, Any]] = {}
    for row in sorted(series, key=lambda r: str(r["metric"])):
        one = metrics.setdefault(
            row["metric"],
            {"metric": row["metric"], "unit": row["unit"], "series": 0, "points": 0, "labels": {}},
        )
        one["series"] += 1
        one["points"] += row["stored"] or 0
        for label, value in json.loads(row["labels"]).items():
            values = one["labels"].setdefault(label, [])
            if value not in values:
                values.append(value)
    if as_json:
        print(json.dumps({"metrics": list(metrics.values())}))
        return
    if not metrics:
        print("Nothing was recorded.")
        return
    width = max(6, *(len(m) for m in metrics))
    print(f"{'metric':<{width}}  {'unit':<5}{'series':>8}{'points':>10}  labels")
    for m, one in metrics.items():
        labels = [f"{k}={_some(v)}" for k, v in one["labels"].items()]
        line = f"{m:<{width}}  {one['unit'] or '':<5}{one['series']:>8}{one['points']:>10}  "
        print((line + " ".join(labels)).rstrip())


def _some(values: list[str]) -> str:
    """The first three values of a label."""
    return ",".join(values[:3]) + (",…" if len(values) > 3 else "")


def _as_rows(text: bytes) -> dict[str, Any]:
    """JSON Lines as `columns` and `rows` of values; null where there is no value."""
    pairs = [
        json.loads(line, object_pairs_hook=list, parse_int=_number) for line in text.splitlines()
    ]
    columns = [name for name, _ in pairs[0]] if pairs else []
    return {"columns": columns, "rows": [[value for _, value in row] for row in pairs]}


def _number(digits: str) -> float | int:
    """An integer as a float, if that is exact."""
    value = int(digits)
    return value if abs(value) > _EXACT else float(value)


@app.command()
def derive(
    name: str = typer.Argument(
        ...,
        metavar="X",
        help="Experiments or runs that have ended: NAME, NAME#1..5, OUT:r001, a bundle.",
    ),
    definition: str = typer.Argument(
        ...,
        metavar="NAME=EXPR",
        help="Such as total='sum(disk_read)' or smooth='moving_mean(m, 10)'.",
    ),
    unit: str = typer.Option(
        None,
        ("--unit"),
        help="Unit of the values, if not the one that follows from the expression.",
    ),
    table: str = typer.Option(
        None, "--table", help="Table of a run: utilisation (default) or samples."
    ),
    as_json: bool = JSON,
) -> None:
    """Compute a series from others, and store it and its expression in their bundle.

    EXPR consists of + - * / ( ), names of series (in double quotes with * and ?), {NODE} after a name, and
    the functions sum, mean, min, max, rate, delta, ratio, join, moving_mean, abs and quantile.
    """
    from penstock.archive.run_names import select_named
    from penstock.archive.series.expression import split
    from penstock.parts.monitoring.queries.derived import derive as compute

    word, expression = split(definition)
    counts = compute(select_named(name).runs, word, expression, unit, table)
    if as_json:
        print(json.dumps({"name": word, "expression": expression, "points": counts}))
        return
    say(
        f"{word}: {sum(counts.values()):,} points in {len(counts)} run{'' if len(counts) == 1 else 's'}"
    )


@app.command()
def push(
    name: str = NAME,
    table_file: Path = typer.Argument(
        ...,
        metavar="INPUT",
        help="CSV, JSON Lines, Parquet, or a bundle (as of `penstock trace -o`); or the data that `monitor "
        "run` stored because the server was unavailable.",
    ),
    column: str = typer.Option(None, "--column", "-c", help="Column of the values."),
    metric: str = typer.Option(
        None, "--metric", "-m", help="Name of the metric (default: the column's)."
    ),
    time_column: str = typer.Option(
        None, "--time", help="Column of times in ns since 1970 (default: a sequence 0, 1, 2, …)."
    ),
    interval: float = typer.Option(
        None,
        "--interval",
        help="With --time: seconds between values, to detect missing ones.",
    ),
    unit: str = typer.Option("", "--unit", help="Unit of the values, such as B or s."),
    label: list[str] = typer.Option(
        [], "--label", help="KEY=VALUE, a label of the series; repeatable."
    ),
    where: list[str] = typer.Option([], "--where", help="COLUMN=TEXT: only rows with this value."),
    file: str = typer.Option(None, "--file", help="File of a bundle, by the end of its path."),
    order: str = typer.Option(None, "--order", help="Column that orders the rows."),
    table: str = typer.Option(None, "--table", help="Table of a bundle (default: io_events)."),
    source: str = typer.Option(
        None, ("--source"), help="Source of the points (default: derived from their content)."
    ),
    batch: int = typer.Option(100_000, "--batch", help="Number of points per request."),
    patience: float = typer.Option(
        60.0, ("--patience"), help="Time limit for an unavailable server, in seconds."
    ),
    as_json: bool = JSON,
    server: str = SERVER,
) -> None:
    """Push the values of a file in order, by number or by time.

    Acknowledged points are durable. Pushing the same file again adds no duplicates.
    """
    from penstock.parts.monitoring.outbox.client import opened
    from penstock.parts.monitoring.outbox.pushing import (
        batches_of,
        column_of,
        file_id_of,
        read_table,
        rows_where,
    )
    from penstock.parts.monitoring.outbox.pushing import push as pushed
    from penstock.parts.monitoring.outbox.unsent import is_unsent, send

    if is_unsent(table_file):
        result = send(opened(server), name, table_file, patience_s=patience, report=say)
        _pushed(result, as_json)
        return
    if column is None:
        raise BadInput("found no --column; expected which one has the values")
    filters = params(where, "--where")
    if file is not None:
        filters["file_id"] = str(file_id_of(table_file, file))
    rows = rows_where(read_table(table_file, table), filters)
    if order is not None:
        column_of(rows, order)
        rows = rows.sort_by(order)
    batches = batches_of(
        column_of(rows, column),
        metric=metric or column,
        labels=params(label, "--label"),
        unit=unit,
        utc_ns=None if time_column is None else column_of(rows, time_column),
        source=source,
        batch_points=batch,
        interval_s=interval,
    )
    _pushed(pushed(opened(server), name, batches, patience_s=patience, report=say), as_json)


def _pushed(done: Pushed, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"points": done.points, "batches": done.batches, "source": done.source}))
    else:
        say(f"{done.points} points in {done.batches} batches from {done.source}")
