"""penstock workflow: execution on nodes with a store."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from penstock.cli._options import CHANGES
from penstock.errors import BadInput
from penstock.terminal import plain_table, progress_bar, show

app = typer.Typer(help="Run workflows on virtual nodes with a shared store.", no_args_is_help=True)


@app.callback()
def _verbs() -> None:
    """Make `run` a subcommand even if it is the only one."""


@app.command()
def run(
    workflow: Path = typer.Argument(
        help="A workflow: penstock's own description, WfFormat, or a traced run."
    ),
    platform: Path = typer.Option(
        ..., "--platform", "-p", help="A platform file with roles and store: {engine: …}."
    ),
    changes: list[str] = CHANGES,
    engine: str | None = typer.Option(None, "--engine", help="Engine, instead of the file's."),
    repeat: int = typer.Option(1, "--repeat", min=1, max=1000, help="Number of runs."),
    hints: str = typer.Option(
        "file",
        "--hints",
        help="Hints: file (the workflow's own), never, or always (from its graph).",
    ),
    keep_cache: bool = typer.Option(
        False, "--keep-cache", help="Keep data that tasks write in the page cache of their node."
    ),
    predicted: bool = typer.Option(
        True, "--predict/--no-predict", help="The prediction of the queue network, for comparison."
    ),
    timeout_s: float = typer.Option(3600.0, "--timeout", help="Time limit of a run, in seconds."),
    output: Path | None = typer.Option(None, "-o", "--output", help="Directory for the tables."),
    as_json: bool = typer.Option(False, "--json", help="The result as one JSON object."),
) -> None:
    """Run the tasks as processes on the client nodes, with their files in the store.

    A store of that platform that is up is used and stays; else one is put up, and taken down again.
    """
    from penstock.parts.stores.workflow.run import run_workflow

    if hints not in ("file", "never", "always"):
        raise BadInput(f"--hints: found {hints!r}; expected file, never or always")
    with progress_bar() as progress:
        result = run_workflow(
            workflow,
            platform,
            changes,
            engine=engine,
            repeat=repeat,
            hints=hints,
            keep_cache=keep_cache,
            predicted=predicted,
            timeout_s=timeout_s,
            out=output,
            progress=progress,
        )
    if as_json:
        print(json.dumps(result.to_dict()))
        return
    table = plain_table(("", "stage"), ("measured s", "least", "most", "predicted s", "from", "to"))
    for row in result.rows():
        table.add_row(*row)
    show(table)
    for line in result.sentences():
        print(line)
