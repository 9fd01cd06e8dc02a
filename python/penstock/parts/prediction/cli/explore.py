"""penstock explore: which hosts, split and store configuration; Pareto front of time, cost and energy."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from penstock.analyse.statistics.prediction_intervals import LEVEL, exact
from penstock.cli.shared.options import QUIET, SIZE_MODEL
from penstock.errors import BadInput
from penstock.terminal import progress_bar, table_of
from penstock.writing import atomic_folder

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from penstock.console import Console
    from penstock.parts.prediction.exploration.confirmation.confirm import Measured
    from penstock.parts.prediction.exploration.recommend import Recommendation
    from penstock.parts.prediction.exploration.run import Exploration
    from penstock.parts.prediction.exploration.simulate import Simulated
    from penstock.parts.prediction.exploration.space.space import Candidate, Space
    from penstock.parts.prediction.report import prediction_text
    from penstock.parts.prediction.workloads.workflow import Workload
    from penstock.platform.hosts import Platform

_WIDTH = 100


class Engine(StrEnum):
    """Search engine of the space."""

    auto = "auto"
    grid = "grid"
    rrs = "rrs"
    ga = "ga"


def command(
    workflow: Path = typer.Argument(
        ...,
        metavar="WORKFLOW",
        help="A workload: penstock's own description, WfFormat, or a traced run.",
    ),
    platform: Path = typer.Option(..., "--platform", "-p", help="A platform file."),
    vary: list[str] = typer.Option(
        [],
        "--vary",
        help="KEY=LEVELS, such as hosts.app.count=2..18, store.chunk=256KiB..4MiB*2, "
        "store.placement=striped,local or split=hosts.app:hosts.storage/19; repeatable.",
    ),
    space_file: Path | None = typer.Option(
        None, "--space", help="A YAML file of axes, constraints and objective."
    ),
    constraints: list[str] = typer.Option(
        [], "--constraint", help="Such as 'cost<=2 EUR' or 'makespan<=10min'; repeatable."
    ),
    objective: str | None = typer.Option(
        None,
        "--objective",
        help="time, cost, energy, or 'min EXPR' or 'max EXPR' over makespan_s, cost, energy_j, hosts; "
        "without it the Pareto front.",
    ),
    engine: Engine = typer.Option(
        Engine.auto,
        ("--engine"),
        help="grid: all configurations; rrs: recursive random search; ga: genetic algorithm.",
    ),
    budget: int | None = typer.Option(
        None, "--budget", min=1, help="Largest number of configurations to predict."
    ),
    seeds: int = typer.Option(
        20,
        "--seeds",
        min=1,
        max=1000,
        help="Largest number of seeds for configurations near the best.",
    ),
    search_seed: int = typer.Option(1, "--search-seed", min=0, help="Seed of the search."),
    level: float = typer.Option(LEVEL, "--level", help="Probability of the intervals."),
    overrides: list[str] = typer.Option(
        [], "--set", help="Change a value of the platform, such as store.replicas=2; repeatable."
    ),
    size_model: str | None = SIZE_MODEL,
    calibration: Path | None = typer.Option(
        None,
        "--calibration",
        help="Measured pairs for the intervals (default: the user's own store).",
    ),
    cluster: str | None = typer.Option(
        None,
        "--cluster",
        metavar="ADDRESS|local",
        help="Predict on the workers of a Dask scheduler, reached by TLS.",
    ),
    insecure: bool = typer.Option(False, "--insecure", help="Allow --cluster without TLS."),
    confirm: int | None = typer.Option(
        None,
        "--confirm",
        min=1,
        help="Measure the first N configurations on the platform's store, on virtual nodes.",
    ),
    repeat: int = typer.Option(
        3, "--repeat", min=1, max=1000, help="Number of measured runs of each with --confirm."
    ),
    threads: int = typer.Option(
        0, ("--threads"), min=0, help="Number of threads; 0: all cores. Does not change results."
    ),
    output: Path | None = typer.Option(
        None,
        "-o",
        "--output",
        help="Directory for evaluations, exploration.json, page and figures.",
    ),
    resume: bool = typer.Option(
        False, "--resume", help="Continue the exploration in the directory."
    ),
    as_json: bool = typer.Option(False, "--json", help="The result as one JSON object."),
    quiet: bool = QUIET,
) -> None:
    """Recommend the number of hosts, their roles and the store configuration for WORKFLOW, with intervals.

    Predicts the complete grid if that is cheap, else searches it. Compares the configurations near the best
    on common seeds until they differ significantly. Recommends one, or lists those to measure.
    """
    from penstock.analyse.statistics.calibration import pairs_for
    from penstock.parts.prediction.exploration.calibrated import calibration_of
    from penstock.parts.prediction.exploration.document import document
    from penstock.parts.prediction.exploration.recommend import recommend
    from penstock.parts.prediction.exploration.record import Record
    from penstock.parts.prediction.exploration.request import hinted, plan_of, question_of
    from penstock.parts.prediction.exploration.run import Settings, check, explore
    from penstock.parts.prediction.exploration.space.refused import without_refused
    from penstock.parts.prediction.exploration.space.space import make_space, parse_axis
    from penstock.parts.prediction.exploration.space.space_file import SpaceFile, read_space_file
    from penstock.parts.prediction.workloads.engine_hints import supported
    from penstock.parts.prediction.workloads.read import read_workload
    from penstock.parts.prediction.workloads.sizes import SizeModel
    from penstock.platform.engine import require_supported
    from penstock.platform.hosts import load_platform

    exact(level)
    if resume and output is None:
        raise BadInput("--resume continues in a directory; expected -o DIR")
    if output is not None and output.exists() and not output.is_dir():
        raise BadInput(f"{output}: found a file; expected a directory, or nothing yet")
    file = SpaceFile(()) if space_file is None else read_space_file(space_file)
    space = make_space([*file.axes, *(parse_axis(text) for text in vary)])
    question = question_of(space, file, constraints, objective)
    model = None if size_model is None else SizeModel.parse(size_model)
    where = load_platform(platform, overrides)
    require_supported(where)
    space = without_refused(space, where)
    workload, where = supported(read_workload(workflow, size_model=model), where)
    calibrated = calibration_of(pairs_for(calibration, where.name), level)
    settings = Settings(engine.value, budget, seeds, search_seed, level)
    predictor = Predictor(threads, cluster, insecure, hinted(workload, where, space))
    with _evaluator(workload, where, space, predictor) as by:
        with _Bar(quiet or as_json) as bar:
            record = Record(space, by, output, bar.advanced)
            check(question, settings, space, by)
            resumed = record.open(plan_of(workload, where, space), resume)
            try:
                exploration = explore(record, question, settings, bar, calibrated)
            finally:
                record.close()
        exploration.resumed = resumed
        if confirm is not None and not exploration.stopped:
            runs = Runs(workflow, platform, overrides, confirm, repeat)
            _confirm(exploration, by, runs, output, quiet or as_json)
    recommendation = recommend(exploration)
    plain = json.dumps(document(exploration, recommendation), allow_nan=False)
    written = (
        []
        if output is None
        else _write(exploration, recommendation, workload, where, plain, output)
    )
    if as_json:
        print(plain)
    else:
        _show(exploration, recommendation)
        for path in written:
            print(f"Wrote {path}.")
    confirmation = exploration.confirmation
    if exploration.stopped or (confirmation is not None and confirmation.stopped):
        again = f" Continue with --resume -o {output}." if output is not None else ""
        what = "predicted" if exploration.stopped else "measured"
        print(f"penstock: stopped; the result covers what was {what}.{again}", file=sys.stderr)
        raise typer.Exit(130)


@dataclass(frozen=True)
class Predictor:
    """Place of the predictions, and the workload of each level of the hints."""

    threads: int
    cluster: str | None
    insecure: bool
    hinted: Mapping[str, Workload]


@dataclass(frozen=True)
class Runs:
    """Measured runs: their workflow, platform and changes; number of configurations, and of runs of each."""

    workflow: Path
    platform: Path
    changes: Sequence[str]
    configurations: int
    repeat: int


@contextlib.contextmanager
def _evaluator(
    workload: Workload, platform: Platform, space: Space, by: Predictor
) -> Iterator[Simulated]:
    from penstock.parts.prediction.exploration.simulate import Simulated

    if by.cluster is None:
        yield Simulated(workload, platform, space, by.threads, by.hinted)
        return
    from penstock.host.processes.dask_cluster import connected
    from penstock.parts.prediction.exploration.cluster import Clustered

    # errors in the input are reported before anything starts
    Simulated(workload, platform, space, hinted=by.hinted)
    with connected(by.cluster, insecure=by.insecure) as client:
        yield Clustered(workload, platform, space, client, by.hinted)


def _confirm(
    exploration: Exploration, by: Simulated, runs: Runs, output: Path | None, silent: bool
) -> None:
    """Measure the first configurations, as they were predicted, on the store of the platform."""
    from penstock.parts.prediction.exploration.confirmation.confirm import (
        MeasuredRuns,
        confirm,
        first_configurations,
    )
    from penstock.plugins import FUNCTIONS
    from penstock.scratch import Scratch

    if "measure-configuration" not in FUNCTIONS:
        raise BadInput("--confirm: found no stores; expected an installation with them")
    on_store = FUNCTIONS.load("measure-configuration")
    chosen = first_configurations(exploration, runs.configurations)
    bar = contextlib.nullcontext(None) if silent else progress_bar()
    with Scratch("explore") as folder, bar as progress:

        def measure(candidate: Candidate, repeat: int, measured: Measured) -> None:
            workflow = folder / "workload.json"
            workflow.write_text(json.dumps(by.workload_of(candidate).to_dict()), encoding="utf-8")
            levels = [f"{key}={value}" for key, value in by.platform_values(candidate).items()]
            number = f"configuration {chosen.index(candidate) + 1} of {len(chosen)}"

            def report(step: str, done: int, total: int) -> None:
                if progress is not None:
                    progress(f"{number}: {step}", done, total)

            inputs = runs.workflow.absolute().parent
            changes = [*runs.changes, *levels]
            on_store(workflow, runs.platform, changes, inputs, repeat, measured, report)

        exploration.confirmation = confirm(
            exploration, chosen, runs.repeat, measure, MeasuredRuns(output)
        )


def _write(
    exploration: Exploration,
    recommendation: Recommendation,
    workload: Workload,
    platform: Platform,
    plain: str,
    output: Path,
) -> list[Path]:
    from penstock.parts.prediction.report.exploration import Named, write_figures, write_page

    with atomic_folder(output) as draft:
        (draft / "exploration.json").write_text(plain + "\n", encoding="utf-8")
        page = draft / "exploration.html"
        write_page(exploration, recommendation, Named(workload.name, platform.name), page)
        write_figures(exploration, recommendation, draft / "figures")
    return [output / n for n in ("evaluations.parquet", "exploration.json", "exploration.html")]


def _show(exploration: Exploration, recommendation: Recommendation) -> None:
    from penstock.console import Console
    from penstock.parts.prediction.report import exploration_text

    console = Console(width=_WIDTH)

    def say(text: str) -> None:
        console.print(text)

    answer = exploration_text.answer(exploration, recommendation)
    print("\n".join([*answer.lines(_WIDTH), ""]))
    if exploration.confirmation is not None:
        _table(console, exploration_text.confirmed_table(exploration))
    front = exploration_text.front_table(exploration, recommendation.candidate, 12)
    if len(front.rows) > 1:
        _table(console, front)
    if exploration.selection is not None and len(exploration.selection.contenders) > 1:
        _table(console, exploration_text.compared_table(exploration, 6))
    if exploration.admissible:
        _table(console, exploration_text.matters_table(exploration))
        for table in exploration_text.level_tables(exploration, 8)[:3]:
            _table(console, table)
    if recommendation.candidate is not None and recommendation.rule:
        say(f"Rule: {recommendation.rule}.")
    for note in exploration_text.further_notes(answer, recommendation):
        say(note)
    for note in exploration_text.assumptions(exploration):
        say(note)
    say(f"Looked at: {exploration_text.effort(exploration)}.")


def _table(console: Console, table: prediction_text.Table) -> None:
    console.print(table_of(table.columns, table.rows, table.title))
    console.print()


class _Bar:
    """Progress bar of stages and evaluations on a terminal's stderr, with the remaining time."""

    def __init__(self, quiet: bool) -> None:
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        if not quiet and sys.stderr.isatty():
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TimeRemainingColumn,
            )

            from penstock.console import Console, TextColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )

    def __enter__(self) -> _Bar:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def stage(self, what: str, total: int | None) -> None:
        if self._bar is not None:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(what, total=total)

    def advanced(self, n: int) -> None:
        """Advance by n."""
        if self._bar is not None and self._task is not None:
            self._bar.advance(self._task, n)
