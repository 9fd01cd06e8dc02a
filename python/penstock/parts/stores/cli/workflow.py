"""penstock workflow: execution on nodes with a store."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from penstock.cli.shared.options import CHANGES, refuse_others
from penstock.errors import BadInput
from penstock.terminal import plain_table, progress_bar, show

if TYPE_CHECKING:
    from penstock.parts.stores.workflow.compare import Comparison
    from penstock.parts.stores.workflow.result import Result

app = typer.Typer(help="Run workflows on virtual nodes with a shared store.", no_args_is_help=True)

_ENGINE = typer.Option(None, "--engine", "--store", help="Engine, instead of the file's.")
_PLATFORM = typer.Option(
    None, "--platform", "-p", help="A platform file with roles and store: {engine: …}."
)
_TIMEOUT = typer.Option(3600.0, "--timeout", help="Time limit of a run, in seconds.")
_INPUTS = typer.Option(
    None,
    "--inputs",
    help="Directory of the input files that programs read (default: that of the workflow).",
)
_EMULATE = typer.Option(
    False,
    "--emulate",
    help="Run no programs: emulate the input, output and run time of every task.",
)

_RESULTS = typer.Option(
    None, "--results", help="Directory for the results of programs (default: OUTPUT/results)."
)
_RETRIES = typer.Option(
    0, "--retries", min=0, max=1000, help="Further attempts of a task that fails."
)
_KEEP_GOING = typer.Option(
    False, "--keep-going", help="After a failure, run the tasks that do not need its output."
)
_CHECKSUMS = typer.Option(
    False, "--checksums", help="Record the SHA-256 of every output of a program."
)
_KEEP_CACHE = typer.Option(
    False, "--keep-cache", help="Keep data that tasks write in the page cache of their node."
)
#: columns of the table of `run`: names, numbers
_OF_RUN = ("", "stage"), ("measured s", "least", "most", "predicted s", "from", "to")


@app.command()
def run(
    context: typer.Context,
    workflow: Path | None = typer.Argument(
        None, help="A workflow: penstock's own description, WfFormat, or a traced run."
    ),
    platform: Path | None = _PLATFORM,
    changes: list[str] = CHANGES,
    engine: str | None = _ENGINE,
    repeat: int = typer.Option(1, "--repeat", min=1, max=1000, help="Number of runs."),
    hints: str = typer.Option(
        "file",
        "--hints",
        help="Hints: file (the workflow's own), never, always (from its graph), or auto (those of its graph "
        "with a predicted gain).",
    ),
    emulate: bool = _EMULATE,
    inputs: Path | None = _INPUTS,
    results: Path | None = _RESULTS,
    retries: int = _RETRIES,
    delay_s: float = typer.Option(
        1.0,
        "--retry-delay",
        min=0.0,
        help="Seconds until the next attempt; doubled after each, up to 60.",
    ),
    keep_going: bool = _KEEP_GOING,
    resume: Path | None = typer.Option(
        None, "--resume", help="Output directory of an interrupted run, which is continued."
    ),
    checksums: bool = _CHECKSUMS,
    keep_cache: bool = _KEEP_CACHE,
    predicted: bool = typer.Option(
        True, "--predict/--no-predict", help="Also predict the runs, and compare."
    ),
    timeout_s: float = _TIMEOUT,
    output: Path | None = typer.Option(
        None,
        "-o",
        "--output",
        help="Directory for the page, figures and tables (default, with programs: WORKFLOW-run).",
    ),
    as_json: bool = typer.Option(False, "--json", help="The result as one JSON object."),
) -> None:
    """Run the tasks as processes on the client nodes, with their files in the store.

    A task with a command runs that program in the run's directory of the store; others emulate their input,
    output and computing. A running store of this platform is used and stays up; otherwise one is started
    and stopped at the end.
    """
    from penstock.parts.stores.workflow.options import RunOptions
    from penstock.parts.stores.workflow.run import resume_workflow, run_workflow
    from penstock.parts.stores.workflow.running.recovery import Recovery

    if resume is not None:
        expected = "nothing else: the run's own workflow, platform and options apply"
        refuse_others(context, {"resume", "as_json"}, expected, "--resume: ")
        with progress_bar() as progress:
            _show(resume_workflow(resume, progress), *_OF_RUN, as_json)
        return
    if workflow is None or platform is None:
        raise BadInput("found no workflow, or no --platform; expected both, or --resume")
    options = RunOptions(
        engine=engine,
        repeat=repeat,
        hints=hints,
        keep_cache=keep_cache,
        predicted=predicted,
        timeout_s=timeout_s,
        emulate=emulate,
        inputs=inputs,
        results=results,
        checksums=checksums,
        recovery=Recovery(retries, delay_s, keep_going=keep_going),
    )
    with progress_bar() as progress:
        result = run_workflow(
            workflow, platform, changes, options=options, out=output, progress=progress
        )
    _show(result, *_OF_RUN, as_json)


@app.command()
def compare(
    workflow: Path = typer.Argument(help="A workflow, as for `run`."),
    platform: Path = typer.Option(
        ..., "--platform", "-p", help="A platform file with roles and store: {engine: …}."
    ),
    changes: list[str] = CHANGES,
    engine: str | None = _ENGINE,
    repeat: int = typer.Option(
        3, "--repeat", min=1, max=1000, help="Number of runs with each store."
    ),
    hints: str = typer.Option(
        "auto", "--hints", help="Hints of the workflow-aware store: auto or always."
    ),
    emulate: bool = _EMULATE,
    inputs: Path | None = _INPUTS,
    seed: int | None = typer.Option(None, "--seed", help="Seed of the order of the runs."),
    timeout_s: float = _TIMEOUT,
    output: Path | None = typer.Option(
        None, "-o", "--output", help="Directory for the page, figures and tables."
    ),
    as_json: bool = typer.Option(False, "--json", help="The result as one JSON object."),
) -> None:
    """Compare the default store with the workflow-aware store, measured and predicted.

    Default: no hints, tasks go to the next idle node. Workflow-aware: hints from the graph, tasks go to the
    node with their data. Runs alternate, in random order.
    """
    from penstock.parts.stores.workflow.compare import compare_stores
    from penstock.parts.stores.workflow.options import RunOptions

    options = RunOptions(
        engine=engine,
        repeat=repeat,
        hints=hints,
        timeout_s=timeout_s,
        emulate=emulate,
        inputs=inputs,
    )
    with progress_bar() as progress:
        result = compare_stores(
            workflow,
            platform,
            changes,
            options=options,
            seed=seed,
            out=output,
            progress=progress,
        )
    numbers = ("measured s", "from", "to", "predicted s", "from", "to")
    _show(result, ("store", "stage"), numbers, as_json)


def _show(
    result: Result | Comparison, names: Sequence[str], numbers: Sequence[str], as_json: bool
) -> None:
    if as_json:
        print(json.dumps(result.to_dict()))
        return
    table = plain_table(names, numbers)
    for row in result.rows():
        table.add_row(*row)
    show(table)
    for line in result.sentences():
        print(line)
    if result.page is not None:
        print(f"Wrote {result.page}.")
