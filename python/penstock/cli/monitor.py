"""penstock monitor: what the host and a command's control group do, sampled."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import typer

from penstock.errors import BadInput, PenstockError

app = typer.Typer(help="Sample a command and its host.", no_args_is_help=True)
_FAILED = 125


@app.callback()
def _monitor() -> None:
    """Sample a command and its host."""


@app.command(context_settings={"allow_interspersed_args": False})
def run(
    words: list[str] = typer.Argument(..., metavar="-- COMMAND", help="What to run."),
    interval: float = typer.Option(
        1.0, "--interval", "-i", help="Seconds between samples, from 0.01."
    ),
    output: Path = typer.Option(None, "-o", "--output", help="Leave a one-run bundle there."),
    as_json: bool = typer.Option(
        False, "--json", help="One JSON object on stdout; the command's stdout goes to stderr."
    ),
) -> None:
    """Run a command and sample processors, memory, disks, network, pressure and its group.

    Returns the command's own status, 125 when penstock itself failed.
    """
    if output is not None and output.exists():
        raise BadInput(f"-o: {output} exists already; expected a path that does not")
    from penstock.observe.monitor.session import monitor_command

    try:
        done = monitor_command(words, round(interval * 1e9), output, quiet=as_json)
    except BadInput:
        raise
    except PenstockError as error:
        print(f"penstock: {error}", file=sys.stderr)
        if as_json:
            print(json.dumps({"error": str(error)}))
        raise typer.Exit(_FAILED) from None
    means = _means(done.result.tables["utilisation"])
    if as_json:
        status = {"exit_status": done.finished.exit_status, "wall_s": done.finished.wall_s}
        place = {"bundle": str(done.bundle) if done.bundle else None}
        print(json.dumps({**status, **place, "receipt": done.result.receipt, "utilisation": means}))
    else:
        _show(done.finished.wall_s, done.result.receipt, means)
    raise typer.Exit(done.finished.exit_status)


def _means(table: Any) -> list[dict[str, Any]]:
    """Mean and maximum of every utilisation over the run."""
    frame = table.to_pandas().dropna(subset=["value"])
    grouped = frame.groupby(["kind", "entity", "metric", "unit"])["value"].agg(["mean", "max"])
    rows: list[dict[str, Any]] = json.loads(grouped.reset_index().to_json(orient="records"))
    return rows


def _show(wall_s: float, receipt: dict[str, Any], means: list[dict[str, Any]]) -> None:
    made, late_ms = receipt["samples"], receipt["late_p99_ns"] / 1e6
    print(f"{wall_s:.3f} s, {made} of {receipt['expected']} samples, p99 {late_ms:.2f} ms late")
    if not means:
        print("Too short for a utilisation: ask for a shorter --interval.")
        return
    print(f"{'':<38}{'mean':>14}{'most':>14}")
    for row in means:
        name = f"{row['kind']} {row['entity']} {row['metric']}"
        print(f"{name:<38}{row['mean']:>14.4g}{row['max']:>14.4g} {row['unit']}")
